"""Every Python block of the documentation runs, and prints what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from . import server
from .pages import DOCS, PAGES, ROOT, name_of, printed, programs, write

HERE = str(Path(__file__).parent)
STEP_BY_STEP = {"docs/tutorial/order-desk.md"}  # run with their commands in between, by test_transcripts

CASES = [
    pytest.param(program, id=f"{name_of(page)}: {section or 'top'}")
    for page in PAGES
    if name_of(page) not in STEP_BY_STEP
    for section, program in programs(page).items()
]


def run(program: list[str], directory: Path, *command: str, **environment: str) -> None:
    write(program, directory)
    # Code that cannot replay is shown on purpose in one place, and refused there; anywhere else a warning is an error.
    done = subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == printed(program)


PLUGIN = ("-p", "no:backstay", "-p", "backstay.contrib.pytest_plugin")  # here it may be installed, or not


def run_tests(program: list[str], directory: Path) -> None:
    """Run the files of tests among the files of a program."""
    if not any(block.startswith("# test_") for block in program):
        return
    write(program, directory)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", *PLUGIN],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("program", CASES)
def test_a_program_of_the_docs_runs_and_prints_what_it_says(program: list[str], tmp_path: Path) -> None:
    run(program, tmp_path, "program.py")
    run_tests(program, tmp_path)


# The guides about workflow code, whose programs must also run with a server between client and worker.
OVER_HTTP = ("write-workflows", "concurrency", "children", "activities", "messages", "cancel-and-undo", "long-running")
OVER_HTTP_CASES = [
    pytest.param(program, id=f"{page}: {section}")
    for page in (*OVER_HTTP, "find-runs", "from-temporal", "from-celery", "ai-agent", "data-pipeline")
    for section, program in programs(DOCS / "how-to" / f"{page}.md").items()
]


@pytest.mark.parametrize("program", OVER_HTTP_CASES)
def test_a_program_of_the_docs_prints_the_same_over_http(program: list[str], tmp_path: Path) -> None:
    start = "import runpy, over_http; runpy.run_path('program.py', run_name='__main__')"
    run(
        program,
        tmp_path,
        "-c",
        start,
        PYTHONPATH=os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])]),
        **server.shared(),
    )


def test_every_guide_has_a_program() -> None:
    without = {"doctor", "postgresql", "operate", "waterline"}  # they are about commands, files and a page
    guides = sorted((DOCS / "how-to").glob("*.md"))
    assert {page.stem for page in guides if not programs(page)} == without


@pytest.mark.parametrize(("page", "example"), [("django", "django_shop"), ("fastapi", "fastapi_shop")])
def test_a_page_shows_the_files_of_its_example(page: str, example: str) -> None:
    shown = [block for program in programs(DOCS / "how-to" / f"{page}.md").values() for block in program]
    assert shown
    for block in shown:
        named = re.match(r"# ([\w/]+\.py)\n", block)
        file, text = (named[1], block[named.end() :]) if named else ("tour.py", block)
        assert text == (ROOT / "examples" / example / file).read_text("utf-8"), file
