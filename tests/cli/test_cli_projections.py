"""`dw system`: stored views of a file and of a server are rebuilt, and the certificate is asked for."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from typing import Any

import pytest
from dw_support import DW, PATIENCE, Place

from backstay import Backstay, activity, sleep, workflow


@activity
def charge(cents: int) -> str:
    return f"paid {cents}"


@workflow
def bought(cents: int) -> str:
    return charge(cents)


@workflow
def asleep() -> None:
    sleep("1h")


@pytest.fixture
def shop(place: Place) -> Place:
    with Backstay(str(place.directory / "shop.db"), [bought, asleep, charge]) as app:
        app.execute(bought, "order-1", 42)
        app.start(asleep, "bed-1")
    place.ask("rebuild-projections", "--db", "shop.db")
    return place


def rebuilt(
    shop: Place, *options: str, spelling: tuple[str, ...] = ("system", "rebuild-projections")
) -> dict[str, Any]:
    done = shop.ask(*spelling, *options, "--json", "--db", "shop.db")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def sql(shop: Place, statement: str) -> None:
    with sqlite3.connect(shop.directory / "shop.db") as connection:
        assert connection.execute(statement).rowcount > 0
    connection.close()


@pytest.mark.contract("PROJ-06", "PROJ-07", "PROJ-08", "PROJ-09")
def test_what_is_missing_or_wrong_in_a_file_is_rebuilt_whatever_the_spelling(shop: Place) -> None:
    assert rebuilt(shop, "--needs-rebuild")["matched"] == 0
    sql(shop, "delete from workflow_run_summaries where state = 'sleeping'")
    sql(shop, "update workflow_run_timeline_entries set body = x'00'")
    assert rebuilt(shop, "--missing", "--dry-run")["matched"] == 1
    assert rebuilt(shop, "--missing", spelling=("workflow:v2:rebuild-projections",))["rebuilt"] == 1
    assert rebuilt(shop, "--needs-rebuild", spelling=("rebuild-projections",))["rebuilt"] == 1
    assert rebuilt(shop, "--needs-rebuild")["matched"] == 0
    for table in ("summaries", "waits", "timeline_entries", "timer_entries"):
        sql(shop, f"delete from workflow_run_{table}")
    assert rebuilt(shop, "--needs-rebuild")["rebuilt"] == 2
    assert rebuilt(shop, "--needs-rebuild")["matched"] == 0


@pytest.mark.contract("PROJ-07")
def test_views_of_runs_that_are_gone_are_pruned(shop: Place) -> None:
    sql(shop, "update workflow_run_summaries set run = 7 where state = 'sleeping'")
    assert rebuilt(shop, "--prune-stale", "--needs-rebuild") | {"failures": []} == {
        "looked_at": 2,
        "matched": 1,
        "rebuilt": 1,
        "failed": 0,
        "pruned": 1,
        "dry_run": False,
        "failures": [],
    }


def test_an_unknown_run_is_named(shop: Place) -> None:
    said = shop.ask("system", "rebuild-projections", "01NOBODY", "--db", "shop.db")
    assert said.returncode == 1
    assert "there is no run '01NOBODY'" in said.stderr


def test_the_certificate_of_a_file_is_proven_now(shop: Place) -> None:
    proven = shop.ask("system", "liveness", "--db", "shop.db")
    assert (proven.returncode, proven.stdout.splitlines()[0]) == (0, "1 open run, 0 stranded, proven 0 s ago")
    sql(shop, "update workflow set next_wake = null where workflow_id = 'bed-1'")
    proven = shop.ask("system", "liveness", "--db", "shop.db")
    assert proven.returncode == 1
    assert "stranded: bed-1; restore it with: dw repair bed-1" in proven.stderr


@pytest.mark.contract("REPAIR-26")
def test_a_pass_restores_what_runs_of_a_database_miss(shop: Place) -> None:
    def asked(*options: str) -> tuple[int, str]:
        done = shop.ask("repair-pass", *options, "--db", "shop.db")
        return done.returncode, done.stdout + done.stderr

    assert asked() == (0, "nothing to repair\n")
    assert shop.ask("workflow:v2:repair-pass", "--db", "shop.db").stdout == "nothing to repair\n"
    sql(shop, "update workflow set next_wake = null where workflow_id = 'bed-1'")
    assert shop.ask("system", "liveness", "--db", "shop.db").returncode == 1
    assert asked("--namespace", "elsewhere") == (0, "nothing to repair\n")
    assert asked() == (0, "1 candidates, 1 repaired\n")
    assert shop.ask("system", "liveness", "--db", "shop.db").returncode == 0
    assert asked() == (0, "nothing to repair\n")


@pytest.mark.contract("REPAIR-26")
def test_a_loop_repairs_a_database_until_it_is_stopped(shop: Place) -> None:
    sql(shop, "update workflow set next_wake = null where workflow_id = 'bed-1'")
    command = [*DW, "repair-pass", "--loop", "--every", "0.05", "--db", "shop.db"]
    with subprocess.Popen(command, cwd=shop.directory, stdout=subprocess.PIPE, text=True) as loop:
        assert loop.stdout is not None
        assert loop.stdout.readline() == "checks shop.db every 0.05 s\n"
        assert loop.stdout.readline() == "1 candidates, 1 repaired\n"
        loop.terminate()
        assert loop.wait(PATIENCE) == 0
