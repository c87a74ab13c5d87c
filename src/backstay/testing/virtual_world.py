"""The world of a test: real threads and the real event loop, and a clock that stands still until nothing is left to do.

The engine lives in it as in any other `World`. Only `Timekeeper` moves the clock. Three kinds of alarms exist here. Those of
authors and callers (timeouts, retries, timers) are times that the clock jumps to. The timer queue is rung when its time has
come, but its alarms say nothing: half of them are only reads of what is on disk, so the queue itself is asked for the next
deadline. Periodic jobs rest: they look after other processes and after outages, and a test has neither.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, TypeVar

from backstay.engine.core.periodic import PeriodicJob
from backstay.engine.core.timer_queue import TimerQueue
from backstay.engine.core.world import Alarm, AsyncioWorld, Minted, MintedIds, Pool
from backstay.engine.requests.streams import StreamWatch
from backstay.engine.views.projector import Projector
from backstay.kernel.values import Micros
from backstay.threads import ThreadPool

T = TypeVar("T")

CANCELLED = 1_000  # cancelled alarms that may stay in the heap


class VirtualAlarm:
    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None] | None) -> None:
        self.call = call

    def cancel(self) -> None:
        self.call = None

    def ring(self) -> None:
        call, self.call = self.call, None
        if call is not None:
            call()


class CountedPool:
    """Real threads, and the number of calls that they have not answered yet."""

    def __init__(self, world: VirtualWorld, pool: Pool) -> None:
        self._world = world
        self._pool = pool
        self.submit_here = pool.submit_here  # in the next turn of the loop, which is not quiet before
        self.close = pool.close

    def submit(self, call: Callable[[], T], done: Callable[[T], None]) -> None:
        world = self._world
        world.calls += 1

        def answered(result: T) -> None:
            if world.alive():
                world.calls -= 1
                world.eased()
                done(result)

        self._pool.submit(call, answered)


class VirtualWorld(AsyncioWorld):
    """`began`: the time at which it begins. `seed`: of its ids, and so of the random numbers of workflows."""

    def __init__(self, began: Micros, seed: int) -> None:
        self._time = began
        super().__init__(asyncio.get_running_loop())
        self.looks: Micros | None = None
        self.ids: MintedIds = Minted(self.now, random.Random(seed))
        self._real = AsyncioWorld(self.loop)  # the clock of thread pools, which grow by real time
        self._heap: list[tuple[Micros, int, VirtualAlarm]] = []
        self._queue: list[tuple[Micros, int, VirtualAlarm]] = []
        self._order = count()
        self._watches: list[VirtualAlarm] = []
        self._notes: list[VirtualAlarm] = []
        self.calls = 0
        """Calls on threads that are not answered yet."""
        self.eased: Callable[[], object] = lambda: None
        """Called when a call on a thread or a task has ended."""

    def alive(self) -> bool:
        """Whether the process in it has not been killed."""
        return True

    def now(self) -> Micros:
        return self._time

    ticks = now

    def follow(self, ahead: Micros | None = None, *, at_once: bool = False) -> Micros:
        return 0

    def at(self, when: Micros, call: Callable[[], None]) -> Alarm:
        alarm = VirtualAlarm(call)
        owner = getattr(call, "__self__", None)
        if isinstance(owner, PeriodicJob):
            alarm.cancel()
        elif isinstance(owner, Projector):
            self._notes.append(alarm)
        elif isinstance(owner, StreamWatch):
            self._watches.append(alarm)
        else:
            heap = self._queue if isinstance(owner, TimerQueue) else self._heap
            heappush(heap, (when, next(self._order), alarm))
            if when <= self._time:
                self.loop.call_soon(self._ring)
            elif len(heap) > CANCELLED:
                heap[:] = [entry for entry in heap if entry[2].call is not None]
                heapify(heap)
        return alarm

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = self.loop.create_task(work, name=name)
        task.add_done_callback(self._eased_by)
        return task

    def pool(self, size: int, name: str) -> Pool:
        return CountedPool(self, ThreadPool(self._real, size, name))

    # -- for the timekeeper

    def next_alarm(self) -> Micros | None:
        """When the next alarm of an author or a caller rings."""
        heap = self._heap
        while heap and heap[0][2].call is None:
            heappop(heap)
        return heap[0][0] if heap else None

    def jump(self, to: Micros) -> None:
        """Move the clock, and ring what is due then."""
        self._time = to
        self._ring()

    def look(self) -> bool:
        """Let readers of streams look again; False if there are none. Nothing tells them of a stream that begins."""
        watches, self._watches = self._watches, []
        rung = [watch for watch in watches if watch.call is not None]
        for watch in rung:
            watch.ring()
        return bool(rung)

    def note(self) -> None:
        """Write the summaries that lists are filtered by. By the clock they would be late, and here it stands."""
        for _ in range(3):  # the first looks at what has moved, the next ones at what rests since
            notes, self._notes = self._notes, []
            for alarm in notes:
                alarm.ring()

    def _ring(self) -> None:
        for heap in (self._heap, self._queue):
            while heap and heap[0][0] <= self._time:
                heappop(heap)[2].ring()

    def _eased_by(self, _: asyncio.Task[Any]) -> None:
        self.eased()
