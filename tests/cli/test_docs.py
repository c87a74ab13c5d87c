"""The documentation is true: its programs run and print what it says.

The Python blocks of one `##` section are one program, in order. A comment `# -> text` says what a line prints.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MUST_HAVE_PROGRAMS = ("README.md", "authoring.md")

_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PRINTS = re.compile(r"# -> (.*)$", re.MULTILINE)
_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


def programs(page: Path) -> dict[str, str]:
    parts = _SECTION.split(page.read_text(encoding="utf-8"))
    sections = {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}
    found = {name: "\n\n".join(_BLOCK.findall(text)) for name, text in sections.items()}
    return {name: program for name, program in found.items() if program}


CASES = [
    pytest.param(program, id=f"{page.name}: {section or 'top'}")
    for page in PAGES
    for section, program in programs(page).items()
]


@pytest.mark.parametrize("program", CASES)
def test_the_program_runs_and_prints_what_it_says(program: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(program, encoding="utf-8")
    # `careless` code is shown on purpose in one place, and refused there; anywhere else a warning is an error.
    done = subprocess.run(
        [sys.executable, "-W", "error", file.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == _PRINTS.findall(program)


ONLY_EMBEDDED = {
    "Changing the code of open runs": "replay() reads the file of an app that is not open; a worker has none",
}
OVER_HTTP = [
    pytest.param(program, id=section)
    for section, program in programs(ROOT / "docs" / "authoring.md").items()
    if "Backstay(" in program and section not in ONLY_EMBEDDED
]


@pytest.mark.parametrize("program", OVER_HTTP)
def test_the_program_prints_the_same_with_a_server_in_between(program: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    start = "import runpy, over_http; runpy.run_path('program.py', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", start],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == _PRINTS.findall(program)


def test_what_cannot_run_over_http_is_still_there() -> None:
    assert ONLY_EMBEDDED.keys() <= programs(ROOT / "docs" / "authoring.md").keys()
    assert len(OVER_HTTP) > 10


def test_the_pages_that_teach_have_programs() -> None:
    for page in PAGES:
        if page.name in MUST_HAVE_PROGRAMS:
            assert programs(page), page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(_BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if "://" not in target:
            file, _, anchor = target.partition("#")
            there = (page.parent / file) if file else page
            if there.name == "architecture.md" and not there.exists():
                continue
            assert there.exists(), f"{page.name}: {target}"
            if anchor:
                titles = re.findall(r"^#+ (.+)$", there.read_text(encoding="utf-8"), re.MULTILINE)
                assert anchor in [title.lower().replace(" ", "-") for title in titles], target


def test_the_changelog_has_the_sections_of_its_format() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]" in text
    assert "### Added" in text


def test_the_flags_of_the_server_are_those_that_its_page_names() -> None:
    from backstay.cli.server import command

    page = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    sentence = page.partition("Those that one changes by hand are flags")[2].partition(".")[0]
    flags = {option for parameter in command.params for option in parameter.opts}
    assert set(re.findall(r"`(--[a-z-]+)`", sentence)) == flags - {"--config", "--verbose"}
