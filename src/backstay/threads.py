"""A pool of threads for short calls, cheap in bulk: for activities, and for commits."""

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
    """The loop that results are brought back to."""

    def now(self) -> int: ...
    def at(self, when: int, call: Callable[[], None]) -> object: ...
    def post(self, call: Callable[[], None]) -> None: ...


class ThreadPool:
    """A pool of its own rather than an executor: one queue in, one wake-up per drain out (100 times cheaper in bulk).

    A few threads work off short calls without fighting over the interpreter. Only when calls have waited for a moment,
    because the few are blocked, does the pool grow: to as many threads as there are calls, up to its size. Those that have
    nothing to do sleep on a lock each, and are woken one by another while there is more to do: a lone call wakes one.
    Waiting on one queue, every one would wake the next, just when the engine's thread has to go on.
    """

    CORE = 2
    PATIENCE = 2_000  # microseconds
    AGAIN = 100_000  # until the next try to start a thread

    def __init__(
        self, clock: Clock, size: int, name: str, around: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """`around`: what is put around a series of results that are brought back together."""
        self._clock = clock
        self._around = around
        self._size = size
        self._name = name
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any], None]] | None] = deque()  # None: the end of a thread
        self._idle: list[threading.Lock] = []  # who fell asleep last is woken first
        self._coming = False  # somebody was woken and has not looked yet
        self._results: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._draining = False
        self._watched = False

    def submit(self, call: Callable[[], T], done: Callable[[T], None]) -> None:
        """Calls keep their exceptions to themselves; one that does not has its exception for a result."""
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

    def close(self) -> None:
        self._jobs.extend([None] * len(self._threads))
        self._threads.clear()
        while self._wake():
            pass

    def _wake(self) -> bool:
        """Wake one, if anybody sleeps."""
        if not self._idle:
            return False
        try:
            one = self._idle.pop()
        except IndexError:
            return False  # it has just found something to do by itself
        self._coming = True
        one.release()
        return True

    def _grow(self, count: int) -> None:
        for _ in range(count):
            thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the process may have no more for now
                log.error("thread %s could not be started: %s", thread.name, error)
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
            except BaseException as error:  # whoever waits is told, and the thread goes on
                log.error("a call on thread %s failed", threading.current_thread().name, exc_info=error)
                result = error
            self._results.append((done, result))
            if not self._draining:
                self._draining = True
                try:
                    self._clock.post(self._drain)
                except RuntimeError:
                    return  # the loop has closed: nobody is left to hear the result

    def _sleep(self, asleep: threading.Lock) -> None:
        """Until there may be something to do."""
        self._idle.append(asleep)
        if self._jobs:  # it came before this thread was there to be woken
            try:
                self._idle.remove(asleep)
            except ValueError:
                pass  # it was there after all, and is woken
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
                except Exception as error:  # the results behind it are for others
                    log.error("the result of a call on a thread of %s was not taken", self._name, exc_info=error)
