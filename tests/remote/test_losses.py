"""Whatever is lost between a worker and its server: nothing is done twice, nothing stops, and nobody has to say a word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from backstay import (
    AsyncClient,
    AsyncWorker,
    Signal,
    WorkflowFailed,
    activity,
    activity_info,
    query,
    sleep,
    wait,
    workflow,
)
from backstay.engine import recovery
from backstay.kernel.task import Block
from backstay.link.http import HttpClient, Reply
from backstay.protocol.native import worker as wire
from backstay.sdk.remote.report_queue import PendingReport
from backstay.sdk.remote.transport import NOT_NOW
from backstay.sdk.remote.worker_link import Reset
from backstay.server.native import held_leases, worker_link
from backstay.store import Applied
from backstay.store.errors import Unavailable

from ..interop.conftest import TOKEN as PROCESS_TOKEN
from ..interop.conftest import Running
from ..sdk.kit import eventually, names
from .kit import TOKEN, House, Remote
from .lossy import Lossy

ran: list[int] = []
gate = asyncio.Event()
more = Signal[int]("more")


@activity
def step(n: int) -> int:
    ran.append(n)
    return n + 1


@activity
async def guarded(n: int) -> int:
    ran.append(n)
    await gate.wait()
    return n + 1


@workflow
def steps(count: int) -> int:
    total = 0
    for _ in range(count):
        total = step(total)
    return total


@workflow
def one_guarded() -> int:
    return guarded.step(1).run()


@activity
async def also(n: int) -> int:
    ran.append(n)
    await gate.wait()
    return n + 1


@workflow
def also_guarded() -> int:
    return also.step(7).run()


@workflow
class Counter:
    extra = Signal[int]()

    def __init__(self) -> None:
        self.seen: list[int] = []

    @query
    def so_far(self) -> list[int]:
        return self.seen

    def handle(self, count: int) -> list[int]:
        for n in range(count):
            self.seen.append(step(n * 100))
            while (got := wait(self.extra, timeout=0.001)) is not None:
                self.seen.append(got)
        return self.seen


@workflow
def waiting() -> str:
    return wait("go")


@workflow
async def in_time_after_go() -> int:
    await wait.step("go")
    async with asyncio.timeout(3600):
        return await guarded(1)


@pytest.fixture(autouse=True)
def _anew() -> None:
    global gate
    ran.clear()
    gate = asyncio.Event()


@asynccontextmanager
async def lossy(*things: object) -> AsyncIterator[tuple[Lossy, AsyncClient, AsyncWorker]]:
    async with (
        House() as house,
        Lossy(house.url) as network,
        AsyncWorker(network.url, things, token=TOKEN, drain=2.0) as worker,
        AsyncClient(house.url, token=TOKEN) as client,
    ):
        yield network, client, worker


@pytest.mark.parametrize(
    "sign",
    [
        pytest.param(b'"deliveries":[["task"', id="a task born leased to a parked exchange"),
        pytest.param(b'"deliveries":[["activity"', id="an activity that came with the reply to a report"),
        pytest.param(b'"answers":[[null,[', id="the reply to what code did ahead"),
    ],
)
@pytest.mark.one_server("its worker calls nodes at their own addresses, past the network of the test")
async def test_a_reply_that_is_lost_after_its_commit(sign: bytes) -> None:
    async with lossy(steps, step) as (network, client, worker):
        network.lose(sign)
        assert await client.execute(steps, "s", 5) == 5
        assert network.lost == 1
        assert worker.link.lost == 1, "it opened another station"
    assert ran == [0, 1, 2, 3, 4], "no effect happened twice"


@pytest.mark.parametrize("arrives", [False, True], ids=["the report is lost", "its answer is lost"])
@pytest.mark.one_server("its worker calls nodes at their own addresses, past the network of the test")
async def test_a_report_stays_on_its_way_while_a_poll_is_answered(arrives: bool) -> None:
    async with lossy(steps, step, waiting) as (network, client, worker):
        assert await client.execute(steps, "warm", 1) == 1
        (network.silence if arrives else network.swallow)(b'"reports":[["activity"')
        handle = await client.start(steps, "s", 3)
        await eventually(lambda: network.lost == 1, "its report is on the wire")
        await client.start(waiting, "w")
        await eventually(lambda: len(worker.host.leases) == 2, "the parked exchange brought another task")
        network.cut()
        assert await handle.result() == 3
        assert worker.link.lost == 1
    assert ran == [0, 0, 1, 2], "nothing was done again"


@pytest.mark.needs_links("code of an instance that another node owns is not kept")
async def test_live_code_is_not_asked_to_go_on_after_what_another_worker_decided() -> None:
    """What the other worker reported arrives the second time only, and by then nobody says where the code of the run is."""
    things = (in_time_after_go, guarded)
    async with (
        House() as house,
        Lossy(house.url) as network,
        AsyncClient(house.url, token=TOKEN) as client,
        AsyncWorker(house.url, things, token=TOKEN, worker_id="first", drain=0.3) as first,
    ):
        handle = await client.start(in_time_after_go, "b")
        await eventually(lambda: len(first.host.sticky._by_run) == 1, "its code waits at the first worker")
        (desk,) = house.server.worker_links
        desk.station.slots["workflow"] = 0
        network.swallow(b'"reports":[["task"')
        async with AsyncWorker(network.url, things, token=TOKEN, worker_id="second", drain=0.3) as second:
            await handle.signal("go", None)
            await eventually(lambda: network.lost == 1, "the second worker has reported what to do")
            network.cut()
            await eventually(lambda: ran == [1], "that was recorded, the second time")
            assert second.link.lost == 1
            desk.station.slots["workflow"] = 1
            gate.set()
            assert await handle.result() == 2


async def test_a_lease_without_work_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a worker forgets, it does not go on claiming it."""
    monkeypatch.setattr(wire, "PARKED", 0.02)
    monkeypatch.setattr(wire, "CLAIM", 0.05)
    async with Remote(steps, step, waiting) as app:
        host = app.worker.host
        forgotten: list[Any] = []
        begin, deliver = host.tasks.begin, host.executor.deliver

        def forget_one(lease: Any) -> None:
            forgotten.append(lease)
            host.tasks.begin = begin  # type: ignore[method-assign]

        def forget_another(assignment: Any) -> None:
            forgotten.append(assignment)
            host.executor.deliver = deliver  # type: ignore[method-assign]

        host.tasks.begin = forget_one  # type: ignore[method-assign]
        host.executor.deliver = forget_another  # type: ignore[method-assign]
        assert await app.execute(steps, "s", 3) == 3
        assert len(forgotten) == 2
        await eventually(lambda: not host.busy, "nothing is held for nothing")
        assert app.worker.link.lost == 0
    assert ran == [0, 1, 2]


async def test_a_lease_is_renewed_only_while_its_worker_says_that_it_works_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "PARKED", 0.02)
    monkeypatch.setattr(wire, "CLAIM", 0.0)
    monkeypatch.setattr(held_leases, "LEASE", 1 << 60)  # so that every claim counts, however fresh the lease
    async with Remote(steps, step, one_guarded, guarded) as app:
        handle = await app.start(one_guarded, "g")
        await eventually(lambda: ran == [1], "it was running")
        (task,) = app.engine.leases

        def until() -> int:
            return app.engine.leases.get("default", task.id).until

        await eventually(lambda: until() > task.until, "it was renewed")
        claims: Any = app.worker.host.held_tasks
        asked: list[None] = []
        monkeypatch.setattr(app.worker.host, "held_tasks", lambda owed: asked.append(None) or [])
        await eventually(lambda: len(asked) > 2, "nothing is claimed any more")
        last, seen = until(), len(asked)
        await eventually(lambda: len(asked) > seen + 5, "it polls")
        assert until() == last
        monkeypatch.setattr(app.worker.host, "held_tasks", claims)
        gate.set()
        assert await handle.result() == 2


async def test_an_attempt_that_was_stopped_by_mistake_is_made_again() -> None:
    """Who was told that its task is another's stops. That is no outcome, as long as history has no other attempt."""
    async with Remote(one_guarded, guarded) as app:
        handle = await app.start(one_guarded, "g")
        await eventually(lambda: ran == [1], "it was running")
        (task,) = app.engine.leases
        app.worker.host.on_lost([task.id])
        await eventually(lambda: ran == [1, 1], "the next attempt runs")
        gate.set()
        assert await handle.result() == 2


async def test_the_next_attempt_of_a_task_stops_the_one_before_if_its_notice_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the node that gave the first attempt has no link to the worker, and another node ends its lease."""
    stopped: list[int] = []

    @activity(type="stuck")
    async def stuck() -> str:
        number = activity_info().number
        if number == 2:
            return "done"
        try:
            await gate.wait()
        except asyncio.CancelledError:
            stopped.append(number)
            raise
        return "late"

    @workflow(type="one-stuck")
    def one_stuck() -> str:
        return stuck.step().run()

    async with Remote(one_stuck, stuck) as app:
        host = app.worker.host
        monkeypatch.setattr(host, "on_withdrawn", lambda task_ids: None)
        handle = await app.start(one_stuck, "s")
        await eventually(lambda: host.executor.activities.at_work(), "the first attempt runs")
        (task,) = app.engine.leases
        app.house.server.release(task)
        assert await handle.result() == "done"
        await eventually(lambda: stopped == [1], "the first attempt was stopped")


async def test_the_answer_for_an_attempt_leaves_the_next_one_of_its_task_alone() -> None:
    """A task may come again, from another station, before the report of its first attempt is answered."""
    async with Remote(steps, step) as app:
        host = app.worker.host
        host.leases["t"] = 2
        for attempt, left in ((1, {"t": 2}), (2, {})):
            failed = wire.TaskFailed(1, "t", attempt, Block(message="no", type="No"))
            host.on_answered(PendingReport(failed, "t", None, lambda answer: None))
            assert host.leases == left


async def test_a_lease_that_is_on_disk_although_its_commit_failed_is_offered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        House(str(tmp_path / "house.db")) as house,
        AsyncWorker(house.url, [steps, step], token=TOKEN, drain=2.0) as worker,
        AsyncClient(house.url, token=TOKEN) as client,
    ):
        store, failed = house.server.store, []
        apply = store.apply

        def write_and_fail(decisions: Any, done: Any) -> None:
            leased = any(c.task is not None and c.task.state == "leased" for d in decisions for c in d.tasks)
            if not leased or len(failed) == 2:
                apply(decisions, done)
                return
            failed.append(decisions)
            apply(decisions, lambda applied: done(Applied(down=Unavailable("nobody knows whether it is on disk"))))

        monkeypatch.setattr(store, "apply", write_and_fail)
        async with asyncio.timeout(30):
            assert await client.execute(steps, "s", 2) == 2
        assert len(failed) == 2
        assert worker.link.lost == 0
    assert ran == [0, 1]


async def test_a_worker_has_all_its_room_again_after_commits_that_failed_and_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "PROBE", 10_000)
    async with (
        House(str(tmp_path / "house.db")) as house,
        AsyncWorker(house.url, [steps, step], token=TOKEN, drain=2.0, threads=1, workflow_tasks=1) as worker,
        AsyncClient(house.url, token=TOKEN) as client,
    ):
        store, written = house.server.store, 0
        apply = store.apply

        def write_and_fail(decisions: Any, done: Any) -> None:
            nonlocal written
            written += 1
            if written % 3 or written > 40:
                apply(decisions, done)
            else:
                apply(decisions, lambda applied: done(Applied(down=Unavailable("nobody knows whether it is on disk"))))

        monkeypatch.setattr(store, "apply", write_and_fail)
        async with asyncio.timeout(30):
            results = await asyncio.gather(*(client.execute(steps, f"s-{n}", 4) for n in range(4)))
        assert results == [4] * 4
        assert written > 30
        (desk,) = house.server.worker_links
        assert not desk.station.held
        assert not any(desk.station.used.values())
        assert not list(house.server.engine.leases)
        assert worker.link.lost == 0


async def test_a_task_that_was_promised_to_the_last_worker_when_its_link_closed_takes_no_room_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Remote(steps, step) as app:
        server = app.house.server
        apply = server.engine.store.apply
        written: list[Callable[[], None]] = []

        def slow(decisions: Any, done: Any) -> None:
            apply(decisions, lambda applied: written.append(lambda: done(applied)))

        async def unreachable() -> None:
            raise Reset("it does not come back")

        monkeypatch.setattr(app.worker.link, "open", unreachable)
        with monkeypatch.context() as slowly:
            slowly.setattr(server.engine.store, "apply", slow)
            starting = asyncio.ensure_future(app.start(steps, "s", 1))
            await eventually(lambda: bool(written), "its first task is leased, and nobody was told so far")
        (link,) = server.worker_links
        server.worker_links.close(link)
        written.pop()()
        await (await starting).terminate("nobody is there")
        assert not link.station.held
        assert not server.engine.matching.remote_workers.by_task


@pytest.mark.parametrize("status", sorted(NOT_NOW))
async def test_a_call_that_is_not_answered_now_is_made_again(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """408 is what a server says when a slow wire brings a request in pieces."""
    async with Remote(steps, step) as app:
        post, refused = HttpClient.post, [Reply(status, b"{}")]

        async def not_now(self: HttpClient, path: str, *rest: Any, **named: Any) -> Reply:
            if path.startswith("/api/call/") and refused:
                return refused.pop()
            return await post(self, path, *rest, **named)

        monkeypatch.setattr(HttpClient, "post", not_now)
        assert await app.execute(steps, "s", 1) == 1
        assert not refused


async def test_an_answer_that_cannot_be_used_troubles_no_other_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Remote(steps, step) as app:
        answered = app.worker.host.sticky.on_answer
        failed: list[int] = []

        def fail_once(run: int, *rest: Any) -> None:
            answered(run, *rest)
            if not failed:
                failed.append(run)
                raise RuntimeError("an odd answer")

        monkeypatch.setattr(app.worker.host.sticky, "on_answer", fail_once)
        assert await asyncio.gather(*(app.execute(steps, f"s-{n}", 3) for n in range(5))) == [3] * 5
        assert failed
        assert app.worker.link.lost == 0


async def test_a_task_that_cannot_be_begun_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Remote(steps, step, waiting) as app:
        tasks: Any = app.worker.host.tasks
        begin = tasks._begin

        def fail(lease: Any) -> None:
            if lease.workflow_type == "waiting":
                raise ValueError("a history of another age")
            begin(lease)

        monkeypatch.setattr(tasks, "_begin", fail)
        await app.start(waiting, "w")

        async def block() -> str:
            described = await app.describe("w")
            return next((view.task.block.message for view in described.tasks if view.task.block), "")

        assert "a history of another age" in await eventually(block, "its task failed")
        assert await app.execute(steps, "s", 2) == 2
        assert app.worker.link.lost == 0


async def test_a_server_that_answers_nonsense_is_not_hammered() -> None:
    """Stations open, and every exchange goes wrong: the pauses in between grow."""
    async with House() as house, AsyncWorker(house.url, [steps, step], token=TOKEN, drain=0.1) as worker:
        pauses: list[float] = []
        opens = worker.link.open

        async def watched() -> None:
            pauses.append(worker.link._pause)
            await opens()

        async def broken(*_: Any) -> Any:
            raise Reset("nonsense")

        worker.link.open = watched  # type: ignore[method-assign]
        worker.link._exchange = broken  # type: ignore[method-assign]
        for desk in house.server.worker_links:
            house.server.worker_links.close(desk)  # what is parked ends
        await eventually(lambda: len(pauses) == 8, "it tried again and again")
        assert pauses == [0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0], "how long it waits if this one fails, too"


@pytest.mark.one_server("its worker calls nodes at their own addresses, past the network of the test")
async def test_the_answer_to_an_outcome_is_lost_while_another_one_is_running() -> None:
    async with lossy(steps, step, one_guarded, guarded) as (network, client, _):
        held = await client.start(one_guarded, "held")
        await eventually(lambda: ran == [1], "the guarded activity began")
        network.lose(b'"answers":[[null,[')
        assert await client.execute(steps, "s", 3) == 3
        assert network.lost == 1
        gate.set()
        assert await held.result() == 2
    assert sorted(ran) == [0, 1, 1, 2], "what was running was kept, not begun again"


async def test_a_lost_reply_to_a_start_starts_once() -> None:
    async with (
        House() as house,
        Lossy(house.url) as network,
        AsyncWorker(house.url, [steps, step], token=TOKEN),
        AsyncClient(network.url, token=TOKEN) as client,
    ):
        network.lose(b"workflow_id")
        handle = await client.start(steps, None, 2)
        assert await handle.result() == 2
        assert len(await client.list()) == 1
        network.lose(b"workflow_id")
        assert await client.execute(steps, "again", 1) == 1
        assert network.lost == 2
    assert ran == [0, 1, 0]


async def test_a_lost_reply_to_a_signal_signals_once() -> None:
    @workflow(type="adds")
    def adds() -> int:
        return wait(more) + wait(more)

    async with House() as house, Lossy(house.url) as network:
        async with AsyncWorker(house.url, [adds], token=TOKEN), AsyncClient(network.url, token=TOKEN) as client:
            handle = await client.start(adds, "a")
            network.lose(b"signal")
            await handle.signal(more, 1)
            assert network.lost == 1
            assert names(await handle.history()).count("SignalReceived") == 1
            await handle.signal(more, 20)
            assert await handle.result() == 21


async def test_code_that_ran_ahead_of_a_signal_is_dropped_and_replayed() -> None:
    async with House() as house:
        async with AsyncWorker(house.url, [Counter, step], token=TOKEN), AsyncClient(house.url, token=TOKEN) as client:
            handles = [await client.start(Counter, f"c-{n}", 12) for n in range(6)]

            async def nudge(handle: object, n: int) -> None:
                for extra in range(8):
                    await handle.signal(Counter.extra, n * 10 + extra)  # type: ignore[attr-defined]

            await asyncio.gather(*(nudge(handle, n) for n, handle in enumerate(handles)), return_exceptions=True)
            for n, handle in enumerate(handles):
                seen = await handle.result()
                assert [v for v in seen if (v % 100 == 1 and v // 100 < 12 and v >= 100) or v == 1][:1] == [1]
                assert [v for v in seen if n * 10 <= v < n * 10 + 8 and v % 100 != 1] == sorted(
                    v for v in seen if n * 10 <= v < n * 10 + 8 and v % 100 != 1
                )
                assert await handle.query(Counter.so_far) == seen, "a cold replay of it all says the same"


async def test_a_server_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    running = Running(tmp_path / "killed.db")
    try:
        async with (
            AsyncWorker(running.url, [steps, step, one_guarded, guarded], token=PROCESS_TOKEN, drain=2.0) as worker,
            AsyncClient(running.url, token=PROCESS_TOKEN) as client,
        ):
            held = await client.start(one_guarded, "held")
            await eventually(lambda: 1 in ran, "the guarded activity began")
            working = asyncio.create_task(client.execute(steps, "s", 60))
            await eventually(lambda: len(ran) > 10, "it was in the middle of it")
            await asyncio.to_thread(running.kill)
            await asyncio.to_thread(running.restart)
            assert await working == 60
            gate.set()  # it ended while the worker was heard again
            assert await held.result() == 2
            assert worker.link.lost >= 1
            assert [n for n in ran if n != 1] == [n for n in range(60) if n != 1], "each step once, across the kill"
            assert ran.count(1) == 2
    finally:
        await asyncio.to_thread(running.stop)


async def test_a_server_that_is_restarted_while_workers_wait(tmp_path: Path) -> None:
    running = Running(tmp_path / "restarted.db")
    try:
        async with (
            AsyncWorker(running.url, [steps, step], token=PROCESS_TOKEN) as worker,
            AsyncClient(running.url, token=PROCESS_TOKEN) as client,
        ):
            assert await client.execute(steps, "before", 2) == 2
            assert await asyncio.to_thread(running.stop) == 0
            await asyncio.to_thread(running.restart)
            assert await client.execute(steps, "after", 2) == 2
            assert worker.link.lost >= 1
    finally:
        await asyncio.to_thread(running.stop)


async def test_work_of_a_worker_that_is_gone_is_done_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_link, "UNSEEN", 50_000)
    monkeypatch.setattr(worker_link, "LOST", 100_000)
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        gone = AsyncWorker(house.url, [one_guarded, guarded], token=TOKEN)
        await gone.__aenter__()
        handle = await client.start(one_guarded, "g")
        await eventually(lambda: ran == [1], "the first worker had it")
        assert gone._running is not None  # its process dies: no goodbye, the sockets close
        gone._running.cancel()
        await asyncio.gather(gone._running, return_exceptions=True)
        gate.set()
        async with AsyncWorker(house.url, [one_guarded, guarded], token=TOKEN):
            assert await handle.result() == 2
        assert ran == [1, 1]
        gone.executor.stop()
        gone.host.close()
        gone.link._http.close()


@pytest.mark.needs_links("a worker that has a link to one node only is missed for longer")
async def test_the_tasks_of_a_worker_that_died_with_its_server_are_offered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = str(tmp_path / "crash.db")
    async with House(database) as house, AsyncClient(house.url, token=TOKEN) as client:
        gone = AsyncWorker(house.url, [one_guarded, guarded], token=TOKEN)
        await gone.__aenter__()
        living = AsyncWorker(house.url, [steps, also_guarded, also], token=TOKEN, drain=1.0)
        await living.__aenter__()
        await client.start(one_guarded, "g")
        await client.start(also_guarded, "kept")
        await eventually(lambda: sorted(ran) == [1, 7], "both workers have something")
        assert gone._running is not None
        gone._running.cancel()
        await asyncio.gather(gone._running, return_exceptions=True)
        gone.executor.stop()
        gone.host.close()
        gone.link._http.close()
        port = int(house.url.rpartition(":")[2])
    monkeypatch.setattr(worker_link, "LOST", 2_000_000)
    async with House(database, port) as house, AsyncClient(house.url, token=TOKEN) as client:
        async with AsyncWorker(house.url, [one_guarded, guarded], token=TOKEN):
            gate.set()
            assert await client.handle(one_guarded, "g").result() == 2
            assert await client.handle(also_guarded, "kept").result() == 8
        await living.close()
    assert sorted(ran) == [1, 1, 7], "what its worker still had was left to it"


async def test_a_worker_that_drains_keeps_what_it_works_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_link, "UNSEEN", 50_000)
    monkeypatch.setattr(worker_link, "LOST", 100_000)
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        async with AsyncWorker(house.url, [one_guarded, guarded], token=TOKEN) as leaving:
            handle = await client.start(one_guarded, "g")
            await eventually(lambda: ran == [1], "it was running")
            async with AsyncWorker(house.url, [one_guarded, guarded], token=TOKEN):
                closing = asyncio.create_task(leaving.close())
                lost = house.server.now + 5 * worker_link.LOST
                await eventually(lambda: house.server.now > lost, "a worker that is not heard would have lost it")
                gate.set()
                await closing
                assert await handle.result() == 2
    assert ran == [1], "nobody else did it again"


async def test_a_worker_that_closes_finishes_what_it_does() -> None:
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        worker = AsyncWorker(house.url, [one_guarded, guarded], token=TOKEN)
        await worker.__aenter__()
        handle = await client.start(one_guarded, "g")
        await eventually(lambda: ran == [1], "it was running")
        closing = asyncio.create_task(worker.close())
        later = await client.start(one_guarded, "later")
        gate.set()
        await closing
        assert (await client.history("g"))[-1].type in ("ActivityCompleted", "WorkflowCompleted")
        assert ran == [1], "nothing new was begun"
        async with AsyncWorker(house.url, [one_guarded, guarded], token=TOKEN):
            assert (await handle.result(), await later.result()) == (2, 2)
        assert ran == [1, 1]


@pytest.mark.needs_links("what another node has ended is noticed when the lease is renewed")
async def test_an_activity_is_told_that_its_run_is_over() -> None:
    stopped: list[str] = []

    @activity
    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append("stopped")

    @workflow(type="endless-run")
    def endless_run() -> None:
        endless.step().run()

    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        async with AsyncWorker(house.url, [endless_run, endless], token=TOKEN, drain=2.0):
            handle = await client.start(endless_run, "e")
            await eventually(lambda: _started(client), "the activity began")
            await handle.terminate()
            await eventually(lambda: stopped, "it was stopped")


async def _started(client: AsyncClient) -> bool:
    return "ActivityStarted" in names(await client.history("e"))


@pytest.mark.needs_links("a task of an instance that another node owns is taken some 50 ms after it is ready")
async def test_a_long_history_is_read_page_by_page() -> None:
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        async with AsyncWorker(house.url, [steps, step], token=TOKEN, live=1) as worker:

            @workflow(type="long")
            def long(count: int) -> int:
                total = 0
                for _ in range(count):
                    total = step(total)
                wait(more)
                return total

            worker.registry.register([long])
        async with AsyncWorker(house.url, [long, step], token=TOKEN) as worker:
            handle = await client.start(long, "l", 400)
            await eventually(lambda: len(ran) == 400, "all steps were done")
        async with AsyncWorker(house.url, [long, step], token=TOKEN):
            await handle.signal(more, 1)
            assert await handle.result() == 400
            assert len(await client.history("l")) > 1200
    assert len(ran) == 400


async def test_code_that_looks_at_the_clock_does_not_run_ahead() -> None:
    from backstay import now

    @workflow(type="clocked")
    def clocked() -> list[float]:
        seen: list[float] = []
        for n in range(3):
            step(n)
            seen.append(now().timestamp())
        sleep(0.001)
        return seen

    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        async with AsyncWorker(house.url, [clocked, step], token=TOKEN):
            seen = await client.execute(clocked, "c")
            history = await client.history("c")
    recorded = [entry.at / 1_000_000 for entry in history if entry.type == "ActivityCompleted"]
    assert seen == recorded, "it is as late as history says"


async def test_a_failing_run_fails_with_its_own_exception() -> None:
    @activity
    def breaks() -> None:
        raise KeyError("gone")

    @workflow(type="breaking")
    def breaking() -> None:
        breaks()

    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        async with AsyncWorker(house.url, [breaking, breaks], token=TOKEN):
            with pytest.raises(WorkflowFailed) as failed:
                await client.execute(breaking, "b")
    assert isinstance(failed.value.__cause__, KeyError)


async def test_a_task_whose_history_cannot_be_read_for_its_worker_is_handed_out_again() -> None:
    async with Remote(waiting) as app:
        handle = await app.start(waiting, "w")
        engine = app.house.server.engine
        store: Any = engine.store

        def fails(*_: Any) -> Any:
            del store.history
            raise Unavailable("the disk reports an error")

        await eventually(lambda: not any(entry.inflight or entry.instance.tasks for entry in engine.cache))
        for entry in engine.cache:
            engine.discard_cached(entry)
        store.history = fails
        await handle.signal("go", "gone")
        assert await handle.result(timeout=20) == "gone"
        assert "history" not in vars(store)
