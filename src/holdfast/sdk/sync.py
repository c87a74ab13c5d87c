"""The client without `await`: every call goes over one bridge to the loop that the async client lives on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from holdfast.kernel.decision import RunRow
from holdfast.kernel.event import Recorded
from holdfast.kernel.features.reconcile import Reconciled
from holdfast.protocol import requests as ask
from holdfast.sdk.client import AsyncClient, AsyncHandle, StartOptions
from holdfast.sdk.durations import Duration
from holdfast.sdk.errors import DurableCallRefused
from holdfast.sdk.strand import current_fiber
from holdfast.sdk.workflow import Entry, WorkflowFn

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Coro = Coroutine[Any, Any, T]


class Bridge(Protocol):
    """Runs a coroutine on another thread's loop and waits for it here."""

    def run(self, work: Coroutine[Any, Any, T]) -> T: ...


class LoopBridge:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if current_fiber() is not None:
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
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class Handle(Generic[R]):
    def __init__(self, bridge: Bridge, handle: AsyncHandle[R]) -> None:
        self._bridge = bridge
        self._handle = handle

    @property
    def id(self) -> str:
        return self._handle.id

    @property
    def run_id(self) -> str | None:
        return self._handle.run_id

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the end and return the result. Runs that continue as new are followed."""
        return self._bridge.run(self._handle.result(timeout))

    def describe(self) -> ask.Description:
        return self._bridge.run(self._handle.describe())

    def history(self, run_id: str | None = None) -> list[Recorded]:
        return self._bridge.run(self._handle.history(run_id))

    def repair(self) -> Reconciled:
        """Restore missing tasks from history, and try blocked or failed ones again."""
        return self._bridge.run(self._handle.repair())

    def __repr__(self) -> str:
        return repr(self._handle)


class Client:
    def __init__(self, client: AsyncClient, bridge: Bridge) -> None:
        self._client = client
        self._bridge = bridge

    def options(self, **options: Unpack[StartOptions]) -> Client:
        """The same client with other options for the starts that follow."""
        return Client(self._client.options(**options), self._bridge)

    @overload
    def start(self, workflow: WorkflowFn[P, R], id: str | None, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...
    @overload
    def start(
        self, workflow: type[Entry[P, Coro[R]]], id: str | None, /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[R]: ...
    @overload
    def start(self, workflow: type[Entry[P, R]], id: str | None, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...
    def start(self, workflow: Any, id: str | None, /, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Start a workflow durably. When this returns, it is on disk. Without an id one is made."""
        return Handle(self._bridge, self._bridge.run(self._client.start(workflow, id, *args, **kwargs)))

    @overload
    def execute(self, workflow: WorkflowFn[P, R], id: str | None, /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def execute(self, workflow: type[Entry[P, Coro[R]]], id: str | None, /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def execute(self, workflow: type[Entry[P, R]], id: str | None, /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def execute(self, workflow: Any, id: str | None, /, *args: Any, **kwargs: Any) -> Any:
        """Start a workflow and wait for its result."""
        return self._bridge.run(self._client.execute(workflow, id, *args, **kwargs))

    def reserve(self, workflow: WorkflowFn[Any, Any] | type[Any], id: str, /) -> bool:
        """Make an id known before its run exists. False: it was known already."""
        return self._bridge.run(self._client.reserve(workflow, id))

    @overload
    def handle(self, workflow: WorkflowFn[Any, R], id: str, /) -> Handle[R]: ...
    @overload
    def handle(self, workflow: type[Entry[Any, Coro[R]]], id: str, /) -> Handle[R]: ...
    @overload
    def handle(self, workflow: type[Entry[Any, R]], id: str, /) -> Handle[R]: ...
    @overload
    def handle(self, workflow: None, id: str, /) -> Handle[Any]: ...
    def handle(self, workflow: Any, id: str, /) -> Handle[Any]:
        """A workflow that was started earlier, here or elsewhere."""
        return Handle(self._bridge, self._client.handle(workflow, id))

    def describe(self, id: str) -> ask.Description:
        return self._bridge.run(self._client.describe(id))

    def list(
        self,
        *,
        workflow_id: str | None = None,
        type: str | None = None,
        status: str | None = None,
        business_key: str | None = None,
        label: tuple[str, str] | None = None,
        search: tuple[str, Any] | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[RunRow]:
        """Runs, newest first. For the next page pass the last row's `key` as `before`."""
        return self._bridge.run(
            self._client.list(
                workflow_id=workflow_id,
                type=type,
                status=status,
                business_key=business_key,
                label=label,
                search=search,
                before=before,
                limit=limit,
            )
        )

    def history(self, id: str, run_id: str | None = None, *, after: int = 0) -> list[Recorded]:
        return self._bridge.run(self._client.history(id, run_id, after=after))

    def call(self, request: ask.Request[T]) -> T:
        """Send any request of the protocol."""
        return self._bridge.run(self._client.call(request))
