"""The sweep: looks through the database for work that should move and does not, and reconciles it.

It reconciles by one message, `Reconcile`: expected minus actual. The sweep runs every few seconds while there are commits, and
more and more rarely while there are none, since then nothing gets lost. A second, slower job repeats sends whose answer is
missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from backstay.engine.core.engine import Engine
from backstay.engine.core.lifecycle import EngineHooks, call_all
from backstay.engine.core.paused_runs import PausedRuns
from backstay.engine.core.periodic import PeriodicJob
from backstay.kernel.features import pause
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Micros

SWEEP = 5 * SECOND
SWEEP_IDLE = 300 * SECOND  # when nothing is committed, nothing gets lost
ASK = 300 * SECOND
OVERDUE = 3 * SECOND
PAGE = 500

ReadyPosition = tuple[Micros, int, str]
"""The position of a ready task among the others: since when it is ready, its instance, its id."""


class Sweep:
    """Of the shards of this process. `overdue`: how long a task may be ready in no lane; `every`: the pause between two sweeps;
    `rests`: whether the next sweep is left to another process."""

    def __init__(
        self,
        engine: Engine,
        lifecycle: EngineHooks,
        *,
        overdue: Micros | None = None,
        every: Micros | None = None,
        rests: Callable[[], bool] = lambda: False,
    ) -> None:
        self._engine = engine
        self._lifecycle = lifecycle
        self._overdue = overdue or OVERDUE
        self._pause = every or SWEEP
        self._rests = rests
        self._paused = PausedRuns(engine.store)
        self._suspects_from = 0
        self._ready_from: ReadyPosition | None = None
        self._endless_from: tuple[int, str] | None = None
        self._ask_from = 0
        self._sweep_job = PeriodicJob(engine.world, "sweep", self._sweep_in_turn, self._is_engine)
        self._ask_job = PeriodicJob(engine.world, "ask", self.ask, self._is_engine)
        lifecycle.on_busy.append(self._hurry)

    def start(self) -> None:
        """This process owns shards: sweep from now on, until it owns none."""
        self._sweep_job.start(self._pause)
        self._ask_job.start(ASK)

    def stop(self) -> None:
        self._sweep_job.stop()
        self._ask_job.stop()

    def _is_engine(self) -> bool:
        return self._engine.holder

    async def _sweep_in_turn(self) -> None:
        engine = self._engine
        if self._rests():
            self._sweep_job.interval = self._pause
        elif engine.down is None:
            engine.mark_idle()
            quiet = await self.sweep()
            if quiet and engine.idle:  # and nothing was committed meanwhile
                self._sweep_job.interval = min(self._sweep_job.interval * 2, SWEEP_IDLE)
            else:
                engine.mark_busy()

    def _hurry(self) -> None:
        """Return to the usual pause: there was a commit, and work may get lost again."""
        self._sweep_job.hurry(self._pause)

    async def sweep(self) -> bool:
        """Reconcile instances that are stuck, a page at a time; True if everything was read and none was found."""
        engine = self._engine
        await engine.timers.look_again()
        shards = engine.shards()
        suspects, after = await engine.store.mismatched(self._suspects_from, PAGE, shards=shards)
        self._suspects_from = after or 0
        stuck, self._endless_from = await self._abandoned(self._endless_from, shards)
        unoffered, self._ready_from = await self._unoffered(self._ready_from, shards)
        suspects += [task.workflow for task in (*stuck, *unoffered)]
        for key in suspects:
            self.reload_and_reconcile(key)
        call_all(self._lifecycle.on_sweep)
        return not suspects and not after and self._endless_from is None and self._ready_from is None

    async def _abandoned(
        self, after: tuple[int, str] | None, shards: Sequence[int] | None
    ) -> tuple[list[Task], tuple[int, str] | None]:
        """One page of tasks that are leased to an executor that does not hold them, and where the next page begins, if any.

        Only leases without an end: the others have a deadline, which comes up by itself.
        """
        engine = self._engine
        held = engine.held_tasks()
        page = await engine.store.endless(PAGE, after, shards=shards)
        more = (page[-1].workflow, page[-1].id) if len(page) == PAGE else None
        return [task for task in page if task.until is None and task.id not in held], more

    async def _unoffered(
        self, after: ReadyPosition | None, shards: Sequence[int] | None
    ) -> tuple[list[Task], ReadyPosition | None]:
        """One page of ready tasks that are in no lane, and where the next page begins, if any."""
        page = await self._engine.store.ready(PAGE, after, shards=shards)
        more = len(page) == PAGE and page[-1].available_at <= self._engine.world.now() - self._overdue
        await self._paused.look_again({task.workflow for task in page})
        tasks = [task for task in page if self.unoffered(task)]
        return tasks, (page[-1].available_at, page[-1].workflow, page[-1].id) if more else None

    def unoffered(self, task: Task) -> bool:
        """Whether a task has been ready for a while and is in no lane: its wake-up was lost."""
        overdue = task.state == "ready" and task.available_at <= self._engine.world.now() - self._overdue
        return overdue and self.in_no_lane(task.id, task.workflow)

    def in_no_lane(self, task_id: str, workflow: int) -> bool:
        """Whether this engine knows nothing of a task that is ready, though it should."""
        engine = self._engine
        return engine.owns(workflow) and task_id not in engine.matching.lanes.waiting and not self._withheld(workflow)

    def _withheld(self, workflow: int) -> bool:
        """Whether the run of a task is known to be paused: then it is in no lane on purpose."""
        entry = self._engine.cache.get(workflow)
        if entry is None:
            return workflow in self._paused
        return entry.instance.run is not None and not pause.allows(entry.instance.run)

    def reload_and_reconcile(self, key: int) -> bool:
        """Fold an instance again from disk and reconcile it; False if it is being changed right now."""
        if not self._engine.reload(key):
            return False
        self._engine.reconcile(key, partial(self._reconciled, key))
        return True

    def _reconciled(self, key: int, _: Any, error: BaseException | None) -> None:
        """Remember that a run is paused: its instance may not stay in memory, and is not to be read in each sweep."""
        entry = self._engine.cache.get(key)
        if entry is not None and self._withheld(key):
            self._paused.add(key, entry.instance.last_decision)

    async def ask(self) -> None:
        """Repeat sends of instances that wait for an answer, a page at a time: the send or the answer may be lost."""
        engine = self._engine
        if engine.down is not None:
            return
        shards = engine.shards()
        await engine.outbox.pick_up(shards)
        page = await engine.store.awaiting(self._ask_from, PAGE, shards=shards)
        self._ask_from = page[-1] if len(page) == PAGE else 0
        for key in page:
            if engine.owns(key):
                engine.submit(key, Reconcile(incarnation=engine.incarnation, ask=True), again=False)
