"""Messages to running workflows: signals, updates and messages of streams; and what all commands are answered with.

Each goes to the current run of an instance, or with a run in the path to exactly that one. A rejected command is a record
too: the answer is an error with its id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from backstay.kernel.features.instance_commands import CommandReply
from backstay.kernel.features.update import UpdateAccepted, UpdateCompleted
from backstay.kernel.names import Name
from backstay.kernel.operators import OPERATOR_COMMANDS, REFUSALS
from backstay.kernel.values import run_of
from backstay.protocol import commands as tell
from backstay.protocol import rejections
from backstay.protocol.payloads import arguments, decoded, envelope
from backstay.protocol.tasks import optional_iso
from backstay.server.access.auth import OPERATOR
from backstay.server.access.origin import origin, source
from backstay.server.http.answer_types import joined
from backstay.server.http.errors import HttpError, invalid
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.published.control.starting import StartBody, start_request
from backstay.server.published.control.workflow_json import find_run
from backstay.server.server import Server

RequestId = Name
Reason = Annotated[str, Meta(max_length=1000)]
MAX_WAIT = 60.0

# A rejection's own reason -> (status, the reason of the answer)
_REJECTIONS = {
    "unknown_signal": (404, "unknown_signal"),
    "invalid_signal_arguments": (422, "invalid_signal_arguments"),
    "invalid_update_arguments": (422, "invalid_update_arguments"),
    "update_validator_rejected": (422, "update_validator_rejected"),
    "structural_limit_exceeded": (422, "structural_limit_exceeded"),
    **{reason: (refusal.status, reason) for reason, refusal in REFUSALS.items()},
}


class SignalBody(Struct, frozen=True, kw_only=True):
    input: Any = None
    arguments: Any = None
    request_id: RequestId | None = None


class MessageBody(Struct, frozen=True, kw_only=True):
    message_id: Name
    input: Any = None


class UpdateWorkflowBody(SignalBody, frozen=True, kw_only=True):
    wait_for: str = "accepted"
    wait_timeout_seconds: Annotated[float, Meta(ge=0)] | None = None
    wait_policy: Any = None


class CommandBody(Struct, frozen=True, kw_only=True):
    reason: Reason | None = None
    request_id: RequestId | None = None


class CommandAnswer(Struct, frozen=True, kw_only=True):
    """The receipt of a command. A command that writes nothing, because a history is damaged, has no command id."""

    workflow_id: str
    run_id: str | UnsetType | None = UNSET
    namespace: str
    command_id: Annotated[str, Meta(description="The id under which the command is in the history.")] | UnsetType = (
        UNSET
    )
    command_sequence: int | UnsetType | None = UNSET
    command_status: Literal["accepted", "rejected"] | UnsetType = UNSET
    command_source: Annotated[str, Meta(description="What kind of caller sent it.")] | UnsetType = UNSET
    target_scope: Annotated[Literal["run", "instance"], Meta(description="What the path names.")] | UnsetType = UNSET
    outcome: str | None
    request_id: str | UnsetType | None = UNSET
    retained: Annotated[bool, Meta(description="An earlier request with this id was answered.")] | UnsetType = UNSET
    intent_verified: bool | UnsetType = UNSET


class SignalAnswer(CommandAnswer, frozen=True, kw_only=True):
    signal_name: str | None
    signal_id: str | None


class SignalWithStartAnswer(CommandAnswer, frozen=True, kw_only=True):
    """`start_…`: of the run that was started for the signal, if one was."""

    signal_name: str
    start_outcome: str | UnsetType = UNSET
    start_command_id: str | UnsetType | None = UNSET


class MessageAnswer(CommandAnswer, frozen=True, kw_only=True):
    stream_name: str
    message_id: str
    position: Annotated[int | None, Meta(description="Its place in the stream.")]
    duplicate: Annotated[bool, Meta(description="Whether the stream had a message of this id.")]


class UpdateStatusAnswer(Struct, frozen=True, kw_only=True):
    """The status of an update. `result` is that of a completed one, and `failure_…` of a failed one."""

    workflow_id: str | UnsetType = UNSET
    run_id: str | UnsetType | None = UNSET
    wait_for: str
    update_id: str | None
    update_name: str | None
    update_status: Literal["accepted", "completed", "failed", "rejected"] | str
    outcome: Literal["update_accepted", "update_completed", "update_failed"]
    wait_timed_out: bool
    wait_timeout_seconds: float | None
    result: Any
    result_envelope: dict[str, str] | None
    workflow_sequence: int | UnsetType | None = UNSET
    closed_at: str | UnsetType | None = UNSET
    failure_id: str | UnsetType | None = UNSET
    failure_message: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    reason: Literal["update_failed"] | UnsetType = UNSET
    exception_type: str | UnsetType | None = UNSET


if TYPE_CHECKING:

    class UpdateAnswer(UpdateStatusAnswer, frozen=True, kw_only=True): ...
else:
    UpdateAnswer = joined(
        *("UpdateAnswer", __name__, CommandAnswer, UpdateStatusAnswer),
        about="The receipt of an update, and its status when the wait was over.",
    )


class SignalWithStartBody(StartBody, frozen=True, kw_only=True):
    signal_input: Any = None


def arguments_of(body: SignalBody) -> tuple[bytes | None, dict[str, Any] | None]:
    """The arguments of a body: an array or an envelope of positional ones, or an object of named ones."""
    value = body.input if body.input is not None else body.arguments
    if isinstance(value, dict) and not {"codec", "blob"} >= value.keys():  # pyright: ignore[reportUnknownMemberType]
        return None, value  # pyright: ignore[reportUnknownVariableType]
    return arguments(value, "input"), None


def addressed(request: HttpRequest, request_id: str | None) -> dict[str, Any]:
    return {
        "workflow_id": request.params["workflow_id"],
        "namespace": request.namespace,
        "run_id": request.params.get("run_id"),
        "request_id": request_id,
        "source": source(request),
        "context": origin(request),
    }


async def signal(server: Server, request: HttpRequest) -> HttpResponse:
    body = request.decode(SignalBody)
    positional, named = arguments_of(body)
    done = await server.api.call(
        tell.SignalWorkflow(
            signal_name=request.params["name"], arguments=positional, named=named, **addressed(request, body.request_id)
        )
    )
    receipt = accepted(request, done, body.request_id)
    return HttpResponse(SignalAnswer(**receipt, signal_name=done.target_name, signal_id=done.signal_id), 202)


async def append_message(server: Server, request: HttpRequest) -> HttpResponse:
    """Put a message into a stream that the workflow reads in order."""
    body = request.decode(MessageBody)
    done = await server.api.call(
        tell.AppendMessage(
            stream_name=request.params["stream"],
            message_id=body.message_id,
            arguments=arguments(body.input, "input"),
            **addressed(request, None),
        )
    )
    answer = MessageAnswer(
        **accepted(request, done.command, None),
        stream_name=done.stream_name,
        message_id=done.message_id,
        position=done.position,
        duplicate=done.command.repeated,
    )
    return HttpResponse(answer, 202)


async def signal_with_start(server: Server, request: HttpRequest) -> HttpResponse:
    return await signal_or_start(server, request, request.decode(SignalWithStartBody), request.params["workflow_id"])


async def signal_or_start(
    server: Server, request: HttpRequest, body: SignalWithStartBody, workflow_id: str
) -> HttpResponse:
    """Signal a workflow, and start it first if it is not running."""
    start = start_request(server, request, body, workflow_id)
    done = await server.api.call(
        tell.SignalWithStart(
            start=start,
            signal_name=request.params["name"],
            arguments=arguments(body.signal_input, "signal_input"),
            request_id=request.headers.get("x-request-id"),
        )
    )
    receipt = accepted(request, done.signalled, None)
    answer = SignalWithStartAnswer(**receipt, signal_name=request.params["name"])
    if done.started is not None:
        answer = replace(
            answer,
            run_id=done.started.run_id,
            start_outcome=done.started.outcome,
            start_command_id=done.started.command_id,
        )
    return HttpResponse(answer, 202)


async def update(server: Server, request: HttpRequest) -> HttpResponse:
    return await update_with(server, request, request.decode(UpdateWorkflowBody))


async def update_with(server: Server, request: HttpRequest, body: UpdateWorkflowBody) -> HttpResponse:
    """Send an update, wait as long as the body says, and return its status."""
    if body.wait_policy is not None:
        raise invalid("wait_policy", "wait_policy is now called wait_for")
    if body.wait_for not in ("accepted", "completed"):
        raise invalid("wait_for", f"wait_for must be accepted or completed, not {body.wait_for!r}")
    positional, named = arguments_of(body)
    wanted = body.wait_timeout_seconds
    budget = server.settings.update_wait_completion_timeout_seconds
    seconds = budget if wanted is None else min(wanted, MAX_WAIT)
    status = await server.api.call(
        tell.UpdateWorkflow(
            update_name=request.params["name"],
            arguments=positional,
            named=named,
            wait_for="completed" if body.wait_for == "completed" else "accepted",
            wait_seconds=seconds,
            **addressed(request, body.request_id),
        )
    )
    if status.command is None:
        return updated(status, UpdateStatusAnswer, {"wait_for": body.wait_for})
    receipt = accepted(request, status.command, body.request_id, operation="update")
    return updated(status, UpdateAnswer, receipt | {"wait_for": body.wait_for})


async def get_update(server: Server, request: HttpRequest) -> HttpResponse:
    """The status of an update. A run in the path must be the one that accepted it, or one that continued it."""
    if "run_id" in request.params:
        await _of_run(server, request)
    seconds = min(float(request.integer("wait_timeout_seconds", 0, 0, 60)), MAX_WAIT)
    status = await server.api.call(
        tell.GetUpdate(
            workflow_id=request.params["workflow_id"],
            namespace=request.namespace,
            update_id=request.params["update_id"],
            wait_seconds=seconds,
        )
    )
    about = {"workflow_id": status.workflow_id, "run_id": status.run_id, "wait_for": "status"}
    return updated(status, UpdateStatusAnswer, about)


async def _of_run(server: Server, request: HttpRequest) -> None:
    row = await find_run(server, request)
    update_id = request.params["update_id"]
    if run_of(update_id) == row.run_id:
        return
    # An update that was waiting when its run continued as new is accepted again, under its id, in the next one.
    for entry in await server.api.stored.history(row.key):
        if isinstance(entry.event, UpdateAccepted) and entry.event.update_id == update_id:
            return
    said = f"run {row.run_id!r} of workflow {row.workflow_id!r} has no update {update_id!r}"
    raise HttpError(404, "update_not_found", said, run_id=row.run_id, update_id=update_id)


def updated(status: tell.UpdateStatus, answer_type: type[UpdateStatusAnswer], about: dict[str, Any]) -> HttpResponse:
    """The status of an update as an answer of this type. `about`: its further fields."""
    outcome = _OUTCOMES.get(status.update_status, "update_accepted")
    about |= {"update_id": status.update_id, "update_status": status.update_status, "outcome": outcome}
    answer = answer_type(
        **about,
        update_name=status.update_name,
        wait_timed_out=status.wait_timed_out,
        wait_timeout_seconds=status.wait_timeout_seconds,
        result=None,
        result_envelope=None,
    )
    if status.event is None or not isinstance(status.event.event, UpdateCompleted):
        return HttpResponse(answer, 202)
    end = status.event.event
    answer = replace(answer, workflow_sequence=end.sequence, closed_at=optional_iso(status.event.at))
    if status.update_status == "completed":
        return HttpResponse(replace(answer, result=decoded(end.result), result_envelope=envelope(end.result)), 200)
    answer = replace(
        answer,
        failure_id=end.failure_id,
        failure_message=end.message,
        message=end.message,
        reason="update_failed",
        exception_type=end.exception_type,
    )
    return HttpResponse(answer, 422)


_OUTCOMES = {"completed": "update_completed", "failed": "update_failed"}


def accepted(request: HttpRequest, done: CommandReply, request_id: str | None, operation: str = "") -> dict[str, Any]:
    """The receipt of a command; raises it as an error if the command was rejected."""
    receipt: dict[str, Any] = {
        "workflow_id": done.workflow_id,
        "run_id": done.run_id,
        "namespace": request.namespace,
        "command_id": done.command_id,
        "command_sequence": done.command_sequence,
        "command_status": "accepted" if done.accepted else "rejected",
        "command_source": source(request),
        "target_scope": "run" if "run_id" in request.params else "instance",
        "outcome": done.outcome,
        "request_id": request_id,
        "retained": done.repeated,
        "intent_verified": request_id is not None,
    }
    if done.accepted:
        return receipt
    why = done.rejection_reason or "rejected"
    status, reason = _REJECTIONS.get(why, (409, "update_rejected" if operation == "update" else why))
    receipt |= {"rejection_reason": why}
    if operation == "update":
        receipt |= {"update_id": done.update_id, "update_status": "rejected", "update_name": done.target_name}
    if done.validation_errors:
        receipt |= {
            "errors": done.validation_errors,
            "validation_errors": done.validation_errors,
            "field": _field_of(done),
        }
    raise HttpError(status, reason, rejections.sentence(done), **receipt)


def _field_of(done: CommandReply) -> str:
    """The field of the body that a rejection is about."""
    command = OPERATOR_COMMANDS.get(done.command_type)
    names = () if command is None else (field.name for field in command.fields)
    return next((name for name in names if name in done.validation_errors), "input")


RUN_PATHS = ("/api/workflows/{workflow_id}", "/api/workflows/{workflow_id}/runs/{run_id}")
"""The paths of an instance, and of one run of it."""

ROUTES = [
    *(
        Route(
            "POST",
            f"{place}/signal/{{name}}",
            signal,
            "control",
            OPERATOR,
            "signal",
            body=SignalBody,
            told=SignalAnswer,
        )
        for place in RUN_PATHS
    ),
    *(
        Route(
            "POST",
            f"{place}/update/{{name}}",
            update,
            "control",
            OPERATOR,
            "update",
            body=UpdateWorkflowBody,
            told=UpdateAnswer | UpdateStatusAnswer,
        )
        for place in RUN_PATHS
    ),
    Route(
        "POST",
        "/api/workflows/{workflow_id}/message-streams/{stream}/messages",
        append_message,
        "control",
        OPERATOR,
        "append_message",
        body=MessageBody,
        told=MessageAnswer,
    ),
    *(
        Route("GET", f"{place}/updates/{{update_id}}", get_update, "control", OPERATOR, told=UpdateStatusAnswer)
        for place in RUN_PATHS
    ),
    Route(
        "POST",
        "/api/workflows/{workflow_id}/signal-with-start/{name}",
        signal_with_start,
        "control",
        OPERATOR,
        "signal",
        body=SignalWithStartBody,
        told=SignalWithStartAnswer,
    ),
]
