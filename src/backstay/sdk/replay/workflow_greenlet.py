"""The greenlets that workflow code runs on. The current run is an attribute of the current greenlet.

A durable call in a `def` workflow must stop in the middle of ordinary Python functions and go on there later. A thread for
each run could do that, and would cost too much for thousands of runs that wait for months; a greenlet keeps the stack alone.

Greenlets are pooled, because making one costs more than a whole resumed step. A greenlet that ends hands itself back;
one that is suspended in a durable call belongs to its run until the call is answered or the run is given up.

**The hidden loop.** All this happens on a thread on which an event loop runs: the engine's or the worker's. While a greenlet
runs, that loop is hidden from it (`hidden_loop`; why, see `backstay.runtime_hooks`). An `async def` workflow has its own loop,
and that is a second thing to switch: it belongs to the thread and not to the greenlet, so a greenlet that suspends in the
middle of a coroutine takes the workflow's loop away from the thread (`suspend`) and puts it back when it goes on. Otherwise
the next run on this thread would find the loop of the last one, and its tasks would wait in the wrong history.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import greenlet
from greenlet import getcurrent

from backstay.runtime_hooks import get_running_loop, set_running_loop
from backstay.sdk.errors import Evicted, NotInWorkflow

if TYPE_CHECKING:
    from backstay.sdk.replay.live_run import LiveRun

POOL_LIMIT = 256
PATIENCE = 20  # how many refused calls in a row end quietly
PARKED = 64  # blocked runs whose code is kept as it stands, on each thread


class _Pools(threading.local):
    def __init__(self) -> None:
        self.idle: list[WorkflowGreenlet] = []
        self.quarantine: list[WorkflowGreenlet] = []
        self.parked: deque[Callable[[], object]] = deque()  # how to unwind code whose replay is blocked, oldest first
        self.loop_hidden = False


pools = _Pools()
_kept: list[object] = []


class Loop(Protocol):
    """The event loop of a run. While it runs, the thread has to know; while its greenlet is suspended, it must not."""

    def enter(self) -> None: ...
    def leave(self) -> None: ...


class Readonly(NamedTuple):
    """Code that may look at its run and make no durable calls."""

    code: str  # which code that is, for the message of a refusal
    replayed: bool = True  # a replay runs it again, so it must do the same each time, like the workflow's own code


class WorkflowGreenlet(greenlet.greenlet):
    """Runs one job after another. `readonly` is set while durable calls are refused."""

    live_run: LiveRun | None
    job: Callable[[], None] | None
    readonly: Readonly | None
    refusals: int
    collect: Callable[[Any], None] | None

    def __init__(self) -> None:
        super().__init__(self._live)
        self.live_run = None
        self.job = None
        self.readonly = None
        self.refusals = 0
        self.collect = None  # takes the durable call of a closure instead of making it

    def _live(self, _: Any = None) -> None:
        idle = pools.idle
        while True:
            job = self.job
            if job is None:
                return
            job()
            self.job = None
            self.live_run = None
            self.readonly = None
            self.refusals = 0
            self.collect = None
            if len(idle) >= POOL_LIMIT:
                return
            idle.append(self)
            hub = self.parent
            assert hub is not None
            hub.switch()


def current_run() -> LiveRun | None:
    """The run whose code is executing, or None outside workflow code."""
    greenlet = getcurrent()
    return greenlet.live_run if type(greenlet) is WorkflowGreenlet else None


def required_run(what: str) -> LiveRun:
    """The run whose code is executing; `NotInWorkflow` outside workflow code, which says what was called there."""
    live_run = current_run()
    if live_run is None:
        raise NotInWorkflow(what)
    return live_run


def current_greenlet() -> WorkflowGreenlet | None:
    greenlet = getcurrent()
    return greenlet if type(greenlet) is WorkflowGreenlet else None


def run(live_run: LiveRun, job: Callable[[], None]) -> WorkflowGreenlet:
    """Run a job of this run on a greenlet until it ends or suspends."""
    idle = pools.idle
    if idle:
        greenlet = idle.pop()
        greenlet.gr_context = None  # context variables that its last job has set are none of this one's business
    else:
        greenlet = WorkflowGreenlet()
    greenlet.live_run = live_run
    greenlet.job = job
    enter(greenlet, None)
    return greenlet


def enter(greenlet: WorkflowGreenlet, value: Any) -> None:
    """Switch into a greenlet; control comes back when it suspends or ends.

    Its end switches to its parent, so the parent is set on every entry. The surrounding event loop is hidden from
    workflow code: it would find a loop there that knows nothing of durable time.
    """
    greenlet.parent = getcurrent()
    if pools.loop_hidden:
        greenlet.switch(value)
    else:
        with hidden_loop():
            greenlet.switch(value)


class hidden_loop:  # noqa: N801 - used like the context managers of contextlib, without the cost of a generator
    """No event loop is running on this thread, as far as anybody can see. Worth doing once for many entries:

    asking for the running loop and setting it are system calls (asyncio checks for forks).
    """

    __slots__ = ("_mine", "_outer")

    def __enter__(self) -> None:
        self._mine = not pools.loop_hidden
        if self._mine:
            self._outer = get_running_loop()
            set_running_loop(None)
            pools.loop_hidden = True

    def __exit__(self, *_: object) -> None:
        if self._mine:
            pools.loop_hidden = False
            set_running_loop(self._outer)


def suspend(loop: Loop | None) -> Any:
    """Give control back to whoever entered this greenlet; returns what it is resumed with.

    `loop` is the workflow's own event loop if it is running: it belongs to the thread, not to the greenlet, so it must be
    taken away before others run here and put back afterwards.
    """
    hub = getcurrent().parent
    assert hub is not None
    if loop is None:
        return hub.switch()
    loop.leave()
    try:
        return hub.switch()
    finally:
        loop.enter()


def give_up(greenlet: WorkflowGreenlet) -> None:
    """Unwind a suspended greenlet. Its run is already marked abandoned, so nothing it still does has an effect."""
    with hidden_loop():
        for _ in range(2):
            if greenlet.dead or greenlet.job is None or greenlet in pools.quarantine:
                return
            greenlet.parent = getcurrent()
            try:
                greenlet.throw(Evicted)
            except BaseException:
                return  # the code died of something of its own; its run is gone either way
    # Code that swallows its own end twice would do so for ever. Kept, so that nothing is thrown into it again.
    if not greenlet.dead and greenlet.job is not None and greenlet not in pools.quarantine:
        pools.quarantine.append(greenlet)


def refuse() -> None:
    """A durable call of code that was given up. Code that asks again and again does not get back to its loop."""
    greenlet = current_greenlet()
    if greenlet is None:
        raise Evicted
    greenlet.refusals += 1
    if greenlet.refusals <= PATIENCE:
        raise Evicted
    pools.quarantine.append(greenlet)
    while True:
        try:
            suspend(None)
        except BaseException:
            continue  # whatever is thrown in here, nothing gets out


def keep_for_ever(thing: object) -> None:
    """Never let this be collected: suspended coroutines in it would run their `finally` blocks then."""
    _kept.append(thing)


def park(unwind: Callable[[], object]) -> None:
    """Leave code as it stands: its replay is blocked, and it must not notice.

    Somebody may look at a blocked run again and again, so the oldest are unwound in the end like all that is given up.
    """
    parked = pools.parked
    parked.append(unwind)
    if len(parked) > PARKED:
        parked.popleft()()
