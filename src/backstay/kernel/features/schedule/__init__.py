"""Schedules: instances of their own kind that start workflows when their moment comes.

Chapters: `cron` and `spec` (when), `records` (facts and state), `messages` (what can be asked), `lifecycle`, `firing`, and
`action` (the workflow that is started). Between a schedule and its workflows travels what travels between parents and children.
"""

from __future__ import annotations

from backstay.kernel.feature import Deadline, Deciding, Feature, History, Lifecycle, Sends
from backstay.kernel.features.child.messages import ChildReport
from backstay.kernel.features.schedule import action, firing, lifecycle, records, words
from backstay.kernel.features.schedule.messages import (
    BackfillSchedule,
    CreateSchedule,
    DeleteSchedule,
    Fired,
    PauseSchedule,
    ResumeSchedule,
    ScheduleReply,
    TriggerSchedule,
    UpdateSchedule,
)
from backstay.kernel.features.schedule.records import (
    OVERLAPS,
    Action,
    Overlap,
    Plan,
    Schedule,
    ScheduleTriggered,
    of,
)
from backstay.kernel.features.schedule.spec import Fire, Interval, Spec

__all__ = [
    "ACTION",
    "FEATURE",
    "OVERLAPS",
    "Action",
    "BackfillSchedule",
    "CreateSchedule",
    "DeleteSchedule",
    "Fire",
    "Fired",
    "Interval",
    "Overlap",
    "PauseSchedule",
    "Plan",
    "ResumeSchedule",
    "Schedule",
    "ScheduleReply",
    "ScheduleTriggered",
    "Spec",
    "TriggerSchedule",
    "UpdateSchedule",
    "of",
]

FEATURE = Feature(
    name="schedule",
    deciding=Deciding(
        messages={
            CreateSchedule: lifecycle.create,
            UpdateSchedule: lifecycle.update,
            PauseSchedule: lifecycle.pause,
            ResumeSchedule: lifecycle.resume,
            DeleteSchedule: lifecycle.delete,
            TriggerSchedule: firing.trigger,
            BackfillSchedule: firing.backfill,
        },
        deadlines={"schedule": Deadline(firing.armed, firing.due, firing.length, firing.again)},
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
    lifecycle=Lifecycle(waits_externally=firing.outside),
    sends=Sends(
        kind="schedule",
        receive={ChildReport: firing.reported},
        unanswered=firing.awaited,
        resend=firing.ask,
    ),
    words=words.WORDS,
)

ACTION = Feature(
    name="scheduled workflow",
    sends=Sends(receive={action.StartFromSchedule: action.started}),
)
