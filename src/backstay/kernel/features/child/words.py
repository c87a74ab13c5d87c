"""The words for the events of a child, as its parent's history has them."""

from __future__ import annotations

from backstay.kernel.event import Event
from backstay.kernel.features.child.records import (
    CarriedChildClosed,
    ChildRunCancelled,
    ChildRunCompleted,
    ChildRunFailed,
    ChildRunStarted,
    ChildRunTerminated,
    ChildSignalsConfirmed,
    ChildSignalSent,
    ChildSignalSentByUpdate,
    ChildUnsuccessful,
    ChildWorkflowScheduled,
    ParentClosePolicyApplied,
    ParentClosePolicyFailed,
)
from backstay.kernel.words import About, Phrase, Story, Words


def _scheduled(story: Story, event: ChildWorkflowScheduled) -> Phrase:
    id = event.child_workflow_instance_id
    summary = f" ({story.form.shortened(event.summary)})" if event.summary else ""
    story.begin(event.sequence, f"child {event.child_workflow_type} {id}{summary}", outside=True)
    policy = "" if event.parent_close_policy == "abandon" else f" ({event.parent_close_policy} at its end)"
    arguments = story.form.arguments(event.arguments)
    return Phrase(
        "⤷", f"child {event.child_workflow_type}({arguments}) called as {id}{policy}{story.because(event.summary)}"
    )


def _summary(event: ChildWorkflowScheduled) -> str | None:
    return event.summary


def _started(story: Story, event: ChildRunStarted) -> Phrase:
    child = f"child {event.child_workflow_type}"
    if event.child_run_number == 1:
        return Phrase("▸", f"{child} started", "quiet", shown=False)
    why = "continued" if event.retry_of_child_workflow_run_id is None else "tried again"
    return Phrase("↻", f"{child} {why} as run {event.child_run_number}", "retry")


def _completed(story: Story, event: ChildRunCompleted) -> Phrase:
    story.end(event.sequence)
    return Phrase("✓", f"child {event.child_workflow_type} completed{story.result(event.output)}", "good")


def _unsuccessful(story: Story, event: ChildUnsuccessful) -> Phrase:
    story.end(event.sequence)
    child = f"child {event.child_workflow_type}"
    why = story.failure(event.exception_type, event.message, child)
    return Phrase("✗", f"{child} {event.closed_reason.replace('_', ' ')}: {why}", "bad")


def _signalled(story: Story, event: ChildSignalSent | ChildSignalSentByUpdate) -> Phrase:
    return Phrase("✉", f"signal {event.signal_name}({story.form.arguments(event.arguments)}) sent to a child")


def _confirmed(story: Story, event: ChildSignalsConfirmed) -> Phrase:
    return Phrase("✉", f"signals up to event {event.through} have reached their child", "quiet")


def _carried_closed(story: Story, event: CarriedChildClosed) -> Phrase:
    return Phrase("■", f"child {event.child_workflow_instance_id} of an earlier run {event.child_status}", "quiet")


def _policy_applied(story: Story, event: ParentClosePolicyApplied) -> Phrase:
    return Phrase("■", f"child {event.child_instance_id} told: {event.policy.replace('_', ' ')}", "quiet")


def _policy_failed(story: Story, event: ParentClosePolicyFailed) -> Phrase:
    return Phrase("✗", f"child {event.child_instance_id} could not get the parent-close policy: {event.error}", "bad")


_ABOUT = About("child", "child_workflow_run", "child_workflow_run_id", ("child_workflow_type", "signal_name"))

WORDS: dict[type[Event], Words] = {
    ChildWorkflowScheduled: Words(_ABOUT, _scheduled, note=_summary),
    ChildRunStarted: Words(_ABOUT, _started),
    ChildRunCompleted: Words(_ABOUT, _completed),
    ChildRunFailed: Words(_ABOUT, _unsuccessful),
    ChildRunCancelled: Words(_ABOUT, _unsuccessful),
    ChildRunTerminated: Words(_ABOUT, _unsuccessful),
    ChildSignalSent: Words(_ABOUT, _signalled),
    ChildSignalSentByUpdate: Words(_ABOUT, _signalled),
    ChildSignalsConfirmed: Words(_ABOUT, _confirmed),
    CarriedChildClosed: Words(_ABOUT, _carried_closed),
    ParentClosePolicyApplied: Words(_ABOUT, _policy_applied),
    ParentClosePolicyFailed: Words(_ABOUT, _policy_failed),
}
