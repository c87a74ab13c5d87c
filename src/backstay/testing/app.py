"""An app for a test: the real engine in memory, on virtual time. `AsyncTestBackstay` works on the running event loop.

Time stands still while activities run, and while the test does something else. When all waits, it jumps to what comes next: but
only if the test waits, too, for an answer, in `advance` or in `run_until`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Iterable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TypeVar, Unpack, cast

from backstay.kernel.machine import Machine
from backstay.kernel.values import SECOND, Micros
from backstay.protocol import requests as ask
from backstay.sdk.author.durations import Duration, to_seconds
from backstay.sdk.embedded.app import AsyncBackstay, BackstayOptions
from backstay.sdk.worker.watchdog import WORKFLOW_DEADLINE
from backstay.store import Ready, Store
from backstay.store.opening import open_store
from backstay.store.sqlite.writer import Offload
from backstay.testing import kept
from backstay.testing.crashes.mortal import MortalProcess
from backstay.testing.crashes.trial import CrashTrial
from backstay.testing.doubles import Behaviour, Doubles, DoublesState, Fake, MadeToFail
from backstay.testing.timekeeper import FAR, Timekeeper, TimeWait
from backstay.testing.timelines import RUNS, RunHistory, timelines
from backstay.testing.virtual_world import VirtualWorld
from backstay.testing.waiting_transport import Stuck, WaitingTransport

T = TypeVar("T")

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
"""When the time of a test begins, unless it says otherwise: a Thursday, the same in every run of the test."""

MAX_JUMPS = 10_000
PATIENCE = 30.0
EXPLAINED = 5  # open runs that an error explains


def moment(at: datetime | str) -> datetime:
    """Return a point in time with its zone."""
    found = datetime.fromisoformat(at) if isinstance(at, str) else at
    if found.tzinfo is None:
        raise ValueError(f"at= needs a time zone: {found.isoformat()}Z, or datetime(..., tzinfo=UTC)")
    return found.astimezone(UTC)


class AsyncTestBackstay(AsyncBackstay):
    """The real engine in memory, on virtual time, for tests on the running event loop: `async with AsyncTestBackstay(...)`.

    `at`: when its time begins. `seed`: of its ids and of the random numbers of workflows. A call that is not answered after
    `max_jumps` jumps of the clock raises `Stuck`, and so does one that waits for an activity which takes more than `patience` seconds
    of real time (None: any). The other options are those of `Backstay`.
    """

    __test__ = False

    def __init__(
        self,
        register: Iterable[Any] = (),
        *,
        at: datetime | str = NEW_YEAR,
        seed: int | None = None,
        max_jumps: int = MAX_JUMPS,
        patience: Duration | None = PATIENCE,
        **options: Unpack[BackstayOptions],
    ) -> None:
        self._began = moment(at)
        self._seed = seed
        self._max_jumps = max_jumps
        self._patience = None if patience is None else to_seconds(patience)
        self._doubles: Doubles | None = None
        self._clock: VirtualWorld | None = None
        super().__init__(":memory:", register, world=self._virtual_world, **options)  # pyright: ignore[reportArgumentType]  # a TypedDict may have more keys
        # The clock of the machine goes on in a test, so code that hangs is interrupted as elsewhere.
        self._workflow_deadline = options.get("workflow_deadline", WORKFLOW_DEADLINE)
        self.registry.register([MadeToFail])
        self._doubles = Doubles(self.registry)
        self._process: MortalProcess | None = None
        self._waiting = WaitingTransport(self._ask_engine, self._note, self._explained, self._on_thread)
        self._transport = self._waiting

    def register(self, *things: Any) -> None:
        """Register workflows, activities, objects with activity methods, and exception classes. Fakes stay in their place."""
        if self._doubles is None:
            super().register(*things)
            return
        self._doubles.take_out()
        try:
            super().register(*things)
        finally:
            self._doubles.put_in()

    def __repr__(self) -> str:
        return (
            super()
            .__repr__()
            .replace("<AsyncBackstay :memory:", f"<{type(self).__name__} at {self.now:%Y-%m-%d %H:%M:%S}")
        )

    # -- time

    @property
    def now(self) -> datetime:
        """The time of the test, in UTC."""
        if self._clock is None:
            return self._began
        return datetime.fromtimestamp(self._clock.now() // SECOND, UTC).replace(microsecond=self._clock.now() % SECOND)

    async def advance(self, by: Duration, *, while_running: bool = False) -> None:
        """Let this much time pass, and wait until everything has happened that is due by then.

        Activities that run hold the clock. With `while_running` they do not: so a test sees one time out.
        """
        world = self._open_world()
        await self._pass_time(world.now() + round(to_seconds(by) * SECOND), while_running=while_running)

    async def settle(self) -> None:
        """Wait until everything has happened that needs no time to pass: `advance(0)`."""
        await self._pass_time(self._open_world().now())

    async def run_until(self, true: Callable[[], T | Awaitable[T]], *, within: Duration | None = None) -> T:
        """Let time pass, from one thing that happens to the next, until `true` returns something true. Returns that.

        Raises `Stuck` when nothing happens any more, after `within`, or after `max_jumps` jumps of the clock.
        """
        for limit in self.jumps(within):
            await self.settle()
            found = true()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return cast(T, found)
            if not await self.jump(limit):
                break
        raise await self.never_true(within)

    def frozen(self) -> Any:
        """Hold the clock inside a `with` block, though somebody waits: while another task of the test needs real time."""
        return self._time().frozen()

    def jumps(self, within: Duration | None) -> Generator[Micros]:
        """Yield up to which time each jump of `run_until` may go."""
        limit = FAR if within is None else self._open_world().now() + round(to_seconds(within) * SECOND)
        for _ in range(self._max_jumps):
            yield limit

    async def jump(self, limit: Micros) -> bool:
        """Let time pass until the next thing happens. False if nothing happens until `limit`, which is then the time."""
        return (await self._pass_time(limit, by_step=True)).jumped

    async def never_true(self, within: Duration | None) -> Stuck:
        """Return the error of `run_until`."""
        why = "late" if within is not None else "nothing" if self._next_wake() is None else "endless"
        return Stuck(await self._explained(why, "a condition of run_until()"))

    async def _pass_time(self, until: Micros, *, by_step: bool = False, while_running: bool = False) -> TimeWait:
        wait = await self._time().pass_time(until, by_step=by_step, while_running=while_running)
        if wait.gave_up is not None:
            raise Stuck(await self._explained(wait.gave_up, "time to pass"))
        return wait

    # -- doubles

    def fake(
        self,
        target: Any,
        *,
        returns: Any = Behaviour.NOTHING,
        raises: BaseException | type[BaseException] | None = None,
        calls: Callable[..., Any] | None = None,
        hangs: bool = False,
    ) -> Fake:
        """Let something else stand in for an activity or a child, given as such or by its type. Returns the record of its calls.

        It returns a value (None by default), raises an error, calls a function with the arguments, or hangs until it times out or
        is cancelled. Raises `DefinitionError` for a type that is not known.
        """
        assert self._doubles is not None
        made = self._doubles.fake(target, Behaviour(returns, raises, calls, hangs))
        if raises is not None:
            self._know(raises)
        self._offer()
        return made

    def fail_next(self, target: Any, times: int = 1, error: BaseException | type[BaseException] | None = None) -> None:
        """Let the next attempts of an activity fail. Those after them do what the activity, or its fake, does."""
        assert self._doubles is not None
        self._doubles.fail_next(target, times, error or MadeToFail("the test made this attempt fail"))
        if error is not None:
            self._know(error)
        self._offer()

    def doubles(self) -> DoublesState:
        """Return what stands in for what, for `begin_anew`."""
        assert self._doubles is not None
        return self._doubles.state()

    def begin_anew(self, doubles: DoublesState) -> None:
        """Forget what a test has done to an app that is not open: let stand in what stood in then."""
        assert self._doubles is not None
        self._doubles.restore(doubles)

    def _know(self, error: BaseException | type[BaseException]) -> None:
        kind = error if isinstance(error, type) else type(error)
        if issubclass(kind, Exception):
            self.registry.exceptions.add(kind)

    def _offer(self) -> None:
        if self._clock is not None:
            self.recovery.offer_waiting()  # tasks that had no worker to run them

    # -- what has happened

    async def timeline(self, id: str) -> str:
        """Return what has happened in a workflow as text, as `dw history` prints it."""
        await self.describe(id)  # raises if there is none
        return timelines(await self.runs(id))

    async def runs(self, id: str | None = None) -> list[RunHistory]:
        """Return the histories of the runs of a workflow, or of all that were started here, the oldest first."""
        api, namespace, now = self._engine_room.call, self.namespace, self._open_world().now()
        rows = await api(ask.ListWorkflows(namespace=namespace, workflow_id=id, limit=5 * RUNS))
        return [
            RunHistory(
                row,
                await api(ask.GetHistory(workflow_id=row.workflow_id, namespace=namespace, run_id=row.run_id)),
                now,
            )
            for row in sorted(rows, key=lambda row: (row.started_at, row.key))
        ]

    def peek(self) -> list[RunHistory]:
        """Return the histories of all runs, also while the event loop does not turn: a store in memory answers at once."""
        reading = self.runs()
        try:
            reading.send(None)
        except StopIteration as done:
            return done.value
        reading.close()
        return []

    async def _explained(self, why: str, what: str) -> str:
        """Say why something will never happen, and what the open runs wait for."""
        told = {
            "nothing": "all waits, and no timer, retry, timeout or schedule is left that would change that",
            "endless": f"the clock has jumped {self._max_jumps:,} times, to {self.now:%Y-%m-%d %H:%M}, and something is"
            " always due later: a loop that polls, or a schedule. Wait for something that comes, or pass"
            f" max_jumps={10 * self._max_jumps}",
            "busy": f"an activity has been running for {self._patience:g} s of real time, and time stands still"
            " meanwhile. Replace it with app.fake(...), let time pass with app.advance(..., while_running=True), or"
            " pass a longer patience=",
            "moment": "the clock stands, and one thing follows the other for ever: a workflow that continues as new at"
            " once, or an activity that is retried without a pause",
            "late": f"it had not happened by {self.now:%Y-%m-%d %H:%M:%S}",
        }[why]
        head = f"this test waits for {what}, which will not come: {told}."
        api = self._engine_room.call
        rows = await api(
            ask.ListWorkflows(namespace=self.namespace, statuses=ask.OPEN, limit=EXPLAINED, tells_blocked=True)
        )
        lines = [head]
        for row in rows:
            reason = await api(ask.ExplainWorkflow(workflow_id=row.workflow_id, namespace=self.namespace))
            lines.append(f"  {row.workflow_id} ({row.workflow_type}): {reason.sentence}")
        return "\n".join(lines)

    # -- opening and closing

    async def _open(self) -> Any:
        if isinstance(kept.trial, CrashTrial):
            self._join(kept.trial)
        await super()._open()
        world = self._open_world()
        self._waiting.time = time = Timekeeper(
            world, self._busy, self._next_wake, max_jumps=self._max_jumps, patience=self._patience
        )
        self.engine.commits.observe(time.committed)
        if self._process is not None:
            self._process.opened(time)
        kept.opened.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            await self.add_note(error)
        await self.close()

    async def add_note(self, error: Exception) -> None:
        """Add the timelines of all runs to the error of a test, unless a plugin shows them itself."""
        if kept.histories is None and self._clock is not None:
            told = timelines(await self.runs())
            if told:
                error.add_note(f"\n{told}")

    async def _close(self) -> None:
        kept.opened.discard(self)
        if self._process is not None:
            await self._process.end(self.runs)
        if kept.histories is not None:
            kept.histories += await self.runs()
        self._time().close()
        if not self._busy():
            self._grace = 0.0  # there is nothing to wait for but what hangs
        try:
            await super()._close()
        finally:
            self._waiting.time = self._clock = self._process = None

    def _virtual_world(self) -> VirtualWorld:
        began, seed = round(self._began.timestamp() * SECOND), kept.seed if self._seed is None else self._seed
        self._clock = VirtualWorld(began, seed) if self._process is None else self._process.world(began, seed)
        return self._clock

    # -- processes that are killed

    def _join(self, trial: CrashTrial) -> None:
        """Become a part of a trial: this app is a process that may be killed, and the next ones after it."""
        assert self._doubles is not None
        self._process = MortalProcess(self, trial)
        known = self.registry
        trial.keep(
            [
                *(one.target for one in known.workflows.values()),
                *(one.fn for one in known.activities.values()),
                *known.instances.values(),
            ]
        )

    def _deployed(self) -> None:
        super()._deployed()
        if self._process is not None:
            self._process.gated(self.executor.activities)

    async def _ask_engine(self, request: ask.Request[Any]) -> Any:
        if self._process is None:
            return await self._engine_room.call(request)
        return await self._process.call(request)

    async def reopen(self) -> None:
        """Open the store in the next process."""
        await super()._open()
        self._time().move_to(self._open_world())
        self.engine.commits.observe(self._time().committed)

    async def abandon(self) -> None:
        """Lose the process: nothing that it has not written is kept."""
        self._engine_room.api = None
        self._drains.end()
        self.executor.stop()
        self._host.close()
        self._node.abandon()

    def ask_engine(self, request: ask.Request[Any]) -> Awaitable[Any]:
        return self._engine_room.call(request)

    async def _open_store(self, machine: Machine, offload: Offload | None) -> Store:
        if self._process is None:
            return await super()._open_store(machine, offload)
        return await self._process.open_store(lambda path: open_store(path, machine.kinds, offload))

    def _open_world(self) -> VirtualWorld:
        if self._clock is None:
            raise RuntimeError("this TestBackstay is not open; enter it with `with` or `async with` first")
        return self._clock

    def _time(self) -> Timekeeper:
        self._open_world()
        assert self._waiting.time is not None
        return self._waiting.time

    def _note(self) -> None:
        self._open_world().note()

    def _on_thread(self, type: str) -> bool:
        known = self.registry.activities.get(type)
        return known is not None and not known.is_async

    def _busy(self) -> int:
        """How many attempts run that end by themselves."""
        assert self._doubles is not None
        waits = 0 if self._process is None else self._process.acted(self._on_thread)
        return self.executor.activities.busy() - len(self._doubles.hanging) - waits

    def _next_wake(self) -> Micros | None:
        """The next deadline of a workflow, in memory or on disk."""
        timers = self.engine.timers
        if timers.nearest is not None:
            return timers.nearest
        found = self.store.due(FAR, 100)
        assert isinstance(found, Ready), "a store in memory answers at once"
        return next((at for at, _ in found.value if at > timers.horizon), None)
