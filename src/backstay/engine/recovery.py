"""Recovery: brings an engine up from its state on disk, after a start, a takeover, an outage, or a clock that was set
back.

It reconciles every instance whose tasks may need it (`Reconcile`: expected minus actual), delivers the sends in the outbox,
and reads the next deadlines. Then the engine is *up*, and workers are served. A recovery that fails on the way begins again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence

from backstay.engine.cluster.database_clock import DatabaseClock
from backstay.engine.cluster.notices import Notices
from backstay.engine.cluster.other_code import OtherCode
from backstay.engine.cluster.shards import Shards
from backstay.engine.cluster.stealing import Stealing
from backstay.engine.core.engine import Engine
from backstay.engine.core.lifecycle import EngineHooks, call_all
from backstay.engine.core.periodic import PeriodicJob
from backstay.engine.core.sweep import ReadyPosition, Sweep
from backstay.engine.core.world import Alarm
from backstay.kernel.features.lease import never_heard_of
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Micros
from backstay.store.errors import Forgotten, Unavailable

log = logging.getLogger("backstay.engine")

PROBE = SECOND
LONG_DOWN = 5  # failed probes in a row after which workers have to look for another engine
UNHEARD = 3 * SECOND // 2  # in which a worker of the previous engine has to show that it holds its task
COME_BACK = 10 * SECOND  # in which remote workers have to reconnect to an engine that comes up
PAGE = 500
WRONG = 2 * SECOND  # a machine's clock that is off by more is worth a warning


class Recovery:
    def __init__(
        self,
        engine: Engine,
        shards: Shards,
        notices: Notices,
        sweep: Sweep,
        stealing: Stealing,
        other_code: OtherCode,
        lifecycle: EngineHooks,
        clock: DatabaseClock,
    ) -> None:
        self._engine = engine
        self._shards = shards
        self._notices = notices
        self._sweep = sweep
        self._stealing = stealing
        self._other_code = other_code
        self._lifecycle = lifecycle
        self._clock = clock
        self._unread: set[int] = set()  # shards of this process whose rows it has not read
        self._abandoned: set[int] = set()  # of them, those whose last owner may have left something undone
        self._reading = False
        self._starting = False  # the first look is under way, and `start` waits for what follows from it
        self._probes = 0  # that failed in a row
        self._unheard: list[Alarm] = []
        self._outdated: set[int] = set()  # instances in memory that have to be read again
        self._clock_job = PeriodicJob(engine.world, "clock", self._follow_clock)
        self._probe_job = PeriodicJob(engine.world, "probe", self._probe, self._needs_probe)
        lifecycle.on_unavailable.append(self._probe_until_up)
        shards.on_gain = self._gained
        shards.on_loss = self._lost

    async def start(self) -> None:
        looks = self._engine.world.looks
        if looks is not None:
            await self._set_clock()
            self._clock_job.start(looks)
        self._starting = True
        try:
            await self._shards.start()
        finally:
            self._starting = False
        if self._engine.holder:
            await self._come_up()
        elif self._engine.store.exclusive:
            log.info("another process runs the engine of this database; this process reads and submits beside it")
        self._notices.start()
        self._stealing.start()
        self._other_code.start()

    def stop(self) -> None:
        for part in (
            self._shards,
            self._stealing,
            self._other_code,
            self._clock_job,
            self._probe_job,
            self._notices,
            self._sweep,
        ):
            part.stop()
        self._cancel_unheard()

    @property
    def up(self) -> bool:
        """Whether this process owns shards, and has read all of them from disk."""
        return self._engine.holder and not self._unread

    async def deployed(self) -> None:
        """Definitions were registered: retry the tasks that another definition had blocked."""
        await self._other_code.offer()

    def offer_waiting(self) -> None:
        """A worker has joined: reconcile the instances whose tasks were waiting for one like it."""
        for workflow in self._engine.matching.take_served():
            self._engine.reconcile(workflow)

    # -- coming to own shards

    def _gained(self, shards: Collection[int], abandoned: bool) -> None:
        self._unread |= frozenset(shards)
        if abandoned:
            self._abandoned |= frozenset(shards)
        self._expect_workers(shards)
        self._sweep.start()
        if not self._starting:
            self._probe_until_up()
            self._engine.world.spawn(self._try_to_come_up(), "backstay-come-up")

    def _lost(self, shards: Collection[int]) -> None:
        self._unread -= frozenset(shards)
        self._abandoned -= frozenset(shards)
        if not self._unread and self._engine.down is None:  # all that is left was read before these came
            self._engine.leases.read = True

    async def _try_to_come_up(self) -> None:
        try:
            await self._come_up()
        except Unavailable as error:
            log.warning("what is on disk could not be read, and is read again in a second: %s", error)

    async def _come_up(self) -> None:
        """Read leases, tasks, sends and deadlines of new shards from disk, then serve workers. If a read fails, begin again.

        Shards may come and go meanwhile. The state of a shard that was lost meanwhile is not used, because every use
        checks the owner again; gained shards are read in the next round.
        """
        engine = self._engine
        if self._reading:
            return
        self._reading = True
        try:
            while self._unread and engine.down is None:
                shards = frozenset(self._unread)
                some = None if engine.owns_all and len(shards) == len(engine.owned) else sorted(shards)
                self._expect_workers(shards)
                await self._recover(some)
                await engine.outbox.pick_up(some)
                await engine.timers.start()
                if engine.down is not None:
                    return
                self._expect_workers(shards & self._unread)
                engine.dispatcher.serve_all()
                self._release_unheard(shards & self._abandoned)
                self._unread -= shards
        finally:
            self._reading = False
        if engine.holder and engine.down is None:
            call_all(self._lifecycle.on_up)

    async def _recover(self, shards: Sequence[int] | None) -> None:
        """Release the leases of dead engines, and offer ready tasks to workers.

        An in-process lease has no expiry: it ends with the engine that gave it, whose incarnation is in its owner. So a task
        that was running when its process died is offered again within milliseconds of the next start, and counts as a crash
        (`activity/crashes.py`); with a timeout instead it would wait for minutes, and renewals would cost a write per step.
        Leases of remote workers have an expiry and stay: the worker may be alive, and reports to this engine.
        `tests/crash` kills an engine at every commit boundary, and `tests/processes/test_failover.py` moves workers to the next engine.
        """
        engine = self._engine
        seen: set[int] = set()
        mine = frozenset(range(len(engine.owned)) if shards is None else shards)
        known = [task for task in engine.leases if task.workflow & (len(engine.owned) - 1) in mine]
        leased = await engine.store.leased(shards=shards)
        engine.leases.reread(known, [task for task in leased if engine.owns(task.workflow)])
        for task in engine.leases:
            if task.is_suspect and task.owner is not None:
                engine.matching.isolation.begin(task, task.owner, task.attempt)
        for task in [*leased, *await engine.store.failed(shards=shards)]:
            if task.workflow not in seen:
                seen.add(task.workflow)
                engine.reconcile(task.workflow)
        await self._rearm(seen, shards)
        after: ReadyPosition | None = None
        while True:
            page = await engine.store.ready(PAGE, after, shards=shards)
            for task in page:
                if engine.owns(task.workflow):
                    self._offer(task, seen)
            if len(page) < PAGE:
                return
            after = (page[-1].available_at, page[-1].workflow, page[-1].id)

    async def _rearm(self, seen: set[int], shards: Sequence[int] | None) -> None:
        """Load the instances that were last written in the future, so that their deadlines begin again from now."""
        engine = self._engine
        now = engine.world.now()
        after: tuple[Micros, int] = (now, 0)
        while True:
            page = await engine.store.written_in_future(now, after, PAGE, shards=shards)
            for _, key in page:
                if key not in seen:
                    seen.add(key)
                    engine.reconcile(key)
            if len(page) < PAGE:
                return
            after = page[-1]

    def _offer(self, task: Task, seen: set[int]) -> None:
        engine = self._engine
        now = engine.world.now()
        set_back = task.created_at > now
        if task.available_at > now and not set_back:
            return  # its wake will offer it
        if task.workflow not in seen:
            seen.add(task.workflow)
            if set_back or engine.matching.serves(task):
                engine.reconcile(task.workflow)
            else:
                engine.matching.lanes.add(task)

    # -- the workers of the previous engine

    def _expect_workers(self, shards: Iterable[int]) -> None:
        """Postpone the deadlines of remote workers: until now they could not report, and they need time to reconnect."""
        now = self._engine.world.now()
        self._engine.wait_for_workers(shards, now, now + COME_BACK)

    def _release_unheard(self, shards: Collection[int]) -> None:
        """Release the tasks whose worker does not report soon: the reply to its poll may have died with the last owner.

        Workflow tasks only: they are short, and running one twice costs a replay. That their engine was gone is no
        crash of their code: ten takeovers in a row would block it. Tasks that run at a worker of this process were
        delivered: a shard may come back.
        """
        engine = self._engine
        self._abandoned -= frozenset(shards)
        mask = len(engine.owned) - 1
        before = [task for task in engine.leases if task.kind == "workflow" and task.workflow & mask in shards]

        def release() -> None:
            at_work = engine.held_tasks()
            for task in before:
                held = engine.leases.get(task.routing.namespace, task.id)
                if (
                    held is not None
                    and task.id not in at_work
                    and engine.owns(task.workflow)
                    and (held.attempt, held.until) == (task.attempt, task.until)
                ):
                    engine.submit(task.workflow, never_heard_of(task))

        if before:
            self._unheard = [*self._unheard[-9:], engine.world.at(engine.world.now() + UNHEARD, release)]

    def _cancel_unheard(self) -> None:
        for alarm in self._unheard:
            alarm.cancel()
        self._unheard.clear()

    # -- outages

    def _needs_probe(self) -> bool:
        engine = self._engine
        return engine.down is not None or (engine.holder and bool(self._unread))

    def _probe_until_up(self) -> None:
        self._probe_job.start(PROBE)

    async def _probe(self) -> None:
        engine = self._engine
        if engine.down is not None:
            error = await engine.store.probe()
            if isinstance(error, Forgotten):  # the duration of the outage so far
                self._shards.count_forgotten()
                error = await engine.store.probe()
            if error is not None:
                engine.still_unavailable(error)
                self._probes += 1
                if self._probes == LONG_DOWN and engine.holder:
                    call_all(self._lifecycle.on_lost)
                return
            self._probes = 0
            log.warning("the database is available again")
            await self._shards.check()
            if not engine.holder:
                self._cancel_unheard()
            self._outdate()  # it may be another database than before, restored from a backup
            self._unread |= {shard for shard, owned in enumerate(engine.owned) if owned}
            self._expect_workers(self._unread)
            engine.on_available()
            call_all(self._lifecycle.on_foreign_commit)  # other processes may have committed meanwhile
        if engine.holder and self._unread:
            await self._come_up()

    # -- the clock

    async def _set_clock(self) -> None:
        """Begin with the database's time. Nothing was decided by another yet."""
        ahead = await self._clock.ahead()
        if ahead is not None:
            away = self._engine.world.follow(ahead, at_once=True)
            if abs(away) > WRONG:
                log.warning(
                    "the clock of this machine is %.1f s %s the clock of the database, which is used: synchronize by NTP",
                    abs(away) / SECOND,
                    "behind" if away > 0 else "ahead of",
                )

    async def _follow_clock(self) -> None:
        """Follow the database's clock, or the wall clock if it has none, after it was set, or after the machine slept.

        Set forward, timers that are due by the new time fire now. Set back, a deadline in memory may lie farther away than
        its own length: a timer of five seconds would fire a year later. A deadline begins again from now when its instance is
        folded from disk (`Agenda.restart_after_clock_change`), as after a restart. So all instances in memory are dropped and
        read again. An instance with uncommitted decisions cannot be dropped, since they are based on its state. It is dropped
        at one of the next calls (`_outdated`); without that it would keep the deadlines of the old clock.
        `tests/engine/test_world.py`, `tests/kernel/test_clock.py` and `tests/sim/test_clock_set_back.py` show it.
        """
        engine = self._engine
        if self._outdated and self.up:
            self._forget_outdated()
        moved = engine.world.follow(await self._clock.ahead())
        if moved > 0:
            log.warning("the clock was set forward by %s s; timers that are due by it fire now", moved // SECOND)
            engine.timers.wind()
        elif moved < 0:
            log.warning("the clock was set back by %s s", -moved // SECOND)
            if engine.holder:
                self._outdate()
                self._unread |= {shard for shard, owned in enumerate(engine.owned) if owned}
                self._probe_until_up()

    def _outdate(self) -> None:
        """Drop everything in memory: every instance is read again when it is next needed."""
        engine = self._engine
        self._outdated = {entry.instance.key for entry in engine.cache}
        engine.timers.forget()
        engine.loading.outdate()
        self._forget_outdated()

    def _forget_outdated(self) -> None:
        engine = self._engine
        for key in list(self._outdated):
            entry = engine.cache.get(key)
            if entry is not None and (entry.inflight or entry.code_is_busy):
                continue
            self._outdated.discard(key)
            if entry is not None:
                engine.discard_cached(entry)
                if self.up:
                    engine.reconcile(key)
