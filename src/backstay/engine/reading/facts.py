"""The current facts about runs: workers, limits and the state of the engine for their next tasks."""

from __future__ import annotations

from msgspec.structs import replace

from backstay.engine.core.engine import Engine
from backstay.engine.tasks.leases import Queue
from backstay.kernel.views.facts import UNKNOWN_TAKERS, Facts, ReachedLimit, Takers
from backstay.kernel.views.summary import RunSummary

_Lane = tuple[str, str, str, str, str | None]


class FactFinder:
    """Finds the facts about runs for one answer. It caches its results, so it is used once and dropped.

    `has_engine`: whether any process is the engine of the database, if this one is not.
    """

    def __init__(self, engine: Engine, *, has_engine: bool = True) -> None:
        self._matching = engine.matching
        here = engine.holder
        self._knows_workers = engine.knows_workers()
        self._knows_limits = engine.owns_all
        down = here and engine.down is not None
        self._plain = Facts(engine="down" if down else "here" if here else "elsewhere" if has_engine else "none")
        self._takers: dict[_Lane, Takers] = {}
        self._limits: dict[Queue, ReachedLimit | None] = {}

    def of(self, summary: RunSummary) -> Facts:
        """The facts about a run. Only a run whose next task is ready has any besides those about the engine."""
        kind, type = summary.next_task_kind, summary.next_task_type
        if summary.next_task_state != "ready" or kind is None or type is None:
            return self._plain
        facts = self.of_task(kind, type, summary.namespace, summary.queue, summary.build)
        takers = facts.takers.of_connection(summary.next_task_connection)
        return facts if takers is facts.takers else replace(facts, takers=takers)

    def of_task(self, kind: str, type: str, namespace: str, queue: str, build: str | None) -> Facts:
        """The facts about a ready task that a worker of this queue, type and build could take, whatever its connection is."""
        takers = self._who_takes((kind, type, namespace, queue, build))
        return Facts(engine=self._plain.engine, takers=takers, limit=self._limit((kind, namespace, queue)))

    def _who_takes(self, lane: _Lane) -> Takers:
        takers = self._takers.get(lane)
        if takers is None:
            takers = self._takers[lane] = self._matching.takers(*lane) if self._knows_workers else UNKNOWN_TAKERS
        return takers

    def _limit(self, queue: Queue) -> ReachedLimit | None:
        admission = self._matching.admission
        if admission is None or not self._knows_limits:
            return None
        if queue not in self._limits:
            self._limits[queue] = admission.reached(queue)
        return self._limits[queue]
