"""The client without `await`: each method runs the coroutine of the async client on its event loop, through a bridge.

Made by `tools/sync_client.py` from the async classes: change those, then run it.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Literal, ParamSpec, TypeVar, Unpack, overload

from backstay.kernel.decision import RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.features.fork import ForkPlan
from backstay.kernel.features.reconcile import Reconciled
from backstay.kernel.views.why import Why
from backstay.protocol import requests as ask
from backstay.sdk.author.activity import ActivityDefinition as ActivityDefinition
from backstay.sdk.author.durations import Duration
from backstay.sdk.author.handlers import QueryMethod, Signal, SignalMethod, UpdateMethod
from backstay.sdk.author.workflow import EntryPoint, WorkflowFn
from backstay.sdk.client.bridge import Bridge, BridgedClient
from backstay.sdk.client.handle import AsyncHandle, AsyncUpdateHandle
from backstay.sdk.client.start_request import StartOptions
from backstay.sdk.client.sync_schedules import Schedules

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Coro = Coroutine[Any, Any, T]
Q = TypeVar("Q")


class UpdateHandle(Generic[R]):
    """An accepted update of a workflow. Its result can be waited for here, or in another process by its id."""

    def __init__(self, bridge: Bridge, handle: AsyncUpdateHandle[R]) -> None:
        self._bridge = bridge
        self._handle = handle

    @property
    def workflow_id(self) -> str:
        """The workflow that the update was sent to."""
        return self._handle.workflow_id

    @property
    def id(self) -> str:
        """The update's id, to find it again with `handle.submitted(...)`."""
        return self._handle.id

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the update and return its result.

        Raises `UpdateFailed` if the handler raised, and `UpdateTimeout` when `timeout` expires; the update goes on.
        """
        return self._bridge.run(self._handle.result(timeout))

    def __repr__(self) -> str:
        return repr(self._handle)


class Handle(Generic[R]):
    """One workflow, or one standalone activity, by its id: wait for its result, send it messages, stop it, describe it.

    A command is refused with `WorkflowNotFound` if there is no such workflow, and with `WorkflowNotRunning` if it has ended.
    """

    def __init__(self, bridge: Bridge, handle: AsyncHandle[R]) -> None:
        self._bridge = bridge
        self._handle = handle

    @property
    def id(self) -> str:
        """The workflow id."""
        return self._handle.id

    @property
    def run_id(self) -> str | None:
        """The run that the workflow was started as; None if it was not started here."""
        return self._handle.run_id

    def of_run(self, run_id: str) -> Handle[R]:
        """Return a handle of one run of this workflow.

        Its queries, streams and history are those of the run, also after its end. A command is rejected if the run is not
        the current one. `result()` is still that of the workflow.
        """
        return Handle(self._bridge, self._handle.of_run(run_id))

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the end of the workflow and return its result. Runs that continue as new are followed.

        Raises `WorkflowFailed`, `WorkflowTimedOut` or `WorkflowStopped` if it did not complete, and `TimeoutError` when
        `timeout` expires.
        """
        return self._bridge.run(self._handle.result(timeout))

    @overload
    def signal(self, signal: SignalMethod[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    @overload
    def signal(self, signal: Signal[T], value: T, /) -> None: ...
    @overload
    def signal(self, signal: str, /, *args: Any, **kwargs: Any) -> None: ...
    def signal(self, signal: Any, /, *args: Any, **kwargs: Any) -> None:
        """Send a signal. When this returns, the signal is on disk. The workflow gets its signals in order."""
        self._bridge.run(self._handle.signal(signal, *args, **kwargs))

    @overload
    def query(self, query: QueryMethod[P, Q], /, *args: P.args, **kwargs: P.kwargs) -> Q: ...
    @overload
    def query(self, query: str, /, *args: Any, **kwargs: Any) -> Any: ...
    def query(self, query: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run a query handler and return its result, also of a run that has ended. Nothing is changed or recorded."""
        return self._bridge.run(self._handle.query(query, *args, **kwargs))

    @overload
    def update(self, update: UpdateMethod[P, Q], /, *args: P.args, **kwargs: P.kwargs) -> Q: ...
    @overload
    def update(self, update: str, /, *args: Any, **kwargs: Any) -> Any: ...
    def update(self, update: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Send an update and return the result of its handler.

        Raises `UpdateFailed` if the handler raised, and `UpdateTimeout` after a minute, or as long as
        `client.options(update_timeout=...)` says; the update goes on.
        """
        return self._bridge.run(self._handle.update(update, *args, **kwargs))

    @overload
    def submit(self, update: UpdateMethod[P, Q], /, *args: P.args, **kwargs: P.kwargs) -> UpdateHandle[Q]: ...
    @overload
    def submit(self, update: str, /, *args: Any, **kwargs: Any) -> UpdateHandle[Any]: ...
    def submit(self, update: Any, /, *args: Any, **kwargs: Any) -> UpdateHandle[Any]:
        """Send an update and return its handle when it is accepted, without waiting for its result."""
        return UpdateHandle(self._bridge, self._bridge.run(self._handle.submit(update, *args, **kwargs)))

    @overload
    def submitted(self, update: UpdateMethod[P, Q], id: str, /) -> UpdateHandle[Q]: ...
    @overload
    def submitted(self, update: str, id: str, /) -> UpdateHandle[Any]: ...
    def submitted(self, update: Any, id: str, /) -> UpdateHandle[Any]:
        """Return the handle of an update that was accepted earlier, here or elsewhere, by its id."""
        return UpdateHandle(self._bridge, self._handle.submitted(update, id))

    def command(self, name: str, **fields: Any) -> str:
        """Send an operator command by its name (`"cancel"`, `"retry_now"`, ...) with its fields. Returns its outcome.

        The methods of the same names do this with typed arguments.
        """
        return self._bridge.run(self._handle.command(name, **fields))

    def cancel(self, reason: str | None = None) -> str:
        """Cancel the run: at once, or through its code if the workflow handles cancellation. Returns which of them it was."""
        return self._bridge.run(self._handle.cancel(reason))

    def terminate(self, reason: str | None = None) -> None:
        """Stop the run at once. Its code does not see it."""
        self._bridge.run(self._handle.terminate(reason))

    def pause(self, reason: str | None = None) -> str:
        """Pause the run: its tasks are not handed out until it is unpaused. Events are still recorded."""
        return self._bridge.run(self._handle.pause(reason))

    def unpause(self, reason: str | None = None) -> str:
        """Hand out the tasks of a paused run again."""
        return self._bridge.run(self._handle.unpause(reason))

    def why(self, *, event: int | None = None) -> Why:
        """Explain the state of the run: a sentence, what happens by itself, and the action that helps. With `event`,
        why that event of its history was recorded."""
        return self._bridge.run(self._handle.why(event=event))

    def retry_now(self, activity_execution_id: str | None = None, reason: str | None = None) -> str:
        """Try an activity that backs off again now; without an id, every activity of the run that backs off."""
        return self._bridge.run(self._handle.retry_now(activity_execution_id, reason))

    def skip_wait(self, wait_id: str | None = None, reason: str | None = None) -> str:
        """End a timer or a timed wait of the run now, by its id; without one, the only timer of the run. Its code goes on as
        if the time had come."""
        return self._bridge.run(self._handle.skip_wait(wait_id, reason))

    def fork(
        self,
        at: int | str | None = None,
        *,
        new_id: str | None = None,
        set: Mapping[int, Any] | None = None,
        code: Literal["current", "same"] = "current",
        reason: str | None = None,
    ) -> Handle[R]:
        """Start a new workflow from a point in the history of this one, and return its handle. This one stays as it is.

        Results up to the point are kept; everything after it is done anew, whatever it did before: `plan_fork` lists that.
        `at` is a step, which is done anew (`3`, or the type of its activity or child, `"charge"`), or the last event to
        keep (`"event:12"`); without it, the last step that failed. `set` replaces results of steps by plain values.
        `new_id` is the id of the new workflow. `code`: `"same"` keeps the build that the run is bound to.
        """
        return Handle(
            self._bridge, self._bridge.run(self._handle.fork(at, new_id=new_id, set=set, code=code, reason=reason))
        )

    def rewind(
        self,
        at: int | str | None = None,
        *,
        set: Mapping[int, Any] | None = None,
        code: Literal["current", "same"] = "current",
        reason: str | None = None,
    ) -> Handle[R]:
        """Continue this workflow from an earlier point of its current run, as a new run, and return its handle.

        The run is closed as `rewound`, unless it has ended. Signals that it got after the point reach the new run. `at`,
        `set` and `code` are those of `fork`.
        """
        return Handle(self._bridge, self._bridge.run(self._handle.rewind(at, set=set, code=code, reason=reason)))

    def plan_fork(self, at: int | str | None = None, *, set: Mapping[int, Any] | None = None) -> ForkPlan:
        """Return what a fork or a rewind at this point would keep, and the activities, children and stream items that it
        may do again, with the idempotency keys that they had. Nothing is changed."""
        return self._bridge.run(self._handle.plan_fork(at, set=set))

    def archive(self, reason: str | None = None, *, run_id: str | None = None) -> str:
        """Mark a closed run as archived; its history stays."""
        return self._bridge.run(self._handle.archive(reason, run_id=run_id))

    def repair(self) -> Reconciled:
        """Restore missing tasks from history, and try blocked or failed tasks again. Returns what was done."""
        return self._bridge.run(self._handle.repair())

    def stream(self, name: str, start: int = 0) -> Iterator[Any]:
        """Iterate over the items of an output stream from an offset on, as they arrive, until the workflow has ended.

        Runs that continue as new are followed; the offset counts from the first run.
        """
        reader = self._handle.reader(name, start)
        while not reader.over:
            yield from self._bridge.run(reader.page())
        reader.end()

    def describe(self) -> ask.Description:
        """Return the state of the workflow: status, current run, waits, tasks, failures.

        `run` is None, and the status `reserved`, if the id was reserved and no run has been started under it.
        """
        return self._bridge.run(self._handle.describe())

    def history(self, run_id: str | None = None) -> list[Recorded]:
        """Return the events of the current run, or of the run `run_id`."""
        return self._bridge.run(self._handle.history(run_id))

    def export(self, run_id: str | None = None) -> dict[str, Any]:
        """Return the current run, or the run `run_id`, as JSON with a checksum, to keep, send and verify."""
        return self._bridge.run(self._handle.export(run_id))

    def __repr__(self) -> str:
        return repr(self._handle)


class Client(BridgedClient):
    """A client of a server, for code without `await`: starts workflows, waits for them, lists and describes them."""

    @property
    def namespace(self) -> str:
        """The namespace that this client works in."""
        return self._client.namespace

    def options(self, **options: Unpack[StartOptions]) -> Client:
        """Return the same client with these options for the starts and commands that follow."""
        return Client(self._client.options(**options), self._bridge)

    def close(self) -> None:
        """Close the connections to the server."""
        super().close()

    @property
    def schedules(self) -> Schedules:
        """The schedules of this client's namespace."""
        return Schedules(self._bridge, self._client.schedules)

    @overload
    def start(self, workflow: WorkflowFn[P, R], id: str | None, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...
    @overload
    def start(
        self, workflow: type[EntryPoint[P, Coro[R]]], id: str | None, /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[R]: ...
    @overload
    def start(
        self, workflow: type[EntryPoint[P, R]], id: str | None, /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[R]: ...
    @overload
    def start(self, workflow: str, id: str | None, /, *args: Any) -> Handle[Any]: ...
    def start(self, workflow: Any, id: str | None, /, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Start a workflow and return its handle. When this returns, the start is on disk.

        `id` is the workflow id; None makes a new one. A workflow whose code is in another process is named by its type. Raises
        `WorkflowAlreadyStarted` if the id is taken, unless `options(if_exists=...)` says otherwise.
        """
        return Handle(self._bridge, self._bridge.run(self._client.start(workflow, id, *args, **kwargs)))

    @overload
    def execute(self, workflow: WorkflowFn[P, R], id: str | None, /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def execute(
        self, workflow: type[EntryPoint[P, Coro[R]]], id: str | None, /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    def execute(self, workflow: type[EntryPoint[P, R]], id: str | None, /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def execute(self, workflow: str, id: str | None, /, *args: Any) -> Any: ...
    def execute(self, workflow: Any, id: str | None, /, *args: Any, **kwargs: Any) -> Any:
        """Start a workflow, wait for its end and return its result. Raises like `start` and `Handle.result`."""
        return self._bridge.run(self._client.execute(workflow, id, *args, **kwargs))

    def start_activity(
        self, activity: ActivityDefinition[P, R], id: str | None, /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[R]:
        """Start an activity as a job of its own, with its retries and timeouts but without a workflow."""
        return Handle(self._bridge, self._bridge.run(self._client.start_activity(activity, id, *args, **kwargs)))

    def execute_activity(
        self, activity: ActivityDefinition[P, R], id: str | None, /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Start an activity as a job of its own, wait for its end and return its result."""
        return self._bridge.run(self._client.execute_activity(activity, id, *args, **kwargs))

    def reserve(self, workflow: WorkflowFn[Any, Any] | type[Any], id: str, /) -> bool:
        """Reserve a workflow id before its first run. Returns False if the id exists already."""
        return self._bridge.run(self._client.reserve(workflow, id))

    @overload
    def handle(self, workflow: WorkflowFn[Any, R], id: str, /) -> Handle[R]: ...
    @overload
    def handle(self, workflow: type[EntryPoint[Any, Coro[R]]], id: str, /) -> Handle[R]: ...
    @overload
    def handle(self, workflow: type[EntryPoint[Any, R]], id: str, /) -> Handle[R]: ...
    @overload
    def handle(self, workflow: ActivityDefinition[Any, R], id: str, /) -> Handle[R]: ...
    @overload
    def handle(self, workflow: None, id: str, /) -> Handle[Any]: ...
    def handle(self, workflow: Any, id: str, /) -> Handle[Any]:
        """Return the handle of a workflow or standalone activity by its id, wherever it was started.

        The workflow gives the type of the result; None stands for an unknown one.
        """
        return Handle(self._bridge, self._client.handle(workflow, id))

    @overload
    def signal_with_start(
        self,
        workflow: WorkflowFn[Any, R] | type[EntryPoint[Any, Any]] | str,
        id: str,
        start: Sequence[Any],
        signal: SignalMethod[P, Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Handle[Any]: ...
    @overload
    def signal_with_start(
        self,
        workflow: WorkflowFn[Any, R] | type[EntryPoint[Any, Any]] | str,
        id: str,
        start: Sequence[Any],
        signal: Signal[T],
        value: T,
        /,
    ) -> Handle[Any]: ...
    @overload
    def signal_with_start(
        self,
        workflow: WorkflowFn[Any, R] | type[EntryPoint[Any, Any]] | str,
        id: str,
        start: Sequence[Any],
        signal: str,
        /,
        *args: Any,
    ) -> Handle[Any]: ...
    def signal_with_start(
        self, workflow: Any, id: str, start: Sequence[Any], signal: Any, /, *args: Any, **kwargs: Any
    ) -> Handle[Any]:
        """Send a signal to a workflow, and start the workflow first if it is not running. `start`: the arguments of its entry."""
        return Handle(
            self._bridge, self._bridge.run(self._client.signal_with_start(workflow, id, start, signal, *args, **kwargs))
        )

    def describe(self, id: str) -> ask.Description:
        """Return the state of a workflow: status, current run, waits, tasks, failures.

        Of a run with more than 500 events each list has its newest 200 entries, and `totals` says how many there are.
        Raises `WorkflowNotFound` if there is none.
        """
        return self._bridge.run(self._client.describe(id))

    def list(
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
        return self._bridge.run(
            self._client.list(
                workflow_id=workflow_id,
                type=type,
                status=status,
                business_key=business_key,
                label=label,
                labels=labels,
                search=search,
                state=state,
                attention=attention,
                queue=queue,
                started_after=started_after,
                started_before=started_before,
                before=before,
                limit=limit,
            )
        )

    def history(self, id: str, run_id: str | None = None, *, after: int = 0) -> list[Recorded]:
        """Return the events of the current run, or of the run `run_id`, after the event number `after`."""
        return self._bridge.run(self._client.history(id, run_id, after=after))

    def export(self, id: str, run_id: str | None = None) -> dict[str, Any]:
        """Return the current run, or the run `run_id`, as JSON with a checksum, to keep, send and verify."""
        return self._bridge.run(self._client.export(id, run_id))

    def call(self, request: ask.Request[T]) -> T:
        """Send any request of the protocol."""
        return self._bridge.run(self._client.call(request))
