"""Every example runs, as a program and through its main()."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(file.stem for file in EXAMPLES.glob("*.py") if not file.stem.startswith("demo"))

PRINTS = {
    "approval": "expense-2: nobody approved it within 20ms",
    "heartbeat": "20 rows imported at attempt 2",
    "local_activity": "paid 33.60 EUR",
    "order": "order-2: sorry: no unicorn left",
    "pipeline": "{'a': 3, 'b': 3, 'c': 5, 'check': 3}",
    "nightly": "schedule:nightly:backfill:2027-03-28T01:00:00Z -> corner shop: 3 sales on 2027-03-28",
    "poller": "parcel-1 arrived after 8 looks",
    "shipments": "signed by Robin",
    "versions": "started after it:           Hello Professor Ada",
}


FAILING = {"approval", "order", "shipments"}  # on purpose


def _ends_a_log(line: str) -> bool:
    """A line of a traceback, or the exception at its end."""
    heads = ("Traceback (most recent call last):", "The above exception was", "During handling of", '"""', "")
    return line in heads or line.startswith(heads[1:3]) or bool(re.match(r"[\w.]+(Error|Traceback|Exception)\b", line))


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


@pytest.mark.parametrize("name", PROGRAMS)
def test_main_runs_and_prints_its_result(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    importlib.import_module(name).main()
    assert PRINTS[name] in capsys.readouterr().out


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_is_a_program_of_its_own(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / f"{name}.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if name in FAILING:
        assert "raise " in done.stderr  # what fails is logged with its traceback, and nothing else is
        assert all(
            line.startswith(("  ", "activity ", "workflow ")) or _ends_a_log(line) for line in done.stderr.splitlines()
        )
    else:
        assert done.stderr == ""
    assert PRINTS[name] in done.stdout
    assert list(tmp_path.iterdir()) == [], "an example leaves nothing behind"


def test_the_tour_of_the_fastapi_example_answers_as_it_says(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES / "fastapi_shop", tmp_path / "shop", ignore=shutil.ignore_patterns("*.db*"))
    for again in (False, True):
        done = subprocess.run(
            [sys.executable, "-W", "error", "tour.py"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said = re.findall(r"# -> (.*)$", (folder / "tour.py").read_text("utf-8"), re.M)
        if again:  # the order is there already, and has ended
            printed = done.stdout.splitlines()
            assert "workflow 'order-7' has already been started" in printed[0]
            said[0], said[2], said[3] = printed[0], "receipt for 7 over 420.00", "200"
        assert done.stdout.splitlines() == said


def test_the_demo_proves_what_it_claims(tmp_path: Path) -> None:
    """About seven seconds: three real kills, three restarts."""
    done = subprocess.run(
        [sys.executable, "-m", "backstay", "demo"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("is dead (signal 9)") == 3
    assert "PROVEN: 3 kills, 5 effects, each happened exactly once" in done.stdout
    assert not list(tmp_path.iterdir())
