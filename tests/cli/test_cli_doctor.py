"""`dw doctor` on a file: each check finds the fault that the test really makes, and names the fix."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from dw_support import DW, PATIENCE, Place, until

from backstay import Backstay, WorkflowFailed, sleep, workflow
from backstay.cli.doctor import files, machine, postgresql, server
from backstay.cli.doctor.command import STYLES

Found = dict[str, dict[str, Any]]


@workflow
def asleep() -> None:
    sleep("1h")


def checks(text: str) -> Found:
    return {one["check"]: one for one in json.loads(text)["checks"]}


@pytest.fixture
def doctor(place: Place) -> Callable[..., Found]:
    """The checks of `app.db`, a database with an open run that no process works at."""
    with Backstay(place.directory / "app.db", [asleep]) as app:
        app.start(asleep, "bed-1")

    def examined(*arguments: str, **environment: str) -> Found:
        return checks(place.ask("doctor", "--db", "app.db", "--json", *arguments, **environment).stdout)

    return examined


def broken(found: Found) -> list[str]:
    return [name for name, one in found.items() if one["status"] in ("warning", "error")]


def test_nothing_is_wrong_with_a_database_that_a_process_runs(doctor: Callable[..., Found], place: Place) -> None:
    with Backstay(place.directory / "app.db", [asleep]):
        found = doctor()
        assert broken(found) == []
        assert list(found) == [*machine.NAMES, *files.NAMES, "engine", "causes"]
        told = place.ask("doctor", "--db", "app.db")
    assert (told.returncode, told.stdout.splitlines()[-1]) == (0, "12 checks, 0 with something to fix")


def test_no_process_runs_the_database(doctor: Callable[..., Found], place: Place) -> None:
    found = doctor()
    assert broken(found) == ["engine"]
    assert found["engine"]["status"] == "error"
    assert "bed-1 and others wait" in found["engine"]["message"]
    told = place.ask("doctor", "--db", "app.db")
    assert told.returncode == 1
    assert "fix: start your program, `dw server` or `dw dev` on it" in told.stdout
    with Backstay(place.directory / "app.db", [asleep]) as app:
        app.handle(asleep, "bed-1").terminate("done")
    assert doctor()["engine"]["status"] == "warning"
    assert place.ask("doctor", "--db", "app.db").returncode == 0
    assert place.ask("doctor", "--db", "app.db", "--strict").returncode == 1


@workflow(type="decline")
def declined() -> None:
    raise ValueError("no")


def test_what_the_first_screen_would_say_is_said_with_its_action(doctor: Callable[..., Found], place: Place) -> None:
    doctor()
    with Backstay(place.directory / "app.db", [declined]) as app:
        for number in range(20):
            with pytest.raises(WorkflowFailed):
                app.execute(declined, f"d-{number}")
        until(lambda: "20 of 20 decline runs failed" in doctor().get("failing", {}).get("message", ""))
        found = doctor()
    assert broken(found) == ["failing"]
    assert found["failing"]["status"] == "error"
    assert "dw list --status failed --type decline" in found["failing"]["fix"]


def test_the_file_is_not_there(place: Place) -> None:
    found = checks(place.ask("doctor", "--db", "none.db", "--json").stdout)
    assert broken(found) == ["file"]
    assert [name for name, one in found.items() if one["status"] == "skipped"] == list(files.NAMES[1:])
    assert "`dw dev FILE`" in found["file"]["fix"]
    assert not (place.directory / "none.db").exists()


def test_the_file_has_a_second_name_or_is_a_directory(doctor: Callable[..., Found], place: Place) -> None:
    os.link(place.directory / "app.db", place.directory / "same.db")
    assert "has 2 names (hard links)" in doctor()["file"]["message"]
    assert "is a directory" in checks(place.ask("doctor", "--db", ".", "--json").stdout)["file"]["message"]


def _obey_permissions() -> None:
    """Even root, in the process that this one becomes."""
    if os.geteuid() == 0:
        drop_from_bounding_set, dac_override = 24, 1
        assert ctypes.CDLL(None).prctl(drop_from_bounding_set, dac_override, 0, 0, 0) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="how root obeys permissions differs")
def test_this_user_may_not_write_the_file(doctor: Callable[..., Found], place: Place) -> None:
    doctor()
    (place.directory / "app.db").chmod(0o400)
    found = checks(ran(place, before=_obey_permissions))
    assert broken(found) == ["file"]
    assert "app.db is not writable" in found["file"]["message"]


def ran(place: Place, before: Callable[[], None]) -> str:
    """The answer of a process that does something before it becomes `dw`."""
    command = [*DW, "doctor", "--db", "app.db", "--json"]
    done = subprocess.run(
        command, cwd=place.directory, capture_output=True, text=True, preexec_fn=before, timeout=PATIENCE, check=False
    )
    return done.stdout


def test_others_may_read_the_file(doctor: Callable[..., Found], place: Place) -> None:
    (place.directory / "app.db").chmod(0o644)
    found = doctor()
    assert broken(found) == ["permissions", "engine"]
    subprocess.run(found["permissions"]["fix"], shell=True, cwd=place.directory, check=True)
    assert broken(doctor()) == ["engine"]


def test_the_disk_has_too_little_space(doctor: Callable[..., Found]) -> None:
    found = doctor("--free", str(1 << 40))
    assert found["disk"]["status"] == "error"
    assert "less than 1,099,511,627,776" in found["disk"]["message"]


def test_the_clock_was_set_back(doctor: Callable[..., Found], place: Place) -> None:
    later = (place.directory / "app.db").stat().st_mtime + 7200
    os.utime(place.directory / "app.db", (later, later))
    found = doctor()
    assert broken(found) == ["clock", "engine"]
    assert "its clock was set back" in found["clock"]["message"]


def test_the_schema_is_newer_older_or_of_another_program(doctor: Callable[..., Found], place: Place) -> None:
    def set_(pragma: str) -> None:
        with closing(sqlite3.connect(place.directory / "app.db")) as file:
            file.execute(f"pragma {pragma}")

    set_("user_version = 900")
    found = doctor()
    assert (found["schema"]["status"], found["pages"]["status"]) == ("error", "skipped")
    assert "schema 900" in found["schema"]["message"]
    set_("user_version = 1")
    found = doctor()
    assert (found["schema"]["status"], "engine" in found) == ("warning", False)
    assert "has schema 1, this release uses" in found["schema"]["message"]
    with closing(sqlite3.connect(place.directory / "app.db")) as file:
        assert file.execute("pragma user_version").fetchone() == (1,), "it was not brought up to date"
    set_("application_id = 1")
    assert "belongs to another program" in doctor()["schema"]["message"]
    place.write("app.db", "this is no database " * 100)
    for name in ("app.db-wal", "app.db-shm"):
        (place.directory / name).unlink(missing_ok=True)
    assert "file is not a database" in doctor()["schema"]["message"]


def test_pages_of_the_file_are_damaged(doctor: Callable[..., Found], place: Place) -> None:
    with closing(sqlite3.connect(place.directory / "app.db")) as file:
        file.execute("pragma wal_checkpoint(truncate)")
        ((page,),) = file.execute("select rootpage from sqlite_master where name = 'event_run'").fetchall()
        ((size,),) = file.execute("pragma page_size").fetchall()
    with (place.directory / "app.db").open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    found = doctor()
    assert found["pages"]["status"] == "error"
    assert found["write lock"]["status"] == "ok"


def test_another_program_holds_the_write_lock(
    doctor: Callable[..., Found], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PATIENCE", 0.1)
    with closing(sqlite3.connect(place.directory / "app.db", isolation_level=None)) as other:
        other.execute("begin immediate")
        found = doctor()
    assert found["write lock"]["status"] == "error"
    assert "lsof app.db" in found["write lock"]["fix"]


def test_a_setting_in_the_environment_is_wrong(doctor: Callable[..., Found]) -> None:
    found = doctor(DW_PROT="1")
    assert broken(found) == ["settings", "engine"]
    assert "did you mean DW_PORT" in found["settings"]["message"]


def test_packages_are_missing(doctor: Callable[..., Found], place: Place) -> None:
    doctor()
    missing = place.directory / "missing"
    missing.mkdir()
    (missing / "asyncpg.py").write_text("raise ModuleNotFoundError('no asyncpg', name='asyncpg')\n")
    path = os.pathsep.join([str(missing), os.environ.get("PYTHONPATH", "")])
    found = checks(place.dw("doctor", "--db", "app.db", "--json", PYTHONPATH=path).stdout)
    assert found["packages"]["status"] == "ok", "a file needs no driver"
    found = checks(place.dw("doctor", "--db", "postgresql://x@127.0.0.1:1/y", "--json", PYTHONPATH=path).stdout)
    assert (found["packages"]["status"], found["packages"]["fix"]) == ("error", "pip install 'backstay[postgresql]'")
    assert list(found) == [*machine.NAMES]


def test_the_system_allows_few_descriptors(doctor: Callable[..., Found], place: Place) -> None:
    doctor()
    told = ran(place, before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)))
    found = checks(told)["descriptors"]
    assert found["status"] == "warning"
    assert "may open 256 files and connections; max_connections is 10,000" in found["message"]


def test_the_manual_names_every_check() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "doctor.md").read_text()
    names = {*machine.NAMES, *files.NAMES, *postgresql.NAMES, *server.NAMES, "engine", "causes"}
    assert [name for name in sorted(names) if f"| `{name}` |" not in page] == []
    assert sys.modules["backstay.cli.doctor.results"].Status.__args__ == tuple(STYLES)
