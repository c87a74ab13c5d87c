"""A thread with an event loop, for code without `await`."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from backstay.sdk.client.bridge import LoopBridge

T = TypeVar("T")

LEAVE = 1.0  # seconds that cancelled calls and activities have to end


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop, of uvloop: half the cost of a request is the loop."""
    import uvloop  # here, because a program that only declares workflows needs no loop

    return uvloop.new_event_loop()


class LoopThread:
    """A thread with an event loop. It starts with the first call, and again in a forked child, which inherits neither."""

    def __init__(self, name: str, loop_factory: Callable[[], asyncio.AbstractEventLoop] = new_loop) -> None:
        self._name = name
        self._loop_factory = loop_factory
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._lock = threading.Lock()

    @property
    def mine(self) -> bool:
        """Whether the thread runs in this process."""
        return self._thread is not None and self._pid == os.getpid()

    def start(self) -> asyncio.AbstractEventLoop:
        self._pid = os.getpid()
        self._loop = loop = self._loop_factory()
        self._thread = threading.Thread(target=_run, args=(loop,), name=self._name, daemon=True)
        self._thread.start()
        return loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it here."""
        return LoopBridge(self._started()).run(work)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                return self.start()
            return self._loop

    def stop(self) -> None:
        """Cancel what still runs on the loop, wait a moment for its end, and end the thread."""
        with self._lock:
            thread, loop = self._thread, self._loop
            self._thread = self._loop = None
        if thread is None or loop is None or self._pid != os.getpid():
            return
        asyncio.run_coroutine_threadsafe(_cancel_everything(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


async def _cancel_everything() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=LEAVE)
