"""What nodes know of the workers elsewhere: which code they have. A server has a registry of them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from backstay.kernel.fleet import WorkerIdentity
from backstay.kernel.views.facts import Takers
from backstay.store.errors import StoreError

if TYPE_CHECKING:
    from .away import AwayWorker
    from .nodes import Node
    from .simulation import Simulation


class AwayFleet:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim

    def _there(self, queue: str) -> list[AwayWorker]:
        return [one for one in self._sim.away if one.life.alive and not one.draining and one.queue == queue]

    def takers(self, kind: str, type: str, namespace: str, queue: str, build: str | None) -> Takers:
        there = self._there(queue)
        able = sum(one.executor.runs(kind, type, namespace, queue, build) for one in there)
        return Takers(on_queue=len(there), of_type=able, able=able, builds=[])

    def definitions(self, type: str, namespace: str, queue: str, build: str | None) -> set[str]:
        return {
            one.executor.identity(type).definition
            for one in self._there(queue)
            if one.executor.runs("workflow", type, namespace, queue, build)
        }

    def identity(self, namespace: str, worker_id: str, type: str) -> WorkerIdentity | None:
        """None also while a worker that drains and its successor have one name."""
        named = [one for one in self._sim.away if one.life.alive and one.name == worker_id]
        return named[0].executor.identity(type) if len(named) == 1 else None


async def deployed(node: Node) -> None:
    """A worker has come: a node offers it what the code of others was blocked on."""
    with suppress(StoreError):
        await node.app.recovery.deployed()
