"""From code without `await` to an event loop: the bridge, and how a client without `await` opens and closes.

The methods of that client are in `sync.py` and `sync_schedules.py`, which `tools/sync_client.py` makes from the async ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from backstay.codec.exceptions import Exceptions
from backstay.sdk.client.client import AsyncClient
from backstay.sdk.errors import DurableCallRefused
from backstay.sdk.replay.workflow_greenlet import current_run

T = TypeVar("T")


class Bridge(Protocol):
    """Runs a coroutine on the event loop of another thread and waits for it."""

    def run(self, work: Coroutine[Any, Any, T]) -> T: ...


class LoopBridge:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.begin(work).result()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if current_run() is not None:
            work.close()
            raise DurableCallRefused(
                "a workflow cannot use a client: it would wait for its own engine; do it in an activity"
            )
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            work.close()
            raise RuntimeError("this would wait for itself: use the async client on this event loop")
        return asyncio.run_coroutine_threadsafe(work, self._loop)


class BridgedClient:
    """A client of a server, for code without `await`: starts workflows, waits for them, lists and describes them."""

    def __init__(
        self,
        server: str | AsyncClient,
        bridge: Bridge | None = None,
        *,
        token: str | None = None,
        namespace: str = "default",
        exceptions: Exceptions | Iterable[type[Exception]] = (),
    ) -> None:
        if isinstance(server, str):
            server = AsyncClient(server, token=token, namespace=namespace, exceptions=exceptions)
        if bridge is None:
            from backstay.sdk.client.loop_thread import LoopThread

            bridge = LoopThread("backstay-client")
        self._client = server
        self._bridge = bridge

    def close(self) -> None:
        """Close the connections to the server."""
        from backstay.sdk.client.loop_thread import LoopThread

        if isinstance(self._bridge, LoopThread):
            self._bridge.run(self._client.close())
            self._bridge.stop()

    def __repr__(self) -> str:
        return repr(self._client).replace("<AsyncClient", "<Client", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
