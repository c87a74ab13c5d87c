"""Create, update, pause, resume and delete a schedule."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict, replace

from backstay.kernel.features.schedule import firing, messages
from backstay.kernel.features.schedule.messages import (
    ScheduleCreate,
    ScheduleDelete,
    SchedulePause,
    ScheduleResume,
    ScheduleUpdate,
)
from backstay.kernel.features.schedule.records import (
    PLAN,
    Schedule,
    ScheduleCreated,
    SchedulePaused,
    SchedulePlan,
    ScheduleResumed,
    ScheduleUpdated,
    of,
)
from backstay.kernel.message import Refused
from backstay.kernel.turn import Turn


def create(turn: Turn, message: ScheduleCreate) -> None:
    instance = turn.instance
    if messages.answer_retry(turn, message):
        return
    messages.check_id(message.schedule_id)
    messages.check_plan(turn, message.plan)
    old = instance.run
    if old is not None and old.is_open:
        raise Refused(
            "schedule_already_exists",
            f"schedule {message.schedule_id!r} already exists; update it, or delete it first",
            schedule_id=message.schedule_id,
        )
    before = None if old is None else of(old)
    if before is not None:
        firing.ask_after(turn)  # once more: from here on the workflows of the old schedule are not checked
    instance.workflow_type = message.plan.action.workflow_type
    turn.begin_run(turn.new_run())
    command = messages.accept(turn, message)
    status = "paused" if message.paused else "active"
    new = Schedule(
        schedule_id=message.schedule_id, plan=message.plan, created_at=turn.now, updated_at=turn.now, status=status
    )
    turn.record(
        ScheduleCreated(
            schedule_id=message.schedule_id,
            **_fields(message.plan),
            paused=message.paused,
            next_fire=firing.next_fire(instance, new, turn.now),
            trigger_number=0 if before is None else before.trigger_number,
            sequence_base=0 if before is None or old is None else before.sequence_base + old.length,
        )
    )
    messages.answer(turn, command, "created")


def update(turn: Turn, message: ScheduleUpdate) -> None:
    if messages.answer_retry(turn, message):
        return
    schedule = messages.existing(turn)
    messages.check_changes(message.changes)
    old = schedule.plan
    plan = replace(old, **message.changes)
    messages.check_plan(turn, plan)
    command = messages.accept(turn, message)
    changed = [name for name in PLAN if getattr(plan, name) != getattr(old, name)]
    if changed:
        next_fire = schedule.next_fire
        if {"spec", "jitter_seconds"} & set(changed):
            next_fire = firing.next_fire(turn.instance, replace(schedule, plan=plan), turn.now)
        turn.record(ScheduleUpdated(**_fields(plan), changed=changed, next_fire=next_fire))
        turn.index()
    messages.answer(turn, command, "updated")
    # The index row of a run keeps the type and routing it was started with.
    moved = plan.action.workflow_type != old.action.workflow_type or plan.action.routing != old.action.routing
    firing.roll_over(turn, now=moved)


def pause(turn: Turn, message: SchedulePause) -> None:
    if messages.answer_retry(turn, message):
        return
    schedule = messages.existing(turn)
    messages.check_note(message.note)
    command = messages.accept(turn, message)
    if schedule.status != "paused":
        turn.record(SchedulePaused(note=message.note))
        turn.index()
    messages.answer(turn, command, "paused")
    firing.roll_over(turn)


def resume(turn: Turn, message: ScheduleResume) -> None:
    """Go on from now. Occurrences during the pause are not made up for."""
    if messages.answer_retry(turn, message):
        return
    schedule = messages.existing(turn)
    messages.check_note(message.note)
    command = messages.accept(turn, message)
    if schedule.status == "paused":
        next_fire = firing.next_fire(turn.instance, replace(schedule, status="active"), turn.now)
        turn.record(ScheduleResumed(note=message.note, next_fire=next_fire))
        turn.index()
        firing.drain(turn)
    messages.answer(turn, command, "resumed")
    firing.roll_over(turn)


def delete(turn: Turn, message: ScheduleDelete) -> None:
    """Delete a schedule. The workflows that it has started go on, and its history stays."""
    if messages.answer_retry(turn, message):
        return
    messages.existing(turn)
    command = messages.accept(turn, message)
    firing.end(turn, "deleted")
    messages.answer(turn, command, "deleted")


def _fields(plan: SchedulePlan) -> dict[str, Any]:
    return asdict(plan)
