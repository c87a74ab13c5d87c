"""The thread and event loop of an open `Backstay`, and the bridge to them.

Both are made on opening, so that a Backstay may be declared before a fork. Neither exists in a child forked afterwards.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from backstay.sdk.client.sync import LoopBridge
from backstay.store import ForkedEngine

T = TypeVar("T")

LEAVE = 1.0  # seconds that cancelled calls and activities have to end


class EngineThread:
    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._door = threading.Lock()  # who has passed it in time is there when everybody is told of the end
        self._calls: set[Future[Any]] = set()  # not answered yet

    @property
    def mine(self) -> bool:
        """Whether it runs, and in this process."""
        return self._thread is not None and self._pid == os.getpid()

    @property
    def running(self) -> bool:
        if self._thread is not None and self._pid != os.getpid():
            raise ForkedEngine
        return self._thread is not None

    def start(self) -> None:
        self._pid = os.getpid()
        self._loop = loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(loop,), name="backstay-engine", daemon=True)
        self._thread.start()

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
            loop = self._loop if self.running else None  # ahead of the door, which a forked child may find locked
            with self._door:
                if loop is None or self._loop is not loop:
                    raise RuntimeError("this Backstay is not open; enter it with `with`, or call open() first")
                call = LoopBridge(loop).begin(work)
                self._calls.add(call)
                return call
        except RuntimeError:
            work.close()
            raise

    def stop(self) -> None:
        with self._door:
            thread, loop = self._thread, self._loop
            self._thread = self._loop = None
        if thread is not None and loop is not None:
            asyncio.run_coroutine_threadsafe(_cancel_everything(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            for call in list(self._calls):
                call.cancel()  # what did not end when it was told to
            loop.close()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


async def _cancel_everything() -> None:
    """Whoever still waits for an answer is told that none will come."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=LEAVE)
