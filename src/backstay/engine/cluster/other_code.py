"""Other code for blocked runs: offers their tasks when workers with other definitions come, and takes them back when those go.

A task whose code was blocked is ready again only for workers with other definitions (`kernel/features/workflow_task/blocked.py`).
It waits in a lane like any other. If the last such worker goes away, the task is blocked again, so that its run says so.

Workers of a server are in a registry, with their definitions. Another process that runs tasks itself is in no registry:
it publishes a digest of its code. Tasks that were blocked here are offered to it for a while, and it takes those that
fit (`stealing.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256

from msgspec.structs import replace

from backstay.engine.cluster.shards import Shards
from backstay.engine.core.engine import Engine
from backstay.engine.core.periodic import PeriodicJob
from backstay.kernel.features import workflow_task
from backstay.kernel.values import SECOND
from backstay.store.ownership import NodeFacts

LOOK = 2 * SECOND


class OtherCode:
    def __init__(self, engine: Engine, shards: Shards) -> None:
        self._engine = engine
        self._shards = shards
        self._seen: frozenset[str] = frozenset()  # the code of other processes, at the last look
        self._job = PeriodicJob(engine.world, "other-code", self._look, self._has_work)
        engine.matching.lanes.on_tried = self.start
        engine.matching.code_elsewhere = self._elsewhere

    def start(self) -> None:
        if self._has_work():
            self._job.start(LOOK)

    def stop(self) -> None:
        self._job.stop()

    async def offer(self) -> None:
        """Workers have come: offer them the tasks that blocked the code of others."""
        engine = self._engine
        if engine.holder:
            for task in await engine.store.failed(shards=engine.shards()):
                if task.is_blocked and workflow_task.others(engine.matching, task):
                    engine.reconcile(task.workflow)

    def _has_work(self) -> bool:
        return not self._engine.store.exclusive or self._engine.matching.lanes.has_tried

    async def _look(self) -> None:
        engine = self._engine
        if engine.down is not None:
            return
        # Taken out, because a task may have ended elsewhere; tasks that still wait are put back.
        for key in engine.matching.lanes.take_all(lambda lane: bool(lane.tried)):
            engine.reconcile(key)
        before, self._seen = self._seen, self._elsewhere()
        if self._seen - before:
            await self.offer()

    def _elsewhere(self) -> frozenset[str]:
        others = (node for node in self._shards.others if node.is_alive)
        return frozenset(f"process {node.facts.code}" for node in others if node.facts.executes and node.facts.code)


def with_code(facts: NodeFacts, definitions: Mapping[str, str | None]) -> NodeFacts:
    """The facts of a process that runs workflows with these fingerprints itself."""
    return replace(facts, executes=True, code=_digest(definitions.items()))


def _digest(definitions: Iterable[tuple[str, str | None]]) -> str:
    whole = "\n".join(f"{type} {fingerprint}" for type, fingerprint in sorted(definitions, key=str))
    return sha256(whole.encode()).hexdigest()[:16]
