"""Programs on one PostgreSQL database whose server cuts their connections, and engines that sleep through their end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import asyncpg
import pytest

from backstay.store.postgresql.connection import address

from .conftest import Place
from .program import Remote, Told, eventually

Start = Callable[..., Remote]

pytestmark = pytest.mark.parametrize("place", ["postgresql"], indirect=True)


def cut(place: Place, name: str) -> int:
    """End every session that a program has with the server; how many those were."""

    async def end() -> int:
        connection = await asyncpg.connect(address(str(place.database)).dsn)
        try:
            found = await connection.fetch(
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity where application_name = $1", name
            )
        finally:
            await connection.close()
        return len(found)

    return asyncio.run(end())


def known(place: Place, name: str) -> str:
    """The database under a name by which the server knows the program."""
    return f"{place.database}&application_name={name}"


def test_a_program_whose_connections_are_cut_again_and_again_loses_nothing(
    place: Place, programs: list[Remote]
) -> None:
    name = f"cut-{place.directory.name}"[:60]
    app = Remote(known(place, name))
    programs.append(app)
    app.opened()
    ids = [f"v-{n}" for n in range(120)]
    starting = app.tell("claim_ids", workflow="visit", ids=ids, args=[place.ledger, "x"])
    for _ in range(5):
        eventually("it is connected", lambda: cut(place, name))

    def started() -> bool:
        nonlocal starting
        try:
            starting()
        except Told as told:
            if told.kind != "Unavailable":
                raise
            # A caller may be told to try again, and does.
            starting = app.tell("claim_ids", workflow="visit", ids=ids, args=[place.ledger, "x"])
            return False
        return True

    eventually("all are started", started)
    for id in ids:
        assert app.ask("result", workflow="visit", id=id) == "x done"
    assert app.ask("is_engine") is True
    assert len({line.key for line in place.signed()}) == 120


@pytest.mark.contract("MATCH-01", "REPLAY-11")
def test_an_engine_that_slept_through_its_end_stands_beside_the_next_one(place: Place, programs: list[Remote]) -> None:
    name = f"slept-{place.directory.name}"[:60]
    first = Remote(known(place, name))
    programs.append(first)
    first.opened()
    other = Remote(place.database)
    programs.append(other)
    other.opened()
    first.ask("start", workflow="gated", id="g", args=[place.ledger, place.gate("gate")])
    eventually("the gate is reached", lambda: place.signed("gate"))
    first.process.send_signal(signal.SIGSTOP)
    try:
        assert cut(place, name)
        eventually("the other one takes over", lambda: other.ask("is_engine"))
        eventually("the activity is delivered again", lambda: len(place.signed("gate")) == 2)
    finally:
        first.process.send_signal(signal.SIGCONT)
    eventually("the first one sees it", lambda: not first.ask("is_engine"))
    place.open_gate("gate")
    assert first.ask("result", workflow="gated", id="g") == ["before done", "passed gate", "behind done"]
    assert [(line.attempt, line.pid) for line in place.signed("gate")] == [(1, first.pid), (2, other.pid)]
    assert [line.pid for line in place.signed("behind")] == [other.pid], "only one of the two results counted"
    other.kill()
    eventually("it is its turn again", lambda: first.ask("is_engine"))
    assert first.ask("execute", workflow="nap", id="n", args=[place.ledger, 0.05]) == "n done"
