"""The signal barrier: waits until workflow code has handled every signal that was accepted so far.

An acknowledged signal is on disk; code handles it in a later commit. A query or an update in between would not see the
signal's effect. So a caller may ask (`after_signals`) to wait here first. The wait ends with a commit of this engine, or with a
check of the database after a commit of another process. There is no wait for a run whose code does not run: it is paused or
closed, its task failed, or no worker runs its type. A task whose workers were lost is no failure of the code: it is tried again
soon, and the wait goes on.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from backstay.engine.core.engine import Engine
from backstay.engine.core.instances import Instances
from backstay.engine.core.world import rest
from backstay.kernel.features import pause
from backstay.kernel.features.signal import outstanding
from backstay.kernel.features.workflow_task.messages import CRASHED
from backstay.kernel.state import Instance
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND

TOPIC = "settled"
TAKEN_OVER = 1.0  # seconds after which another process has become the engine, if there is one


class BarrierResult(NamedTuple):
    """How the wait ended. `left` names a signal that was not handled; None if there is none."""

    left: str | None = None
    stands: bool = False  # the code of the run does not run now, so waiting longer is no use


class SignalBarrier:
    """`guest`: this process never becomes the engine, so there may be none."""

    def __init__(self, engine: Engine, instances: Instances, *, guest: bool) -> None:
        self._guest = guest
        self._engine = engine
        self._instances = instances

    async def wait(self, key: int, seconds: float) -> BarrierResult:
        """Wait, `seconds` at most, until all signals accepted by now have been handled."""
        instance = await self._instances.committed(key)
        signals = (
            {} if instance.run is None else {event.signal_id: event.signal_name for event in outstanding(instance)}
        )
        if not signals:
            return BarrierResult()
        if not await self._served():
            return BarrierResult(next(iter(signals.values())), stands=True)
        moved = partial(self._moved, signals)
        waiters = self._engine.waiters
        waiters.subscribe(key, moved)
        try:
            result = await waiters.wait(key, TOPIC, _never, partial(self._look, key, signals), seconds)
        finally:
            waiters.unsubscribe(key, moved)
        if result is None and waiters.stopped is not None:
            raise waiters.stopped()  # the wait was ended early
        return result or BarrierResult(next(iter(signals.values())))

    async def _served(self) -> bool:
        """Whether there is an engine, or will be one in a moment, since another process may take over."""
        store, world = self._engine.store, self._engine.world
        if not self._guest or await store.has_engine():
            return True
        await rest(world, round(TAKEN_OVER * SECOND))
        return await store.has_engine()

    async def _look(self, key: int, signals: dict[str, str]) -> BarrierResult | None:
        # From disk: the state in memory may be ahead of it, and may lack signals that another process has accepted.
        return self._judge(await self._instances.committed(key), signals)

    def _moved(self, signals: dict[str, str], instance: Instance) -> None:
        # The state in memory only decides whether to read from disk.
        if self._judge(instance, signals) is not None:
            self._engine.waiters.check(instance.key, TOPIC)

    def _judge(self, instance: Instance, signals: dict[str, str]) -> BarrierResult | None:
        """The result of the wait; None if it goes on."""
        left = [] if instance.run is None else [e.signal_name for e in outstanding(instance) if e.signal_id in signals]
        if not left:
            return BarrierResult()
        return BarrierResult(left[0], stands=True) if self._stands(instance) else None

    def _stands(self, instance: Instance) -> bool:
        """Whether the code of this run does not run now, even if there are signals for it."""
        run = instance.current
        if not run.is_open or not pause.allows(run):
            return True
        if any(task.kind == "workflow" and _has_failed(task) for task in instance.tasks.values()):
            return True
        matching = self._engine.matching
        if not self._engine.owns(instance.key) or matching.remote is not None:
            return False
        of = ("workflow", run.workflow_type, run.routing.namespace, run.routing.queue, run.routing.compatibility)
        return not any(executor.runs(*of) for executor in matching.executors)


def _has_failed(task: Task) -> bool:
    return task.state == "failed" and (task.block is None or task.block.replay_blocked or task.block.reason != CRASHED)


def _never(news: object) -> BarrierResult:
    """This topic is never notified: its waiters only check."""
    raise AssertionError(news)
