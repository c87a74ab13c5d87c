"""Wake signals only save time: without any, the same programs come to the same results through the same steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from backstay import AsyncBackstay
from backstay.kernel.machine import Machine
from backstay.store import Ready, Store

from .disk import Disk, MemoryStore, Seam
from .programs import ACTIVITIES, HELPERS, Grammar, PlainA, Program, ledger
from .virtual import VirtualWorld, run

TIMELY = {"sleep", "signal", "notes", "race", "within", "hasty", "luck", "memo", "again", "far", "flaky", "beating"}
"""What depends on time, on luck, or on others."""


class Deaf(Seam):
    def misses(self) -> bool:
        return True


class OnDisk(AsyncBackstay):
    def __init__(self, disk: Disk, seam: Seam, world: Callable[[], VirtualWorld]) -> None:
        super().__init__("simulated", [PlainA, *ACTIVITIES, *HELPERS], guard="off", world=world)
        self._disk, self._seam = disk, seam

    def _open_store(self, machine: Machine, offload: Any) -> Ready[Store]:
        store: Any = MemoryStore(self._disk, machine.kinds, self._seam)
        return Ready(store)


def programs() -> list[Program]:
    made = (Grammar(Random(seed)).program(is_async=False, careful=False) for seed in range(400))
    return [program for program in made if not any(word in str(program) for word in TIMELY)][:12]


def story(seam: Seam) -> tuple[list[Any], list[list[str]], float]:
    """One node holds the engine; everything is started through the other."""
    ledger.__init__()  # type: ignore[misc]

    async def tell(world: Callable[[], VirtualWorld]) -> tuple[list[Any], list[list[str]], float]:
        disk = Disk()
        async with OnDisk(disk, seam, world) as holder, OnDisk(disk, seam, world) as guest:
            assert (holder.engine.holder, guest.engine.holder) == (True, False)
            handles = [await guest.start(PlainA, f"w{n}", program, []) for n, program in enumerate(programs())]
            results = [(await handle.result())[0] for handle in handles]
            steps = [[entry.type for entry in await handle.history()] for handle in handles]
            return results, steps, asyncio.get_running_loop().time()

    return run(1, tell)


def test_without_wake_signals_everything_is_the_same_and_later() -> None:
    heard, deaf = story(Seam()), story(Deaf())
    assert len(heard[0]) == 12
    assert deaf[0] == heard[0]
    assert [sorted(steps) for steps in deaf[1]] == [sorted(steps) for steps in heard[1]]
    assert deaf[2] > heard[2]
