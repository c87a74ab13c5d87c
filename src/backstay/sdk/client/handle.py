"""A handle on a workflow: its result, and the messages that clients send to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar, overload

from backstay.codec.to_plain import plainly
from backstay.codec.values import loads
from backstay.kernel.event import Recorded
from backstay.kernel.features.fork import ForkPlan, ForkReply
from backstay.kernel.features.instance_commands import CommandReply
from backstay.kernel.features.reconcile import Reconciled
from backstay.kernel.features.repair import Repaired
from backstay.kernel.operators import OPERATOR_COMMANDS, command_of
from backstay.kernel.views.why import Why
from backstay.protocol import commands as tell
from backstay.protocol import rejections
from backstay.protocol import requests as ask
from backstay.sdk import errors
from backstay.sdk.author.durations import Duration, to_seconds
from backstay.sdk.author.handlers import HandlerMethod, QueryMethod, Signal, SignalMethod, UpdateMethod, packed
from backstay.sdk.author.options import expect
from backstay.sdk.client.streams import StreamReader, follow

if TYPE_CHECKING:
    from backstay.sdk.author.activity import ActivityDefinition as ActivityDefinition
    from backstay.sdk.author.workflow import NamedWorkflow
    from backstay.sdk.author.workflow_definition import WorkflowDefinition
    from backstay.sdk.client.client import AsyncClient

P = ParamSpec("P")
R = TypeVar("R")
Q = TypeVar("Q")
T = TypeVar("T")

_ERRORS: dict[str, type[errors.RequestRefused]] = {
    "workflow_not_found": errors.WorkflowNotFound,
    "run_not_found": errors.WorkflowNotFound,
    "instance_not_started": errors.WorkflowNotFound,
    "instance_already_started": errors.WorkflowAlreadyStarted,
    "run_not_active": errors.WorkflowNotRunning,
    "schedule_not_found": errors.ScheduleNotFound,
    "schedule_already_exists": errors.ScheduleAlreadyExists,
}


def error_of(reason: str, message: str, **fields: Any) -> errors.RequestRefused:
    return _ERRORS.get(reason, errors.RequestRefused)(reason, message, **fields)


def accept(command: CommandReply) -> CommandReply:
    """Return a command that was accepted; raise the error of one that was rejected."""
    if command.accepted:
        return command
    raise error_of(
        command.rejection_reason or "rejected",
        rejections.sentence(command),
        outcome=command.outcome,
        command_id=command.command_id,
        run_id=command.run_id,
        validation_errors=command.validation_errors,
        declared=command.declared,
    )


Known: TypeAlias = "WorkflowDefinition | NamedWorkflow | ActivityDefinition[Any, Any] | None"
"""The code of a handle's workflow, if the caller named it."""


class AsyncUpdateHandle(Generic[R]):
    """An accepted update of a workflow. Its result can be waited for here, or in another process by its id."""

    workflow_id: str
    """The workflow that the update was sent to."""

    id: str
    """The update's id, to find it again with `handle.submitted(...)`."""

    def __init__(self, client: AsyncClient, workflow_id: str, id: str, returns: Any, definition: Known = None) -> None:
        self._client = client
        self._definition = definition
        self._returns = returns
        self.workflow_id = workflow_id
        self.id = id

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the update and return its result.

        Raises `UpdateFailed` if the handler raised, and `UpdateTimeout` when `timeout` expires; the update goes on.
        """
        status = await self._client.call(
            tell.GetUpdate(
                workflow_id=self.workflow_id,
                update_id=self.id,
                namespace=self._client.namespace,
                wait_seconds=None if timeout is None else to_seconds(timeout),
            )
        )
        return answer(self._client, status, self._returns, self._definition)

    def __repr__(self) -> str:
        return f"<update {self.id} of workflow {self.workflow_id!r}>"


def answer(client: AsyncClient, status: tell.UpdateStatus, returns: Any, definition: Known) -> Any:
    """Return the result of an update, or raise the error that it ended with."""
    if status.event is None:
        raise errors.UpdateTimeout(
            f"update {status.update_name!r} of workflow {status.workflow_id!r} was accepted and has not ended yet; it goes on."
            f" Wait again with handle.submitted({status.update_name!r}, {status.update_id!r}).result()",
            status.workflow_id,
            status.update_id,
        )
    event: Any = status.event.event
    if status.update_status == "completed":
        return None if event.result is None else loads(event.result, returns)
    error = errors.UpdateFailed(
        f"update {status.update_name!r} failed: {event.exception_type or 'error'}: {event.message}", status.update_id
    )
    if event.exception is not None:
        error.failure = event.exception
        error.__cause__ = client.restored(event.exception, definition)
    raise error


class AsyncHandle(Generic[R]):
    """One workflow, or one standalone activity, by its id: wait for its result, send it messages, stop it, describe it.

    A command is refused with `WorkflowNotFound` if there is no such workflow, and with `WorkflowNotRunning` if it has ended.
    """

    id: str
    """The workflow id."""

    run_id: str | None
    """The run that the workflow was started as; None if it was not started here."""

    def __init__(
        self,
        client: AsyncClient,
        id: str,
        run_id: str | None,
        definition: Known,
    ) -> None:
        self._client = client
        self._definition = definition
        self._only: str | None = None  # the run that this handle is bound to
        self.id = id
        self.run_id = run_id

    def of_run(self, run_id: str) -> AsyncHandle[R]:
        """Return a handle of one run of this workflow.

        Its queries, streams and history are those of the run, also after its end. A command is rejected if the run is not
        the current one. `result()` is still that of the workflow.
        """
        expect("run_id", run_id)
        chosen = AsyncHandle[R](self._client, self.id, run_id, self._definition)
        chosen._only = run_id
        return chosen

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the end of the workflow and return its result. Runs that continue as new are followed.

        Raises `WorkflowFailed`, `WorkflowTimedOut` or `WorkflowStopped` if it did not complete, and `TimeoutError` when
        `timeout` expires.
        """
        wait = None if timeout is None else to_seconds(timeout)
        ended = await self._client.call(
            ask.AwaitResult(workflow_id=self.id, namespace=self._client.namespace, wait_seconds=wait)
        )
        return self._client.outcome(ended, self._definition)

    @overload
    async def signal(self, signal: SignalMethod[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    @overload
    async def signal(self, signal: Signal[T], value: T, /) -> None: ...
    @overload
    async def signal(self, signal: str, /, *args: Any, **kwargs: Any) -> None: ...
    async def signal(self, signal: Any, /, *args: Any, **kwargs: Any) -> None:
        """Send a signal. When this returns, the signal is on disk. The workflow gets its signals in order."""
        self._own(signal)
        name, arguments, named = packed(signal, args, kwargs)
        accept(
            await self._client.call(
                tell.SignalWorkflow(**self._to(), signal_name=name, arguments=arguments, named=named)
            )
        )

    @overload
    async def query(self, query: QueryMethod[P, Q], /, *args: P.args, **kwargs: P.kwargs) -> Q: ...
    @overload
    async def query(self, query: str, /, *args: Any, **kwargs: Any) -> Any: ...
    async def query(self, query: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run a query handler and return its result, also of a run that has ended. Nothing is changed or recorded."""
        self._own(query)
        name, arguments, named = packed(query, args, kwargs)
        found = await self._client.call(
            tell.QueryWorkflow(
                workflow_id=self.id,
                namespace=self._client.namespace,
                run_id=self._only,
                query_name=name,
                arguments=arguments,
                named=named,
                after_signals=True,
            )
        )
        return loads(found.result, query.signature.returns if isinstance(query, HandlerMethod) else Any)

    @overload
    async def update(self, update: UpdateMethod[P, Q], /, *args: P.args, **kwargs: P.kwargs) -> Q: ...
    @overload
    async def update(self, update: str, /, *args: Any, **kwargs: Any) -> Any: ...
    async def update(self, update: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Send an update and return the result of its handler.

        Raises `UpdateFailed` if the handler raised, and `UpdateTimeout` after a minute, or as long as
        `client.options(update_timeout=...)` says; the update goes on.
        """
        status = await self._update(update, args, kwargs, "completed")
        return answer(self._client, status, _returns(update), self._definition)

    @overload
    async def submit(
        self, update: UpdateMethod[P, Q], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncUpdateHandle[Q]: ...
    @overload
    async def submit(self, update: str, /, *args: Any, **kwargs: Any) -> AsyncUpdateHandle[Any]: ...
    async def submit(self, update: Any, /, *args: Any, **kwargs: Any) -> AsyncUpdateHandle[Any]:
        """Send an update and return its handle when it is accepted, without waiting for its result."""
        status = await self._update(update, args, kwargs, "accepted")
        return AsyncUpdateHandle(self._client, self.id, status.update_id or "", _returns(update), self._definition)

    @overload
    def submitted(self, update: UpdateMethod[P, Q], id: str, /) -> AsyncUpdateHandle[Q]: ...
    @overload
    def submitted(self, update: str, id: str, /) -> AsyncUpdateHandle[Any]: ...
    def submitted(self, update: Any, id: str, /) -> AsyncUpdateHandle[Any]:
        """Return the handle of an update that was accepted earlier, here or elsewhere, by its id."""
        self._own(update)
        expect("id", id)
        return AsyncUpdateHandle(self._client, self.id, id, _returns(update), self._definition)

    async def command(self, name: str, **fields: Any) -> str:
        """Send an operator command by its name (`"cancel"`, `"retry_now"`, ...) with its fields. Returns its outcome.

        The methods of the same names do this with typed arguments.
        """
        return command_of(await self._operate(name, fields)).outcome or ""

    async def cancel(self, reason: str | None = None) -> str:
        """Cancel the run: at once, or through its code if the workflow handles cancellation. Returns which of them it was."""
        return await self.command("cancel", reason=reason)

    async def terminate(self, reason: str | None = None) -> None:
        """Stop the run at once. Its code does not see it."""
        await self.command("terminate", reason=reason)

    async def pause(self, reason: str | None = None) -> str:
        """Pause the run: its tasks are not handed out until it is unpaused. Events are still recorded."""
        return await self.command("pause", reason=reason)

    async def unpause(self, reason: str | None = None) -> str:
        """Hand out the tasks of a paused run again."""
        return await self.command("unpause", reason=reason)

    async def why(self, *, event: int | None = None) -> Why:
        """Explain the state of the run: a sentence, what happens by itself, and the action that helps. With `event`,
        why that event of its history was recorded."""
        return await self._client.call(
            ask.ExplainWorkflow(workflow_id=self.id, namespace=self._client.namespace, run_id=self._only, event=event)
        )

    async def retry_now(self, activity_execution_id: str | None = None, reason: str | None = None) -> str:
        """Try an activity that backs off again now; without an id, every activity of the run that backs off."""
        return await self.command("retry_now", activity_execution_id=activity_execution_id, reason=reason)

    async def skip_wait(self, wait_id: str | None = None, reason: str | None = None) -> str:
        """End a timer or a timed wait of the run now, by its id; without one, the only timer of the run. Its code goes on as
        if the time had come."""
        return await self.command("skip_wait", wait_id=wait_id, reason=reason)

    async def fork(
        self,
        at: int | str | None = None,
        *,
        new_id: str | None = None,
        set: Mapping[int, Any] | None = None,
        code: Literal["current", "same"] = "current",
        reason: str | None = None,
    ) -> AsyncHandle[R]:
        """Start a new workflow from a point in the history of this one, and return its handle. This one stays as it is.

        Results up to the point are kept; everything after it is done anew, whatever it did before: `plan_fork` lists that.
        `at` is a step, which is done anew (`3`, or the type of its activity or child, `"charge"`), or the last event to
        keep (`"event:12"`); without it, the last step that failed. `set` replaces results of steps by plain values.
        `new_id` is the id of the new workflow. `code`: `"same"` keeps the build that the run is bound to.
        """
        fields = {"at": _point(at), "new_id": new_id, "set": _given(set), "code": code, "reason": reason}
        reply: ForkReply = await self._operate("fork", fields)
        return AsyncHandle[R](self._client, reply.command.workflow_id, reply.command.run_id, self._definition)

    async def rewind(
        self,
        at: int | str | None = None,
        *,
        set: Mapping[int, Any] | None = None,
        code: Literal["current", "same"] = "current",
        reason: str | None = None,
    ) -> AsyncHandle[R]:
        """Continue this workflow from an earlier point of its current run, as a new run, and return its handle.

        The run is closed as `rewound`, unless it has ended. Signals that it got after the point reach the new run. `at`,
        `set` and `code` are those of `fork`.
        """
        fields = {"at": _point(at), "set": _given(set), "code": code, "reason": reason}
        reply: ForkReply = await self._operate("rewind", fields)
        return AsyncHandle[R](self._client, self.id, reply.command.run_id, self._definition)

    async def plan_fork(self, at: int | str | None = None, *, set: Mapping[int, Any] | None = None) -> ForkPlan:
        """Return what a fork or a rewind at this point would keep, and the activities, children and stream items that it
        may do again, with the idempotency keys that they had. Nothing is changed."""
        return await self._client.call(
            tell.PlanFork(
                workflow_id=self.id,
                namespace=self._client.namespace,
                run_id=self._only,
                at=_point(at),
                set=_given(set),
            )
        )

    async def archive(self, reason: str | None = None, *, run_id: str | None = None) -> str:
        """Mark a closed run as archived; its history stays."""
        of = self if run_id is None else self.of_run(run_id)
        return await of.command("archive", reason=reason)

    async def repair(self) -> Reconciled:
        """Restore missing tasks from history, and try blocked or failed tasks again. Returns what was done."""
        repaired: Repaired = await self._operate("repair", {})
        return repaired.work or Reconciled(restored=[], released=[], dropped=[], revived=[])

    def stream(self, name: str, start: int = 0) -> AsyncIterator[Any]:
        """Iterate over the items of an output stream from an offset on, as they arrive, until the workflow has ended.

        Runs that continue as new are followed; the offset counts from the first run.
        """
        return follow(self.reader(name, start))

    def reader(self, name: str, start: int) -> StreamReader:
        """Return a reader of an output stream, page by page."""
        return StreamReader(self._client, self.id, self.run_id, name, start, one=self._only is not None)

    async def describe(self) -> ask.Description:
        """Return the state of the workflow: status, current run, waits, tasks, failures.

        `run` is None, and the status `reserved`, if the id was reserved and no run has been started under it.
        """
        return await self._client.describe(self.id)

    async def history(self, run_id: str | None = None) -> list[Recorded]:
        """Return the events of the current run, or of the run `run_id`."""
        return await self._client.history(self.id, run_id or self._only)

    async def export(self, run_id: str | None = None) -> dict[str, Any]:
        """Return the current run, or the run `run_id`, as JSON with a checksum, to keep, send and verify."""
        return await self._client.export(self.id, run_id or self._only)

    async def _update(
        self, update: Any, args: Sequence[Any], kwargs: Mapping[str, Any], wait_for: tell.WaitFor
    ) -> tell.UpdateStatus:
        self._own(update)
        name, arguments, named = packed(update, args, kwargs)
        status = await self._client.call(
            tell.UpdateWorkflow(
                **self._to(),
                update_name=name,
                arguments=arguments,
                named=named,
                wait_for=wait_for,
                wait_seconds=self._client.update_seconds,
                after_signals=True,
            )
        )
        if status.command is not None:
            accept(status.command)
        return status

    def _to(self) -> dict[str, Any]:
        return {
            "workflow_id": self.id,
            "namespace": self._client.namespace,
            "run_id": self._only,
            "request_id": self._client.request_id,
        }

    async def _operate(self, name: str, fields: Mapping[str, Any]) -> Any:
        """Send an operator command, and return its reply. A command that was rejected raises."""
        declared = OPERATOR_COMMANDS.get(name)
        if declared is None:
            raise ValueError(
                f"there is no command {name!r}; {rejections.declared_names(name, list(OPERATOR_COMMANDS))}"
            )
        takes = [field.name for field in declared.fields]
        for field, value in fields.items():
            if field not in takes:
                raise TypeError(f"command {name!r} takes {', '.join(takes) or 'no fields'}, not {field!r}")
            expect(field, value)
        reply = await self._client.call(tell.OPERATOR[name](**self._to(), **fields))
        accept(command_of(reply))
        return reply

    def _own(self, member: Any) -> None:
        """Raise if a handler belongs to another workflow class."""
        definition = self._definition
        owner: type[Any] | None = member.owner if isinstance(member, HandlerMethod) else None
        target: type[Any] | None = (
            getattr(definition, "target", None) if getattr(definition, "is_class", False) else None
        )
        if owner is None or target is None or issubclass(target, owner):
            return
        raise TypeError(f"{member!r} belongs to {owner.__qualname__}, not to {target.__qualname__}")

    def __repr__(self) -> str:
        kind = "workflow" if self._definition is None else f"workflow {self._definition.type}"
        run = "" if self.run_id is None else f", {'only ' if self._only else 'started as '}run {self.run_id}"
        return f"<{kind} {self.id!r}{run}>"


def _point(at: int | str | None) -> str | None:
    return None if at is None else str(at)


def _given(results: Mapping[int, Any] | None) -> str | None:
    return None if not results else json.dumps({str(step): plainly(value) for step, value in results.items()})


def _returns(update: Any) -> Any:
    return update.signature.returns if isinstance(update, HandlerMethod) else Any
