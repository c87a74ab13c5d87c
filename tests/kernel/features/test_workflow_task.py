"""Workflow tasks: due exactly while a waking event stands behind the cursor; completed all or none; failed without failing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from backstay.kernel.command import Command
from backstay.kernel.failure import Failure
from backstay.kernel.features.activity import RetryPolicy, ScheduleActivity
from backstay.kernel.features.close import CompleteWorkflow, FailWorkflow, WorkflowFailed
from backstay.kernel.features.condition import OpenConditionWait
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.side_effect import RecordSideEffect
from backstay.kernel.features.timer import CancelTimer, StartTimer
from backstay.kernel.features.version import RecordVersionMarker
from backstay.kernel.features.workflow_task import (
    DEADLINE_EXCEEDED,
    WAITING_FOR_HISTORY,
    CompleteWorkflowTask,
    FailWorkflowTask,
)
from backstay.kernel.limits import Limits
from backstay.kernel.task import START, Block, Lease, Resume
from backstay.kernel.values import SECOND, workflow_task_id

from ..deciding import vars_of
from ..given import TALKING, WORKER, Flow, given, instant, names, running
from ..stored import refold, snapshot

SIDE = RecordSideEffect(result=b"x")
HELD = OpenConditionWait(satisfied=True)
BLOCKED = Block(message="diverged", replay_blocked=True, reason="history_shape_mismatch", fingerprint="f1")


class UnknownCommand(Command, frozen=True, kw_only=True, tag="do_magic"):
    pass


# -- completing


@pytest.mark.contract("CMD-01")
def test_commands_are_applied_in_order_and_take_increasing_steps() -> None:
    flow = given(
        ScheduleActivity(activity_type="a"), SIDE, StartTimer(delay_seconds=9), ScheduleActivity(activity_type="b")
    )
    steps = [(entry.type, entry.event.sequence) for entry in flow.history[2:]]  # type: ignore[attr-defined]
    assert steps == [
        ("ActivityScheduled", 1),
        ("SideEffectRecorded", 2),
        ("TimerScheduled", 3),
        ("ActivityScheduled", 4),
    ]


def test_completing_closes_the_task_and_tells_the_run_status() -> None:
    flow = given()
    decision = flow.complete(StartTimer(delay_seconds=9))
    assert (decision.reply.outcome, decision.reply.run_status) == ("completed", "waiting")
    assert flow.rows == {}
    assert decision.instance.cursor == 2
    ((_, row),) = decision.runs
    assert row.status == "waiting"


def test_code_that_asks_for_nothing_waits() -> None:
    flow = given()
    assert flow.complete().events == []
    assert flow.rows == {}


@pytest.mark.contract("CMD-02")
@pytest.mark.parametrize(
    "commands",
    [
        [CompleteWorkflow(), FailWorkflow(message="x")],
        [CompleteWorkflow(), CompleteWorkflow()],
        [FailWorkflow(message="x"), ContinueAsNew()],
        [SIDE, CompleteWorkflow(), FailWorkflow(message="x")],
        [CompleteWorkflow(), SIDE],
    ],
)
def test_a_second_terminal_command_refuses_the_whole_completion(commands: list[Command]) -> None:
    flow = given()
    refusal = flow.refused(flow.completion(*commands))
    assert refusal.reason == "invalid_commands"
    assert names(flow.history) == ["StartAccepted", "WorkflowStarted"]


@pytest.mark.contract("CMD-03", "CMD-05", "CMD-15")
@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (UnknownCommand(), "commands[1]"),
        (StartTimer(delay_seconds=-1), "delay_seconds"),
        (ScheduleActivity(activity_type=""), "activity_type"),
        (
            ScheduleActivity(activity_type="a", retry_policy=RetryPolicy(max_attempts=0)),
            "retry_policy.max_attempts",
        ),
        (RecordVersionMarker(change_id="", version=1, min_supported=0, max_supported=1), "change_id"),
        (RecordVersionMarker(change_id="c", version=2, min_supported=0, max_supported=1), "version"),
        (RecordSideEffect(result=b"x", sequence=3), "commands[1].sequence"),
    ],
)
def test_one_wrong_command_refuses_the_whole_completion(wrong: Command, field: str) -> None:
    flow = given()
    refusal = flow.refused(flow.completion(ScheduleActivity(activity_type="a"), wrong, CompleteWorkflow()))
    assert (refusal.reason, refusal.fields["field"]) == ("invalid_commands", field)
    assert names(flow.history) == ["StartAccepted", "WorkflowStarted"]
    assert set(flow.rows) == {"RUN1-w2"}


def test_after_a_refusal_the_same_task_can_still_be_completed() -> None:
    flow = given()
    flow.refused(flow.completion(StartTimer(delay_seconds=-1)))
    assert names(flow.complete(CompleteWorkflow()).events) == ["WorkflowCompleted"]


def test_steps_that_are_already_recorded_are_not_recorded_twice() -> None:
    flow = given(SIDE, StartTimer(delay_seconds=0))
    decision = flow.complete(
        RecordSideEffect(result=b"again", sequence=1),
        StartTimer(delay_seconds=0, sequence=2),
        RecordSideEffect(result=b"new", sequence=3),
    )
    assert [(entry.type, entry.event.sequence) for entry in decision.events] == [("SideEffectRecorded", 3)]  # type: ignore[attr-defined]


def test_claiming_and_completing_may_be_one_decision() -> None:
    flow = given()
    lease = Lease(owner="engine-1/0")
    message = CompleteWorkflowTask(task_id="RUN1-w2", owner="engine-1/0", attempt=1, commands=[SIDE], lease=lease)
    decision = flow.when(message)
    (entry,) = decision.events
    assert (entry.context.owner, entry.context.attempt, entry.context.decided_after) == ("engine-1/0", 1, 2)
    assert decision.leased == []
    assert flow.rows == {}


def test_failing_a_task_may_claim_it_in_the_same_decision() -> None:
    flow = given()
    lease = Lease(owner="engine-1/0")
    flow.when(FailWorkflowTask(task_id="RUN1-w2", owner="engine-1/0", attempt=1, block=BLOCKED, lease=lease))
    assert (flow.workflow_task.state, flow.workflow_task.attempt) == ("failed", 1)


@pytest.mark.parametrize(("task_id", "reason"), [("RUN1-w2", "task_not_claimable"), ("RUN1-w9", "task_not_found")])
def test_a_task_that_another_worker_holds_or_that_is_gone_cannot_be_claimed_on_the_way(
    task_id: str, reason: str
) -> None:
    flow = given()
    flow.claim("RUN1-w2")
    lease = Lease(owner="engine-1/0")
    complete = CompleteWorkflowTask(task_id=task_id, owner="engine-1/0", attempt=2, commands=[SIDE], lease=lease)
    fail = FailWorkflowTask(task_id=task_id, owner="engine-1/0", attempt=2, block=BLOCKED, lease=lease)
    assert flow.refused(complete).reason == reason
    assert flow.refused(fail).reason == reason


# -- when a task is due


def test_the_first_task_of_a_run_resumes_nothing() -> None:
    assert given().workflow_task.resume == START


@pytest.mark.contract("RESUME-02", "RESUME-03")
def test_a_start_task_has_every_resume_field_and_all_of_them_are_null() -> None:
    resume = given().workflow_task.resume
    assert set(vars_of(resume, Resume.__struct_fields__).values()) == {None}


@pytest.mark.contract("RESUME-04", "RESUME-05", "RESUME-10", "RESUME-14")
@pytest.mark.parametrize(("end", "type"), [("finish", "ActivityCompleted"), ("fail", "ActivityFailed")])
def test_a_task_after_an_activity_names_it(end: str, type: str) -> None:
    flow = running()
    getattr(flow, end)(1)
    assert flow.workflow_task.resume == Resume(
        resume_source_kind="activity_execution",
        resume_source_id="RUN1-1",
        open_wait_id="activity:RUN1-1",
        activity_execution_id="RUN1-1",
        activity_attempt_id="RUN1-1-1",
        activity_type="charge",
        workflow_sequence=5,
        workflow_event_type=type,
    )
    assert flow.history[4].type == type


@pytest.mark.contract("RESUME-03", "RESUME-04", "RESUME-05", "RESUME-12", "RESUME-14")
def test_a_task_after_a_timer_names_it_and_does_so_again_when_redelivered() -> None:
    flow = given(StartTimer(delay_seconds=5))
    flow.due(5)
    expected = Resume(
        workflow_wait_kind="timer",
        open_wait_id="timer:RUN1-t1",
        resume_source_kind="timer",
        resume_source_id="RUN1-t1",
        timer_id="RUN1-t1",
        workflow_sequence=4,
        workflow_event_type="TimerFired",
    )
    assert flow.claim("RUN1-w4").resume == expected
    flow.due(500)
    assert flow.claim("RUN1-w4", owner="worker-2").resume == expected


@pytest.mark.contract("RESUME-01")
def test_the_resume_context_stays_with_the_task_whatever_happens_meanwhile() -> None:
    flow = given(StartTimer(delay_seconds=1), StartTimer(delay_seconds=2))
    flow.due(1)
    before = flow.workflow_task
    flow.due(2)
    assert flow.workflow_task == before
    assert flow.workflow_task.resume.timer_id == "RUN1-t1"


def test_a_run_has_at_most_one_workflow_task_however_much_happened() -> None:
    flow = given(*(StartTimer(delay_seconds=delay) for delay in (1, 2, 3)))
    for at in (1, 2, 3):
        flow.due(at)
    assert set(flow.rows) == {"RUN1-w6"}
    flow.complete()
    assert flow.rows == {}


def test_an_event_recorded_during_a_leased_task_gets_a_task_of_its_own() -> None:
    flow = given(StartTimer(delay_seconds=1), StartTimer(delay_seconds=2))
    flow.due(1)
    flow.claim("RUN1-w5")
    flow.due(2)
    assert set(flow.rows) == {"RUN1-w5"}
    decision = flow.complete()
    assert decision.instance.cursor == 5
    assert set(flow.rows) == {"RUN1-w6"}
    assert flow.workflow_task.resume.timer_id == "RUN1-t2"


def test_a_task_sees_what_happened_before_it_was_claimed() -> None:
    flow = given(StartTimer(delay_seconds=1), StartTimer(delay_seconds=2))
    flow.due(1)
    flow.due(2)
    assert flow.claim("RUN1-w5").seen == 6
    flow.complete()
    assert flow.rows == {}


def test_a_timer_that_fires_at_once_resumes_the_code_with_a_new_task() -> None:
    flow = given(StartTimer(delay_seconds=0))
    assert flow.workflow_task.id == "RUN1-w4"


def test_losing_the_cursor_costs_one_redundant_task_and_never_a_lost_one() -> None:
    flow = given(StartTimer(delay_seconds=5))
    flow.due(5)
    flow.complete(StartTimer(delay_seconds=5))
    assert flow.row is not None
    flow.row = replace(flow.row, cursor=0)
    flow.reopen()
    assert set(flow.machine.expect(flow.state).tasks) == {"RUN1-w2"}


# -- failing


@pytest.mark.contract("LEASE-11")
@pytest.mark.parametrize("block", [BLOCKED, Block(message="boom", type="DeterminismFailed"), Block(message="boom")])
def test_a_failed_task_never_fails_its_run(block: Block) -> None:
    flow = given()
    decision = flow.break_task(block)
    assert decision.events == []
    assert flow.run.is_open
    named = replace(block, worker=WORKER) if block.replay_blocked else block
    assert (flow.workflow_task.state, flow.workflow_task.block) == ("failed", named)
    assert (decision.reply.outcome, decision.reply.run_status) == ("failed", "pending")
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_a_failed_task_is_offered_again_after_a_backoff_that_doubles_to_a_minute() -> None:
    flow = given()
    pauses = []
    for _ in range(8):
        flow.break_task(Block(message="boom"))
        until = flow.workflow_task.repair_available_at
        assert until is not None
        assert flow.state.next_wake == until
        pauses.append((until - flow.now) // SECOND)
        flow.now = until
        assert [task.id for task in flow.due((until - instant(0)) / SECOND).unassigned] == ["RUN1-w2"]
    assert pauses == [3, 6, 12, 24, 48, 60, 60, 60]
    assert flow.workflow_task.block is None


def test_a_blocked_task_does_not_come_back_by_itself() -> None:
    flow = given()
    flow.break_task(BLOCKED)
    assert flow.state.next_wake is None
    assert flow.due(100_000).idle
    assert flow.workflow_task.state == "failed"


def test_waiting_for_history_closes_the_task_without_a_trace() -> None:
    flow = given()
    decision = flow.break_task(Block(message="nothing to do yet", type=WAITING_FOR_HISTORY))
    assert decision.events == []
    assert flow.rows == {}
    assert flow.state.cursor == 2


HUNG = Block(message="it hangs", replay_blocked=True, reason=DEADLINE_EXCEEDED)


def hung(owner: str = "worker-1", attempt: int = 1) -> FailWorkflowTask:
    return FailWorkflowTask(task_id="RUN1-w2", owner=owner, attempt=attempt, block=HUNG)


def test_a_report_of_hanging_code_counts_from_a_worker_that_has_lost_its_lease() -> None:
    flow = given()
    flow.claim("RUN1-w2", owner="worker-1")
    flow.due(300)
    flow.claim("RUN1-w2", owner="worker-2")
    assert flow.when(hung()).reply.outcome == "failed"
    assert (flow.workflow_task.state, flow.workflow_task.owner) == ("failed", None)
    assert flow.state.next_wake is None
    # The next one hangs as well, and finds the task set aside.
    assert flow.refused(hung("worker-2", 2)).reason == "task_not_leased"


def test_a_report_of_hanging_code_counts_while_its_task_waits_for_the_next_worker() -> None:
    flow = given()
    flow.claim("RUN1-w2", owner="worker-1")
    flow.due(300)
    assert flow.workflow_task.state == "ready"
    flow.when(hung())
    assert flow.workflow_task.state == "failed"


def test_a_report_of_hanging_code_is_refused_for_a_completed_task_and_for_an_activity() -> None:
    flow = given(ScheduleActivity(activity_type="a"))
    flow.claim("RUN1-a1.1")
    assert flow.refused(hung()).reason == "task_not_found"
    late = replace(hung(), task_id="RUN1-a1.1", owner="worker-9")
    assert flow.refused(late).reason == "lease_owner_mismatch"


def test_failing_needs_the_lease() -> None:
    flow = given()
    flow.claim("RUN1-w2")
    message = FailWorkflowTask(task_id="RUN1-w2", owner="worker-2", attempt=1, block=BLOCKED)
    assert flow.refused(message).reason == "lease_owner_mismatch"


# -- limits


@pytest.mark.parametrize(
    ("limits", "commands", "kind", "value"),
    [
        (Limits(command_batch_size=2), [SIDE, SIDE, SIDE], "command_batch_size", 3),
        (Limits(command_batch_size=2), [HELD, SIDE, SIDE, SIDE, HELD], "command_batch_size", 3),
        (Limits(history_length=4), [SIDE, SIDE, SIDE], "history_length", 5),
        (
            Limits(pending_activity_count=1),
            [ScheduleActivity(activity_type="a"), ScheduleActivity(activity_type="b")],
            "pending_activity_count",
            2,
        ),
        (
            Limits(pending_timer_count=1),
            [StartTimer(delay_seconds=1), StartTimer(delay_seconds=1)],
            "pending_timer_count",
            2,
        ),
        (Limits(payload_size=3), [ScheduleActivity(activity_type="a", arguments=b"1234")], "payload_size", 4),
        (Limits(payload_size=3), [RecordSideEffect(result=b"1234")], "payload_size", 4),
    ],
)
def test_a_completion_over_a_structural_limit_fails_the_run_and_applies_nothing(
    limits: Limits, commands: list[Command], kind: str, value: int
) -> None:
    flow = given(*commands, limits=limits)
    (event,) = (entry.event for entry in flow.history[2:])
    assert isinstance(event, WorkflowFailed)
    assert (event.failure_category, event.non_retryable) == ("structural_limit", True)
    assert (event.structural_limit_kind, event.structural_limit_value) == (kind, value)
    assert flow.rows == {}
    assert flow.run.closed_reason == "failed"


@pytest.mark.parametrize(
    ("limits", "commands"),
    [
        (Limits(command_batch_size=3), [SIDE, SIDE, SIDE]),
        (Limits(command_batch_size=0), [SIDE, SIDE, SIDE]),
        (Limits(command_batch_size=2), [SIDE, SIDE, HELD, SIDE, SIDE, HELD, HELD, HELD]),
        (Limits(command_batch_size=1), [StartTimer(delay_seconds=9), CancelTimer(step=1)]),
        (Limits(history_length=5), [SIDE, SIDE, SIDE]),
        (Limits(pending_activity_count=1), [ScheduleActivity(activity_type="a")]),
        (Limits(pending_timer_count=1), [StartTimer(delay_seconds=1)]),
        (Limits(payload_size=4), [RecordSideEffect(result=b"1234")]),
    ],
)
def test_a_completion_at_the_limit_or_without_one_goes_through(limits: Limits, commands: list[Any]) -> None:
    assert given(*commands, limits=limits).run.is_open


def test_open_work_of_earlier_tasks_counts_against_the_limit() -> None:
    limits = Limits(pending_timer_count=2, pending_activity_count=2)
    flow = given(StartTimer(delay_seconds=9), StartTimer(delay_seconds=1), limits=limits)
    flow.due(1)
    flow.complete(StartTimer(delay_seconds=1), at=1)
    assert flow.run.is_open
    flow.due(2)
    flow.complete(StartTimer(delay_seconds=1), StartTimer(delay_seconds=1), at=2)
    assert not flow.run.is_open


def test_an_assignment_carries_what_the_code_started_with() -> None:
    flow: Flow = given(arguments=b"args")
    task = flow.claim("RUN1-w2")
    assignment = flow.machine.assign(flow.state, task)
    assert (assignment.workflow_id, assignment.run_id, assignment.run_number) == ("order-1", "RUN1", 1)
    assert assignment.started.arguments == b"args"
    assert (assignment.last_sequence, assignment.cursor, assignment.task.owner) == (2, 0, WORKER)


# -- code that ran ahead


def ahead(flow: Flow, *commands: Command) -> CompleteWorkflowTask:
    """What code did with the result of step 1, which it thinks is the next event."""
    seen = flow.run.length + 1
    return CompleteWorkflowTask(
        task_id=workflow_task_id(flow.run.run_id, seen),
        owner=WORKER,
        attempt=1,
        commands=list(commands),
        lease=Lease(owner=WORKER),
        seen=seen,
        result_of=flow.execution(1).attempt_id,
    )


def test_code_that_ran_ahead_with_a_result_goes_on_from_there() -> None:
    flow = running()
    message = ahead(flow, CompleteWorkflow(result=b"done"))
    flow.finish(1)
    flow.when(message)
    assert names(flow.history)[-2:] == ["ActivityCompleted", "WorkflowCompleted"]


@pytest.mark.parametrize("instead", ["a failure", "a limit", "a timeout", "a signal"])
def test_an_eager_completion_is_refused_if_history_has_another_event_in_its_place(instead: str) -> None:
    flow = running(
        RetryPolicy(max_attempts=1, start_to_close_timeout=5), limits=Limits(payload_size=10), definition=TALKING
    )
    message = ahead(flow, CompleteWorkflow(result=b"done"))
    if instead == "a failure":
        flow.fail(1, Failure(message="no", non_retryable=True))
    elif instead == "a limit":
        flow.finish(1, b"x" * 11)
    elif instead == "a timeout":
        flow.due(at=100)
    else:
        flow.signal("go")
    assert flow.workflow_task.id == message.task_id, "it stands in the very same place"
    assert flow.refused(message).reason == "eager_refused"


def test_an_eager_completion_is_refused_if_an_event_follows_the_result() -> None:
    flow = running(definition=TALKING)
    message = ahead(flow, CompleteWorkflow(result=b"done"))
    flow.finish(1)
    flow.signal("go")
    assert flow.refused(message).reason == "eager_refused"


def test_a_noted_failure_is_forgotten_by_a_good_report_and_counts_when_the_lease_ends() -> None:
    for good in (True, False):
        flow = given()
        task = flow.lease()
        block = Block(message="refused", reason="invalid_commands")
        flow.when(FailWorkflowTask(task_id=task.id, owner=WORKER, attempt=1, block=block, keep=True))
        kept = flow.workflow_task
        assert (kept.state, kept.until, kept.block) == ("leased", task.until, block)
        if good:
            assert names(flow.complete(StartTimer(delay_seconds=1)).events) == ["TimerScheduled"]
            continue
        flow.due(300)
        failed = flow.workflow_task
        assert (failed.state, failed.block, failed.repair_count) == ("failed", block, 1)
        flow.due(303)
        assert (flow.workflow_task.state, flow.workflow_task.block) == ("ready", None)
