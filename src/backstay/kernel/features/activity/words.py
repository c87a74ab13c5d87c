"""The words for the events of an activity."""

from __future__ import annotations

from backstay.kernel.event import Event
from backstay.kernel.features.activity.records import (
    ActivityCancelled,
    ActivityCompleted,
    ActivityFailed,
    ActivityHeartbeatRecorded,
    ActivityRetryScheduled,
    ActivityScheduled,
    ActivityStarted,
    ActivityTimedOut,
    progress_text,
)
from backstay.kernel.words import About, Phrase, Story, Words


def _scheduled(story: Story, event: ActivityScheduled) -> Phrase:
    summary = event.activity.summary
    story.begin(
        event.sequence, f"activity {event.activity_type}" + (f" ({story.form.shortened(summary)})" if summary else "")
    )
    queue = event.activity.routing.queue
    where = f" on queue {queue!r}" if queue != "default" else ""
    local = " (local)" if event.local_activity else ""
    arguments = story.form.arguments(event.activity.arguments)
    return Phrase("○", f"{event.activity_type}({arguments}) scheduled{where}{local}{story.because(summary)}")


def _summary(event: ActivityScheduled) -> str | None:
    return event.activity.summary


def _started(story: Story, event: ActivityStarted) -> Phrase:
    step = story.open.get(event.sequence)
    if step is not None:
        step.attempt, step.started_at, step.retry_at = event.attempt_number, story.at, None
    text = f"{event.activity_type} attempt {event.attempt_number} started"
    return Phrase("▸", text, "quiet", news=event.attempt_number == 1)


def _alive(story: Story, event: ActivityHeartbeatRecorded) -> Phrase:
    progress = None if event.progress is None else progress_text(event.progress)
    step = story.open.get(event.sequence)
    if step is not None:
        step.progress = progress or step.progress
    return Phrase("♥", f"{event.activity_type} is alive" + (f": {progress}" if progress else ""), "quiet")


def _retried(story: Story, event: ActivityRetryScheduled) -> Phrase:
    took = story.running_for(event.sequence)
    step = story.open.get(event.sequence)
    if step is not None:
        step.started_at, step.retry_at = None, event.retry_available_at
    if event.retry_task_id == event.retry_of_task_id:
        return _lost(story, event)
    why = story.failure(event.timeout_kind or event.exception_type, event.message, event.activity_type)
    attempt = f"{event.retry_after_attempt}" + (f" of {event.max_attempts}" if event.max_attempts else "")
    pause = story.form.span(event.retry_available_at - story.at)
    text = f"{event.activity_type} attempt {attempt} failed{took}: {why}; again in {pause}"
    return Phrase("↻", text, "retry", news=True)


def _lost(story: Story, event: ActivityRetryScheduled) -> Phrase:
    """An attempt that never reported; the same task is offered for the next one."""
    wait = event.retry_available_at - story.at
    pause = f"again in {story.form.span(wait)}" if wait > 0 else "again at once"
    attempt = f"{event.activity_type} attempt {event.retry_after_attempt}"
    if not event.crashes or event.retry_reason != "activity_crashed":
        return Phrase("↻", f"{attempt} never reached its worker; {pause}", "quiet", news=True)
    story.remember_failure(f"{event.activity_type}: {event.message}")
    times = "" if event.crashes == 1 else f" ({event.crashes} in a row)"
    text = f"{attempt} crashed: it never reported, its process is gone{times}; {pause}"
    return Phrase("↻", text, "retry", news=True)


def _completed(story: Story, event: ActivityCompleted) -> Phrase:
    took, whole = story.running_for(event.sequence), story.open_for(event.sequence)
    story.end(event.sequence)
    total = f", {whole} in all" if event.attempt_number > 1 and whole else ""
    return Phrase("✓", f"{event.activity_type} completed{took}{total} → {story.form.value(event.result)}", "good")


def _failed(story: Story, event: ActivityFailed) -> Phrase:
    why = story.failure(event.exception_type, event.message, event.activity_type)
    took = story.running_for(event.sequence)
    story.end(event.sequence)
    final = " (not retried)" if event.non_retryable else ""
    text = f"{event.activity_type} failed at attempt {event.attempt_number}{took}: {why}{final}"
    return Phrase("✗", text, "bad", news=True)


def _timed_out(story: Story, event: ActivityTimedOut) -> Phrase:
    why = story.failure(None, event.message, event.activity_type)
    story.end(event.sequence)
    return Phrase("✗", f"{event.activity_type} timed out ({event.timeout_kind}): {why}", "bad", news=True)


def _cancelled(story: Story, event: ActivityCancelled) -> Phrase:
    story.end(event.sequence)
    return Phrase("✗", f"{event.activity_type} cancelled", "quiet")


_ABOUT = About("activity", "activity_execution", "activity_execution_id", ("activity_type",))

WORDS: dict[type[Event], Words] = {
    ActivityScheduled: Words(_ABOUT, _scheduled, note=_summary),
    ActivityStarted: Words(_ABOUT, _started),
    ActivityHeartbeatRecorded: Words(_ABOUT, _alive),
    ActivityRetryScheduled: Words(_ABOUT, _retried),
    ActivityCompleted: Words(_ABOUT, _completed),
    ActivityFailed: Words(_ABOUT, _failed),
    ActivityTimedOut: Words(_ABOUT, _timed_out),
    ActivityCancelled: Words(_ABOUT, _cancelled),
}
