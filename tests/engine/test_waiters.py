"""Who waits for what another process commits: the database is asked once for all of them, and read for those with news."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from backstay.engine.core.waiters import Waiter, Waiters
from backstay.store.errors import Unavailable
from tests.sim.virtual import VirtualWorld, run

World = Callable[[], VirtualWorld]


class Rows:
    """The last decisions of some instances, and who asks for them."""

    def __init__(self, world: VirtualWorld, **last: int) -> None:
        self.world = world
        self.last: dict[int, int] = {int(key[1:]): value for key, value in last.items()}
        self.asked: list[dict[int, int | None]] = []
        self.checked: list[int] = []
        self.broken = 0
        self.slow: asyncio.Event | None = None

    async def moved(self, seen: Mapping[int, int | None]) -> dict[int, int | None]:
        self.asked.append(dict(seen))
        await asyncio.sleep(0)
        if self.broken:
            self.broken -= 1
            raise Unavailable("no database")
        return {key: self.last.get(key) for key, last in seen.items() if self.last.get(key) != last}

    def ended(self, key: int) -> Callable[[], Awaitable[str | None]]:
        """An instance has ended with its decision 99."""

        async def check() -> str | None:
            self.checked.append(key)
            found = "ended" if self.last.get(key) == 99 else None
            if self.slow is not None:
                await self.slow.wait()
            return found

        return check

    def waiters(self, *keys: int) -> tuple[Waiters, list[asyncio.Future[Any]]]:
        waiters = Waiters(self.world, self.moved)
        futures: list[asyncio.Future[Any]] = []
        for key in keys:
            futures.append(self.world.future())
            waiters.add(key, "ended", Waiter(str, self.ended(key), futures[-1]))
        return waiters, futures


async def look(waiters: Waiters) -> None:
    waiters.check_all()
    await asyncio.sleep(0.01)


def play(story: Callable[[VirtualWorld], Coroutine[Any, Any, None]]) -> None:
    async def told(world: World) -> None:
        await story(world())

    run(1, told)


def test_after_a_commit_only_the_instances_that_changed_are_read() -> None:
    async def story(world: VirtualWorld) -> None:
        rows = Rows(world, k1=10, k2=20, k3=30)
        waiters, (first, second, third, fourth) = rows.waiters(1, 2, 3, 4)
        await look(waiters)
        assert rows.checked == [1, 2, 3, 4]  # nobody was looked at before
        await look(waiters)
        rows.last |= {2: 21, 4: 40}
        await look(waiters)
        assert rows.checked[4:] == [2, 4]
        rows.last[2] = 99
        del rows.last[3]
        await look(waiters)
        assert rows.checked[6:] == [2, 3]
        assert second.result() == "ended"
        assert not any(future.done() for future in (first, third, fourth))
        assert len(rows.asked) == 4
        assert rows.asked[-1] == {1: 10, 2: 21, 3: 30, 4: 40}

    play(story)


def test_who_begins_to_wait_is_checked_beside_one_who_has_seen_it_all() -> None:
    async def story(world: VirtualWorld) -> None:
        rows = Rows(world, k1=10)
        waiters, _ = rows.waiters(1)
        await look(waiters)
        waiters.add(1, "other", Waiter(str, rows.ended(1), world.future()))
        await look(waiters)
        assert rows.checked == [1, 1]
        await look(waiters)
        assert rows.checked == [1, 1]

    play(story)


def test_a_commit_during_a_check_is_not_taken_for_seen() -> None:
    async def story(world: VirtualWorld) -> None:
        rows = Rows(world, k1=10)
        waiters, (future,) = rows.waiters(1)
        rows.slow = asyncio.Event()
        await look(waiters)
        assert rows.checked == [1]  # it has read, and its answer is on the way
        rows.last[1] = 99
        waiters.check_all()
        rows.slow.set()
        await asyncio.sleep(1)  # it rests between two looks
        assert future.result() == "ended"

    play(story)


def test_a_database_that_does_not_answer_is_asked_again() -> None:
    async def story(world: VirtualWorld) -> None:
        rows = Rows(world, k1=99)
        waiters, (future,) = rows.waiters(1)
        rows.broken = 2
        await look(waiters)
        assert not future.done()
        await asyncio.sleep(2.5)
        assert future.result() == "ended"
        assert len(rows.asked) == 3

    play(story)


def test_after_a_check_that_took_long_the_next_one_comes_soon() -> None:
    """The database was slow, or the process stood still: what others commit after that is not waited for three times as long."""

    async def story(world: VirtualWorld) -> None:
        rows = Rows(world, k1=1, k2=1)
        waiters, (_, waits) = rows.waiters(1, 2)
        rows.slow = asyncio.Event()
        await look(waiters)
        await asyncio.sleep(60)
        rows.slow.set()
        await asyncio.sleep(0)
        rows.last[2] = 99
        waiters.check_all()
        await asyncio.sleep(3)
        assert waits.result() == "ended"

    play(story)
