"""The async client: start workflows, wait for their results, list and describe them. `sync.py` is the same without `await`.

It reaches an engine in this process (`AsyncBackstay`) or a server by its address (`AsyncClient("http://...")`).

Options go before the call (`client.options(business_key=...).start(order, "id", ...)`), because the workflow's own
arguments come last and keep their types.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, Unpack, overload

from msgspec.structs import replace

from backstay.codec.exceptions import Exceptions
from backstay.codec.values import loads
from backstay.kernel.decision import RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.failure import Failure
from backstay.kernel.features.cancel import Stopped
from backstay.kernel.features.close import WorkflowCompleted, WorkflowFailed
from backstay.kernel.features.deadline import WorkflowTimedOut
from backstay.kernel.message import Refused
from backstay.protocol import commands as tell
from backstay.protocol import requests as ask
from backstay.sdk import errors
from backstay.sdk.author.activity import ActivityDefinition as ActivityDefinition
from backstay.sdk.author.durations import to_seconds
from backstay.sdk.author.handlers import Signal, SignalMethod, packed
from backstay.sdk.author.options import check, expect, listed
from backstay.sdk.author.workflow import EntryPoint, NamedWorkflow, WorkflowFn, definition_of
from backstay.sdk.author.workflow_definition import WorkflowDefinition
from backstay.sdk.client.handle import AsyncHandle, Known, accept, error_of
from backstay.sdk.client.list_filters import list_filters
from backstay.sdk.client.schedules import AsyncSchedules
from backstay.sdk.client.start_request import StartOptions, activity_request, start_request
from backstay.sdk.client.transport import Transport
from backstay.sdk.replay.failures import STRUCTURAL_LIMIT, crash

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Coro = Coroutine[Any, Any, T]


UPDATE_PATIENCE = 60.0
"""Seconds that `update()` waits for an update, unless `update_timeout` says otherwise."""


def connected(url: str, token: str | None, namespace: str) -> Transport:
    """Return the transport to a server. The HTTP modules are imported when first needed."""
    from backstay.sdk.remote.transport import Access, HttpTransport

    return HttpTransport(Access(url, token, namespace))


def _known(classes: Iterable[type[Exception]]) -> Exceptions:
    known = Exceptions(class_aliases=errors.MOVED, modules=[vars(errors)])
    for cls in listed("exceptions", classes):
        if not isinstance(cls, type) or not issubclass(cls, Exception):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"exceptions are exception classes, as in [ValueError], not {cls!r}")
        known.add(cls)
    return known


class AsyncClient:
    """A client of a server, on the running event loop: starts workflows, waits for them, lists and describes them."""

    namespace: str
    """The namespace that this client works in."""

    def __init__(
        self,
        server: str | Transport,
        *,
        token: str | None = None,
        namespace: str = "default",
        exceptions: Exceptions | Iterable[type[Exception]] = (),
    ) -> None:
        """`server`: its address, like "http://127.0.0.1:8080". `token`: a bearer token with the role *operator*.

        `exceptions`: exception classes that errors of workflows are restored to, beside those of Python, of Backstay and of
        the modules that define the workflows. Raises `ValueError` for a wrong address or namespace.
        """
        expect("namespace", namespace)
        if "/" in namespace:
            raise ValueError(f"{namespace!r} cannot be the name of a namespace; use a-z 0-9 . _ -")
        self._transport = connected(server, token, namespace) if isinstance(server, str) else server
        self.namespace = namespace
        self.exceptions = exceptions if isinstance(exceptions, Exceptions) else _known(exceptions)
        self._options: StartOptions = {}
        self._redefined: Callable[[Any, WorkflowDefinition], None] | None = (
            None  # called with each workflow that is started
        )

    def options(self, **options: Unpack[StartOptions]) -> AsyncClient:
        """Return the same client with these options for the starts and commands that follow."""
        check(options, StartOptions)
        changed = AsyncClient(self._transport, namespace=self.namespace, exceptions=self.exceptions)
        changed._options = {**self._options, **options}
        changed._redefined = self._redefined
        return changed

    async def close(self) -> None:
        """Close the connections to the server."""
        close = getattr(self._transport, "close", None)
        if close is not None:
            close()
            await asyncio.sleep(0)  # a socket is closed by the loop's next round

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncClient of {self._transport}, namespace {self.namespace}>"

    @property
    def schedules(self) -> AsyncSchedules:
        """The schedules of this client's namespace."""
        return AsyncSchedules(self)

    @property
    def update_seconds(self) -> float | None:
        """Seconds that `update()` waits; set with `options()`."""
        timeout = self._options.get("update_timeout", UPDATE_PATIENCE)
        return None if timeout is None else to_seconds(timeout)

    @property
    def request_id(self) -> str | None:
        """The request id of commands, which makes them idempotent; set with `options()`."""
        return self._options.get("request_id")

    @overload
    async def start(
        self, workflow: WorkflowFn[P, R], id: str | None, /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncHandle[R]: ...
    @overload
    async def start(
        self, workflow: type[EntryPoint[P, Coro[R]]], id: str | None, /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncHandle[R]: ...
    @overload
    async def start(
        self, workflow: type[EntryPoint[P, R]], id: str | None, /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncHandle[R]: ...
    @overload
    async def start(self, workflow: str, id: str | None, /, *args: Any) -> AsyncHandle[Any]: ...
    async def start(self, workflow: Any, id: str | None, /, *args: Any, **kwargs: Any) -> AsyncHandle[Any]:
        """Start a workflow and return its handle. When this returns, the start is on disk.

        `id` is the workflow id; None makes a new one. A workflow whose code is in another process is named by its type. Raises
        `WorkflowAlreadyStarted` if the id is taken, unless `options(if_exists=...)` says otherwise.
        """
        definition = self._definition(workflow)
        started = await self.call(start_request(self.namespace, self._options, definition, id, args, kwargs))
        return AsyncHandle(self, started.workflow_id, started.run_id, definition)

    @overload
    async def execute(self, workflow: WorkflowFn[P, R], id: str | None, /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def execute(
        self, workflow: type[EntryPoint[P, Coro[R]]], id: str | None, /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def execute(
        self, workflow: type[EntryPoint[P, R]], id: str | None, /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def execute(self, workflow: str, id: str | None, /, *args: Any) -> Any: ...
    async def execute(self, workflow: Any, id: str | None, /, *args: Any, **kwargs: Any) -> Any:
        """Start a workflow, wait for its end and return its result. Raises like `start` and `Handle.result`."""
        definition = self._definition(workflow)
        ended = await self.call(
            ask.RunWorkflow(start=start_request(self.namespace, self._options, definition, id, args, kwargs))
        )
        return self.outcome(ended, definition)

    async def start_activity(
        self, activity: ActivityDefinition[P, R], id: str | None, /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncHandle[R]:
        """Start an activity as a job of its own, with its retries and timeouts but without a workflow."""
        started = await self.call(activity_request(self.namespace, self._options, activity, id, args, kwargs))
        return AsyncHandle(self, started.workflow_id, started.run_id, activity)

    async def execute_activity(
        self, activity: ActivityDefinition[P, R], id: str | None, /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Start an activity as a job of its own, wait for its end and return its result."""
        ended = await self.call(
            ask.RunWorkflow(start=activity_request(self.namespace, self._options, activity, id, args, kwargs))
        )
        return self.outcome(ended, activity)

    async def reserve(self, workflow: WorkflowFn[Any, Any] | type[Any], id: str, /) -> bool:
        """Reserve a workflow id before its first run. Returns False if the id exists already."""
        definition = definition_of(workflow)
        expect("id", id)
        reply = await self.call(
            ask.ReserveWorkflow(workflow_type=definition.type, workflow_id=id, namespace=self.namespace)
        )
        return reply.reserved

    @overload
    def handle(self, workflow: WorkflowFn[Any, R], id: str, /) -> AsyncHandle[R]: ...
    @overload
    def handle(self, workflow: type[EntryPoint[Any, Coro[R]]], id: str, /) -> AsyncHandle[R]: ...
    @overload
    def handle(self, workflow: type[EntryPoint[Any, R]], id: str, /) -> AsyncHandle[R]: ...
    @overload
    def handle(self, workflow: ActivityDefinition[Any, R], id: str, /) -> AsyncHandle[R]: ...
    @overload
    def handle(self, workflow: None, id: str, /) -> AsyncHandle[Any]: ...
    def handle(self, workflow: Any, id: str, /) -> AsyncHandle[Any]:
        """Return the handle of a workflow or standalone activity by its id, wherever it was started.

        The workflow gives the type of the result; None stands for an unknown one.
        """
        known: Any = workflow
        if not (workflow is None or isinstance(workflow, ActivityDefinition)):
            known = definition_of(workflow)
        expect("id", id)
        return AsyncHandle(self, id, None, known)

    @overload
    async def signal_with_start(
        self,
        workflow: WorkflowFn[Any, R] | type[EntryPoint[Any, Any]] | str,
        id: str,
        start: Sequence[Any],
        signal: SignalMethod[P, Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> AsyncHandle[Any]: ...
    @overload
    async def signal_with_start(
        self,
        workflow: WorkflowFn[Any, R] | type[EntryPoint[Any, Any]] | str,
        id: str,
        start: Sequence[Any],
        signal: Signal[T],
        value: T,
        /,
    ) -> AsyncHandle[Any]: ...
    @overload
    async def signal_with_start(
        self,
        workflow: WorkflowFn[Any, R] | type[EntryPoint[Any, Any]] | str,
        id: str,
        start: Sequence[Any],
        signal: str,
        /,
        *args: Any,
    ) -> AsyncHandle[Any]: ...
    async def signal_with_start(
        self, workflow: Any, id: str, start: Sequence[Any], signal: Any, /, *args: Any, **kwargs: Any
    ) -> AsyncHandle[Any]:
        """Send a signal to a workflow, and start the workflow first if it is not running. `start`: the arguments of its entry."""
        definition = self._definition(workflow)
        name, arguments, named = packed(signal, args, kwargs)
        if named:
            raise TypeError("a signal given by name takes positional arguments only")
        done = await self.call(
            tell.SignalWithStart(
                start=start_request(self.namespace, self._options, definition, id, start, {}),
                signal_name=name,
                arguments=arguments,
                request_id=self._options.get("request_id"),
            )
        )
        accept(done.signalled)
        return AsyncHandle(self, id, done.signalled.run_id, definition)

    async def describe(self, id: str) -> ask.Description:
        """Return the state of a workflow: status, current run, waits, tasks, failures.

        Of a run with more than 500 events each list has its newest 200 entries, and `totals` says how many there are.
        Raises `WorkflowNotFound` if there is none.
        """
        found = await self.call(ask.DescribeWorkflow(workflow_id=id, namespace=self.namespace))
        if not found.blocked or found.run is None:
            return found
        return replace(found, status="blocked", run=replace(found.run, status="blocked"))

    async def list(
        self,
        *,
        workflow_id: str | None = None,
        type: str | None = None,
        status: ask.Status | None = None,
        business_key: str | None = None,
        label: tuple[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        search: tuple[str, Any] | None = None,
        state: str | None = None,
        attention: str | None = None,
        queue: str | None = None,
        started_after: datetime | None = None,
        started_before: datetime | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[RunRow]:
        """List runs, newest first. For the next page pass the last row's `key` as `before`.

        The other arguments are filters; `status="open"` stands for all runs that have not ended. `state` says what a run does
        (`waiting`, `retrying`, `blocked`, ...), `attention` why it needs attention.
        """
        if status is not None:
            expect("status", status)
        return await self.call(
            ask.ListWorkflows(
                namespace=self.namespace,
                workflow_id=workflow_id,
                workflow_type=type,
                status=None if status == "open" else status,
                statuses=ask.OPEN if status == "open" else None,
                business_key=business_key,
                label=label,
                search=search,
                before=before,
                limit=limit,
                tells_blocked=True,
                **list_filters(
                    labels=labels,
                    state=state,
                    attention=attention,
                    queue=queue,
                    started_after=started_after,
                    started_before=started_before,
                ),
            )
        )

    async def history(self, id: str, run_id: str | None = None, *, after: int = 0) -> list[Recorded]:
        """Return the events of the current run, or of the run `run_id`, after the event number `after`."""
        return await self.call(ask.GetHistory(workflow_id=id, namespace=self.namespace, run_id=run_id, after=after))

    async def export(self, id: str, run_id: str | None = None) -> dict[str, Any]:
        """Return the current run, or the run `run_id`, as JSON with a checksum, to keep, send and verify."""
        return json.loads(await self.call(ask.ExportHistory(workflow_id=id, namespace=self.namespace, run_id=run_id)))

    def _definition(self, workflow: Any) -> WorkflowDefinition | NamedWorkflow:
        if isinstance(workflow, str):
            return NamedWorkflow(workflow)
        definition = definition_of(workflow)
        if self._redefined is not None:
            self._redefined(workflow, definition)
        return definition

    async def call(self, request: ask.Request[T]) -> T:
        """Send any request of the protocol."""
        try:
            return await self._transport.call(request)
        except Refused as refusal:
            raise error_of(refusal.reason, refusal.message, **refusal.fields) from None

    def outcome(self, ended: ask.Result, definition: Known) -> Any:
        """Return the value of a run, or raise the error that it ended with."""
        entry = ended.event
        if ended.status is None or entry is None:
            raise TimeoutError(f"workflow {ended.workflow_id!r} has not ended yet; wait again with handle.result()")
        match entry.event:
            case WorkflowCompleted(output=output):
                annotation = Any if definition is None else definition.signature.returns
                return None if output is None else loads(output, annotation)
            case WorkflowFailed(message=message, exception=failure, exception_type=type, failure_category=category):
                error = errors.WorkflowFailed(
                    f"workflow {ended.workflow_id!r} failed: {type or 'error'}: {message}",
                    ended.workflow_id,
                    ended.run_id,
                )
                if failure is not None:
                    error.failure = failure
                    error.__cause__ = crash(failure) or self.restored(failure, definition)
                elif category == STRUCTURAL_LIMIT:
                    error.__cause__ = errors.StructuralLimitExceeded(message)
                raise error
            case WorkflowTimedOut(message=message):
                raise errors.WorkflowTimedOut(
                    f"workflow {ended.workflow_id!r}: {message}", ended.workflow_id, ended.run_id
                )
            case Stopped(message=message):
                raise errors.WorkflowStopped(
                    f"workflow {ended.workflow_id!r}: {message}", ended.workflow_id, ended.run_id
                )
            case _:
                raise errors.WorkflowStopped(
                    f"workflow {ended.workflow_id!r} was {ended.closed_reason}", ended.workflow_id, ended.run_id
                )

    def restored(self, failure: Failure, definition: Known) -> Exception:
        """Return the exception of a failure. Classes in the modules that define the workflow are known."""
        if definition is not None:
            for module in definition.modules:
                self.exceptions.include(module)
        return self.exceptions.restore_or_wrap(failure)
