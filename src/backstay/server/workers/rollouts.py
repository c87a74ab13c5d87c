"""Rollouts: the builds of workers that get new runs. A cohort is (namespace, queue, build id); None is unversioned.

A rollout outlives its workers: a build that drains still drains when its workers come back.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from backstay.kernel.values import Micros
from backstay.server.registries.registry import StoredRegistry
from backstay.store import Store

MOST = 1000
"""Builds of a namespace that were drained or promoted."""

MOST_BYTES = 1 << 20


class Rollout(Struct, frozen=True, kw_only=True):
    queue: str
    build_id: str | None
    draining: bool = False
    drained_at: Micros | None = None
    promoted_at: Micros | None = None
    rolled_back_at: Micros | None = None


def _nobody() -> None:
    pass


class Rollouts:
    """The rollouts of all queues. `on_change` is called when workers may take other tasks than before."""

    def __init__(self, store: Store) -> None:
        self.kept = StoredRegistry(store, "rollout", Rollout, most=MOST, most_bytes=MOST_BYTES)
        self.on_change: Callable[[], None] = _nobody

    def unheard(self) -> Rollouts:
        """The same rollouts, without calls of `on_change`."""
        self.on_change = _nobody
        return self

    @property
    def changes(self) -> int:
        return self.kept.changes

    async def load(self) -> None:
        await self.kept.load()
        self.on_change()

    def get(self, namespace: str, queue: str, build_id: str | None) -> Rollout:
        found = self.kept.get(namespace, _name(queue, build_id))
        return found or Rollout(queue=queue, build_id=build_id)

    def on(self, namespace: str, queue: str) -> list[Rollout]:
        return [rollout for _, rollout in self.kept.of(namespace) if rollout.queue == queue]

    def draining(self, namespace: str, queue: str, build_id: str | None) -> bool:
        return self.get(namespace, queue, build_id).draining

    def promotion(self, namespace: str, queue: str) -> Rollout | None:
        """The promoted build of this queue, which new runs are pinned to."""
        promoted = [r for r in self.on(namespace, queue) if r.promoted_at is not None and not r.draining]
        return max(promoted, key=lambda r: r.promoted_at or 0) if promoted else None

    def promoted(self, namespace: str, queue: str) -> str | None:
        found = self.promotion(namespace, queue)
        return None if found is None else found.build_id

    async def drain(self, namespace: str, queue: str, build_id: str | None, now: Micros) -> Rollout:
        before = self.get(namespace, queue, build_id)
        return await self._put(namespace, replace(before, draining=True, drained_at=before.drained_at or now))

    async def resume(self, namespace: str, queue: str, build_id: str | None) -> Rollout:
        return await self._put(namespace, replace(self.get(namespace, queue, build_id), draining=False))

    async def promote(self, namespace: str, queue: str, build_id: str | None, now: Micros) -> Rollout:
        for other in self.on(namespace, queue):
            if other.promoted_at is not None and other.build_id != build_id:
                await self._put(namespace, replace(other, promoted_at=None, rolled_back_at=now))
        before = self.get(namespace, queue, build_id)
        return await self._put(namespace, replace(before, draining=False, promoted_at=now, rolled_back_at=None))

    async def _put(self, namespace: str, rollout: Rollout) -> Rollout:
        await self.kept.put(namespace, _name(rollout.queue, rollout.build_id), rollout)
        self.on_change()
        return rollout


def _name(queue: str, build_id: str | None) -> str:
    return queue if build_id is None else f"{queue}\n{build_id}"
