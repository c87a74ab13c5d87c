"""What keeps an engine honest over time: taking the lock, recovering on start, sweeping, noticing other processes.

Everything here works by the same message, `Reconcile`: expected minus actual. A guest (another process holds the engine
lock) only looks whether it may take over; a process that runs no tasks does not even do that, since work would wait while it is
the engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from backstay.engine.engine import Engine
from backstay.engine.world import Alarm
from backstay.kernel.features import pause
from backstay.kernel.features.lease import Release
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.message import Message
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Micros
from backstay.store import Unavailable

log = logging.getLogger("backstay.engine")

NOTICE = SECOND // 50  # how often to look for commits of other processes
LOOK_ANYWAY = 15 * SECOND
TAKE_OVER = SECOND // 5
SWEEP = 5 * SECOND
SWEEP_IDLE = 300 * SECOND  # when nobody commits anything, nothing gets lost
ASK = 300 * SECOND
PROBE = SECOND
LONG_DOWN = 5  # probes: whoever waits for work here may find it elsewhere
OVERDUE = 3 * SECOND
UNHEARD = 3 * SECOND // 2  # how long a worker of the engine before has to show that it holds its task
COME_BACK = 10 * SECOND  # how long workers have to come back to an engine that comes up
PAGE = 500

Place = tuple[Micros, int, str]
"""Of a ready task among the others: since when, whose, its id."""


class Recovery:
    def __init__(
        self, engine: Engine, overdue: Micros | None = None, every: Micros | None = None, *, guest: bool = False
    ) -> None:
        """`overdue`: how long a task may be ready in no lane; `every`: the pause between two sweeps; `guest`: this process
        never becomes the engine of a database that others can reach."""
        self._engine = engine
        self.guest = guest and engine.store.shared
        self._overdue = overdue or OVERDUE
        self._pause = every or SWEEP
        self._alarms: dict[str, Alarm] = {}
        self._intervals: dict[str, Micros] = {}
        self._rings: dict[str, Callable[[], None]] = {}
        self._turns: dict[str, asyncio.Task[Any]] = {}
        self._going: set[str] = set()  # what is done again and again
        self.stopped = False
        self._troubled: set[str] = set()  # what could not reach the database the last time
        self._up = False  # as the holder: what was on disk has been picked up
        self._term = 0  # changes when this process becomes the engine or stops being it
        self._probes = 0  # in a row that have failed
        self._unheard = False  # leases of the engine before are still to be asked after
        self._sweep_from = 0
        self._ready_from: Place | None = None
        self._ask_from = 0
        self._outdated: set[int] = set()  # instances in memory that are to be read again before they move
        self.on_take_over: list[
            Callable[[], Awaitable[None]]
        ] = []  # awaited when this process becomes the engine later
        self.on_lost: list[Callable[[], None]] = []  # called when it is the engine no longer, or cannot be for long now
        self.on_up: list[Callable[[], None]] = []  # called when it is the engine, and has picked up what is on disk
        self.on_foreign: list[Callable[[], None]] = []  # called when another process has committed
        self.rests: Callable[[], bool] = lambda: False  # whether somebody else says when to sweep
        self.on_sweep: list[Callable[[], None]] = []
        engine.look_at = self.look_at
        engine.retry = self._retry
        engine.on_down = self._went_down
        engine.on_busy = self._sweep_soon

    async def start(self) -> None:
        if self.guest:
            log.info("this process runs no tasks, so it leaves the engine of the database to others")
        elif await self._engine.store.acquire():
            await self._engine.store.notices()
            await self._take_over()
        else:
            log.info("another process runs the engine of this database; this one reads and submits beside it")
            self._every("take over", TAKE_OVER, self._try_to_take_over)
        if self._engine.world.looks is not None:
            self._every("clock", self._engine.world.looks, self._follow_clock)
        if self._engine.store.shared:
            self._every("notice", NOTICE, self._notice)
            self._every("look anyway", LOOK_ANYWAY, self._look_anyway)

    def stop(self) -> None:
        self.stopped = True
        self._engine.outbox.stop()
        self._engine.waiters.close()
        for alarm in self._alarms.values():
            alarm.cancel()
        for turn in self._turns.values():
            turn.cancel()

    def look_at(self, key: int) -> None:
        """Bring the tasks of an instance back to what its history expects, and before the workers."""
        if self._engine.holder:
            self._engine.submit(key, self._reconcile(key), again=False)

    def _retry(self, key: int, message: Message) -> None:
        engine = self._engine
        engine.world.at(engine.world.now() + PROBE, lambda: None if self.stopped else engine.submit(key, message))

    def _reconcile(self, key: int) -> Reconcile:
        # Work that is on its way to (or from) a worker is held by nobody for a moment: only judge what is at rest.
        entry = self._engine.cache.get(key)
        at_rest = key not in self._engine.losses.restless and (entry is None or not (entry.inflight or entry.held))
        return Reconcile(
            incarnation=self._engine.incarnation,
            holding=self._held() if at_rest else None,
            asked_at=self._engine.world.now(),
        )

    def _held(self) -> frozenset[str]:
        """The tasks somebody in this process is working on."""
        return frozenset[str]().union(*(executor.holding for executor in self._engine.matching.executors))

    async def deployed(self) -> None:
        """Definitions were registered: what another definition was blocked by is tried again."""
        if self._engine.holder:
            for task in await self._engine.store.failed():
                self.look_at(task.workflow)

    async def _take_over(self) -> None:
        """Become the engine. Notices from before were taken off the store unread: recovery reads what they are about."""
        self._term += 1
        self._engine.holder = True
        self._forget_guest_state()
        self._every("sweep", self._pause, self._sweep_in_turn)
        self._every("ask", ASK, self._ask)
        self._unheard = True
        await self._come_up()

    async def _come_up(self) -> None:
        """Pick up what is on disk. If that fails on the way, it is done again, from the beginning."""
        self._up = False
        self._expect_workers()
        term = self._term
        for part in (self._recover, self._engine.outbox.pick_up, self._engine.timers.start):
            await part()
            if term != self._term:
                return  # the lock was lost meanwhile, and what was read is another's now
        self._up = True
        self._expect_workers()
        self._engine.serving.everybody()
        if self._unheard:
            self._unheard = False
            self._offer_unheard()
        for callback in self.on_up:
            callback()

    def _expect_workers(self) -> None:
        """Nobody could hear until now whether attempts that workers hold go on, or how they ended."""
        now = self._engine.world.now()
        self._engine.wait_for_workers(now, now + COME_BACK)

    @property
    def up(self) -> bool:
        """Whether this process is the engine, and knows everything that is on disk."""
        return self._engine.holder and self._up

    def _offer_unheard(self) -> None:
        """The answer to a poll may have died with the engine before us. Who got it speaks up soon, or it is offered again.

        Workflow tasks only: they are short, and running one twice costs a replay.
        """
        engine = self._engine
        before = [task for task in engine.leases if task.kind == "workflow"]

        def look() -> None:
            for task in before:
                held = engine.leases.get(task.routing.namespace, task.id)
                if held is not None and (held.attempt, held.until) == (task.attempt, task.until):
                    engine.submit(task.workflow, Release(task_id=task.id, owner=task.owner or "", attempt=task.attempt))

        if before:
            self._alarms["unheard"] = engine.world.at(engine.world.now() + UNHEARD, look)

    def _forget_guest_state(self) -> None:
        for entry in self._engine.cache:
            if entry.inflight == 0:
                self._engine.cache.drop(entry)
            else:
                # Decided when somebody else had to run it, and not on disk yet, where recovery would find it.
                self.look_at(entry.flow.key)
        self._engine.loading.outdate()

    async def _recover(self) -> None:
        """After a start or a takeover: leases of dead engines end now, ready tasks come before the workers."""
        engine = self._engine
        seen: set[int] = set()
        term = self._term
        known = list(engine.leases)
        leased = await engine.store.leased()
        if term != self._term:
            return
        engine.leases.reread(known, leased)
        for task in [*leased, *await engine.store.failed()]:
            if task.workflow not in seen:
                seen.add(task.workflow)
                self.look_at(task.workflow)
        await self._catch_up(seen)
        after: Place | None = None
        while True:
            page = await engine.store.ready(PAGE, after)
            for task in page:
                self._offer(task, seen)
            if len(page) < PAGE:
                return
            after = (page[-1].available_at, page[-1].workflow, page[-1].id)

    async def _catch_up(self, seen: set[int]) -> None:
        """The clock may have gone back while no engine ran: what was set by the old one begins again from now."""
        now = self._engine.world.now()
        after: tuple[Micros, int] = (now, 0)
        while True:
            page = await self._engine.store.ahead(now, after, PAGE)
            for _, key in page:
                if key not in seen:
                    seen.add(key)
                    self.look_at(key)
            if len(page) < PAGE:
                return
            after = page[-1]

    async def _follow_clock(self) -> None:
        """The clock on the wall was set, or the machine slept: what is due by the new time happens now.

        Set back, it is as after a restart: what was set by the clock of before begins again from now (`Machine.rearm`), and that
        happens when instances are read. So those in memory are given up, and everything is picked up from the disk once more;
        those that move at this moment follow a little later.
        """
        engine = self._engine
        if self._outdated and self._up:
            self._forget_outdated()
        moved = engine.world.follow()
        if moved > 0:
            log.warning("the clock was set forward by %s s", moved // SECOND)
            engine.timers.wind()
        elif moved < 0:
            log.warning("the clock was set back by %s s", -moved // SECOND)
            if engine.holder:
                self._outdate()
                self._up = False
                self._every("probe", PROBE, self._probe)

    def _outdate(self) -> None:
        """Nothing that is in memory is to be relied on any more; it is read again when it is needed."""
        engine = self._engine
        self._outdated = {entry.flow.key for entry in engine.cache}
        engine.timers.forget()
        engine.loading.outdate()
        self._forget_outdated()

    def _forget_outdated(self) -> None:
        engine = self._engine
        for key in list(self._outdated):
            entry = engine.cache.get(key)
            if entry is not None and (entry.inflight or entry.held):
                continue
            self._outdated.discard(key)
            if entry is not None:
                engine.discard_cached(entry)
                if self._up:
                    self.look_at(key)

    def _offer(self, task: Task, seen: set[int]) -> None:
        now = self._engine.world.now()
        gone_back = task.created_at > now
        if task.available_at > now and not gone_back:
            return  # its wake will bring it
        if task.workflow not in seen:
            seen.add(task.workflow)
            if gone_back or self._engine.matching.wanted(task):
                self.look_at(task.workflow)
            else:
                self._engine.matching.enqueue(task)

    def offer_waiting(self) -> None:
        """A worker has joined: look at the instances whose tasks were waiting for one like it."""
        for workflow in self._engine.matching.take_wanted():
            self.look_at(workflow)

    async def _try_to_take_over(self) -> None:
        if not self._engine.holder and await self._engine.store.acquire():
            log.info("the process that ran the engine is gone; this one takes over")
            for prepare in self.on_take_over:
                await prepare()
            await self._engine.store.notices()
            self._tell_foreign()  # what the engine before us did last may have gone unnoticed here
            if await self._engine.store.acquire():  # it may have been lost while that was prepared
                await self._take_over()
        elif self._engine.holder and not self._up and self._engine.down is None:
            await self._come_up()

    async def _notice(self) -> None:
        engine = self._engine
        try:
            await self._look_around()
        except Unavailable as error:
            # Nothing of ours is being written, and still: without its database an engine is none, and finds out what it
            # is when that is back.
            if engine.holder:
                engine.lost(error)
            raise

    async def _look_around(self) -> None:
        engine = self._engine
        if engine.down is not None or not await engine.store.changed():
            return
        if engine.idle:
            self._sweep_soon()
        try:
            if engine.holder:
                await engine.outbox.pick_up()
                await self._take_notices()
        except Exception:
            self._tell_foreign()  # that something was committed is said once
            raise
        self._tell_foreign()  # last: who begins to wait meanwhile may go by what is still in memory

    def _tell_foreign(self) -> None:
        for callback in self.on_foreign:
            callback()

    async def _take_notices(self) -> bool:
        """Look at every instance that another process has changed; whether there were any."""
        engine = self._engine
        keys = await engine.store.notices()
        for key in keys:
            entry = engine.cache.get(key)
            if entry is not None and entry.inflight == 0 and not entry.held:
                engine.discard_cached(entry)
            engine.loading.outdate(key)
            self.look_at(key)
        return bool(keys)

    async def _look_anyway(self) -> None:
        """Being told of other processes' commits saves time and no more: who waits for news looks for it anyway."""
        engine = self._engine
        if engine.down is None and (not engine.holder or await self._take_notices()):
            self._tell_foreign()

    async def _sweep_in_turn(self) -> None:
        if self.rests():
            self._intervals["sweep"] = self._pause
        elif self._engine.down is None:
            self._engine.idle = True
            quiet = await self.sweep()
            if quiet and self._engine.idle:  # and nothing was committed meanwhile
                self._intervals["sweep"] = min(self._intervals["sweep"] * 2, SWEEP_IDLE)
            else:
                self._sweep_soon()

    def _sweep_soon(self) -> None:
        """Something was committed, here or by another process: what got lost with it is looked for in the promised time."""
        self._engine.idle = False
        self._hurry("sweep", self._pause)

    async def sweep(self) -> bool:
        """Look for what should move and does not, a page at a time; whether all of it was read and there is nothing."""
        engine = self._engine
        await engine.timers.look_again()
        suspects, after = await engine.store.suspects(self._sweep_from, PAGE)
        self._sweep_from = after or 0
        stuck, self._ready_from = await self.stuck(self._ready_from)
        suspects += [task.workflow for task in stuck]
        for key in suspects:
            self.look_again(key)
        for callback in self.on_sweep:
            callback()
        return not suspects and not after and self._ready_from is None

    async def stuck(self, after: Place | None = None) -> tuple[list[Task], Place | None]:
        """Tasks that should have gone on by now: leased to nobody who is alive, or ready and in no lane.

        Those that are ready a page at a time: where the next one begins, if there is one.
        """
        engine = self._engine
        held = self._held()
        found = [t for t in await engine.store.leased() if t.until is None and t.id not in held]
        page = await engine.store.ready(PAGE, after)
        more = len(page) == PAGE and page[-1].available_at <= engine.world.now() - self._overdue
        found += [task for task in page if self.unoffered(task)]
        return found, (page[-1].available_at, page[-1].workflow, page[-1].id) if more else None

    def unoffered(self, task: Task) -> bool:
        """Whether a task has been ready for a while, and no lane has it: its wake-up was lost."""
        engine = self._engine
        overdue = task.state == "ready" and task.available_at <= engine.world.now() - self._overdue
        return overdue and engine.holder and not engine.matching.knows(task.id) and not self._withheld(task)

    def _withheld(self, task: Task) -> bool:
        """Whether its run is known to be paused: then it stands where it should."""
        entry = self._engine.cache.get(task.workflow)
        return entry is not None and entry.flow.run is not None and not pause.allows(entry.flow.run)

    def look_again(self, key: int) -> bool:
        """Fold an instance anew from disk and reconcile it, unless it is moving."""
        if not self._engine.reload(key):
            return False
        self.look_at(key)
        return True

    async def _ask(self) -> None:
        """Ask after instances that owe others an answer, a page at a time: their answer, or the question, may be lost."""
        engine = self._engine
        if engine.down is not None:
            return
        await engine.outbox.pick_up()
        page = await engine.store.awaiting(self._ask_from, PAGE)
        self._ask_from = page[-1] if len(page) == PAGE else 0
        for key in page:
            engine.submit(key, Reconcile(incarnation=engine.incarnation, ask=True), again=False)

    def _went_down(self) -> None:
        self._every("probe", PROBE, self._probe)

    async def _probe(self) -> None:
        engine = self._engine
        if engine.down is not None:
            error = await engine.store.probe()
            if error is not None:
                engine.down = error
                self._probes += 1
                if self._probes == LONG_DOWN and engine.holder:
                    self._tell_lost()
                return
            self._probes = 0
            log.warning("the database is available again")
            self._up = False
            if engine.holder and not await engine.store.acquire():
                self._step_down()
            elif engine.holder:
                self._outdate()  # it may be another database than before, restored from a backup
            self._expect_workers()
            engine.up()
            self._tell_foreign()  # nobody here was told of what others did meanwhile
        if engine.holder and not self._up:
            await self._come_up()

    def _step_down(self) -> None:
        """While the database was out of reach another process has become the engine. What we knew is its business now."""
        log.warning("another process runs the engine now; this one reads and submits beside it")
        self._term += 1
        self._engine.step_down()
        self._tell_lost()
        alarm = self._alarms.pop("unheard", None)
        if alarm is not None:
            alarm.cancel()
        self._every("take over", TAKE_OVER, self._try_to_take_over)

    def _tell_lost(self) -> None:
        for callback in self.on_lost:
            callback()

    def _every(self, name: str, interval: Micros, work: Callable[[], Any]) -> None:
        """Call an async function again and again, never twice at once."""
        engine = self._engine
        self._intervals[name] = interval
        if name in self._going:
            return
        self._going.add(name)

        async def turn() -> None:
            least = 0
            try:
                await work()
                self._troubled.discard(name)
            except Unavailable as error:
                if name not in self._troubled:  # said once, then tried until it works
                    self._troubled.add(name)
                    log.warning("%s: %s", name, error)
                least = PROBE
            except Exception:
                log.exception("%s failed; it is tried again", name)
            if not self.stopped and self._goes_on(name):
                pause = max(self._intervals[name], least)  # which its work may have changed
                self._alarms[name] = engine.world.at(engine.world.now() + pause, ring)
            else:
                self._going.discard(name)

        def ring() -> None:
            if self.stopped or not self._goes_on(name):
                self._going.discard(name)
            else:
                self._turns[name] = engine.world.spawn(turn(), f"backstay-{name}")

        self._rings[name] = ring
        self._alarms[name] = engine.world.at(engine.world.now() + interval, ring)

    def _hurry(self, name: str, interval: Micros) -> None:
        """From now on this is done so often, and so soon."""
        turn = self._turns.get(name)
        under_way = turn is not None and not turn.done()
        if name in self._going and self._intervals[name] > interval and not under_way:
            self._alarms[name].cancel()
            self._alarms[name] = self._engine.world.at(self._engine.world.now() + interval, self._rings[name])
        self._intervals[name] = interval

    def _goes_on(self, name: str) -> bool:
        engine = self._engine
        if name == "probe":
            return engine.down is not None or (engine.holder and not self._up)
        return engine.holder or name not in ("sweep", "ask")
