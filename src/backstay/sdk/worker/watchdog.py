"""The watchdog: workflow code that runs too long without waiting is interrupted from another thread.

A thread that runs workflow code notes that in its `ThreadWatch` with a few writes. The watchdog's own thread looks at the
watches now and then. Code that has used its deadline of processor time without getting another event of its history, or five
times that on the clock, gets `WorkflowInterrupted` raised in it (CPython can raise an exception in another thread, between two
bytecodes). The greenlet that runs on that thread is the one that hangs, so the exception arrives there. Code that catches it
gets it again, in bursts, so that one arrives outside its `try`. Code inside C gets it when C returns: until then nothing in
this process can stop it, and that is logged as critical.

The exception must never arrive outside workflow code. Both sides first write and then read, so that one of them sees the
other: the runner takes its live run off the watch and then checks whether it is being struck; the watchdog notes that it
strikes and then checks whether the live run is still there. A runner that was struck waits until the strike is over and takes
back an exception that was not delivered. No lock is held meanwhile, since the exception could arrive before its release.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from backstay.codec.tracebacks import LONGEST, is_own
from backstay.kernel.features.workflow_task import DEADLINE_EXCEEDED
from backstay.kernel.task import Block
from backstay.sdk.errors import WorkflowInterrupted

log = logging.getLogger("backstay.worker")

T = TypeVar("T")

WORKFLOW_DEADLINE: Final = 2.0  # default, in seconds
LOOKS: Final = 8  # how often the watchdog looks within a deadline
PATIENCE: Final = 5  # deadlines on the clock, for code that waits in C or gets no processor time
AGAIN: Final = 0.05  # seconds between two strikes
BURST: Final = 0.05  # seconds of repeated strikes at code that caught the first
STRIKES: Final = 50  # number of strikes after which code counts as not interruptible
DEBUGGERS: Final = ("bdb.py", "pdb.py", "pydevd", "debugpy")

_strike = ctypes.pythonapi["PyThreadState_SetAsyncExc"]
_strike.argtypes = (ctypes.c_ulong, ctypes.py_object)
_take_back = ctypes.pythonapi["PyThreadState_SetAsyncExc"]
_take_back.argtypes = (ctypes.c_ulong, ctypes.c_void_p)


class Which(Protocol):
    @property
    def workflow_id(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def workflow_type(self) -> str: ...


class Watched(Protocol):
    """Running workflow code. `length` grows when the code gets another event."""

    @property
    def length(self) -> int: ...
    @property
    def assignment(self) -> Which: ...


class QueryReplay(NamedTuple):
    """A replay for a query, which has no live run when it starts."""

    assignment: Which
    length: int = 0


class Interruption(NamedTuple):
    """The interruption of code: after how long, and where the code was."""

    seconds: float
    where: str
    stack: str

    @property
    def message(self) -> str:
        return (
            f"its code ran for {self.seconds:.3g} s without waiting for anything and was interrupted, {self.where};"
            " correct it, or move the work into an activity"
        )

    def block(self, fingerprint: str | None) -> Block:
        return Block(
            message=self.message,
            type="WorkflowInterrupted",
            stack_trace=self.stack,
            replay_blocked=True,  # a retry would only hang the next worker
            reason=DEADLINE_EXCEEDED,
            fingerprint=fingerprint,
        )


class ThreadWatch:
    """The watch of one thread. The runner of the code writes `turn` and `running`, the watchdog the rest."""

    __slots__ = ("__weakref__", "hit", "running", "striking", "thread", "turn")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.turn = 0
        self.running: Watched | None = None
        self.striking = False
        self.hit: Interruption | None = None

    def run(self, what: Watched, call: Callable[[], T]) -> T | Interruption:
        """Run workflow code under the watchdog. `WorkerExecutor.drive` has this written out."""
        if self.running is not None:
            return call()
        self.turn += 1
        self.running = what
        result: Any = None
        error: BaseException | None = None
        try:
            result = call()
        except WorkflowInterrupted:
            pass
        except BaseException as raised:
            error = raised
        self.running = None
        hit: Interruption | None = None
        while self.striking or self.hit is not None:
            try:
                hit = self.settle() or hit
            except WorkflowInterrupted:
                continue  # the exception arrives at the next function call, so the call must be inside the `try`
        if hit is not None:
            return hit
        if error is not None:
            raise error
        return result

    def settle(self) -> Interruption | None:
        """Wait for the end of a strike and return its interruption. Until then the exception may arrive in here."""
        while self.striking:
            time.sleep(0.0001)
        _take_back(self.thread, None)
        hit, self.hit = self.hit, None
        return hit


class _Seen:
    """The measurements of the watchdog for one turn of workflow code."""

    def __init__(self, mark: tuple[int, int], spent: float) -> None:
        self.mark = mark
        self.spent = spent
        self.looks = 0.0  # seconds, counted by looks, so that time in which the process was stopped does not count
        self.strikes = 0


class Watchdog:
    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._watches: list[weakref.ref[ThreadWatch]] = []  # each lives as long as its thread
        self._local = threading.local()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def here(self) -> ThreadWatch:
        """Return the watch of this thread."""
        found: ThreadWatch | None = getattr(self._local, "watch", None)
        if found is None:
            found = self._local.watch = ThreadWatch()
            self._watches.append(weakref.ref(found))
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="backstay-watchdog", daemon=True)
                self._thread.start()
        return found

    def stop(self) -> None:
        self._stopped.set()

    def _look(self) -> None:
        pause = min(self._deadline / LOOKS, 1.0)
        seen: dict[ThreadWatch, _Seen] = {}
        struck = False
        while not self._stopped.wait(AGAIN if struck else pause):
            struck = False
            for ref in list(self._watches):
                watch = ref()
                if watch is None:
                    self._watches.remove(ref)
                    continue
                running, turn = watch.running, watch.turn
                if running is None:
                    seen.pop(watch, None)
                    continue
                mark = turn, running.length
                before = seen.get(watch)
                if before is None or before.mark != mark:
                    seen[watch] = _Seen(mark, _spent(watch))
                    continue
                before.looks += pause
                if before.strikes or self._is_over(watch, before):
                    struck = self._interrupt(watch, running, before) or struck

    def _is_over(self, watch: ThreadWatch, seen: _Seen) -> bool:
        return _spent(watch) - seen.spent >= self._deadline or seen.looks >= PATIENCE * self._deadline

    def _interrupt(self, watch: ThreadWatch, running: Watched, seen: _Seen) -> bool:
        """Raise the exception in a thread if it still runs the same code. Returns whether to look again soon."""
        frame = sys._current_frames().get(watch.thread)  # pyright: ignore[reportPrivateUsage]
        if frame is None or _is_debugged(frame):
            return False
        hit = _hit(frame, max(_spent(watch) - seen.spent, seen.looks))
        if seen.strikes < 2:
            _interrupt_once(watch, running, seen.mark[0], hit)
        elif seen.strikes < STRIKES:
            _interrupt_in_a_burst(watch, running, seen.mark[0], hit)
        else:
            _interrupt_once(watch, running, seen.mark[0], hit)  # in case it comes back from C
        seen.strikes += 1
        if seen.strikes == 1:
            _say(logging.ERROR, running, hit, "it is interrupted and set aside")
        elif seen.strikes == STRIKES:
            _say(
                logging.CRITICAL,
                running,
                hit,
                "it cannot be interrupted: it is stuck in C, or catches every exception. Nothing else can run on this"
                " thread; terminate the run and restart this process",
            )
        return seen.strikes < STRIKES


def _interrupt_once(watch: ThreadWatch, running: Watched, turn: int, hit: Interruption) -> bool:
    watch.striking = True
    still = watch.running is running and watch.turn == turn
    if still:
        watch.hit = watch.hit or hit
        _strike(watch.thread, WorkflowInterrupted)
    watch.striking = False
    return still


def _interrupt_in_a_burst(watch: ThreadWatch, running: Watched, turn: int, hit: Interruption) -> None:
    """Strike so fast that a strike arrives in the handler of the one before. Threads switch faster meanwhile."""
    interval = sys.getswitchinterval()
    until = time.monotonic() + BURST
    sys.setswitchinterval(1e-6)
    try:
        while time.monotonic() < until and _interrupt_once(watch, running, turn, hit):
            time.sleep(0)
    finally:
        sys.setswitchinterval(interval)


def _spent(watch: ThreadWatch) -> float:
    """Return the processor time of a thread in seconds, or the clock where the system does not provide it."""
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(watch.thread))
    except (AttributeError, OSError):
        return time.monotonic()


def _hit(frame: FrameType, seconds: float) -> Interruption:
    stack = traceback.extract_stack(frame, limit=50)
    shown = [entry for entry in stack if not is_own(entry.filename)] or list(stack)
    where = f"at {shown[-1].filename}:{shown[-1].lineno} in {shown[-1].name}" if shown else "somewhere"
    return Interruption(seconds, where, "".join(traceback.format_list(shown))[-LONGEST:])


def _is_debugged(frame: FrameType | None) -> bool:
    """Return whether a debugger is active, which may have stopped the code."""
    while frame is not None:
        if any(name in frame.f_code.co_filename for name in DEBUGGERS):
            return True
        frame = frame.f_back
    return False


def _say(level: int, running: Watched, hit: Interruption, what: str) -> None:
    task = running.assignment
    log.log(
        level,
        "workflow %r (type %s, run %s) has run for %.3g s without waiting for anything; %s. It hangs here:\n%s",
        task.workflow_id,
        task.workflow_type,
        task.run_id,
        hit.seconds,
        what,
        hit.stack,
        extra={"workflow_id": task.workflow_id, "run_id": task.run_id, "workflow_type": task.workflow_type},
    )
