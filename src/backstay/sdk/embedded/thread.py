"""The thread and event loop of an open `Backstay`, and the bridge to them.

Both are made on opening, so that a Backstay may be declared before a fork. Neither exists in a child forked afterwards.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from backstay.sdk.client.bridge import LoopBridge
from backstay.sdk.client.loop_thread import LoopThread
from backstay.store.errors import ForkedEngine

T = TypeVar("T")


class EngineThread(LoopThread):
    """The thread of an open Backstay. It starts and stops with it, never by a call; `stop` cancels unanswered calls."""

    def __init__(self) -> None:
        super().__init__("backstay-engine", asyncio.new_event_loop)
        self._calls: set[Future[Any]] = set()  # not answered yet

    @property
    def running(self) -> bool:
        if self._thread is not None and self._pid != os.getpid():
            raise ForkedEngine
        return self._thread is not None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        call = self._begin(work)
        try:
            return call.result()
        except CancelledError:
            raise RuntimeError("this Backstay was closed before the answer came") from None
        finally:
            self._calls.discard(call)

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            loop = self._loop if self.running else None  # before the lock, which may be held for ever in a forked child
            # Under the lock, so that `stop` cancels every call that began before it: none can slip onto a loop that no
            # longer turns, where it would wait for ever: `test_a_call_that_comes_to_the_engine_while_it_closes_is_answered`.
            with self._lock:
                if loop is None or self._loop is not loop:
                    raise RuntimeError("this Backstay is not open; enter it with `with`, or call open() first")
                call = LoopBridge(loop).begin(work)
                self._calls.add(call)
                return call
        except RuntimeError:
            work.close()
            raise

    def stop(self) -> None:
        super().stop()
        for call in list(self._calls):
            call.cancel()  # did not end when the loop cancelled it
