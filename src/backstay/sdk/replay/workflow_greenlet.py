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
        self.parked: deque[Callable[[], object]] = deque()  # functions that unwind blocked code, oldest first
        self.loop_hidden = False


pools = _Pools()
_kept: list[object] = []


class Loop(Protocol):
    """The event loop of a run. It is the thread's running loop exactly while its greenlet runs."""

    def enter(self) -> None: ...
    def leave(self) -> None: ...


class Readonly(NamedTuple):
    """Code that may read its run but make no durable calls."""

    code: str  # what the code is, for the error message
    replayed: bool = True  # whether a replay runs it again, so that it must be deterministic


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
        self.collect = None  # set while a closure's durable call is collected for a group

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
    """Return the run whose code is executing, or None outside workflow code."""
    try:
        greenlet = getcurrent()
    except RuntimeError:
        return None  # the interpreter is ending, and no workflow code with it
    return greenlet.live_run if type(greenlet) is WorkflowGreenlet else None


def required_run(what: str) -> LiveRun:
    """Return the run whose code is executing. Raises `NotInWorkflow`, which names the call, outside workflow code."""
    live_run = current_run()
    if live_run is None:
        raise NotInWorkflow(what)
    return live_run


def current_greenlet() -> WorkflowGreenlet | None:
    """Return the greenlet whose code is executing, or None outside workflow code."""
    try:
        greenlet = getcurrent()
    except RuntimeError:
        return None  # as above: a finalizer may still call an activity, which is a plain function there
    return greenlet if type(greenlet) is WorkflowGreenlet else None


def run(live_run: LiveRun, job: Callable[[], None]) -> WorkflowGreenlet:
    """Run a job of this run on a greenlet until it ends or suspends."""
    idle = pools.idle
    if idle:
        greenlet = idle.pop()
        greenlet.gr_context = None  # context variables of the last job must not reach this one
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
    """A context manager that hides the running event loop of this thread.

    Used once for many entries, because getting and setting the running loop cost system calls (asyncio checks for forks).
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
    """Switch back to the code that entered this greenlet; returns the value that the greenlet is resumed with.

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
                return  # the code raised an error of its own; its run is dropped either way
    # Code that catches its own end twice would do so for ever. It is kept, so that nothing is thrown into it again.
    if not greenlet.dead and greenlet.job is not None and greenlet not in pools.quarantine:
        pools.quarantine.append(greenlet)


def refuse() -> None:
    """End a durable call of dropped code. Code that calls again and again is suspended for good."""
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
            continue  # nothing that is thrown in here gets out


def keep_for_ever(thing: object) -> None:
    """Never let this be collected: suspended coroutines in it would run their `finally` blocks then."""
    _kept.append(thing)


def at_once(unwind: Callable[[], object]) -> None:
    """Unwind dropped code now."""
    unwind()


def park(unwind: Callable[[], object]) -> None:
    """Keep blocked code as it is: it must not notice that its replay is blocked.

    A blocked run may be replayed many times, so beyond a limit the oldest are unwound like all dropped code.
    """
    parked = pools.parked
    parked.append(unwind)
    if len(parked) > PARKED:
        parked.popleft()()
