"""Schedules: instances of their own kind that start workflows at times.

Chapters: `cron` and `spec` (when), `records` (events and state), `messages`, `lifecycle`, `firing`, and `action` (the
workflow that is started). A schedule and its workflows send each other the outbox messages of parents and children.
"""

from __future__ import annotations

from backstay.kernel.feature import Deadline, Deciding, Feature, History, Lifecycle, Sends
from backstay.kernel.features.child.messages import ChildReport
from backstay.kernel.features.schedule import action, firing, lifecycle, records, words
from backstay.kernel.features.schedule.messages import (
    FiredOccurrence,
    ScheduleBackfill,
    ScheduleCreate,
    ScheduleDelete,
    SchedulePause,
    ScheduleReply,
    ScheduleResume,
    ScheduleTrigger,
    ScheduleUpdate,
)
from backstay.kernel.features.schedule.records import (
    OVERLAPS,
    Action,
    Overlap,
    Schedule,
    SchedulePlan,
    ScheduleTriggered,
    of,
)
from backstay.kernel.features.schedule.spec import Fire, Interval, Spec

__all__ = [
    "ACTION",
    "FEATURE",
    "OVERLAPS",
    "Action",
    "Fire",
    "FiredOccurrence",
    "Interval",
    "Overlap",
    "Schedule",
    "ScheduleBackfill",
    "ScheduleCreate",
    "ScheduleDelete",
    "SchedulePause",
    "SchedulePlan",
    "ScheduleReply",
    "ScheduleResume",
    "ScheduleTrigger",
    "ScheduleTriggered",
    "ScheduleUpdate",
    "Spec",
    "of",
]

FEATURE = Feature(
    name="schedule",
    deciding=Deciding(
        messages={
            ScheduleCreate: lifecycle.create,
            ScheduleUpdate: lifecycle.update,
            SchedulePause: lifecycle.pause,
            ScheduleResume: lifecycle.resume,
            ScheduleDelete: lifecycle.delete,
            ScheduleTrigger: firing.trigger,
            ScheduleBackfill: firing.backfill,
        },
        deadlines={"schedule": Deadline(firing.armed, firing.due, firing.length, firing.after_clock_change)},
    ),
    history=History(
        evolve={
            records.ScheduleCreated: records.created,
            records.ScheduleUpdated: records.updated,
            records.SchedulePaused: records.paused,
            records.ScheduleResumed: records.resumed,
            records.ScheduleTriggered: records.triggered,
            records.ScheduleTriggerSkipped: records.skipped,
            records.ScheduleActionBuffered: records.buffered,
            records.ScheduleActionClosed: records.action_closed,
            records.ScheduleActionContinued: records.action_continued,
            records.ScheduleDeleted: records.deleted,
            records.ScheduleStartConfirmed: records.start_confirmed,
            records.ScheduleRolledOver: records.rolled_over,
            records.ScheduleCarriedOn: records.carried_on,
        }
    ),
    lifecycle=Lifecycle(waits_externally=firing.waits_externally),
    sends=Sends(
        kind="schedule",
        receive={ChildReport: firing.receive_child_report},
        unanswered=firing.count_unanswered,
        resend=firing.ask_after,
    ),
    words=words.WORDS,
)

ACTION = Feature(
    name="scheduled workflow",
    sends=Sends(receive={action.StartFromSchedule: action.receive_start}),
)
