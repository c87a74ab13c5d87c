"""The event loop of an `async def` workflow: small, deterministic, and its time is durable.

Callbacks run first in, first out. `call_later` is a durable timer; cancelling its handle cancels the timer. Sockets, threads,
signals and processes do not exist here: what asks for them is refused with a sentence that names the alternative. It is pumped
on a greenlet, so that a blocking durable call inside `async` code works and blocks this run only.

**Libraries.** asyncio's own tools, and anyio's on top of them, work unchanged. In three places they leave an order or a decision
to the process, which a replay would not repeat, and the loop decides it: the order in which a cancel scope of anyio wakes its
tasks (`WorkflowLoop.woken`), whether the deadline of a timer that fired has passed (`time`), and the order in which
`asyncio.as_completed` starts coroutines (`backstay.runtime_hooks`).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import signal
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from operator import itemgetter
from typing import Any
from zlib import crc32

from backstay.kernel.feature import Outcome
from backstay.kernel.features.timer import CancelTimer
from backstay.kernel.values import SECOND
from backstay.runtime_hooks import collector, get_running_loop, set_running_loop
from backstay.sdk.author.durations import to_seconds
from backstay.sdk.author.timer import TimerCall
from backstay.sdk.errors import DurableCallRefused, Evicted
from backstay.sdk.replay import workflow_greenlet as greenlets
from backstay.sdk.replay.live_run import LiveRun

log = logging.getLogger("backstay.workflow")


class _Timer(asyncio.TimerHandle):
    """A pending `call_later`. It becomes a durable timer at once and is cancelled with it."""

    step: int | None = None  # none: it never fires

    def cancel(self) -> None:
        if not self.cancelled():
            super().cancel()
            loop: Any = self._loop  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
            if self.step is not None:
                loop.cancel_timer(self.step)


_TASK = itemgetter(0)
_NO_PLACE = "has no place in a workflow"
_IN_AN_ACTIVITY = "do it in an activity"
_THREAD = "make it an activity: a `def` activity runs on a thread, and its result is recorded"
_OF_A_SCOPE = (
    "Cancelled via cancel scope ",
    "Cancelled by cancel scope ",
)  # how anyio marks the cancellations of its scopes


class _Task(asyncio.Task[Any]):
    """Tasks hash by run and creation order, so that sets of them iterate the same way in every replay.

    The run is part of it because asyncio keeps all tasks of a process in one set.
    """

    def __init__(self, coroutine: Any, *, loop: WorkflowLoop, name: str | None = None, **options: Any) -> None:
        number = loop.next_task()
        self._hash = loop.base + number
        super().__init__(coroutine, loop=loop, name=name or f"task-{number}", **options)

    def cancel(self, msg: Any = None) -> bool:
        if not (isinstance(msg, str) and msg.startswith(_OF_A_SCOPE)):
            return super().cancel(msg)
        loop: Any = self.get_loop()
        ready = loop.ready_count()
        cancelled = super().cancel(msg)
        loop.woken(self._hash, ready)
        return cancelled

    @property
    def _loop(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        # asyncio asks `get_loop()`. anyio reads this when it gives work to a thread, before that thread starts. A refusal
        # later would come after the work was done.
        raise DurableCallRefused(f"a thread {_NO_PLACE}; {_THREAD}")

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other


class WorkflowLoop(asyncio.AbstractEventLoop):
    def __init__(self, live_run: LiveRun) -> None:
        self._live_run = live_run
        # Of the hashes of its tasks. Their low bits stay the number: sets of them are in the order of creation.
        self.base = crc32(live_run.assignment.run_id.encode()) << 16
        self.greenlet: greenlets.WorkflowGreenlet | None = None  # the greenlet that last ran it
        self._ready: deque[asyncio.Handle] = deque()
        self._scheduled = False
        self._tasks = 0
        self._alive: list[asyncio.Task[Any]] = []
        self._prune_at = 64
        self._strays: list[AsyncGenerator[Any, Any]] = []  # async generators to be closed with the run
        self._woken: list[
            tuple[int, asyncio.Handle]
        ] = []  # the handles at the end of `_ready` that one cancel scope put there
        self._reached = 0.0  # the latest deadline of a timer that has fired
        self._hooks: Any = (None, None)  # of the loop that this one runs inside of

    # -- running

    def enter(self) -> None:
        """Make this the running loop of the thread, which is also told of async generators."""
        set_running_loop(self)
        self._hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._dropped)

    def leave(self) -> None:
        sys.set_asyncgen_hooks(*self._hooks)
        set_running_loop(None)

    def pump(self) -> None:
        """Run every callback that is ready. Called on a greenlet."""
        self.greenlet = greenlets.current_greenlet()
        self.enter()
        self._live_run.running_loop = self
        try:
            while self._ready and not self._live_run.abandoned:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    try:
                        handle._run()  # pyright: ignore[reportPrivateUsage]
                    except (SystemExit, KeyboardInterrupt) as error:
                        # Its task has ended with it; it is the run that ends, or waits, not the process.
                        if for_the_process(error):
                            raise
        finally:
            self._scheduled = False
            self._live_run.running_loop = None
            self.leave()

    def abandon(self) -> None:
        """Unwind every coroutine of this run. Called on a greenlet of the abandoned run, so what they do has no effect."""
        outer = get_running_loop()
        self.enter()
        self._live_run.running_loop = self
        try:
            for task in self._alive:
                if not task.done():
                    _unwind(task.get_coro())
            while self._strays:
                _close(self._strays.pop())
        finally:
            self._alive.clear()
            self._live_run.running_loop = None
            self.leave()
            set_running_loop(outer)

    def _dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Close an async generator that is not referenced any more, so that its `finally` blocks run.

        If its code left it, a task of the run closes it. If the garbage collector found it, at a moment that a replay would
        not repeat, it is closed with the run, without effect.
        """
        live_run = self._live_run
        if greenlets.current_run() is live_run and not collector.collecting and not live_run.abandoned:
            self.create_task(generator.aclose())
            return
        self._strays.append(generator)
        if (
            live_run.abandoned and live_run.running_loop is None
        ):  # otherwise the run is being unwound, and the generator with it
            greenlets.run(live_run, self.abandon)

    def _wake(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._live_run.wake_job(self.pump)

    # -- the interface of an asyncio loop

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        self._wake()
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = _Timer(self.time() + delay, callback, args, self, context)

        def fired(outcome: Outcome) -> None:
            if not handle.cancelled():
                if handle.when() > self._reached:
                    self._reached = handle.when()
                self._ready.append(handle)
                self._wake()

        if delay != math.inf:  # which never comes: it needs no timer
            handle.step = self._live_run.ask(TimerCall(to_seconds(max(delay, 0.0))), fired)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        # asyncio adds `time()` to a delay and hands the sum over; take the noise of that sum away again.
        handle = self.call_later(round(when - self.time(), 6), callback, *args, context=context)
        handle._when = when  # pyright: ignore[reportAttributeAccessIssue]
        return handle

    def cancel_timer(self, step: int) -> None:
        if not self._live_run.abandoned:
            self._live_run.drop(step)
            self._live_run.emit(CancelTimer(step=step))

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """asyncio tells its loop about cancelled timers; ours already knows."""

    def time(self) -> float:
        # A deadline whose timer has fired has passed: also if the clock, which counts in microseconds, lacks the noise of
        # that float, and if an operator has skipped the wait. A library that compares the two would arm another timer.
        now = self._live_run.read_clock() / SECOND
        return now if now > self._reached else self._reached

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any], *, name: str | None = None, **options: Any
    ) -> asyncio.Task[Any]:
        task = _Task(coro, loop=self, name=name, **options)
        if len(self._alive) >= self._prune_at:
            self._alive = [task for task in self._alive if not task.done()]
            self._prune_at = max(64, 2 * len(self._alive))
        self._alive.append(task)
        return task

    def ready_count(self) -> int:
        return len(self._ready)

    def woken(self, task: int, before: int) -> None:
        """Put the handles that the cancellation of this task has made ready in the order of the tasks' creation.

        A cancel scope of anyio keeps the scopes inside it in a set, in the order of their addresses, which differs from process
        to process. The handles that it makes ready in one go stand at the end of `_ready`: as long as nothing else came
        between, they are sorted by `task`, the hash of theirs.
        """
        ready, woken = self._ready, self._woken
        added = [(task, ready.pop()) for _ in range(len(ready) - before)][::-1]
        if not (woken and ready and ready[-1] is woken[-1][1]):
            woken.clear()
        for _ in woken:
            ready.pop()
        woken += added
        woken.sort(key=_TASK)
        ready.extend(handle for _, handle in woken)

    def next_task(self) -> int:
        self._tasks += 1
        return self._tasks

    def get_task_factory(self) -> None:
        """Return None: tasks are always of this loop's own kind."""

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if "task" in context:
            return  # dropped together with its engine: its code runs again elsewhere
        run = self._live_run
        if not (run.abandoned or run.replaying or run.looking):
            log.error("%s", context.get("message", "error in workflow"), exc_info=context.get("exception"))

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_exception_handler(self) -> None:
        """Return None: errors that no code waits for are logged."""

    async def shutdown_asyncgens(self) -> None:
        """Async generators of workflow code are closed with their run."""

    async def shutdown_default_executor(self) -> None:
        """There is none."""


def for_the_process(error: BaseException) -> bool:
    """Return whether a KeyboardInterrupt out of workflow code may come from the terminal.

    Python raises it in the main thread alone, and only if the signal has no other handler, as asyncio.run() and servers set.
    """
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def _close(generator: AsyncGenerator[Any, Any]) -> None:
    closing: Any = generator.aclose()
    try:
        closing.send(None)
    except BaseException:
        return  # it has ended
    _unwind(closing)


def _unwind(coroutine: Any) -> None:
    for _ in range(greenlets.PATIENCE):  # a task group waits for its tasks on the way out, and so do those around it
        try:
            coroutine.throw(Evicted())
        except BaseException:
            return  # it has ended
    greenlets.keep_for_ever(coroutine)


def _refused(name: str, advice: str) -> property:
    def refuse(_: WorkflowLoop) -> Any:
        raise DurableCallRefused(f"loop.{name}() {_NO_PLACE}; {advice}")

    return property(refuse)


_REFUSED = {
    "run_in_executor set_default_executor": _THREAD,
    "call_soon_threadsafe": "another thread sends the run a signal or an update",
    "run_forever run_until_complete stop close": "await it; the run is already on an event loop, which ends with it",
    "add_signal_handler remove_signal_handler": "a worker handles the signals of its process; cancel the run, or send it a signal",
    "set_task_factory": "start tasks with asyncio.create_task() or in a task group",
    "set_exception_handler": "handle the errors of a task where it is awaited; the others are logged",
    "set_debug": "dw debug shows a run event by event",
    "create_connection create_server create_datagram_endpoint create_unix_connection create_unix_server start_tls sendfile"
    " connect_accepted_socket sock_accept sock_connect sock_recv sock_recv_into sock_recvfrom sock_recvfrom_into sock_sendall"
    " sock_sendfile sock_sendto getaddrinfo getnameinfo add_reader remove_reader add_writer remove_writer connect_read_pipe"
    " connect_write_pipe subprocess_exec subprocess_shell": _IN_AN_ACTIVITY,
}
# One by one, because a look at the name of every attribute makes all others five times as dear.
for _names, _advice in _REFUSED.items():
    for _name in _names.split():
        setattr(WorkflowLoop, _name, _refused(_name, _advice))
