"""A thread pool for short calls, cheap in bulk: for activities and for commits."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

log = logging.getLogger("backstay.engine")

T = TypeVar("T")


class Clock(Protocol):
    """The clock and the thread of the event loop that gets the results."""

    def now(self) -> int: ...
    def at(self, when: int, call: Callable[[], None]) -> object: ...
    def post(self, call: Callable[[], None]) -> None: ...
    def soon(self, call: Callable[[], None]) -> None: ...


class ThreadPool:
    """Runs calls on threads and hands their results to the event loop: one queue in, one wake-up of the loop for many results.

    That is 100 times cheaper in bulk than an executor of the standard library. A few threads run short calls without
    competing for the interpreter. Only when calls have waited for a moment, because these threads are blocked, the pool grows:
    to as many threads as there are calls, up to its size. Each idle thread sleeps on a lock of its own. A single call wakes one
    thread, and a thread that finds more calls wakes the next. If all waited on one queue, they would wake each other just when
    the engine's thread has to go on.
    """

    CORE = 2
    PATIENCE = 2_000  # microseconds that calls wait before the pool grows
    AGAIN = 100_000  # microseconds until the next attempt to start a thread

    def __init__(
        self, clock: Clock, size: int, name: str, around: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """`around`: a context in which results that arrive together are handed over."""
        self._clock = clock
        self._around = around
        self._size = size
        self._name = name
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any], None]] | None] = deque()  # None: the end of a thread
        self._idle: list[threading.Lock] = []  # of sleeping threads; the last one is woken first
        self._coming = False  # a thread was woken and has not looked for calls yet
        self._here: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self._results: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._draining = False
        self._watched = False

    def submit(self, call: Callable[[], T], done: Callable[[T], None]) -> None:
        """Run a call on a thread, and `done` with its result on the loop. The result of a call that raises is its exception."""
        self._busy += 1
        self._jobs.append((call, done))
        if self._idle and not self._coming:
            self._wake()
        threads = len(self._threads)
        if self._busy > threads and threads < self._size:
            if threads < self.CORE:
                self._grow(1)
            elif not self._watched:
                self._look_in(self.PATIENCE)

    def submit_here(self, call: Callable[[], T], done: Callable[[T], None]) -> None:
        """The same without a thread, in the next turn of the loop: for a call that is short and never waits."""
        if not self._here:
            self._clock.soon(self._run_here)
        self._here.append((call, done))

    def close(self) -> None:
        self._jobs.extend([None] * len(self._threads))
        self._threads.clear()
        while self._wake():
            pass

    def _wake(self) -> bool:
        """Wake one sleeping thread; False if there is none."""
        if not self._idle:
            return False
        try:
            one = self._idle.pop()
        except IndexError:
            return False  # the last sleeping thread has just found a call by itself
        self._coming = True
        one.release()
        return True

    def _grow(self, count: int) -> None:
        for _ in range(count):
            thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the process has reached its limit of threads
                log.error("thread %s could not be started, which is tried again: %s", thread.name, error)
                self._look_in(self.AGAIN)
                return
            self._threads.append(thread)

    def _look_in(self, pause: int) -> None:
        self._watched = True
        self._clock.at(self._clock.now() + pause, self._look)

    def _look(self) -> None:
        self._watched = False
        waiting = len(self._jobs) - len(self._idle)
        if waiting > 0:
            self._grow(min(waiting, self._size - len(self._threads)))

    def _work(self) -> None:
        asleep = threading.Lock()
        asleep.acquire()
        while True:
            try:
                job = self._jobs.popleft()
            except IndexError:
                self._sleep(asleep)
                continue
            if self._jobs and not self._coming:
                self._wake()
            if job is None:
                return
            call, done = job
            try:
                result = call()
            except BaseException as error:  # it becomes the result, and the thread goes on
                log.error("a call on thread %s failed", threading.current_thread().name, exc_info=error)
                result = error
            self._results.append((done, result))
            del job, call, done, result  # a thread that sleeps keeps nothing alive
            if not self._draining:
                self._draining = True
                try:
                    self._clock.post(self._drain)
                except RuntimeError:
                    return  # the loop has closed, and no caller waits for the result

    def _run_here(self) -> None:
        calls, self._here = self._here, []
        with self._around():
            for call, done in calls:
                try:
                    done(call())
                except Exception as error:  # the calls after it belong to others
                    log.error("a call on the loop of %s failed", self._name, exc_info=error)

    def _sleep(self, asleep: threading.Lock) -> None:
        """Sleep until there may be a call."""
        self._idle.append(asleep)
        if self._jobs:  # a call arrived before this thread was in the list, so no caller has woken it
            try:
                self._idle.remove(asleep)
            except ValueError:
                pass  # another thread has found it in the list and wakes it
            else:
                return
        asleep.acquire()
        self._coming = False

    def _drain(self) -> None:
        self._draining = False  # before emptying: a result that arrives from now on posts again
        results = self._results
        with self._around():
            while results:
                done, result = results.popleft()
                self._busy -= 1
                try:
                    done(result)
                except Exception as error:  # the results after it belong to other callers
                    log.error(
                        "the result of a call on a thread of %s could not be handed over", self._name, exc_info=error
                    )
