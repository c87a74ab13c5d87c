"""The messages to a schedule, and its replies."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from backstay.kernel.decision import CommandRecord
from backstay.kernel.features.instance_commands import InstanceCommand, cause, fingerprint, refuse_conflict
from backstay.kernel.features.schedule import spec
from backstay.kernel.features.schedule.records import OVERLAPS, PLAN, Overlap, Schedule, SchedulePlan, of
from backstay.kernel.features.start import Start, check_limits, check_options
from backstay.kernel.message import Refused
from backstay.kernel.turn import Turn
from backstay.kernel.values import Micros, valid_id

MAX_ID = 128  # leaves room for the rest of the ids of its workflows
MAX_JITTER = 3600
MAX_NOTE = 4096

_encode = msgspec.json.Encoder().encode


class ScheduleCreate(InstanceCommand, frozen=True, kw_only=True):
    command_type = "create_schedule"

    schedule_id: str
    plan: SchedulePlan
    paused: bool = False

    def intent(self) -> bytes:
        return _encode((self.schedule_id, self.plan, self.paused))


class ScheduleUpdate(InstanceCommand, frozen=True, kw_only=True):
    """`changes` are fields of the plan by name; the rest stays."""

    command_type = "update_schedule"

    changes: dict[str, Any]

    def intent(self) -> bytes:
        return _encode(self.changes)


class _NotedCommand(InstanceCommand, frozen=True, kw_only=True):
    note: str | None = None

    def intent(self) -> bytes:
        return (self.note or "").encode()


class SchedulePause(_NotedCommand, frozen=True, kw_only=True):
    command_type = "pause_schedule"


class ScheduleResume(_NotedCommand, frozen=True, kw_only=True):
    command_type = "resume_schedule"


class ScheduleTrigger(InstanceCommand, frozen=True, kw_only=True):
    command_type = "trigger_schedule"

    overlap_policy: Overlap | None = None

    def intent(self) -> bytes:
        return (self.overlap_policy or "").encode()


class ScheduleBackfill(InstanceCommand, frozen=True, kw_only=True):
    """Fire for the occurrences from `start` until before `end`. `known` are those ids of workflows that exist
    already."""

    command_type = "backfill_schedule"

    start: Micros
    end: Micros
    overlap_policy: Overlap | None = None
    known: frozenset[str] = frozenset()

    def intent(self) -> bytes:
        return _encode((self.start, self.end, self.overlap_policy))


class ScheduleDelete(InstanceCommand, frozen=True, kw_only=True):
    command_type = "delete_schedule"


class FiredOccurrence(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one occurrence: triggered | buffered | buffer_full | skipped."""

    outcome: str
    occurrence: Micros
    workflow_id: str | None = None
    run_id: str | None = None
    reason: str | None = None
    buffer_depth: int | None = None


class ScheduleReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    schedule_id: str
    outcome: str
    at: Micros
    status: str
    note: str | None = None
    fired: list[FiredOccurrence] = []


_decode_reply = msgspec.json.Decoder(ScheduleReply).decode


def answer_retry(turn: Turn, message: InstanceCommand) -> bool:
    """Answer a retry with the reply to its first attempt."""
    before = message.retained
    if before is None:
        return False
    refuse_conflict(before, message.request_id, _fingerprint(message))
    assert before.payload is not None, "a command with a request id keeps its answer"
    turn.reply = _decode_reply(before.payload)
    return True


def existing(turn: Turn) -> Schedule:
    """The schedule of this instance; refused if it does not exist or was deleted."""
    run = turn.instance.run
    schedule = None if run is None or not run.is_open else of(run)
    if schedule is None:
        before = None if run is None else of(run)
        raise not_found(turn.instance.workflow_id, ended=before is not None and before.status == "ended")
    return schedule


def not_found(schedule_id: str, *, ended: bool = False) -> Refused:
    message = (
        f"schedule {schedule_id!r} has ended: it has started as many workflows as its max_runs allowed; create it again"
        if ended
        else f"there is no schedule {schedule_id!r}"
    )
    return Refused("schedule_not_found", message, schedule_id=schedule_id)


def accept(turn: Turn, message: InstanceCommand) -> CommandRecord:
    """Record the command. It is the cause of all events until `answer`."""
    command = turn.command(
        message.command_type,
        outcome=None,
        source=message.source,
        request_id=message.request_id,
        fingerprint=_fingerprint(message),
        context=message.context,
    )
    turn.context = cause(command)
    return command


def answer(turn: Turn, command: CommandRecord, outcome: str, fired: list[FiredOccurrence] | None = None) -> None:
    schedule = of(turn.run)
    assert schedule is not None
    reply = turn.reply = ScheduleReply(
        schedule_id=schedule.schedule_id,
        outcome=outcome,
        at=turn.now,
        status=schedule.status,
        note=schedule.plan.note,
        fired=fired or [],
    )
    # Only a command with a request id can be retried.
    payload = None if command.request_id is None else _encode(reply)
    done = replace(command, outcome=outcome, payload=payload)
    turn.commands = [done if kept is command else kept for kept in turn.commands]


def _fingerprint(message: InstanceCommand) -> str | None:
    return fingerprint(message.request_id, message.context, message.command_type.encode(), message.intent())


# -- checks


def check_id(schedule_id: str) -> None:
    if not valid_id(schedule_id) or len(schedule_id) > MAX_ID:
        raise Refused(
            "invalid_schedule_id",
            f"a schedule id is 1 to {MAX_ID} characters out of A-Z a-z 0-9 . _ : ~ -",
            field="schedule_id",
            value=schedule_id[:200],
        )


def check_overlap(policy: str | None) -> None:
    if policy is not None and policy not in OVERLAPS:
        raise Refused(
            "invalid_overlap_policy",
            f"{policy!r} is no overlap policy; use one of {', '.join(OVERLAPS)}",
            field="overlap_policy",
        )


def check_note(note: str | None) -> None:
    if note is not None and len(note) > MAX_NOTE:
        raise Refused("invalid_note", f"a note has at most {MAX_NOTE} characters", field="note")


def check_plan(turn: Turn, plan: SchedulePlan) -> None:
    spec.check(plan.spec, turn.now)
    check_overlap(plan.overlap_policy)
    check_note(plan.note)
    if not 0 <= plan.jitter_seconds <= MAX_JITTER:
        raise Refused("invalid_jitter", f"jitter_seconds is 0 to {MAX_JITTER}", field="jitter_seconds")
    if plan.max_runs is not None and plan.max_runs < 1:
        raise Refused("invalid_max_runs", "max_runs is at least 1", field="max_runs")
    start = as_start(plan, turn.instance.namespace)
    check_options(start)
    check_limits(turn, start)


def check_changes(changes: dict[str, Any]) -> None:
    unknown = sorted(set(changes) - set(PLAN))
    if unknown:
        raise Refused(
            "invalid_schedule_update",
            f"{unknown[0]!r} is not a field of a schedule that can be changed; these are: {', '.join(PLAN)}",
            field=unknown[0],
        )


def as_start(plan: SchedulePlan, namespace: str) -> Start:
    """The start that a plan leads to, for the checks of starts."""
    return Start(
        namespace=namespace,
        workflow_id="",
        workflow_type=plan.action.workflow_type,
        arguments=plan.action.arguments,
        routing=plan.action.routing,
        visibility_labels=plan.visibility_labels,
        memo=plan.memo,
        search_attributes=plan.search_attributes,
        execution_timeout_seconds=plan.action.execution_timeout_seconds,
        run_timeout_seconds=plan.action.run_timeout_seconds,
    )
