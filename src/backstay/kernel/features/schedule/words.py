"""The words for the events of a schedule, and for the one that a workflow has of the schedule that started it."""

from __future__ import annotations

from backstay.kernel.event import Event
from backstay.kernel.features.schedule.records import (
    ALL_STARTED,
    ScheduleActionBuffered,
    ScheduleActionClosed,
    ScheduleActionContinued,
    ScheduleCarriedOn,
    ScheduleCreated,
    ScheduleDeleted,
    SchedulePaused,
    ScheduleResumed,
    ScheduleRolledOver,
    ScheduleStartConfirmed,
    ScheduleTriggered,
    ScheduleTriggerSkipped,
    ScheduleUpdated,
)
from backstay.kernel.words import RUN, About, Phrase, Story, Words


def _created(story: Story, event: ScheduleCreated) -> Phrase:
    paused = ", paused" if event.paused else ""
    return Phrase("▶", f"schedule {event.schedule_id} created{paused}{story.because(event.note)}", "title")


def _updated(story: Story, event: ScheduleUpdated) -> Phrase:
    return Phrase("✎", f"schedule updated: {', '.join(event.changed) or 'nothing differs'}")


def _paused(story: Story, event: SchedulePaused) -> Phrase:
    return Phrase("‖", f"schedule paused{story.because(event.note)}", "retry")


def _resumed(story: Story, event: ScheduleResumed) -> Phrase:
    return Phrase("▶", f"schedule resumed{story.because(event.note)}")


def _triggered(story: Story, event: ScheduleTriggered) -> Phrase:
    occurrence = story.form.moment(event.occurrence_time)
    return Phrase("•", f"by schedule {event.schedule_id}, number {event.trigger_number}, for {occurrence}")


def _skipped(story: Story, event: ScheduleTriggerSkipped) -> Phrase:
    more = f" and {event.skipped - 1} after it" if event.skipped > 1 else ""
    occurrence = story.form.moment(event.occurrence_time)
    return Phrase("↷", f"occurrence {occurrence}{more} skipped: {event.reason.replace('_', ' ')}", "retry")


def _buffered(story: Story, event: ScheduleActionBuffered) -> Phrase:
    return Phrase("◌", f"occurrence {story.form.moment(event.occurrence_time)} waits for the workflow before it")


def _action_closed(story: Story, event: ScheduleActionClosed) -> Phrase:
    workflow = f"workflow {event.workflow_instance_id}"
    if not event.started:
        why = story.failure(None, event.message or event.closed_reason.replace("_", " "), workflow)
        return Phrase("✗", f"{workflow} could not be started: {why}", "bad")
    ended = f"{workflow} {event.closed_reason.replace('_', ' ')}"
    if event.status == "completed":
        return Phrase("✓", ended, "good")
    return Phrase("✗", f"{ended}: {story.failure(None, event.message, workflow)}" if event.message else ended, "bad")


def _action_continued(story: Story, event: ScheduleActionContinued) -> Phrase:
    return Phrase("↪", f"workflow {event.workflow_instance_id} continued as run {event.run_number}", "quiet")


def _deleted(story: Story, event: ScheduleDeleted) -> Phrase:
    story.close()
    if event.reason == ALL_STARTED:
        return Phrase("■", "schedule ended: it has started as many workflows as its max_runs allowed", "quiet")
    return Phrase("■", f"schedule deleted{story.because(event.reason)}", "retry")


def _start_confirmed(story: Story, event: ScheduleStartConfirmed) -> Phrase:
    return Phrase("▸", f"start of workflow {event.workflow_instance_id} confirmed", "quiet")


def _rolled_over(story: Story, event: ScheduleRolledOver) -> Phrase:
    story.close()
    return Phrase("↪", f"schedule continued as run {event.continued_to_run_id}", "quiet")


def _carried_on(story: Story, event: ScheduleCarriedOn) -> Phrase:
    return Phrase("↪", "schedule continued from its run before", "quiet")


_ABOUT = About("schedule", "schedule")
_ABOUT_WORKFLOW = About("schedule", "workflow_instance", "workflow_instance_id")

WORDS: dict[type[Event], Words] = {
    ScheduleCreated: Words(_ABOUT, _created),
    ScheduleUpdated: Words(_ABOUT, _updated),
    SchedulePaused: Words(_ABOUT, _paused),
    ScheduleResumed: Words(_ABOUT, _resumed),
    ScheduleTriggered: Words(RUN, _triggered),  # the one that also stands in the history of the workflow
    ScheduleTriggerSkipped: Words(_ABOUT, _skipped),
    ScheduleActionBuffered: Words(_ABOUT, _buffered),
    ScheduleActionClosed: Words(_ABOUT_WORKFLOW, _action_closed),
    ScheduleActionContinued: Words(_ABOUT_WORKFLOW, _action_continued),
    ScheduleDeleted: Words(_ABOUT, _deleted),
    ScheduleStartConfirmed: Words(_ABOUT_WORKFLOW, _start_confirmed),
    ScheduleRolledOver: Words(_ABOUT, _rolled_over),
    ScheduleCarriedOn: Words(_ABOUT, _carried_on),
}
