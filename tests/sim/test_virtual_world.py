"""The whole embedded stack in a virtual world: months pass in milliseconds, and the same seed gives the same log."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from backstay import AsyncBackstay, activity, activity_info, now, rng, side_effect, sleep, spawn, uuid4, workflow
from backstay.kernel.decision import Decision
from backstay.kernel.machine import Machine
from backstay.store import Applied, Ready
from tests.sim.disk import Disk, MemoryStore, Seam
from tests.sim.virtual import VirtualLoop, VirtualWorld, run


@activity(retries=3, backoff=["1h", "1d"])
def fragile(n: int) -> str:
    if activity_info().number <= n % 3:
        raise ConnectionError(f"try {activity_info().number}")
    return f"ok-{n}"


@activity
async def slow(n: int) -> int:
    await asyncio.sleep(n * 60)
    return n


def branch(n: int) -> str:
    sleep(f"{n}d")
    return fragile(n)


@workflow
def months(n: int) -> list[str]:
    first = fragile(n)
    branches = [spawn(branch, i) for i in range(3)]
    sleep("30d")
    lucky = side_effect(lambda: random.Random(n).random())
    return [first, *(b.join() for b in branches), str(lucky), str(uuid4()), f"{rng().random():.6f}", now().isoformat()]


@workflow
async def fan(n: int) -> int:
    values = await asyncio.gather(*(slow(i) for i in range(n)))
    await asyncio.sleep(3600)
    return sum(values)


Log = list[tuple[str, int, str, int, bytes, bytes]]


async def tell(world: Callable[[], VirtualWorld]) -> tuple[list[object], Log]:
    async with AsyncBackstay(":memory:", [fragile, slow, months, fan], guard="off", world=world) as app:
        handles = [await app.start(months, f"m{i}", i) for i in range(5)] + [await app.start(fan, "f", 6)]
        results: list[object] = [await handle.result() for handle in handles]
        log: Log = []
        for handle in handles:
            for e in await handle.history():
                log.append((handle.id, e.sequence, e.type, e.at, e.body, e.context_body))
    return results, log


def test_the_same_seed_gives_the_same_log():
    first, again = run(7, tell), run(7, tell)
    assert first == again
    assert len(first[1]) > 100


def test_another_seed_gives_other_identities_and_the_same_outcomes():
    one, other = run(1, tell), run(2, tell)
    assert one[1] != other[1]
    assert [r[:4] for r in one[0][:5]] == [r[:4] for r in other[0][:5]]  # type: ignore[index]
    assert one[0][5] == other[0][5] == 15


@pytest.mark.contract("TIMER-01")
def test_a_month_takes_no_time_and_is_slept_exactly():
    began = time.perf_counter()
    _, log = run(3, tell)
    assert time.perf_counter() - began < 60
    fired = [(at, body) for id, _, type, at, body, _ in log if type == "TimerFired"]
    assert fired
    scheduled = {body[: body.index(b",")]: at for _, _, type, at, body, _ in log if type == "TimerScheduled"}
    assert len(scheduled) >= 3


class SlowDisk(MemoryStore):
    """Each commit takes three seconds."""

    loop: VirtualLoop

    def apply(self, decisions: Sequence[Decision], done: Callable[[Applied], None]) -> None:
        applied = self.write(decisions)
        self.loop.call_later(3, lambda: done(applied))


def test_an_engine_that_stops_waits_for_its_commit_and_does_not_spin():
    class Slow(AsyncBackstay):
        def _open_store(self, machine: Machine, offload: Any) -> Ready[Any]:
            store = SlowDisk(Disk(), machine.kinds, Seam())
            store.loop = cast(VirtualLoop, asyncio.get_running_loop())
            return Ready(store)

    async def story(world: Callable[[], VirtualWorld]) -> float:
        async with Slow(":memory:", [months, fragile], guard="off", world=world) as app:
            started = asyncio.ensure_future(app.start(months, "m", 1))
            await asyncio.sleep(0.1)
        assert (await started).id == "m"
        return asyncio.get_running_loop().time()

    assert run(1, story) >= 3
