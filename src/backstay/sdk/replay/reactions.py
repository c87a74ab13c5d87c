"""The table of reactions of live code to events from outside."""

from __future__ import annotations

from backstay.kernel.features.cancel import CancelRequested
from backstay.kernel.features.child import ChildRunStarted, ChildWorkflowScheduled
from backstay.kernel.features.signal import SignalReceived
from backstay.kernel.features.timer import TimerFired
from backstay.kernel.features.update import UpdateAccepted, UpdateApplied, UpdateCompleted
from backstay.sdk.author import cancellation, child
from backstay.sdk.replay import inbound
from backstay.sdk.replay.live_run import LiveRun, Reactions


def settle(live_run: LiveRun) -> None:
    """Apply the update of the task, or evaluate conditions, after all events of a task were applied.

    Local activities are part of what an ordinary task does, so conditions come after them. The task of an update does none
    of that: the commands of its code are left to the ordinary task that follows.
    """
    task = live_run.assignment.task
    if task.history_limit is None:
        if live_run.parts:  # the conditions are one of them
            inbound.look_at_conditions(live_run)
    elif task.resume.workflow_update_id is not None and live_run.closing is None:
        live_run.answer = inbound.apply_update(live_run, task.resume.workflow_update_id)


REACTIONS = Reactions(
    by_event={
        SignalReceived: inbound.on_signal,
        TimerFired: inbound.on_wait_timeout,
        UpdateAccepted: inbound.accepted,
        UpdateApplied: inbound.applied,
        UpdateCompleted: inbound.completed,
        CancelRequested: cancellation.requested,
        ChildWorkflowScheduled: child.scheduled,
        ChildRunStarted: child.run_started,
    },
    settle=settle,
)
