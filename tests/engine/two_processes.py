"""Two processes at one database without links between them, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from backstay import AsyncBackstay
from backstay.kernel.decision import Decision
from backstay.kernel.machine import Machine
from backstay.kernel.values import partition_of
from backstay.store import Applied, Ready, Store
from tests.sdk.kit import eventually
from tests.sim.disk import Disk, MemoryStore, Seam
from tests.sim.virtual import VirtualWorld


class OnDisk(AsyncBackstay):
    """A process of its own, which mints ids of its own."""

    def __init__(self, disk: Disk, seed: int, things: list[Any], seam: Seam | None = None) -> None:
        loop: Any = asyncio.get_running_loop()
        super().__init__("simulated", things, guard="off", world=lambda: VirtualWorld(loop, seed))
        self._disk, self._seam = disk, seam or Seam()

    def _open_store(self, machine: Machine, offload: Any) -> Ready[Store]:
        store: Any = MemoryStore(self._disk, machine.kinds, self._seam)
        return Ready(store)


class SlowAnswers(Seam):
    """Commits are on disk at once; that they are is heard `late` seconds later."""

    late = 0.0

    def commit(self, store: Any, decisions: Sequence[Decision], done: Callable[[Applied], None]) -> None:
        applied = store.write(decisions)
        asyncio.get_running_loop().call_later(self.late, done, applied)


def of(app: AsyncBackstay, number: int, namespace: str = "default") -> str:
    """A workflow id in a shard of this process."""
    return next(id for n in range(1000) if app.engine.owns(partition_of(namespace, id := f"c-{number}-{n}")))


async def shared(owner: AsyncBackstay, helper: AsyncBackstay) -> None:
    await eventually(lambda: all(120 < sum(app.engine.owned) < 136 for app in (owner, helper)), "both own their part")
