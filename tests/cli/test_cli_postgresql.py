"""`dw` on a PostgreSQL database: reading beside its engine, starting, and saying what is wrong without a password."""

from __future__ import annotations

import asyncio
import json

import asyncpg
import pytest
from dw_support import Place, mistaken, until

from backstay import Backstay, activity, sleep, workflow
from backstay.store.postgresql.connection import address


@activity
def charge(cents: int) -> str:
    return f"paid {cents}"


@workflow
def bought(cents: int) -> str:
    return charge(cents)


@workflow
def asleep() -> None:
    sleep("1h")


def test_lists_descriptions_and_histories_are_read_from_a_server(place: Place, postgresql_url: str) -> None:
    with Backstay(postgresql_url, [bought, asleep, charge]) as app:
        assert app.execute(bought, "order-1", 42) == "paid 42"
        app.start(asleep, "bed-1")
        listed = place.ask("list", "--db", postgresql_url)
        assert "order-1" in listed.stdout
        assert "bed-1" in listed.stdout
        described = place.ask("describe", "bed-1", "--db", postgresql_url)
        assert "timer" in described.stdout
        told = place.ask("history", "order-1", DW_DB=postgresql_url)
        assert "paid 42" in told.stdout
        events = place.ask("history", "order-1", "--json", "--db", postgresql_url).stdout.splitlines()
        assert [json.loads(line)["event_type"] for line in events][-1] == "WorkflowCompleted"
        assert app.is_engine, "reading took nothing from it"
        assert place.ask("cancel", "bed-1", "--db", postgresql_url).returncode == 0
        assert app.describe("bed-1").status == "cancelled"


def test_a_database_without_our_schema_is_left_as_it_is(place: Place, postgresql_url: str) -> None:
    said = mistaken(place.ask("list", "--db", postgresql_url))
    assert "has no schema test_" in said
    again = mistaken(place.ask("list", "--db", postgresql_url))
    assert again == said


def test_a_server_that_cannot_be_reached_is_one_line_without_a_password(place: Place) -> None:
    said = mistaken(place.ask("list", "--db", "postgresql://ann:secret@/db?host=/nowhere"))
    assert "postgresql://ann@/db: " in said
    assert "the server cannot be reached" in said
    assert "secret" not in said


def execute(url: str, statement: str) -> None:
    """Change rows behind the engine's back."""

    async def run() -> None:
        connection = await asyncpg.connect(address(url).dsn)
        try:
            await connection.execute(f"set search_path to {address(url).schema}")
            assert (await connection.execute(statement)).split()[-1] != "0"
        finally:
            await connection.close()

    asyncio.run(run())


@pytest.mark.contract("PROJ-06", "PROJ-07", "PROJ-09")
def test_stored_views_are_rebuilt_on_a_server_beside_its_engine(place: Place, postgresql_url: str) -> None:
    with Backstay(postgresql_url, [bought, asleep, charge]) as app:
        app.execute(bought, "order-1", 42)
        app.start(asleep, "bed-1")
        wrong = ("system", "rebuild-projections", "--needs-rebuild", "--dry-run", "--json", "--db", postgresql_url)
        until(
            lambda: json.loads(place.ask(*wrong).stdout)["matched"] == 0
        )  # the engine has stored them, and is at rest
        assert place.ask("rebuild-projections", "--db", postgresql_url).returncode == 0
        again = place.ask("system", "rebuild-projections", "--needs-rebuild", "--json", "--db", postgresql_url)
        assert json.loads(again.stdout)["rebuilt"] == 0
        execute(postgresql_url, "delete from workflow_run_timer_entries")
        execute(postgresql_url, "update workflow_run_timeline_entries set body = '\\x00'")
        repaired = place.ask("rebuild-projections", "--needs-rebuild", "--json", "--db", postgresql_url)
        assert json.loads(repaired.stdout)["rebuilt"] == 2, "one lacks its timers, and both have another timeline"
        assert json.loads(place.ask(*wrong).stdout)["matched"] == 0
        proven = place.ask("system", "liveness", "--json", "--db", postgresql_url)
        assert (json.loads(proven.stdout)["open_runs"], json.loads(proven.stdout)["stranded"]) == (1, 0)
        assert app.is_engine
