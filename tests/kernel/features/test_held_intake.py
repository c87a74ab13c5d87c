"""What is accepted while code is in the middle of a task becomes history right behind what that task decides, never before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from backstay.kernel.command import Command
from backstay.kernel.decision import Decision
from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.cancel import Cancel, Terminate
from backstay.kernel.features.close import CompleteWorkflow, FailWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.lease import Release
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.signal import DeliverSignal, Signals
from backstay.kernel.features.signal_with_start import SignalAndStart
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.features.update import CompleteUpdate, UpdateCompleted, Updates
from backstay.kernel.features.workflow_task import WAITING_FOR_HISTORY
from backstay.kernel.task import Block

from ..given import TALKING, WORKER, Flow, given, names, only, started
from ..stored import refold, snapshot

LATER = StartTimer(delay_seconds=600)


def busy(*commands: Command, **options: Any) -> Flow:
    """A run in the middle of a task, to which an update and two signals were said meanwhile."""
    flow = given(*commands, definition=TALKING, **options)
    flow.lease()
    flow.update("add")
    flow.signal("go")
    flow.signal("note")
    return flow


def test_signals_and_updates_accepted_during_a_task_are_durable_before_they_are_in_history() -> None:
    flow = given(definition=TALKING)
    flow.lease()
    for decision in (flow.update("add"), flow.signal("go"), flow.update("typo")):
        assert len(decision.commands) == 1
        assert decision.events == []
        assert decision.tasks == []
    assert names(flow.history) == ["StartAccepted", "WorkflowStarted"]
    assert flow.row is not None
    assert [type(event).__name__ for event, _ in flow.row.buffered_events] == [
        *("UpdateAccepted", "SignalReceived", "UpdateRejected")
    ]


def test_signals_and_updates_accepted_during_a_task_are_recorded_after_its_decisions_in_the_order_of_acceptance() -> (
    None
):
    flow = busy(StartTimer(delay_seconds=0))
    decision = flow.complete(LATER)
    assert names(decision.events) == ["TimerScheduled", "UpdateAccepted", "SignalReceived", "SignalReceived"]
    held = decision.events[1:]
    assert [entry.context.command_sequence for entry in held] == [2, 3, 4]
    assert [entry.context.decided_after for entry in held] == [None] * 3
    assert decision.instance.buffered_events == ()
    assert flow.workflow_task.resume.workflow_update_id == "RUN1-u2.4"


def test_facts_that_are_no_message_are_recorded_at_once() -> None:
    flow = given(ScheduleActivity(activity_type="charge"), StartTimer(delay_seconds=5), definition=TALKING)
    flow.begin(1)
    flow.signal("note")
    flow.lease()
    flow.signal("go")
    assert names(flow.due(5).events) == ["TimerFired"]
    assert names(flow.finish(1).events) == ["ActivityCompleted"]
    assert names(flow.complete().events) == ["SignalApplied", "SignalReceived"]


def test_held_facts_survive_a_restart() -> None:
    flow = busy()
    live = snapshot(flow)
    flow.reopen()
    assert snapshot(flow) == live
    assert len(flow.state.buffered_events) == 3
    assert names(flow.complete(LATER).events)[1:] == ["UpdateAccepted", "SignalReceived", "SignalReceived"]


def expire(flow: Flow) -> Decision:
    return flow.due(301)


def release(flow: Flow) -> Decision:
    return flow.when(Release(task_id=flow.workflow_task.id, owner=WORKER, attempt=1))


def fail(flow: Flow) -> Decision:
    return flow.break_task(Block(message="boom"))


def wait_for_history(flow: Flow) -> Decision:
    return flow.break_task(Block(message="nothing yet", type=WAITING_FOR_HISTORY))


def reconcile(flow: Flow) -> Decision:
    return flow.when(Reconcile(incarnation="engine-2"), at=301)


def lose(flow: Flow) -> Decision:
    flow.lose(flow.workflow_task.id)
    return flow.when(Reconcile(incarnation="engine-2"))


ENDS: list[Callable[[Flow], Decision]] = [expire, release, fail, wait_for_history, reconcile, lose]


@pytest.mark.parametrize("end", ENDS)
def test_signals_and_updates_accepted_during_a_task_are_recorded_however_the_lease_ends(
    end: Callable[[Flow], Decision],
) -> None:
    flow = busy()
    decision = end(flow)
    assert names(decision.events) == ["UpdateAccepted", "SignalReceived", "SignalReceived"]
    assert flow.state.buffered_events == []
    assert decision.instance.buffered_events == ()
    assert flow.workflow_task.id == "RUN1-v3"
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_a_signal_that_finds_buffered_events_and_no_task_is_recorded_after_them() -> None:
    flow = busy()
    flow.lose(flow.workflow_task.id)
    decision = flow.signal("stop")
    assert [entry.context.command_sequence for entry in decision.events] == [2, 3, 4, 5]


def complete(flow: Flow) -> Decision:
    return flow.complete(CompleteWorkflow())


def fail_run(flow: Flow) -> Decision:
    return flow.complete(FailWorkflow(message="x"))


def cancel(flow: Flow) -> Decision:
    return flow.when(Cancel())


def terminate(flow: Flow) -> Decision:
    return flow.when(Terminate())


def time_out(flow: Flow) -> Decision:
    return flow.due(100)


def overrun(flow: Flow) -> Decision:
    return flow.complete(LATER, at=100)


CLOSES = [complete, fail_run, cancel, terminate, time_out, overrun]


@pytest.mark.parametrize("close", CLOSES)
def test_when_the_run_closes_instead_its_updates_fail_and_no_caller_is_left_to_be_told_the_rest(
    close: Callable[[Flow], Decision],
) -> None:
    flow = busy(run_timeout_seconds=100)
    decision = close(flow)
    assert names(decision.events)[-1] == "UpdateCompleted"
    update = only(decision, UpdateCompleted)
    assert (update.update_id, update.outcome, update.non_retryable) == ("RUN1-u2.2", "update_failed", True)
    assert update.terminal_reason == flow.run.closed_reason
    assert [topic for topic, _ in decision.notifications] == ["update:RUN1-u2.2"]
    assert flow.state.buffered_events == []
    assert decision.instance.buffered_events == ()
    assert flow.rows == {}
    assert snapshot(flow, refold(flow)) == snapshot(flow)


@pytest.mark.parametrize("close", CLOSES)
def test_a_run_that_starts_afterwards_is_told_nothing_of_it(close: Callable[[Flow], Decision]) -> None:
    flow = busy(run_timeout_seconds=100)
    close(flow)
    decision = flow.when(SignalAndStart(start=started(definition=TALKING), signal=DeliverSignal(name="go")))
    assert names(decision.events) == ["StartAccepted", "WorkflowStarted", "SignalReceived"]
    assert list(flow.run.part(Signals).received) == [decision.reply.signalled.signal_id]
    assert flow.run.part(Updates).pending == {}


def test_a_run_that_continues_as_new_hands_them_on() -> None:
    flow = busy()
    decision = flow.complete(ContinueAsNew())
    assert names(decision.events) == [
        *("WorkflowContinuedAsNew", "StartAccepted", "WorkflowStarted"),
        *("UpdateAccepted", "SignalReceived", "SignalReceived"),
    ]
    assert list(flow.run.part(Updates).pending) == ["RUN1-u2.2"]
    assert list(flow.run.part(Signals).received) == ["RUN1-s3", "RUN1-s4"]
    assert flow.state.buffered_events == []
    assert flow.workflow_task.id == "RUN2-v3"
    assert names(flow.complete(CompleteUpdate(update_id="RUN1-u2.2")).events) == ["UpdateApplied", "UpdateCompleted"]
    assert flow.workflow_task.id == "RUN2-w2"


def test_signals_that_a_run_did_not_apply_are_carried_ahead_of_those_accepted_during_its_last_task() -> None:
    flow = given(definition=TALKING)
    flow.signal("go")
    flow.lease()
    flow.signal("stop")
    flow.update("typo")
    flow.complete(ContinueAsNew())
    assert [entry.context.command_id for entry in flow.history[2:]] == ["RUN1-c2", "RUN1-c3"]


def test_an_update_to_this_very_run_does_not_go_on_with_the_next() -> None:
    flow = given(definition=TALKING)
    flow.lease()
    flow.update("add", run_id="RUN1")
    decision = flow.complete(ContinueAsNew())
    assert names(decision.events) == [
        *("WorkflowContinuedAsNew", "UpdateCompleted", "StartAccepted", "WorkflowStarted")
    ]
    assert only(decision, UpdateCompleted).terminal_reason == "continued"
    assert flow.run.part(Updates).pending == {}
