"""Fork and rewind: what is kept at each point, what begins again, and that the rows say the same as the state."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.kernel.command import Command
from backstay.kernel.event import clock
from backstay.kernel.features.activity import (
    Activities,
    ActivityFailed,
    ActivityScheduled,
    RetryPolicy,
    ScheduleActivity,
)
from backstay.kernel.features.archive import Archive
from backstay.kernel.features.cancel import Cancel, Terminate, requested
from backstay.kernel.features.child import StartChildWorkflow
from backstay.kernel.features.close import CompleteWorkflow, FailWorkflow
from backstay.kernel.features.failures import Failures
from backstay.kernel.features.fork import Fork, HistoryInherited, Rewind
from backstay.kernel.features.signal import ApplySignal, OpenSignalWait, SignalReceived, Signals
from backstay.kernel.features.start import RecordedDefinition, WorkflowStarted
from backstay.kernel.features.timer import StartTimer, Timers
from backstay.kernel.features.update import CompleteUpdate, UpdateApplied, Updates
from backstay.kernel.message import Refused
from backstay.kernel.values import Routing, failure_id
from backstay.kernel.views.timeline import tell
from backstay.kernel.words import Story

from ..given import TALKING, Flow, given, instant, names, only
from ..stored import refold, snapshot
from ..telling import PLAIN

CHARGE = ScheduleActivity(
    activity_type="charge", retry_policy=RetryPolicy(max_attempts=1, schedule_to_close_timeout=60)
)
SHIP = ScheduleActivity(activity_type="ship")
HOUR = StartTimer(delay_seconds=3600)


def from_history(flow: Flow, at: str | None, **more: Any) -> dict[str, Any]:
    return {
        "at": at,
        "history": list(flow.history),
        "from_run_id": flow.run.run_id,
        "routing": Routing(),
        **more,
    }


def forked(flow: Flow, at: str | None, when: float = 100, **more: Any) -> Flow:
    """Another instance, which is a fork of this one."""
    fork = Flow(flow.machine, "order-2")
    fork.ids.ulids = flow.ids.ulids + 10  # not the ids of the other one
    fork.when(Fork(from_workflow_id="order-1", **from_history(flow, at, **more)), when)
    return fork


def rewound(flow: Flow, at: str | None, when: float = 100, **more: Any) -> Any:
    return flow.when(Rewind(**from_history(flow, at, **more)), when)


def worked() -> Flow:
    """Charged, shipped, waits for an hour beside a signal, and has got one that it does not know what to do with."""
    flow = given(CHARGE, definition=TALKING, run_timeout_seconds=1000, execution_timeout_seconds=2000)
    flow.begin(1, at=1)
    flow.finish(1, at=2)
    flow.complete(SHIP, HOUR, at=3)
    flow.begin(2, at=4)
    flow.finish(2, at=5)
    flow.complete(OpenSignalWait(signal_name="go"), at=6)
    flow.signal("stop", at=7)
    flow.complete(at=8)
    return flow


LENGTH = len(worked().history)


@pytest.mark.parametrize("point", range(2, LENGTH + 1))
def test_at_every_point_the_rows_say_the_same_as_the_state(point: int) -> None:
    for flow in (forked(worked(), f"event:{point}"), worked()):
        if flow.state.workflow_id == "order-1":
            rewound(flow, f"event:{point}")
        assert snapshot(flow, refold(flow)) == snapshot(flow)
        assert set(flow.machine.expect(flow.state).tasks) == set(flow.tasks), "everything that must exist exists"
        assert flow.workflow_task.state == "ready", "its code runs"
        assert names(flow.history)[:2] == ["StartAccepted", "WorkflowStarted"]
        own = [entry for entry in flow.history if entry.type == "ActivityScheduled"]
        assert all(entry.event.activity_execution_id.startswith(f"{flow.run.run_id}-") for entry in own)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("at", "through"), [("1", 2), ("step:2", 5), ("charge", 2), ("ship", 5), ("event:9", 9), ("4", 9)]
)
def test_a_point_is_a_step_an_event_or_the_type_of_a_step(at: str, through: int) -> None:
    event = forked(worked(), at).history[-1].event
    assert isinstance(event, HistoryInherited)
    assert event.inherited_through == through


def test_an_open_step_begins_again_if_later_ones_are_kept() -> None:
    flow = given(HOUR, CHARGE, SHIP)
    flow.begin(2, at=1)
    flow.beat(2, at=2)
    flow.begin(3, at=3)
    flow.finish(3, at=4)
    fork = forked(flow, f"event:{len(flow.history)}", 500)
    assert fork.run.part(Timers).pending[1].fire_at == instant(500 + 3600), "the timer has its full time"
    execution = fork.run.part(Activities).open[2]
    assert (execution.attempt, execution.running, execution.progress) == (0, False, None)
    assert execution.total_deadline == instant(560), "its timeouts count from now"
    assert fork.activity_task(2).state == "ready"
    assert names(fork.history).count("ActivityStarted") == 1, "of the step that has ended"
    assert snapshot(fork, refold(fork)) == snapshot(fork)


def test_the_open_steps_at_the_end_are_left_to_the_code() -> None:
    fork = forked(worked(), "event:8")
    assert names(fork.history) == [
        *("StartAccepted", "WorkflowStarted", "ActivityScheduled", "ActivityStarted", "ActivityCompleted"),
        "HistoryInherited",
    ]
    assert fork.state.cursor == 2
    fork.complete(SHIP, HOUR)
    scheduled = fork.run.part(Activities).open[2].scheduled
    assert isinstance(scheduled, ActivityScheduled)
    assert scheduled.activity_execution_id == f"{fork.run.run_id}-2"


def test_the_timeouts_of_the_run_begin_again_and_a_fork_has_no_parent() -> None:
    fork = forked(worked(), "ship", 500)
    (started,) = [entry.event for entry in fork.history if isinstance(entry.event, WorkflowStarted)]
    assert (started.run_deadline_at, started.execution_deadline_at) == (instant(1500), instant(2500))
    assert (started.workflow_instance_id, started.seed) == ("order-2", "RUN1")
    assert (started.continued_from_run_id, started.child_call_id) == (None, None)
    assert fork.run.started_at == instant(500), "it is as old as it is, whatever its first events say"
    again = forked(fork, "charge")
    assert [e.event.seed for e in again.history if isinstance(e.event, WorkflowStarted)] == ["RUN1"]


def test_an_open_run_is_closed_and_takes_nothing_more() -> None:
    flow = worked()
    old = flow.run
    decision = rewound(flow, "ship", reason="wrong address")
    closed = [entry for entry in decision.events if entry.run == old.key]
    assert names(closed) == ["WorkflowRewound"]
    assert (old.status, old.closed_reason) == ("terminated", "rewound")
    assert decision.reply.command.run_id == flow.run.run_id != old.run_id
    assert [effect.type for effect in decision.reply.plan.repeats] == ["ship"]
    assert flow.runs[old.key].closed_reason == "rewound"
    carried = [entry.event.signal_name for entry in flow.history if isinstance(entry.event, SignalReceived)]
    assert carried == ["stop"], "the signal after the point is delivered anew"
    story = Story(PLAIN)
    assert "wrong address" in tell(story, closed[0]).text
    assert flow.commands[-2].command_type == "rewind"


def test_a_run_that_has_ended_goes_on_as_the_next_run() -> None:
    flow = given(CHARGE)
    flow.begin(1)
    flow.fail(1)
    flow.complete(FailWorkflow(message="boom"))
    before = list(flow.history)
    old = flow.run
    decision = rewound(flow, None)
    assert (flow.run.number, flow.run.is_open) == (2, True)
    assert flow.histories[old.key] == before, "nothing is added to a run that has ended"
    assert only(decision, HistoryInherited).rewound
    assert names(flow.history) == ["StartAccepted", "WorkflowStarted", "HistoryInherited"]


def test_what_arrives_in_the_middle_of_its_last_task_is_for_the_next_run() -> None:
    flow = given(definition=TALKING)
    flow.lease()
    flow.signal("go")
    assert flow.state.buffered_events
    rewound(flow, "event:2")
    assert [entry.event.signal_name for entry in flow.history if isinstance(entry.event, SignalReceived)] == ["go"]
    assert flow.state.buffered_events == []


def test_a_repetition_is_answered_by_the_record() -> None:
    flow = worked()
    message = Rewind(request_id="r1", **from_history(flow, "ship"))
    first = flow.when(message)
    again = flow.again(message)
    assert again.idle
    assert (again.reply.command.run_id, again.reply.command.repeated) == (first.reply.command.run_id, True)
    refused = flow.refused(flow.retried(Rewind(request_id="r1", **from_history(flow, "charge"))))
    assert refused.reason == "request_id_conflict"


def open_child_in_the_middle() -> Flow:
    flow = given(StartChildWorkflow(workflow_type="small"), CHARGE)
    flow.begin(2)
    flow.finish(2)
    return flow


REFUSED: list[tuple[Any, str | None, str]] = [
    (worked, None, "point_missing"),
    (worked, "7", "step_not_found"),
    (worked, "pay", "step_not_found"),
    (worked, "event:1", "event_not_found"),
    (worked, f"event:{LENGTH + 1}", "event_not_found"),
    (worked, "event:" + "9" * 5000, "step_not_found"),
    (worked, "", "step_not_found"),
    (open_child_in_the_middle, "event:7", "child_open_at_point"),
]


@pytest.mark.parametrize(("flow_of", "at", "reason"), REFUSED)
def test_a_point_that_cannot_be_is_refused_and_nothing_is_written(flow_of: Any, at: str | None, reason: str) -> None:
    flow = flow_of()
    assert flow.refused(Rewind(**from_history(flow, at))).reason == reason
    with pytest.raises(Refused) as caught:
        forked(flow, at)
    assert caught.value.reason == reason


def test_a_run_that_has_moved_on_is_looked_at_again() -> None:
    flow = worked()
    asked = from_history(flow, "ship")
    flow.signal("go", at=50)
    assert flow.refused(Rewind(**asked)).reason == "run_not_looked_at"


def test_what_is_not_there_is_rejected_on_record() -> None:
    flow = given(CompleteWorkflow())
    taken = flow.when(Fork(from_workflow_id="order-1", **from_history(flow, "event:2")))
    assert taken.reply.command.rejection_reason == "instance_already_started"
    flow.when(Rewind(**from_history(flow, "event:2")))
    earlier = flow.when(Rewind(run_id="RUN1", **from_history(flow, "event:2")))
    assert earlier.reply.command.rejection_reason == "selected_run_not_current"


def test_a_cancel_request_after_the_point_is_gone() -> None:
    flow = given(CHARGE, definition=RecordedDefinition(cleanup_seconds=60))
    flow.when(Cancel())
    assert requested(flow.run)
    rewound(flow, "event:2")
    assert not requested(flow.run)


def test_times_never_go_back_across_a_rewind() -> None:
    flow = worked()
    last = flow.run.last_at
    rewound(flow, "ship", when=1)  # the clock was set back
    (entry,) = [entry for entry in flow.history if isinstance(entry.event, HistoryInherited)]
    assert (entry.at, entry.context.clock_skew) == (last, last - instant(1))
    assert flow.runs[flow.run.key].started_at == last
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_a_signal_that_is_delivered_anew_has_the_time_of_that() -> None:
    flow = given(definition=TALKING, at=50)
    flow.signal("go", at=10)  # the clock was set back
    assert flow.history[-1].context.clock_skew is not None
    rewound(flow, "event:2", when=100)
    entry = flow.history[-1]
    assert (entry.type, entry.at, clock(entry)) == ("SignalReceived", instant(100), instant(100))


def test_a_run_that_has_ended_leaves_its_signals_to_the_next_one() -> None:
    flow = given(CHARGE, definition=TALKING)
    flow.signal("go")
    (go,) = flow.run.part(Signals).received
    wait = OpenSignalWait(signal_name="go")
    flow.complete(wait, ApplySignal(step=2, signal_id=go), FailWorkflow(message="boom"))
    rewound(flow, "charge")
    assert list(flow.run.part(Signals).received) == [go], "its sender knows that it was accepted"


def updated(*commands: Command) -> Flow:
    """Two updates: the first one is applied, the second one is open."""
    flow = given(*commands, definition=TALKING)
    flow.update()
    flow.complete(CompleteUpdate(update_id=next(iter(flow.run.part(Updates).pending))))
    flow.update()
    return flow


def test_an_update_that_was_answered_during_a_step_is_kept_though_the_step_is_not() -> None:
    flow = updated(CHARGE)
    fork = forked(flow, f"event:{len(flow.history) - 1}")
    kept = names(fork.history)
    assert "ActivityScheduled" not in kept
    assert (kept.count("UpdateAccepted"), kept.count("UpdateCompleted")) == (1, 1)
    assert fork.run.part(Updates).pending == {}


def test_the_number_of_a_command_that_is_kept_is_not_given_again() -> None:
    flow = given(CHARGE)
    flow.start(duplicate_policy="return_existing_active")  # its second command
    rewound(flow, f"event:{len(flow.history)}")
    second = flow.run.run_id
    given_ids = [command.id for command in flow.commands if command.run == flow.run.key]
    kept = {getattr(entry.event, "workflow_command_id", None) for entry in flow.history[2:-1]}
    assert not kept & set(given_ids)
    assert {entry.event.workflow_command_id for entry in flow.history[:2]} == {given_ids[0]}  # type: ignore[attr-defined]
    flow.complete(CompleteWorkflow())
    rewound(flow, f"event:{len(flow.history) - 1}")
    late = flow.when(Archive(run_id=second))
    assert late.reply.command_id not in {*kept, *given_ids}, "not even when the run is an earlier one"


def test_the_id_of_a_failure_names_its_place_in_the_new_history() -> None:
    flow = given(SHIP, CHARGE, definition=TALKING)
    flow.begin(1)
    flow.begin(2)
    flow.fail(2)
    fork = forked(flow, f"event:{len(flow.history)}")
    (failed,) = [entry for entry in fork.history if isinstance(entry.event, ActivityFailed)]
    assert failed.event.failure_id == failure_id(fork.run.run_id, failed.sequence)  # type: ignore[attr-defined]
    assert list(fork.run.part(Failures).raised) == [failed.event.failure_id]  # type: ignore[attr-defined]


def test_an_update_that_is_applied_after_the_point_is_applied_once() -> None:
    flow = updated()
    applied = next(entry.sequence for entry in flow.history if isinstance(entry.event, UpdateApplied))
    fork = forked(flow, f"event:{applied}")
    assert len(fork.run.part(Updates).pending) == 1
    assert "UpdateApplied" not in names(fork.history), "a replay runs the handler for it"
    fork.complete(CompleteUpdate(update_id=next(iter(fork.run.part(Updates).pending))))
    assert names(fork.history).count("UpdateApplied") == 1


@pytest.mark.parametrize("ended", [False, True])
def test_an_update_that_failed_because_its_run_ended_is_not_applied_later(ended: bool) -> None:
    flow = updated()
    through = len(flow.history)
    if ended:
        flow.when(Terminate())
    rewound(flow, f"event:{through}")
    assert flow.run.part(Updates).pending == {}, "its sender knows that it failed"
    assert names(flow.history).count("UpdateAccepted") == 1
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_the_task_of_an_update_says_nothing_of_what_the_code_has_seen() -> None:
    flow = given(definition=TALKING)
    flow.update()
    flow.complete(CompleteUpdate(update_id=next(iter(flow.run.part(Updates).pending))))
    assert flow.state.cursor == 0
    assert forked(flow, f"event:{len(flow.history)}").state.cursor == 0


def test_a_point_among_the_signals_that_a_task_has_applied_leaves_the_others_to_the_code() -> None:
    flow = given(CHARGE, definition=TALKING)
    flow.signal("note")
    flow.signal("note")
    flow.complete()
    first = next(entry.sequence for entry in flow.history if entry.type == "SignalApplied")
    fork = forked(flow, f"event:{first}")
    assert fork.update().reply.rejection_reason == "earlier_signal_pending"
    fork.complete()
    assert names(fork.history).count("SignalApplied") == 2
    assert fork.run.part(Signals).received == {}
