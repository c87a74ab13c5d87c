"""The real world: what the engine and the SDK rely on of clock and alarms."""

from __future__ import annotations

import asyncio
import time

import pytest

from backstay import AsyncBackstay, now, sleep, workflow
from backstay.engine import recovery
from backstay.engine.cluster.database_clock import DatabaseClock
from backstay.engine.core.world import SLEW, AsyncioWorld, LongAlarm
from backstay.kernel.values import SECOND
from tests.sdk.kit import eventually

DAY = 86_400


def test_an_alarm_waits_as_long_as_it_is_told_to() -> None:
    """Whoever waits three days for a result, or between two tries, is not to be told after one."""

    async def told() -> float:
        loop = asyncio.get_running_loop()
        world = AsyncioWorld(loop)
        alarm = world.at(world.now() + 3 * DAY * SECOND, lambda: None)
        assert isinstance(alarm, LongAlarm)
        assert alarm.handle is not None
        alarm.cancel()
        assert alarm.handle.cancelled()
        return alarm.handle.when() - loop.time()

    assert 2.9 * DAY < asyncio.run(told()) < 3.1 * DAY


class Clocks:
    """The clocks of a machine that can be set and put to sleep, in nanoseconds."""

    def __init__(self) -> None:
        self.wall_ahead = 0.0
        self.slept = 0.0

    def wall(self) -> int:
        return time.time_ns() + round((self.wall_ahead + self.slept) * 1e9)

    def steady(self) -> int:
        return time.monotonic_ns() + round(self.slept * 1e9)

    def world(self) -> AsyncioWorld:
        world = AsyncioWorld(asyncio.get_running_loop(), self.wall, self.steady)
        world.looks = SECOND // 100
        return world


async def test_a_clock_that_is_set_is_followed_when_it_is_read() -> None:
    clocks = Clocks()
    world = clocks.world()
    began = world.now()
    clocks.wall_ahead = 8 * 3600
    assert world.now() - began < 60 * SECOND, "nobody has looked"
    assert abs(world.follow() - 8 * 3600 * SECOND) < SECOND
    assert world.follow() == 0
    assert 0 <= world.now() - began - 8 * 3600 * SECOND < 60 * SECOND
    clocks.wall_ahead = 0
    assert abs(world.follow() + 8 * 3600 * SECOND) < SECOND
    assert abs(world.now() - began) < 60 * SECOND


async def test_a_clock_that_is_set_back_by_little_is_followed_slowly() -> None:
    clocks = Clocks()
    world = clocks.world()
    began = world.now()
    clocks.wall_ahead = -3.0
    looks = 0
    while world.now() > clocks.wall() // 1000 + SECOND // 10:
        assert world.follow() == 0
        looks += 1
    assert looks >= 3 * SECOND // SLEW - 5
    assert abs(world.now() - began + 3 * SECOND) < 60 * SECOND


async def test_time_goes_on_while_the_machine_sleeps_and_alarms_ring_that_it_slept_through() -> None:
    clocks = Clocks()
    world = clocks.world()
    rung: list[str] = []
    began = world.now()
    world.at(began + 3600 * SECOND, lambda: rung.append("an hour"))
    world.at(began + 36_000 * SECOND, lambda: rung.append("ten hours"))
    clocks.slept = 8 * 3600
    assert world.now() - began >= 8 * 3600 * SECOND
    assert world.follow() == 0, "the clock on the wall has not jumped away from it"
    await eventually(lambda: bool(rung))
    assert rung == ["an hour"]


@workflow(type="nap")
def nap(seconds: float) -> float:
    began = now()
    sleep(seconds)
    return (now() - began).total_seconds()


@pytest.mark.parametrize("how", ["set forward", "slept"])
async def test_timers_that_are_due_by_the_new_time_fire(how: str) -> None:
    clocks = Clocks()
    async with AsyncBackstay(":memory:", [nap], world=clocks.world) as app:
        due, not_due = await app.start(nap, "due", 3600), await app.start(nap, "later", 36_000)
        await eventually(lambda: has(app, "later", "TimerScheduled"))
        if how == "slept":
            clocks.slept = 8 * 3600
        else:
            clocks.wall_ahead = 8 * 3600
        assert await due.result(timeout=30) >= 8 * 3600 - 1
        assert (await not_due.describe()).status == "waiting"


async def test_after_a_clock_was_set_back_everything_takes_as_long_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "PROBE", SECOND // 100)
    clocks = Clocks()
    async with AsyncBackstay(":memory:", [nap], world=clocks.world) as app:
        before = await app.start(nap, "before", 1)
        await eventually(lambda: has(app, "before", "TimerScheduled"))
        clocks.wall_ahead = -365 * 86_400
        await eventually(lambda: app.engine.world.now() < (time.time() - 86_400) * SECOND)
        await before.result(timeout=30)
        assert 0.2 <= await app.execute(nap, "after", 0.2) < 20
        history = await app.history("before")
        assert [entry.at for entry in history] == sorted(entry.at for entry in history)


async def has(app: AsyncBackstay, id: str, kind: str) -> bool:
    return kind in [entry.type for entry in await app.history(id)]


@pytest.mark.parametrize(("hours", "said"), [(1, "3600.0 s ahead of"), (-1, "3600.0 s behind")])
async def test_processes_at_a_database_server_have_its_clock(
    postgresql_url: str, caplog: pytest.LogCaptureFixture, hours: int, said: str
) -> None:
    clocks = Clocks()
    clocks.wall_ahead = 3600 * hours
    async with AsyncBackstay(postgresql_url, [nap], world=clocks.world) as wrong:
        assert said in caplog.text
        async with AsyncBackstay(postgresql_url, [nap], world=Clocks().world) as right:
            assert abs(wrong.engine.world.now() - right.engine.world.now()) < 10 * SECOND
            clocks.wall_ahead = 7 * 3600  # nobody looks at it
            assert await right.execute(nap, "nap", 0.1) < 60
            started, *_ = await wrong.history("nap")
            assert abs(started.at - time.time() * SECOND) < 600 * SECOND


async def test_the_shortest_way_to_the_database_says_what_its_clock_is() -> None:
    class Far:
        """A machine and its database, whose clock is an hour ahead. Answers take their time on the way back."""

        time = 0
        ways = [300_000, 2_000, 900_000, 40_000]

        def ticks(self) -> int:
            return self.time

        async def clock(self) -> int:
            self.time += 1_000
            found = self.time + 3600 * SECOND
            self.time += self.ways.pop(0)
            return found

    far = Far()
    clock = DatabaseClock(far, far)  # type: ignore[arg-type]
    found = [await clock.ahead() for _ in range(4)]
    errors = [abs((ahead or 0) - 3600 * SECOND) for ahead in found]
    assert errors == [149_500, 500, 500, 500]
