"""The world of one node: the virtual loop shared by all, a clock of its own, and a life that can end at any moment.

A dead node does nothing any more: its calls are not made, its coroutines stay where they are, its pools drop what they have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate
from random import Random
from typing import Any, TypeVar

from backstay.engine.core.world import Alarm, Minted, MintedIds
from backstay.kernel.values import SECOND, Micros

from .faults import Faults
from .programs import ledger
from .virtual import EPOCH, VirtualLoop, VirtualWorld

T = TypeVar("T")


STEPS = [3, 400, 4000, 40_000, -30, -400, -4000]
"""By how many seconds somebody sets a clock; by more than the little that is followed slowly."""


class Life:
    """Whether a node lives, and where it may die."""

    def __init__(self, faults: Faults, died: Callable[[str], None]) -> None:
        self.alive = True
        self.paused = False
        self.pauses = 0  # how often it stood still, or went on
        self._held: list[Callable[[], None]] = []  # what it does when it goes on
        self._faults = faults
        self._died = died

    def die(self, why: str) -> None:
        if self.alive:
            self.alive = False
            self._died(why)

    def pause(self) -> None:
        """It stands still, and others go on: its machine sleeps, or somebody has stopped its process."""
        self.paused = True
        self.pauses += 1

    def hold(self, call: Callable[[], None]) -> None:
        self._held.append(call)

    def go_on(self) -> None:
        self.paused = False
        self.pauses += 1
        held, self._held = self._held, []
        for call in held:
            call()

    def survives(self, fault: str) -> bool:
        """Whether the node lives past a point at which this fault may end it."""
        if self.alive and self._faults.fires(fault):
            self.die(fault)
        return self.alive


class NodeWorld(VirtualWorld):
    def __init__(self, loop: VirtualLoop, seed: str, skew: Micros, life: Life, faults: Faults) -> None:
        self.life = life
        self.faults = faults
        self.step: Micros = 0  # somebody has set the clock, and it was not looked at yet
        self.before_step: Callable[[], object] = lambda: None
        super().__init__(loop, 0, EPOCH + skew)
        self.random = Random(seed)
        self.looks: Micros | None = 5 * SECOND
        self.ids: MintedIds = Minted(self.now, self.random)
        self.tasks: list[tuple[asyncio.Task[Any], Coroutine[Any, Any, Any]]] = []

    def follow(self, ahead: Micros | None = None, *, at_once: bool = False) -> Micros:
        step, self.step = self.step, 0
        if self.life.alive and self.faults.fires("clock step"):
            step = self.faults.dice("clock step").choice(STEPS) * SECOND
        if step:
            self.before_step()
        self._epoch += step
        return step

    def soon(self, call: Callable[[], None]) -> None:
        self.later(0, call)

    def post(self, call: Callable[[], None]) -> None:
        self.later(0, call)

    def at(self, when: Micros, call: Callable[[], None]) -> Alarm:
        return self.later(max(when - self.now(), 0) / SECOND, call)

    def later(self, seconds: float, call: Callable[[], None]) -> Alarm:
        if not self.life.alive:
            return _NEVER
        alarm = _Alarm(self, call)
        if seconds <= 0:
            alarm.handle = self._virtual.call_soon(alarm.ring)
        else:
            alarm.handle = self._virtual.call_later(seconds, alarm.ring)
        return alarm

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        if not self.life.alive:
            work.close()  # it never comes to run
        task = self._virtual.create_task(_Mortal(_driven(self.life, self._virtual, work)), name=name)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.tasks.append((task, work))
        if len(self.tasks) > 200:
            self.bury_done()
        return task

    def bury(self) -> None:
        """What never came to run is not waited for."""
        for _, work in self.tasks:
            if getcoroutinestate(work) == CORO_CREATED:
                work.close()

    def bury_done(self) -> None:
        """Some end before they began: they were cancelled."""
        for task, work in self.tasks:
            if task.done() and getcoroutinestate(work) == CORO_CREATED:
                work.close()
        self.tasks = [pair for pair in self.tasks if not pair[0].done()]

    def pool(self, size: int, name: str) -> SimPool:
        return SimPool(self, name, self.faults)


class _Alarm:
    """A call that is made only if its node lives, and not while it stands still."""

    __slots__ = ("_call", "_world", "handle")

    def __init__(self, world: NodeWorld, call: Callable[[], None]) -> None:
        self._world = world
        self._call: Callable[[], None] | None = call
        self.handle: Any = None

    def cancel(self) -> None:
        self._call = None
        self.handle.cancel()

    def ring(self) -> None:
        life = self._world.life
        if self._call is None:
            return
        if life.paused:
            life.hold(self._ring_soon)
        elif life.survives("kill"):
            self._call()

    def _ring_soon(self) -> None:
        self.handle = self._world.loop.call_soon(self.ring)


class _Never:
    def cancel(self) -> None:
        pass


_NEVER = _Never()


class _Mortal(Coroutine[Any, Any, Any]):
    """A generator that a task takes for a coroutine, and that may come to nothing without a word."""

    def __init__(self, driven: Generator[Any, Any, Any]) -> None:
        self._driven = driven
        self.send, self.throw, self.close = driven.send, driven.throw, driven.close  # type: ignore[method-assign]

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._driven

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driven, name.replace("cr_", "gi_", 1))  # how far it is

    def send(self, value: Any) -> Any: ...
    def throw(self, *error: Any) -> Any: ...


def _driven(life: Life, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Drive a coroutine for as long as its node lives."""
    thrown: BaseException | None = None
    while True:
        if not life.alive:
            try:
                yield from loop.create_future()
            finally:
                with suppress(BaseException):
                    work.close()
        if life.paused:
            goes_on = loop.create_future()
            life.hold(partial(_set, goes_on))
            try:
                yield from goes_on
            except GeneratorExit:
                with suppress(BaseException):
                    work.close()
                raise
            except BaseException as error:  # it is cancelled when it goes on
                thrown = error
            continue
        try:
            waits = work.send(None) if thrown is None else work.throw(thrown)
        except StopIteration as end:
            return end.value
        except Exception:
            if life.alive:
                raise
            continue  # of one who is dead nobody hears
        try:
            yield waits
            thrown = None
        except GeneratorExit:
            with suppress(BaseException):  # the node is dead, or the world has ended
                work.close()
            raise
        except BaseException as error:
            thrown = error


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class SimPool:
    """Threads as others see them: a call is made some time later, and its result arrives some time after that."""

    def __init__(self, world: NodeWorld, name: str, faults: Faults) -> None:
        self._world = world
        self._activities = name == "backstay-activity"
        self._faults = faults

    def submit(self, call: Callable[[], T], done: Callable[[T], None]) -> None:
        self._world.later(self._pause() if self._activities else 0, lambda: self._make(call, done))

    def submit_here(self, call: Callable[[], T], done: Callable[[T], None]) -> None:
        self.submit(call, done)

    def _make(self, call: Callable[[], T], done: Callable[[T], None]) -> None:
        if self._activities:
            ledger.kill = lambda: self._world.life.survives("deadly activity")
        result = call()
        if not self._world.life.alive or (self._activities and not self._world.life.survives("kill in activity")):
            return
        pause = self._pause() if self._activities else 0
        if self._activities and self._faults.fires("late report"):
            pause += self._faults.dice("late report").choice([5, 40, 400])
        self._world.later(pause, lambda: done(result))

    def _pause(self) -> float:
        if self._faults.fires("stall"):
            return self._faults.dice("stall").choice([3, 30, 400])
        return self._world.random.choice(self._faults.swarm.hands)

    def close(self) -> None:
        pass
