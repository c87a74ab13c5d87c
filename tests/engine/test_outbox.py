"""Sends between instances: the rows are the truth, whoever has lost sight of them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from backstay import AsyncBackstay, WorkflowFailed, child, gather, signal, sleep, wait, workflow
from backstay.engine.core.engine import Engine
from backstay.engine.core.outbox import Outbox
from backstay.engine.core.sweep import ASK
from backstay.kernel.features.delivery import Deliver
from backstay.kernel.send import Send
from backstay.kernel.values import SECOND
from backstay.store.errors import Unavailable

from ..sdk.kit import PATIENCE, StillWorld, eventually, names


@workflow(type="leaf")
def leaf(n: int) -> int:
    return n


@workflow(type="fan")
def fan(width: int) -> int:
    return sum(gather(leaf.step(n) for n in range(width)))


@workflow(type="long")
def long() -> None:
    sleep("1h")


@workflow(type="owner")
def owner() -> None:
    child.options(parent_close="terminate").start(long)
    sleep("1h")


@workflow(type="listener")
class Listener:
    def __init__(self) -> None:
        self.heard: list[int] = []

    @signal
    def say(self, n: int) -> None:
        self.heard.append(n)

    def handle(self, count: int) -> list[int]:
        wait(lambda: len(self.heard) >= count)
        return self.heard


@workflow(type="speaker")
def speaker(count: int) -> list[int]:
    listener = child.start(Listener, count)
    for n in range(count):
        listener.say(n)
    return listener.join()


@workflow(type="patient-listener", signals=["say", "enough"])
def patient_listener(count: int) -> list[int]:
    heard = [wait("say") for _ in range(count)]
    wait("enough")
    return heard


@workflow(type="reader", signals=["enough"])
def reader(count: int) -> list[int]:
    """Its child has heard everything, and goes on."""
    listener = child.start(patient_listener, count)
    for n in range(count):
        listener.signal("say", n)
    wait("enough")
    listener.signal("enough")
    return listener.join()


ALL = [leaf, fan, long, owner, Listener, speaker, patient_listener, reader]


AWAITED = "select count(*) from workflow where awaited > 0"


def rows(path: Path, statement: str = "select count(*) from send") -> int:
    with closing(sqlite3.connect(path)) as connection, connection:
        found = connection.execute(statement).fetchone()
        return found[0] if found else 0


def deaf(outbox: Outbox, send: Send) -> None:
    """Nothing is delivered."""


@contextmanager
def losing(monkeypatch: pytest.MonkeyPatch, kind: str) -> Iterator[None]:
    """No send with a message of this kind is delivered meanwhile."""
    dispatch = Outbox.dispatch

    def lose(outbox: Outbox, send: Send) -> None:
        if type(send.message).__name__ != kind:
            dispatch(outbox, send)

    with monkeypatch.context() as patch:
        patch.setattr(Outbox, "dispatch", lose)
        yield


@pytest.mark.parametrize("kept", ["StartFromParent", "ChildReport"])
def test_a_send_that_was_not_delivered_is_found_by_the_next_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    path = tmp_path / "app.db"

    async def first() -> None:
        async with AsyncBackstay(path, ALL) as app:
            await app.start(fan, "fan", 3)
            await eventually(lambda: rows(path) == 3, "three rows are left")

    async def second() -> None:
        async with AsyncBackstay(path, ALL) as app:
            assert await app.handle(fan, "fan").result(timeout=10) == 3
            assert names(await app.history("fan")).count("ChildRunCompleted") == 3

    with losing(monkeypatch, kept):
        asyncio.run(first())
    asyncio.run(second())
    assert rows(path) == 0


def test_sends_to_one_receiver_arrive_in_their_order(tmp_path: Path) -> None:
    async def story() -> None:
        async with AsyncBackstay(tmp_path / "app.db", ALL) as app:
            assert await app.execute(speaker, "speaker", 40) == list(range(40))

    asyncio.run(story())


def test_a_send_that_is_delivered_twice_has_its_effect_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatch = Outbox.dispatch
    seen: list[Send] = []

    def twice(outbox: Outbox, send: Send) -> None:
        seen.append(send)
        dispatch(outbox, send)
        outbox._under_way.discard(send.key)
        dispatch(outbox, send)

    async def story() -> None:
        async with AsyncBackstay(tmp_path / "app.db", ALL) as app:
            assert await app.execute(speaker, "speaker", 5) == list(range(5))
            assert await app.execute(fan, "fan", 5) == 10
            for send in seen.copy():
                app.engine.outbox.dispatch(send)
            await eventually(lambda: not app.engine.outbox._under_way, "every send has been taken")
            await app.engine.commits.drain()
            assert names(await app.history("fan")).count("ChildRunCompleted") == 5
            (listener,) = await app.list(type="listener")
            assert names(await app.history(listener.workflow_id)).count("SignalReceived") == 5
            assert len(await app.list(type="leaf", limit=100)) == 5

    monkeypatch.setattr(Outbox, "dispatch", twice)
    asyncio.run(story())


@pytest.mark.parametrize("lost", ["StartFromParent", "ChildReport"])
def test_a_send_that_is_lost_for_good_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """Rows that vanish behind everybody's back: the slow sweep asks after the children."""
    path = tmp_path / "app.db"

    async def story() -> None:
        async with AsyncBackstay(path, ALL) as app:
            with losing(monkeypatch, lost):
                handle = await app.start(fan, "fan", 3)
                await eventually(lambda: rows(path) == 3, "three rows are left")
                rows(path, "delete from send")
            await app._node.sweep.ask()
            assert await handle.result(timeout=10) == 3

    asyncio.run(story())


def test_sends_to_a_child_follow_when_its_lost_start_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "app.db"

    async def first() -> None:
        async with AsyncBackstay(path, ALL) as app:
            await app.start(speaker, "speaker", 3)
            await eventually(lambda: rows(path) == 4, "a start and three signals are left")

    async def second() -> None:
        async with AsyncBackstay(path, ALL) as app:
            assert await app.handle(speaker, "speaker").result(timeout=20) == [0, 1, 2]
            await eventually(lambda: rows(path) == 0, "every send has been taken")

    with monkeypatch.context() as patch:
        patch.setattr(Outbox, "dispatch", deaf)
        asyncio.run(first())
    rows(path, "delete from send where kind = 'StartFromParent'")
    assert rows(path) == 3
    asyncio.run(second())


@pytest.mark.parametrize("restarts", [False, True])
def test_a_signal_to_a_child_that_is_lost_for_good_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    path = tmp_path / "app.db"

    async def story() -> None:
        async with AsyncBackstay(path, ALL) as app:
            with losing(monkeypatch, "SignalFromParent"):
                await app.start(speaker, "speaker", 3)
                await eventually(lambda: rows(path) == 3, "three signals are on their way")
                rows(path, "delete from send where key = (select min(key) from send)")
            if not restarts:
                await app._node.sweep.ask()
                assert await app.handle(speaker, "speaker").result(timeout=10) == [1, 2, 0]

    async def again() -> None:
        async with AsyncBackstay(path, ALL) as app:
            await app._node.sweep.ask()
            assert await app.handle(speaker, "speaker").result(timeout=10) == [1, 2, 0]

    asyncio.run(story())
    if restarts:
        asyncio.run(again())
    assert rows(path, "select count(*) from event where type = 'SignalReceived'") == 3
    assert rows(path) == 0


def test_a_child_that_has_got_its_signals_is_asked_once_and_gets_none_of_them_twice(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    confirmed = "select count(*) from event where type = 'ChildSignalsConfirmed'"

    async def story() -> None:
        async with AsyncBackstay(path, ALL) as app:
            handle = await app.start(reader, "reader", 3)
            await eventually(
                lambda: rows(path, "select count(*) from event where type = 'SignalReceived'") == 3, "they have come"
            )
            for _ in range(3):
                await app._node.sweep.ask()
                await eventually(lambda: not app.engine.outbox._under_way and not rows(path), "all has been taken")
                await eventually(lambda: rows(path, confirmed) == 1, "the parent knows")
            await handle.signal("enough")
            assert await handle.result(timeout=10) == [0, 1, 2]

    asyncio.run(story())


@pytest.mark.parametrize("ends", ["deleted", "last run"])
def test_a_start_that_was_lost_is_made_again_after_the_schedule_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Its row vanishes while no engine runs, and whoever comes next asks after it: once."""
    path = tmp_path / "app.db"

    async def first() -> None:
        async with AsyncBackstay(path, ALL) as app:
            options: dict[str, Any] = {"max_runs": 1} if ends == "last run" else {}
            handle = await app.schedules.options(cron="0 0 1 1 *", **options).create(leaf, "yearly", 7)
            await handle.trigger()
            if ends == "deleted":
                await handle.delete()

    async def second() -> None:
        world = StillWorld()
        async with AsyncBackstay(path, ALL, world=lambda: world) as app:
            assert await app.list(type="leaf") == []
            await world.advance(ASK / SECOND)

            async def started() -> bool:
                return bool(await app.list(type="leaf"))

            await eventually(started, "the workflow was started")
            (found,) = await app.list(type="leaf")
            assert await app.handle(leaf, found.workflow_id).result(timeout=10) == 7
            await eventually(lambda: rows(path, AWAITED) == 0, "the schedule has heard of it")

    async def third() -> None:
        world = StillWorld()
        async with AsyncBackstay(path, ALL, world=lambda: world) as app:
            await world.advance(ASK / SECOND)
            await eventually(lambda: not app.engine.outbox._under_way, "every send has been taken")
            (found,) = await app.list(type="leaf")
            assert found.number == 1

    with monkeypatch.context() as patch:
        patch.setattr(Outbox, "dispatch", deaf)
        asyncio.run(first())
    assert (rows(path), rows(path, AWAITED)) == (1, 1)
    rows(path, "delete from send")
    asyncio.run(second())
    asyncio.run(third())
    assert rows(path, "select count(*) from event where type = 'WorkflowStarted'") == 1


def test_a_lookup_that_fails_gives_its_sends_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with AsyncBackstay(tmp_path / "app.db", ALL) as app:
            failed: list[str] = []
            retained = app.engine.retained

            async def fails(*args: Any) -> Any:
                if len(failed) < 2:
                    failed.append("once")
                    raise OSError("the disk is gone")
                return await retained(*args)

            monkeypatch.setattr(app.engine, "retained", fails)
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            handle = await app.start(speaker, "speaker", 3)
            await eventually(lambda: failed, "the lookup failed")
            for _ in range(2):
                await eventually(lambda: not app.engine.outbox._under_way, "the others have been taken")
                await app.engine.outbox.pick_up()
            assert await handle.result(timeout=10) == [0, 1, 2]

    asyncio.run(story())


def test_an_engine_that_has_ended_tries_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    address = Engine.address

    def fails(engine: Engine, namespace: str, workflow_id: str, message: Any, reply: Any) -> None:
        if isinstance(message, Deliver):
            tried.append(workflow_id)
            raise Unavailable("the disk is gone")
        address(engine, namespace, workflow_id, message, reply)

    async def story() -> None:
        async with AsyncBackstay(":memory:", ALL, world=StillWorld) as app:
            world: Any = app.engine.world
            await app.start(fan, "fan", 2)
            await eventually(lambda: len(tried) == 2, "both sends have failed")
            await world.advance(2)
            assert len(tried) == 4
        await world.advance(2)
        assert len(tried) == 4

    monkeypatch.setattr(Engine, "address", fails)
    asyncio.run(story())


def test_a_send_of_another_process_is_delivered_by_the_engine(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "app.db"
        async with AsyncBackstay(path, ALL) as holder, AsyncBackstay(path, ALL) as guest:
            assert not guest.engine.holder
            await holder.start(owner, "owner")
            await eventually(lambda: holder.list(type="long"), "the child started")
            await guest.handle(owner, "owner").terminate()

            async def ended() -> bool:
                (found,) = await holder.list(type="long")
                return found.status == "terminated"

            await eventually(ended, "the child was terminated")

            async def recorded() -> bool:
                return names(await holder.history("owner"))[-1] == "ParentClosePolicyApplied"

            await eventually(recorded, "the parent recorded it")

    asyncio.run(story())


REFUSING = """create trigger refusing before insert on workflow when new.workflow_type = 'leaf'
begin select raise(abort, 'no leaves here'); end"""


async def test_a_child_whose_rows_a_file_refuses_has_failed_for_its_parent(tmp_path: Path) -> None:
    async with AsyncBackstay(tmp_path / "a.db", ALL) as app:
        with closing(sqlite3.connect(tmp_path / "a.db")) as connection, connection:
            connection.execute(REFUSING)
        with pytest.raises(WorkflowFailed, match="the child was not started: its rows could not be written"):
            await asyncio.wait_for(app.execute(fan, "f", 1), PATIENCE)
    assert rows(tmp_path / "a.db") == 0


async def test_a_child_whose_rows_a_server_refuses_has_failed_for_its_parent(postgresql_url: str) -> None:
    async with AsyncBackstay(postgresql_url, ALL) as app:
        connection = await asyncpg.connect(postgresql_url.partition("&schema")[0])
        schema = postgresql_url.rpartition("schema=")[2]
        await connection.execute(f"alter table {schema}.workflow add check (workflow_type <> 'leaf')")
        with pytest.raises(WorkflowFailed, match="the child was not started: its rows could not be written"):
            await asyncio.wait_for(app.execute(fan, "f", 1), PATIENCE)
        assert await connection.fetchval(f"select count(*) from {schema}.send") == 0
        await connection.close()
