"""`dw store copy`: what it says when it is done, and when it is not."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from dw_support import Place, mistaken

from backstay import Backstay, sleep, workflow
from backstay.cli.progress import ProgressLine


@workflow
def asleep() -> None:
    sleep("1h")


@pytest.fixture
def app(place: Place) -> str:
    """The name of a database with three open runs."""
    with Backstay(place.directory / "app.db", [asleep]) as started:
        for n in range(3):
            started.start(asleep, f"bed-{n}")
    return "app.db"


def test_a_file_is_copied_to_a_server_and_compared_again(place: Place, app: str, postgresql_url: str) -> None:
    done = place.ask("store", "copy", f"sqlite:{app}", postgresql_url)
    assert done.returncode == 0, done
    assert "3 instances copied and compared in " in done.stdout
    assert "none on the source" in done.stdout
    assert place.ask("list", "--db", postgresql_url, "--count").stdout == "3\n"
    again = place.ask("store", "copy", "--verify-only", app, postgresql_url)
    assert (again.returncode, again.stdout.partition(",")[0]) == (0, "3 instances")
    assert "is not empty" in mistaken(place.ask("store", "copy", app, postgresql_url))


def test_differences_are_told_with_their_workflows_and_exit_code_1(place: Place, app: str) -> None:
    assert place.ask("store", "copy", app, "copy.db").returncode == 0
    with closing(sqlite3.connect(place.directory / "copy.db")) as file, file:
        file.execute("update run set status = 'lost'")
    found = place.ask("store", "copy", "--verify-only", app, "copy.db")
    assert found.returncode == 1
    assert "  workflow bed-1: its runs differ\n" in found.stderr
    assert found.stderr.endswith("dw: 3 differences; copy.db is not the same database\n")


def test_a_damaged_history_is_named_and_what_to_do_about_it(place: Place, app: str) -> None:
    with closing(sqlite3.connect(place.directory / app)) as file, file:
        file.execute("update event set body = x'00' where sequence = 2")
    refused = place.ask("store", "copy", app, "copy.db")
    assert refused.returncode == 1
    assert refused.stderr.count(", event 2: its checksum does not match\n") == 3
    assert refused.stderr.splitlines()[-1] == (
        "dw: 3 workflows of the source are damaged; restore it from a backup, or copy them as they are with --with-damaged"
    )
    done = place.ask("store", "copy", "--with-damaged", app, "copy.db")
    assert done.returncode == 0
    assert "damaged, and the same on both sides:" in done.stderr


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("nowhere.db", "copy.db"), "there is no database nowhere.db; name a file that exists"),
        (("--verify-only", "app.db", "nowhere.db"), "there is no database nowhere.db"),
        (("app.db", "mysql://ann:secret@db/x"), "'mysql://ann@db/x' is not a database that Backstay supports"),
        (("app.db", "postgresql://ann:secret@/db?host=/nowhere"), "the server cannot be reached"),
        (("app.db", "no/such/copy.db"), "the directory no/such does not exist"),
        (("app.db", "shop.py"), "is not a SQLite database"),
    ],
)
def test_a_mistake_is_one_line(place: Place, app: str, given: tuple[str, ...], says: str) -> None:
    said = mistaken(place.ask("store", "copy", *given))
    assert says in said
    assert "secret" not in said
    assert not (Path(place.directory) / "nowhere.db").exists()


def test_progress_says_how_fast_and_how_long(capsys: pytest.CaptureFixture[str]) -> None:
    now = iter([0.0, 0.0, 0.5, 6.0, 7.0, 12.0, 12.0, 14.0])
    progress = ProgressLine("instances", lambda: next(now))
    for done in (1000, 2000, 13000, 15000, 25000):
        progress("copied", done, 26000)
    progress("compared", 13000, 26000)
    progress("compared", 26000, 26000)
    progress.end()
    assert capsys.readouterr().err.splitlines() == [
        "copied 13,000 of 26,000 instances (50 %), 2,000/s, 6 s left",
        "copied 25,000 of 26,000 instances (96 %), 2,000/s, 0 s left",
        "compared 26,000 of 26,000 instances (100 %), 6,500/s",
    ]
