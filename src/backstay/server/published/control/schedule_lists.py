"""The list of schedules: filters, a small query language, and pages whose tokens are bound to the filters.

`Field = literal AND Field = literal`, with the fields ScheduleId, Status, WorkflowType, TaskQueue, Note and every search
attribute that is registered.
"""

from __future__ import annotations

import asyncio
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct

from backstay.kernel.features.schedule import Schedule
from backstay.kernel.features.schedule.preview import next_times
from backstay.kernel.features.schedule.records import StartedAction
from backstay.kernel.features.schedule.spec import Interval, fire_name
from backstay.kernel.values import CODEC, SCHEDULES, Micros
from backstay.protocol import schedules as ask
from backstay.protocol.history import iso
from backstay.protocol.payloads import decoded, envelope
from backstay.protocol.tasks import optional_iso
from backstay.server.http.errors import HttpError, invalid
from backstay.server.http.messages import HttpRequest
from backstay.server.operators.causes.situation import schedule_counts
from backstay.server.operators.overview import ScheduleCountsAnswer, shown_schedules
from backstay.server.server import Server

T = TypeVar("T")

STATUSES = ("active", "paused", "ended", "deleted")
TIMES = 5  # upcoming fires of a schedule in an answer
_FILTERS = ("status", "workflow_type", "query")
_KNOWN = {*_FILTERS, "page_size", "next_page_token", "namespace"}
_FIELDS = {
    "ScheduleId": "schedule_id",
    "Status": "status",
    "WorkflowType": "workflow_type",
    "TaskQueue": "queue",
    "Note": "note",
}
_TERM = re.compile(
    r"""\s*(?P<field>[A-Za-z_][\w.]*)(?:\s*(?P<operator>[!<>=]+)\s*|\s+(?P<word>[A-Za-z]+)\s+)"""
    r"""(?P<literal>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s'"]+)\s*""",
    re.ASCII,
)
_AND = re.compile(r"AND\s+", re.IGNORECASE)


class ScheduleSpecAnswer(Struct, frozen=True, kw_only=True):
    cron_expressions: list[str]
    intervals: list[Interval]
    timezone: str


class ScheduleActionAnswer(Struct, frozen=True, kw_only=True):
    workflow_type: str
    task_queue: str
    connection: str | None
    build_id: str | None
    priority: int
    fairness_key: str | None
    fairness_weight: int
    input: Any
    input_envelope: Any
    payload_codec: str
    execution_timeout_seconds: float | None
    run_timeout_seconds: float | None


class StartedActionAnswer(Struct, frozen=True, kw_only=True):
    trigger_number: int
    workflow_id: str
    run_id: str
    occurrence_time: str
    started_at: str
    status: str
    closed_at: str | None
    message: str | None


class ScheduleSkips(Struct, frozen=True, kw_only=True):
    skipped_trigger_count: int
    last_skip_reason: str | None
    last_skipped_at: str | None


class ScheduleStateAnswer(Struct, frozen=True, kw_only=True):
    status: str
    paused: bool
    note: str | None


class ScheduleInfo(ScheduleSkips, frozen=True, kw_only=True):
    next_fire: str | None
    last_fire: str | None
    fires_count: int
    running_workflow_ids: list[str]
    buffered_actions: list[str]
    recent_actions: list[StartedActionAnswer]


class ScheduleAnswer(ScheduleSkips, frozen=True, kw_only=True):
    schedule_id: str
    namespace: str
    status: str
    paused: bool
    workflow_type: str
    spec: ScheduleSpecAnswer
    action: ScheduleActionAnswer
    overlap_policy: str
    note: str | None
    memo: dict[str, Any]
    search_attributes: dict[str, Any]
    visibility_labels: dict[str, str]
    jitter_seconds: int
    max_runs: int | None
    remaining_actions: int | None
    fires_count: int
    failures_count: int
    next_fire_at: str | None
    last_fired_at: str | None
    latest_workflow_instance_id: str | None
    paused_at: str | None
    created_at: str
    updated_at: str
    next_fire: str | None
    last_fire: str | None
    state: ScheduleStateAnswer
    info: ScheduleInfo
    next_action_times: Annotated[list[str], Meta(description="Its next fires, if it is active.")]


class SchedulesAnswer(Struct, frozen=True, kw_only=True):
    schedules: list[ScheduleAnswer]
    counts: ScheduleCountsAnswer
    schedule_count: Annotated[int, Meta(description="Of this page.")]
    next_page_token: str | None
    namespace: str


class PageToken(NamedTuple):
    namespace: str
    filters: str
    created_at: Micros
    schedule_id: str


_decode_token = msgspec.json.Decoder(tuple[str, str, int, str]).decode


async def listing(server: Server, request: HttpRequest) -> SchedulesAnswer:
    """Schedules, newest first; deleted ones only by that status."""
    unknown = sorted(set(request.query) - _KNOWN)
    if unknown:
        message = f"{unknown[0]!r} is no filter of this list; {', '.join(_FILTERS)} are"
        raise invalid(unknown[0], message, "unsupported_schedule_list_filter")
    size = request.integer("page_size", ask.PAGE, 1, ask.PAGE_MAX)
    wanted: dict[str, Any] = {"search": {}}
    for field, literal in _terms(server, request):
        _add(wanted, field, literal)
    for name in ("status", "workflow_type"):
        if request.query.get(name):
            _add(wanted, name, request.query[name], by=name)
    if wanted.get("status") not in (None, *STATUSES):
        raise invalid("status", f"status is one of {', '.join(STATUSES)}, not {wanted['status']!r}")
    token = _token(request)
    page = ask.SchedulePage(schedules=[])
    if not wanted.pop("contradiction", False):
        page = await server.api.call(
            ask.ListSchedules(
                namespace=request.namespace,
                after=None if token is None else (token.created_at, token.schedule_id),
                limit=size,
                **wanted,
            )
        )
    times = await next_action_times(request.namespace, page.schedules)
    counts = await schedule_counts(server.api.stored, request.namespace, server.now)
    return SchedulesAnswer(
        schedules=[
            listed(schedule, request.namespace, next_times)
            for schedule, next_times in zip(page.schedules, times, strict=True)
        ],
        counts=shown_schedules(counts),
        schedule_count=len(page.schedules),
        next_page_token=_page_token(request, page.schedules[-1]) if page.more else None,
        namespace=request.namespace,
    )


def _add(wanted: dict[str, Any], field: str, literal: str | float | bool, *, by: str | None = None) -> None:
    """Add a condition. Two different values for one field are a contradiction, which no schedule matches."""
    name = by or _FIELDS.get(field)
    place = wanted if name is not None else wanted["search"]
    key = name or field
    if key in place and place[key] != literal:
        wanted["contradiction"] = True
    place.setdefault(key, literal)


def _terms(server: Server, request: HttpRequest) -> list[tuple[str, Any]]:
    text = request.query.get("query") or ""
    found: list[tuple[str, Any]] = []
    at = 0
    while text.strip() and at < len(text):
        term = _TERM.match(text, at)
        if term is None:
            raise invalid("query", f"cannot read {text[at : at + 60]!r}; write Field = 'value' AND ...", _INVALID)
        field = term["field"]
        if field not in _FIELDS and server.control.attributes.get(request.namespace, field) is None:
            message = f"there is no field {field!r}; {', '.join(_FIELDS)} and registered search attributes are"
            raise invalid("query", message, "unsupported_schedule_visibility_field")
        if term["operator"] != "=":
            message = f"schedules can only be asked for by =, not by {term['operator'] or term['word']!r}"
            raise invalid("query", message, "unsupported_schedule_visibility_predicate")
        found.append((field, _literal(term["literal"], text=field in _FIELDS)))
        at = term.end()
        joined = _AND.match(text, at)
        if joined is not None:
            at = joined.end()
            if at >= len(text):
                raise invalid("query", "nothing follows the last AND", _INVALID)
        elif at < len(text):
            message = f"conditions are joined by AND, not by {text[at:].split()[0][:60]!r}"
            raise invalid("query", message, "unsupported_schedule_visibility_predicate")
    return found


_INVALID = "invalid_schedule_visibility_query"


def _literal(written: str, *, text: bool) -> str | float | bool:
    if written[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", written[1:-1])
    if text:
        return written
    if written.lower() in ("true", "false"):
        return written.lower() == "true"
    try:
        return int(written) if re.fullmatch(r"-?\d{1,18}", written, re.ASCII) else float(written)
    except ValueError:
        return written


# -- pages


def _filters(request: HttpRequest) -> str:
    asked = [request.query.get(name) or "" for name in _FILTERS]
    return sha256(msgspec.json.encode(asked)).hexdigest()[:16]


def _page_token(request: HttpRequest, last: Schedule) -> str:
    token = PageToken(request.namespace, _filters(request), last.created_at, last.schedule_id)
    return urlsafe_b64encode(msgspec.json.encode(token)).decode()


def _token(request: HttpRequest) -> PageToken | None:
    text = request.query.get("next_page_token")
    if not text:
        return None
    try:
        token = PageToken(*_decode_token(urlsafe_b64decode(text.encode())))
        cursor = {"created_at": iso(token.created_at), "schedule_id": token.schedule_id}
    except (ValueError, OverflowError, msgspec.MsgspecError):
        raise _refused(
            400, "malformed_schedule_page_token", "this is not a page token; request the first page without one"
        ) from None
    if token.namespace != request.namespace:
        message = "this token belongs to a list of another namespace"
        raise _refused(403, "schedule_page_token_namespace_mismatch", message)
    if token.filters != _filters(request):
        message = "this token belongs to a list with other filters; request the first page without one"
        raise _refused(409, "schedule_page_token_filter_mismatch", message, last_safe_cursor=cursor)
    return token


def _refused(status: int, reason: str, message: str, **more: Any) -> HttpError:
    errors = {"next_page_token": [message]}
    return HttpError(status, reason, message, field="next_page_token", errors=errors, validation_errors=errors, **more)


# -- the JSON of a schedule


async def next_action_times(namespace: str, schedules: Sequence[Schedule]) -> list[list[str]]:
    """When each schedule fires next, if it is active. On a thread: a rare fire is looked for day by day."""

    def times() -> list[list[str]]:
        return [[iso(at) for at in _next_times(namespace, schedule)] for schedule in schedules]

    return await beside(times) if schedules else []


def _next_times(namespace: str, schedule: Schedule) -> list[Micros]:
    plan, first = schedule.plan, schedule.next_fire
    if schedule.status != "active" or first is None:
        return []
    left = schedule.remaining_actions
    count = TIMES if left is None else min(TIMES, left)
    name = fire_name(namespace + SCHEDULES, schedule.schedule_id)
    return next_times(plan.spec, name, plan.jitter_seconds, first, count) if count else []


async def beside(work: Callable[[], T]) -> T:
    """Call `work` on a thread, so that the engine goes on meanwhile."""
    return await asyncio.get_running_loop().run_in_executor(None, work)


def listed(schedule: Schedule, namespace: str, next_action_times: list[str]) -> ScheduleAnswer:
    """A schedule with flat fields for the newest clients, and the nested ones of older clients."""
    plan = schedule.plan
    action = plan.action
    next_fire_at = optional_iso(None if schedule.next_fire is None else schedule.next_fire.at)
    last_fired_at = optional_iso(schedule.last_fired_at)
    recent = [_started(started) for started in reversed(schedule.recent)]
    skips: dict[str, Any] = {
        "skipped_trigger_count": schedule.skipped_count,
        "last_skip_reason": schedule.last_skip_reason,
        "last_skipped_at": optional_iso(schedule.last_skipped_at),
    }
    return ScheduleAnswer(
        schedule_id=schedule.schedule_id,
        namespace=namespace,
        status=schedule.status,
        paused=schedule.status == "paused",
        workflow_type=action.workflow_type,
        spec=ScheduleSpecAnswer(
            cron_expressions=plan.spec.cron_expressions,
            intervals=plan.spec.intervals,
            timezone=plan.spec.timezone,
        ),
        action=ScheduleActionAnswer(
            workflow_type=action.workflow_type,
            task_queue=action.routing.queue,
            connection=action.routing.connection,
            build_id=action.routing.compatibility,
            priority=action.routing.priority,
            fairness_key=action.routing.fairness_key,
            fairness_weight=action.routing.fairness_weight,
            input=decoded(action.arguments),
            input_envelope=envelope(action.arguments),
            payload_codec=CODEC,
            execution_timeout_seconds=action.execution_timeout_seconds,
            run_timeout_seconds=action.run_timeout_seconds,
        ),
        overlap_policy=plan.overlap_policy,
        note=plan.note,
        memo={key: decoded(blob) for key, blob in plan.memo.items()},
        search_attributes=plan.search_attributes,
        visibility_labels=plan.visibility_labels,
        jitter_seconds=plan.jitter_seconds,
        max_runs=plan.max_runs,
        remaining_actions=schedule.remaining_actions,
        fires_count=schedule.fires_count,
        failures_count=schedule.failures_count,
        next_fire_at=next_fire_at,
        last_fired_at=last_fired_at,
        latest_workflow_instance_id=recent[0].workflow_id if recent else None,
        paused_at=optional_iso(schedule.paused_at),
        created_at=iso(schedule.created_at),
        updated_at=iso(schedule.updated_at),
        **skips,
        next_fire=next_fire_at,
        last_fire=last_fired_at,
        state=ScheduleStateAnswer(status=schedule.status, paused=schedule.status == "paused", note=plan.note),
        info=ScheduleInfo(
            next_fire=next_fire_at,
            last_fire=last_fired_at,
            fires_count=schedule.fires_count,
            running_workflow_ids=list(schedule.running),
            buffered_actions=[iso(occasion.occurrence) for occasion in schedule.buffer],
            recent_actions=recent,
            **skips,
        ),
        next_action_times=next_action_times,
    )


def _started(started: StartedAction) -> StartedActionAnswer:
    return StartedActionAnswer(
        trigger_number=started.trigger_number,
        workflow_id=started.workflow_id,
        run_id=started.run_id,
        occurrence_time=iso(started.occurrence),
        started_at=iso(started.started_at),
        status=started.status or "running",
        closed_at=optional_iso(started.closed_at),
        message=started.message,
    )
