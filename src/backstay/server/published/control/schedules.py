"""Routes of schedules, which start workflows at times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from backstay.kernel.features.schedule import (
    Action,
    FiredOccurrence,
    Interval,
    Overlap,
    SchedulePlan,
    ScheduleReply,
    Spec,
)
from backstay.kernel.features.schedule.messages import MAX_JITTER, MAX_NOTE, check_id
from backstay.kernel.features.schedule.preview import PreviewedFire, preview
from backstay.kernel.features.schedule.spec import check, fire_name
from backstay.kernel.names import Name
from backstay.kernel.values import SCHEDULES, Micros, Routing
from backstay.protocol import schedules as ask
from backstay.protocol.history import iso, to_wire
from backstay.protocol.payloads import arguments
from backstay.protocol.task_commands import memo
from backstay.server.access.auth import OPERATOR, READER
from backstay.server.access.origin import origin, source
from backstay.server.http.errors import invalid
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.published.control.schedule_lists import ScheduleAnswer, beside, listed, listing, next_action_times
from backstay.server.server import Server

Timeout = Annotated[float, Meta(gt=0)]
Note = Annotated[str, Meta(max_length=MAX_NOTE)]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class FireAnswer(Struct, frozen=True, kw_only=True):
    occurrence_time: str
    fire_at: str
    local_time: str
    note: str | None


class PreviewAnswer(Struct, frozen=True, kw_only=True):
    namespace: str
    timezone: str
    jitter_seconds: int
    next_action_times: list[str]
    fires: list[FireAnswer]


class CreatedScheduleAnswer(Struct, frozen=True, kw_only=True):
    schedule_id: str
    outcome: str
    namespace: str
    status: str
    created_at: str


class ScheduleCommandAnswer(Struct, frozen=True, kw_only=True):
    schedule_id: str
    outcome: str
    status: Annotated[str, Meta(description="The status of the schedule after the command.")]


class UpdatedScheduleAnswer(ScheduleCommandAnswer, frozen=True, kw_only=True):
    updated_at: str


class PausedScheduleAnswer(ScheduleCommandAnswer, frozen=True, kw_only=True):
    paused: bool
    note: Annotated[str | None, Meta(description="The reason that the caller gave.")]


class TriggeredScheduleAnswer(ScheduleCommandAnswer, frozen=True, kw_only=True):
    workflow_id: Annotated[str | None, Meta(description="The workflow that was started; null: none was.")]
    run_id: str | None
    reason: Annotated[str | None, Meta(description="Why no workflow was started.")]
    buffer_depth: Annotated[int | None, Meta(description="Fires that wait until an earlier run has closed.")]


class FilledAnswer(Struct, frozen=True, kw_only=True):
    fire_time: Annotated[str, Meta(description="The occurrence that the schedule fired for.")]
    outcome: str
    workflow_id: str | None
    run_id: str | None
    reason: str | None


class BackfilledScheduleAnswer(ScheduleCommandAnswer, frozen=True, kw_only=True):
    fires_attempted: int
    results: list[FilledAnswer]


class DeletedScheduleAnswer(ScheduleCommandAnswer, frozen=True, kw_only=True):
    deleted_at: str


class ScheduleEventAnswer(Struct, frozen=True, kw_only=True):
    id: str
    sequence: int
    event_type: str
    recorded_at: str
    workflow_instance_id: Annotated[str | None, Meta(description="The workflow that the event is about.")]
    workflow_run_id: str | None
    payload: dict[str, Any]


class ScheduleHistoryAnswer(Struct, frozen=True, kw_only=True):
    schedule_id: str
    namespace: str
    events: list[ScheduleEventAnswer]
    has_more: bool
    next_cursor: Annotated[int | None, Meta(description="The sequence after which the next page begins.")]


class SpecBody(Struct, frozen=True, kw_only=True):
    cron_expressions: list[str] | None = None
    intervals: list[Interval] | None = None
    timezone: str | None = None


class ActionBody(Struct, frozen=True, kw_only=True):
    workflow_type: Name
    task_queue: Name | None = None
    connection: Name | None = None
    input: Any = None
    execution_timeout_seconds: Timeout | None = None
    run_timeout_seconds: Timeout | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] = 5
    fairness_key: Name | None = None
    fairness_weight: Annotated[int, Meta(ge=1, le=1000)] = 1
    build_id: Name | None = None


class UpdateScheduleBody(Struct, frozen=True, kw_only=True):
    """Changes of a schedule. Fields that are absent or null stay as they are."""

    spec: SpecBody | None = None
    action: ActionBody | None = None
    overlap_policy: Overlap | None = None
    jitter_seconds: Annotated[int, Meta(ge=0, le=MAX_JITTER)] | None = None
    max_runs: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    memo: dict[str, Any] | None = None
    search_attributes: dict[str, Any] | None = None
    visibility_labels: dict[str, str] | None = None
    note: Note | None = None


class CreateScheduleBody(Struct, frozen=True, kw_only=True):
    spec: SpecBody
    action: ActionBody
    schedule_id: str | None = None
    overlap_policy: Overlap | None = None
    jitter_seconds: Annotated[int, Meta(ge=0, le=MAX_JITTER)] | None = None
    max_runs: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    memo: dict[str, Any] | None = None
    search_attributes: dict[str, Any] | None = None
    visibility_labels: dict[str, str] | None = None
    paused: bool = False
    note: Note | None = None


class PreviewBody(Struct, frozen=True, kw_only=True):
    """When a schedule would fire. Other fields of a schedule may be there, and are not looked at.

    Without a `schedule_id` the delay of each fire by `jitter_seconds` is not known.
    """

    spec: SpecBody
    schedule_id: str | None = None
    jitter_seconds: Annotated[int, Meta(ge=0, le=MAX_JITTER)] | None = None
    count: Annotated[int, Meta(ge=1, le=100)] = 10


class NoteBody(Struct, frozen=True, kw_only=True):
    note: Note | None = None


class TriggerBody(Struct, frozen=True, kw_only=True):
    overlap_policy: Overlap | None = None


class BackfillBody(Struct, frozen=True, kw_only=True):
    start_time: str
    end_time: str
    overlap_policy: Overlap | None = None


async def create(server: Server, request: HttpRequest) -> HttpResponse:
    """Create a schedule; without an id one is made."""
    body = request.decode(CreateScheduleBody)
    reply = await server.api.call(
        ask.CreateSchedule(
            schedule_id=body.schedule_id,
            namespace=request.namespace,
            plan=SchedulePlan(**_changes(body, request.namespace)),
            paused=body.paused,
            request_id=request.headers.get("x-request-id"),
            source=source(request),
            context=origin(request),
        )
    )
    return HttpResponse(
        CreatedScheduleAnswer(
            schedule_id=reply.schedule_id,
            outcome=reply.outcome,
            namespace=request.namespace,
            status=reply.status,
            created_at=iso(reply.at),
        ),
        201,
    )


async def previewed(server: Server, request: HttpRequest) -> PreviewAnswer:
    """The next fires of a schedule that does not exist yet, in its time zone. Nothing is stored."""
    body = request.decode(PreviewBody)
    spec, now = _spec(body.spec), server.now
    name, jitter = body.schedule_id, body.jitter_seconds or 0
    if name is not None:
        check_id(name)
    # On a thread: an expression that fires once in years is looked for day by day.
    place = fire_name(request.namespace + SCHEDULES, name or "")
    found = await beside(lambda: _fires(spec, place, jitter if name is not None else 0, now, body.count))
    return PreviewAnswer(
        namespace=request.namespace,
        timezone=spec.timezone,
        jitter_seconds=jitter,
        next_action_times=[iso(fire.at) for fire in found],
        fires=[
            FireAnswer(
                occurrence_time=iso(fire.occurrence),
                fire_at=iso(fire.at),
                local_time=fire.local.isoformat(),
                note=fire.note,
            )
            for fire in found
        ],
    )


def _fires(spec: Spec, name: str, jitter: int, now: Micros, count: int) -> list[PreviewedFire]:
    check(spec, now)
    return preview(spec, name, jitter, now, count)


async def describe(server: Server, request: HttpRequest) -> ScheduleAnswer:
    """The current state of a schedule."""
    found = await server.api.call(
        ask.DescribeSchedule(schedule_id=request.params["schedule_id"], namespace=request.namespace)
    )
    (times,) = await next_action_times(request.namespace, [found])
    return listed(found, request.namespace, times)


async def update(server: Server, request: HttpRequest) -> UpdatedScheduleAnswer:
    """Change some fields of a schedule."""
    changes = _changes(request.decode(UpdateScheduleBody), request.namespace)
    reply = await server.api.call(ask.UpdateSchedule(**_to(request), changes=changes))
    return UpdatedScheduleAnswer(**_outcome(reply), updated_at=iso(reply.at))


async def pause(server: Server, request: HttpRequest) -> PausedScheduleAnswer:
    """Pause a schedule until it is resumed."""
    reply = await server.api.call(ask.PauseSchedule(**_to(request), note=request.decode(NoteBody).note))
    return PausedScheduleAnswer(**_outcome(reply), paused=True, note=reply.note)


async def resume(server: Server, request: HttpRequest) -> PausedScheduleAnswer:
    """Resume a paused schedule."""
    reply = await server.api.call(ask.ResumeSchedule(**_to(request), note=request.decode(NoteBody).note))
    return PausedScheduleAnswer(**_outcome(reply), paused=False, note=reply.note)


async def trigger(server: Server, request: HttpRequest) -> TriggeredScheduleAnswer:
    """Fire a schedule once, now."""
    policy = request.decode(TriggerBody).overlap_policy
    reply = await server.api.call(ask.TriggerSchedule(**_to(request), overlap_policy=policy))
    (fired,) = reply.fired
    return TriggeredScheduleAnswer(
        **_outcome(reply),
        workflow_id=fired.workflow_id,
        run_id=fired.run_id,
        reason=fired.reason,
        buffer_depth=fired.buffer_depth,
    )


async def backfill(server: Server, request: HttpRequest) -> BackfilledScheduleAnswer:
    """Fire a schedule for every occurrence from start_time on and before end_time."""
    body = request.decode(BackfillBody)
    reply = await server.api.call(
        ask.BackfillSchedule(
            **_to(request),
            start=_moment(body.start_time, "start_time"),
            end=_moment(body.end_time, "end_time"),
            overlap_policy=body.overlap_policy,
        )
    )
    results = [_filled(fired) for fired in reply.fired]
    return BackfilledScheduleAnswer(**_outcome(reply), fires_attempted=len(results), results=results)


async def delete(server: Server, request: HttpRequest) -> DeletedScheduleAnswer:
    """Delete a schedule. The workflows it has started go on, and its history stays."""
    reply = await server.api.call(ask.DeleteSchedule(**_to(request)))
    return DeletedScheduleAnswer(**_outcome(reply), deleted_at=iso(reply.at))


async def history(server: Server, request: HttpRequest) -> ScheduleHistoryAnswer:
    """The history of a schedule, also after it was deleted."""
    text = request.query.get("after_sequence") or "0"
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise invalid(
            "after_sequence", f"after_sequence is a whole number from 0 on, not {text!r}", "invalid_after_sequence"
        )
    schedule_id = request.params["schedule_id"]
    found = await server.api.call(
        ask.GetScheduleHistory(
            schedule_id=schedule_id,
            namespace=request.namespace,
            after=int(text),
            limit=request.integer("limit", ask.HISTORY_PAGE, 1, ask.HISTORY_PAGE_MAX),
        )
    )
    return ScheduleHistoryAnswer(
        schedule_id=schedule_id,
        namespace=request.namespace,
        events=[_event(event) for event in found.events],
        has_more=found.more,
        next_cursor=found.events[-1].sequence if found.more else None,
    )


# -- requests


def _changes(body: CreateScheduleBody | UpdateScheduleBody, namespace: str) -> dict[str, Any]:
    """The fields of a plan that a body changes."""
    changes: dict[str, Any] = {}
    if body.spec is not None:
        changes["spec"] = _spec(body.spec)
    if body.action is not None:
        changes["action"] = _action(body.action, namespace)
    for name in ("overlap_policy", "jitter_seconds", "max_runs", "search_attributes", "visibility_labels", "note"):
        value = getattr(body, name)
        if value is not None:
            changes[name] = value
    if body.memo is not None:
        changes["memo"] = {key: blob for key, blob in memo(body.memo, "memo").items() if blob is not None}
    return changes


def _spec(body: SpecBody) -> Spec:
    return Spec(
        cron_expressions=body.cron_expressions or [],
        intervals=body.intervals or [],
        timezone=body.timezone or "UTC",
    )


def _action(body: ActionBody, namespace: str) -> Action:
    return Action(
        workflow_type=body.workflow_type,
        arguments=arguments(body.input, "action.input"),
        routing=Routing(
            namespace=namespace,
            connection=body.connection,
            queue=body.task_queue or "default",
            compatibility=body.build_id,
            priority=body.priority,
            fairness_key=body.fairness_key,
            fairness_weight=body.fairness_weight,
        ),
        execution_timeout_seconds=body.execution_timeout_seconds,
        run_timeout_seconds=body.run_timeout_seconds,
    )


def _to(request: HttpRequest) -> dict[str, Any]:
    return {
        "schedule_id": request.params["schedule_id"],
        "namespace": request.namespace,
        "request_id": request.headers.get("x-request-id"),
        "source": source(request),
        "context": origin(request),
    }


def _moment(text: str, field: str) -> Micros:
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is None:
            raise ValueError
        return (at - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        message = f"{field} is a time with its zone like 2027-01-31T00:00:00Z, not {text[:60]!r}"
        raise invalid(field, message, "invalid_time_range") from None


# -- responses


def _outcome(reply: ScheduleReply) -> dict[str, Any]:
    return {"schedule_id": reply.schedule_id, "outcome": reply.outcome, "status": reply.status}


def _filled(fired: FiredOccurrence) -> FilledAnswer:
    return FilledAnswer(
        fire_time=iso(fired.occurrence),
        outcome="started" if fired.outcome == "triggered" else fired.outcome,
        workflow_id=fired.workflow_id,
        run_id=fired.run_id,
        reason=fired.reason,
    )


def _event(event: ask.ScheduleEvent) -> ScheduleEventAnswer:
    wire = to_wire(event.entry, event.id.rpartition("-")[0])
    payload = wire["payload"]
    fire = payload.pop("next_fire", None)
    if fire is not None:
        payload["next_fire_at"] = iso(fire["at"])
    return ScheduleEventAnswer(
        id=event.id,
        sequence=event.sequence,
        event_type=event.entry.type,
        recorded_at=wire["recorded_at"],
        workflow_instance_id=payload.get("workflow_instance_id"),
        workflow_run_id=payload.get("workflow_run_id"),
        payload=msgspec.to_builtins(payload),
    )


_ONE = "/api/schedules/{schedule_id}"

ROUTES = [
    Route("GET", "/api/schedules", listing, "control", OPERATOR),
    Route("POST", "/api/schedules", create, "control", OPERATOR, body=CreateScheduleBody, told=CreatedScheduleAnswer),
    Route("POST", "/api/schedules/preview", previewed, "control", READER, body=PreviewBody, only_reads=True),
    Route("GET", _ONE, describe, "control", OPERATOR),
    Route("PUT", _ONE, update, "control", OPERATOR, body=UpdateScheduleBody),
    Route("DELETE", _ONE, delete, "control", OPERATOR),
    Route("POST", f"{_ONE}/pause", pause, "control", OPERATOR, body=NoteBody),
    Route("POST", f"{_ONE}/resume", resume, "control", OPERATOR, body=NoteBody),
    Route("POST", f"{_ONE}/trigger", trigger, "control", OPERATOR, body=TriggerBody),
    Route("POST", f"{_ONE}/backfill", backfill, "control", OPERATOR, body=BackfillBody),
    Route("GET", f"{_ONE}/history", history, "control", OPERATOR),
]
