"""A process that can be killed: the engine of a test app with its worker, in a world and on a store that it loses in one moment.

A killed process does nothing any more: what it had queued is dropped, what it would write is not written, what its activities
return is not heard. Its store stays, and the next process opens it. The test goes on, as a caller of a server does: a call that
was not answered is repeated with the same request id.

**One move at a time.** What comes from outside of the engine waits at a gate: calls of the test that write, attempts that begin
and attempts that have acted. The gate opens for one of them when all is quiet. So a trial is the same in every repetition, and
where several wait, another order is another trial.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from itertools import count
from typing import Any, Protocol, cast

from backstay.kernel.decision import Decision
from backstay.kernel.values import KEY_BITS, KEY_EPOCH, Micros
from backstay.protocol import commands as tell
from backstay.protocol import requests as ask
from backstay.sdk.author.attempt import Attempt, current_attempt
from backstay.sdk.worker.activities import ActivityRunner
from backstay.store import Applied, Store
from backstay.testing.crashes.calls import WRITES, told
from backstay.testing.crashes.trial import CrashTrial, Killed, Move
from backstay.testing.timekeeper import Timekeeper
from backstay.testing.timelines import RunHistory
from backstay.testing.virtual_world import VirtualWorld

COMPANY = 0.05
"""Seconds of real time after which an attempt that does not end gets company: it may wait for what another one does."""


class Life:
    """One process, from its start to its end."""

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        self.alive = True
        self.death: asyncio.Future[None] = loop.create_future()
        self.attempts: set[str] = set()
        """The ids of the attempts that it has begun."""
        self.tasks: set[asyncio.Task[Any]] = set()


class MortalWorld(VirtualWorld):
    """The world of one life. What is queued in it dies with it."""

    def __init__(self, began: Micros, seed: int, life: Life) -> None:
        super().__init__(began, seed)
        self._life = life

    def soon(self, call: Callable[[], None]) -> None:
        self.loop.call_soon(self._call, call)

    def post(self, call: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(self._call, call)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = super().spawn(work, name)
        self._life.tasks.add(task)
        task.add_done_callback(self._life.tasks.discard)
        return task

    def alive(self) -> bool:
        return self._life.alive

    def _call(self, call: Callable[[], None]) -> None:
        if self._life.alive:
            call()

    def _ring(self) -> None:
        if self._life.alive:
            super()._ring()


class MortalStore:
    """The store of one life. Every commit is a point at which the process may be killed: before it is on disk, and after."""

    def __init__(self, store: Store, process: MortalProcess, life: Life) -> None:
        self._store = store
        self._process = process
        self._life = life

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def apply(self, decisions: Sequence[Decision], done: Callable[[Applied], None]) -> None:
        life, process = self._life, self._process
        if not life.alive or process.before_commit(life, decisions):
            return

        def written(applied: Applied) -> None:
            if not process.after_commit(life, decisions):
                done(applied)

        self._store.apply(decisions, written)

    def keep(self, entry: Any, done: Any) -> None:
        if self._life.alive:
            self._store.keep(entry, done)

    def keep_all(self, entries: Any, done: Any) -> None:
        if self._life.alive:
            self._store.keep_all(entries, done)

    def prune(self, runs: Any, done: Any) -> None:
        if self._life.alive:
            self._store.prune(runs, done)

    def put_views(self, changes: Any, done: Any) -> None:
        if self._life.alive:
            self._store.put_views(changes, done)

    def close(self) -> Any:
        return self._store.close()


class Gate:
    """What waits to enter the engine of one life."""

    def __init__(self, trial: CrashTrial, life: Life) -> None:
        self._trial = trial
        self._life = life
        self._starts: deque[Callable[[], None]] = deque()
        self._moves: list[Move] = []
        self._tickets = count()
        self.acted: dict[str, str] = {}
        """The activity types of attempts that have acted and wait here, by their ids."""

    @property
    def empty(self) -> bool:
        return not self._starts and not self._moves

    def ticket(self) -> int:
        """Return a place in the order by default: that in which calls and attempts began."""
        return next(self._tickets)

    def start(self, begin: Callable[[], None]) -> None:
        self._starts.append(begin)

    def add(self, ticket: int, told: str, call: Callable[[], None]) -> None:
        insort(self._moves, Move(ticket, told, call), key=lambda move: move.ticket)

    def begin_next(self) -> bool:
        """Let an attempt begin. False if none waits."""
        if self._starts:
            self._starts.popleft()()
            return True
        return False

    def open(self) -> bool:
        """All is quiet: let in what comes next. False if nothing waits."""
        if not self._life.alive:
            return True
        if self.begin_next():
            return True
        if not self._moves:
            return False
        self._moves.pop(self._trial.choose(self._moves)).call()
        return True

    def close(self) -> list[Move]:
        """Return the calls that wait here, which go to the next life."""
        self._starts.clear()
        moves, self._moves = self._moves, []
        return moves


class MortalApp(Protocol):
    """What a process needs of the app in it."""

    async def reopen(self) -> None: ...
    async def abandon(self) -> None: ...
    def ask_engine(self, request: ask.Request[Any]) -> Awaitable[Any]: ...


class MortalProcess:
    """The processes of one app in one trial, one after the other."""

    def __init__(self, app: MortalApp, trial: CrashTrial) -> None:
        self._app = app
        self.trial = trial
        self._loop = asyncio.get_running_loop()
        self.life = Life(0, self._loop)
        self.gate = Gate(trial, self.life)
        self._path = trial.next_path()
        self._store: Store | None = None
        self._world: MortalWorld | None = None
        self.time: Timekeeper | None = None
        self._reborn: asyncio.Future[None] = self._loop.create_future()
        self._reborn.set_result(None)
        self._work: set[asyncio.Task[Any]] = set()
        self._closing = False
        trial.joined(self)

    # -- what the app is made of

    def world(self, began: Micros, seed: int) -> MortalWorld:
        before = self._world
        made = MortalWorld(began if before is None else before.now(), seed + 1_000_003 * self.life.number, self.life)
        if before is not None:
            made.ids.after((before.ids.key(0) >> KEY_BITS) + KEY_EPOCH)  # no key that the one before may have minted
        self._world = made
        return made

    async def open_store(self, open: Callable[[str], Awaitable[Store]]) -> Store:
        """Open the store of the next life. What is in memory is not lost with a process: it stands for a disk."""
        store = self._store
        if store is None:
            store = self._store = await open(self._path)
        elif self._path != ":memory:":
            store.close()  # every commit is on disk, and the lock has to be free
            store = self._store = await open(self._path)
        return cast(Store, MortalStore(store, self, self.life))

    def opened(self, time: Timekeeper) -> None:
        """The app is open: what waits at the gate goes by its clock."""
        self.time = time
        time.let_in = lambda: self.gate.open()

    def acted(self, on_thread: Callable[[str], bool]) -> int:
        """How many attempts on threads have acted, and only wait for that to be heard."""
        return sum(map(on_thread, self.gate.acted.values()))

    def gated(self, runner: ActivityRunner) -> None:
        """Let attempts begin one after the other, and wait with what they return."""
        start, life, gate = runner.start, self.life, self.gate

        def begin(ticket: int, assignment: Any, attempt: Attempt, done: Callable[[Any], None]) -> None:
            id = attempt.attempt_id

            def heard(result: Any) -> None:
                gate.acted.pop(id, None)
                if life.alive:
                    done(result)

            def acted(result: Any) -> None:
                if not life.alive:
                    return
                gate.acted[id] = attempt.type
                told = f"{attempt.workflow_id}: step {attempt.step}, {attempt.type}"
                if not self._point(
                    life, "acted", f"{told} (attempt {attempt.number}) has acted, and its result is not recorded"
                ):
                    gate.add(ticket, f"the result of {told}", partial(heard, result))
                    self._arm()

            life.attempts.add(id)
            start(assignment, attempt, acted)
            self._loop.call_later(COMPANY, self._give_company, life)

        def wait(assignment: Any, attempt: Attempt, done: Callable[[Any], None]) -> None:
            gate.start(partial(begin, gate.ticket(), assignment, attempt, done))
            self._arm()

        vars(runner)["start"] = wait

    def _give_company(self, life: Life) -> None:
        if life.alive and life is self.life and not self._closing:
            self.gate.begin_next()

    def _arm(self) -> None:
        if self.time is not None:
            self.time.arm()

    # -- calls of the test

    async def call(self, request: ask.Request[Any]) -> Any:
        """Ask the engine. If its process is killed before it answers, ask the next one."""
        attempt = current_attempt()
        request = self.trial.named(request)
        if isinstance(request, tell.SignalWorkflow):
            held = self.trial.comes_late(request)
            if held is not None:
                return held
        late = self.trial.take_late()
        if late is not None and not isinstance(request, tell.SignalWorkflow):
            await self._ask(late, None)
            late = None
        answer = await self._ask(request, attempt)
        if isinstance(request, tell.SignalWorkflow):
            self.trial.signalled(request, answer, self.now())
        else:
            self.trial.asked(request)
        if late is not None:
            await self._ask(late, None)
        return answer

    async def _ask(self, request: ask.Request[Any], attempt: Attempt | None) -> Any:
        if isinstance(request, WRITES):
            self.trial.note(self.now(), "test", told(request))
        while True:
            if not self._reborn.done():
                await asyncio.shield(self._reborn)
            life = self.life
            if attempt is not None and attempt.attempt_id not in life.attempts:
                raise Killed  # it was called by an attempt of a process that is no more
            if isinstance(request, WRITES):
                entered: asyncio.Future[None] = self._loop.create_future()
                self.gate.add(self.gate.ticket(), told(request), partial(_enter, entered))
                self._arm()
                await asyncio.wait((entered, life.death), return_when=asyncio.FIRST_COMPLETED)
                if not life.alive:
                    continue
            asked = asyncio.ensure_future(self._app.ask_engine(request))
            try:
                await asyncio.wait((asked, life.death), return_when=asyncio.FIRST_COMPLETED)
                if asked.done() and not asked.cancelled():
                    return asked.result()
            finally:
                asked.cancel()

    def now(self) -> Micros:
        return 0 if self._world is None else self._world.now()

    def runs_attempt(self, id: str) -> bool:
        """Whether the process that lives has begun this attempt."""
        return id in self.life.attempts

    # -- points

    def before_commit(self, life: Life, decisions: Sequence[Decision]) -> bool:
        """Whether the process dies before these decisions are on disk. That matters only if something has happened outside."""
        if not any(entry.type == "SideEffectRecorded" for decision in decisions for entry in decision.events):
            return not life.alive
        return self._point(life, "before", decisions)

    def after_commit(self, life: Life, decisions: Sequence[Decision]) -> bool:
        """Whether the process dies when these are on disk, and no caller and no worker has heard of them."""
        return self._point(life, "after", decisions)

    def effect(self, attempt: Attempt | None, told: str) -> bool:
        """Whether the process dies right after something has happened outside."""
        if attempt is not None and attempt.attempt_id not in self.life.attempts:
            return False
        return self._point(self.life, "effect", told)

    def _point(self, life: Life, kind: str, what: Any) -> bool:
        if not life.alive:
            return True
        if self._closing or self.time is None or not self.trial.point(self.now(), kind, what):
            return False
        life.alive = False
        self._loop.call_soon_threadsafe(self._bury, life)
        return True

    # -- between two lives

    def _bury(self, life: Life) -> None:
        if self._reborn.done():
            self._reborn = self._loop.create_future()
        if not life.death.done():
            life.death.set_result(None)
        if not self._work:
            task = self._loop.create_task(self._restart())
            self._work.add(task)
            task.add_done_callback(self._work.discard)

    async def _restart(self) -> None:
        assert self.time is not None
        with self.time.frozen():
            while True:
                dead = self.life
                self.gate.close()
                for task in list(dead.tasks):
                    task.cancel()
                if dead.tasks:
                    await asyncio.wait(dead.tasks)
                await self._app.abandon()
                self.trial.forget()
                self.trial.note(self.now(), "restart", "another process opens the store")
                self.life = life = Life(dead.number + 1, self._loop)
                self.gate = Gate(self.trial, life)
                opening = asyncio.ensure_future(self._app.reopen())
                await asyncio.wait((opening, life.death), return_when=asyncio.FIRST_COMPLETED)
                if opening.done():
                    opening.result()
                if life.alive:
                    break
                opening.cancel()
                await asyncio.wait((opening,))
        self._reborn.set_result(None)

    async def end(self, runs: Callable[[], Awaitable[list[RunHistory]]]) -> None:
        """The app closes: from here on it is not killed any more."""
        while self._work:
            await asyncio.wait(self._work)
        self._closing = True
        for move in self.gate.close():  # what has acted is heard, and what has not begun will not begin
            move.call()
        self.trial.runs += await runs()


def _enter(entered: asyncio.Future[None]) -> None:
    if not entered.done():
        entered.set_result(None)
