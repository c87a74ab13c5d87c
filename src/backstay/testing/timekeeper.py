"""The timekeeper: decides when the clock of a test may jump, and to where.

It jumps only while somebody waits: a call that has no answer yet, `advance` or `run_until`. A test that does nothing stands
still with its clock. And it jumps only when all is quiet: no handle is ready in the event loop, no thread owes a result, no
attempt of an activity runs. Then nothing but time can change anything, so the jump is the same in every run of the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from backstay.kernel.values import Micros
from backstay.testing.virtual_world import VirtualWorld

FAR: Micros = 1 << 62  # later than anything
COMMITS = 5  # for each jump that may be made: how many commits may follow one another while the clock stands
TURNS = 20  # quiet turns of a loop that does not show its ready handles (uvloop) after which it counts as quiet


class TimeWait:
    """Somebody who lets time pass: up to `until`, or until the answer to a call. `by_step`: by one jump at most.

    `while_running`: activities that run do not hold the clock. `attempt`: the id of the attempt that makes the call, if one does,
    and whether it runs on a thread. It waits like a test does, and so it does not hold the clock.
    """

    def __init__(
        self,
        task: asyncio.Task[Any] | None,
        until: Micros | None,
        *,
        by_step: bool = False,
        while_running: bool = False,
        attempt: tuple[str, bool] | None = None,
    ) -> None:
        self.task = task
        self.attempt = attempt
        self.until = until
        self.by_step = by_step
        self.while_running = while_running
        self.jumped = False
        self.ended: asyncio.Future[bool] | None = None
        self.gave_up: str | None = None
        """Why the wait was given up."""

    def end(self, *, jumped: bool) -> None:
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(jumped)

    def give_up(self, why: str) -> None:
        if self.gave_up is None:
            self.gave_up = why
            if self.task is not None:
                self.task.cancel()  # the call in it hears of it, and raises an error that explains
            self.end(jumped=False)


class Timekeeper:
    """`busy`: how many attempts of activities run. `next_wake`: the next deadline of a workflow. `max_jumps`: after so many
    jumps a call counts as one that will never be answered. `patience`: seconds of real time that an activity may take."""

    def __init__(
        self,
        world: VirtualWorld,
        busy: Callable[[], int],
        next_wake: Callable[[], Micros | None],
        *,
        max_jumps: int,
        patience: float | None,
    ) -> None:
        self._world = world
        self._loop = world.loop
        self._ready: Any = getattr(world.loop, "_ready", None)
        self._busy = busy
        self._next_wake = next_wake
        self._max_jumps = max_jumps
        self._patience = patience
        self._waits: list[TimeWait] = []
        self._held = 0
        self._armed = False
        self._turns = 0
        self._news = False
        self._jumps = 0  # since a call has begun
        self._commits = 0  # since then, or since the last jump
        self._eased = 0  # calls and tasks that have ended
        self._impatience: asyncio.TimerHandle | None = None
        self.let_in: Callable[[], bool] = lambda: False
        """Lets something enter the engine, when all is quiet. False: nothing waits for that."""
        world.eased = self._ease

    def move_to(self, world: VirtualWorld) -> None:
        """The process in the world was killed, and another one has begun in this world."""
        self._world = world
        world.eased = self._ease

    # -- waiting

    @contextmanager
    def waiting(self, wait: TimeWait, *, anew: bool = True) -> Generator[TimeWait]:
        """Let time pass. `anew`: jumps are counted from here."""
        if anew:
            self._jumps = self._commits = 0
        self._waits.append(wait)
        self._be_patient()
        self.arm()
        try:
            yield wait
        finally:
            self._waits.remove(wait)
            if self._waits:
                self.arm()
            else:
                self._calm()

    async def pass_time(self, until: Micros, *, by_step: bool = False, while_running: bool = False) -> TimeWait:
        """Wait until the clock has come so far, and everything that is due by then has happened."""
        wait = TimeWait(None, until, by_step=by_step, while_running=while_running)
        wait.ended = self._loop.create_future()
        with self.waiting(wait):
            wait.jumped = await wait.ended
        return wait

    @contextmanager
    def frozen(self) -> Generator[None]:
        """Hold the clock, though somebody waits."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            self.arm()

    def committed(self, _: object) -> None:
        """Something was recorded: readers of streams may find news."""
        self._news = True
        self._commits += 1
        if self._commits > COMMITS * self._max_jumps and self._waits:
            self._commits = 0
            self._loop.call_soon(self._give_up, "moment")

    def close(self) -> None:
        self._held += 1
        self._calm()

    # -- judging

    def arm(self) -> None:
        """Look soon whether all is quiet: something has ended, or somebody waits."""
        if self._waits and not self._armed:
            self._armed = True
            self._turns = 0
            self._loop.call_soon(self._judge)

    def _judge(self) -> None:
        self._armed = False
        if not self._waits or self._held:
            return
        if self._turning():
            self._armed = True
            self._loop.call_soon(self._judge)
        elif self._news:
            self._news = False
            self._world.look()
            self.arm()
        elif not self._working() or any(wait.while_running for wait in self._waits):
            if self.let_in():
                self.arm()
            else:
                self._go_on()
        # else the end of a call or a task arms again

    def _working(self) -> bool:
        waiting = {wait.attempt for wait in self._waits if wait.attempt is not None}
        on_threads = sum(on_thread for _, on_thread in waiting)
        return self._world.calls > on_threads or self._busy() > len(waiting)

    def _ease(self) -> None:
        self._eased += 1
        self.arm()

    def _turning(self) -> bool:
        """Whether the loop has something else to do."""
        if self._ready is not None:
            return bool(self._ready)
        self._turns += 1
        return self._turns < TURNS

    def _go_on(self) -> None:
        """All is quiet. End the waits whose time has come, or jump."""
        now = self._world.now()
        over = [wait for wait in self._waits if wait.until is not None and (wait.until <= now or wait.jumped)]
        if over:
            for wait in over:
                wait.end(jumped=wait.jumped)
            return  # those that still wait are looked after when these have gone on
        next = self._next_event(now)
        until = min((wait.until for wait in self._waits if wait.until is not None), default=None)
        if until is None or (next is not None and next <= until):
            if next is None:
                self._give_up("nothing")
                return
            self._jumps += 1
            if self._jumps > self._max_jumps and until is None:
                self._give_up("endless")
                return
            for wait in self._waits:
                wait.jumped = wait.by_step
            self._jump(next)
        elif until == FAR:
            for wait in self._waits:
                wait.end(jumped=False)  # nothing happens any more
            return
        else:
            self._jump(until)
        self.arm()

    def _jump(self, to: Micros) -> None:
        self._commits = 0
        self._calm()
        self._be_patient()
        self._world.jump(to)

    def _next_event(self, now: Micros) -> Micros | None:
        """When anything happens next. Deadlines that have passed were delivered, and count no more."""
        return min(
            (at for at in (self._world.next_alarm(), self._next_wake()) if at is not None and at > now), default=None
        )

    def _give_up(self, why: str) -> None:
        for wait in list(self._waits):
            wait.give_up(why)

    # -- real time

    def _be_patient(self, *, again: bool = False) -> None:
        if self._patience is not None and self._impatience is None:
            self._impatience = self._loop.call_later(self._patience, self._lose_patience, self._eased, again)

    def _lose_patience(self, eased: int, again: bool) -> None:
        """The clock has stood for so long, though somebody waits: is there anything to wait for?"""
        self._impatience = None
        if self._held or eased != self._eased:
            self._be_patient()
        elif self._working():
            self._give_up("busy")
        elif again:
            self._give_up("moment")
        else:
            self._be_patient(again=True)  # the machine may have stood still, too

    def _calm(self) -> None:
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None
