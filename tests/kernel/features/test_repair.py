"""Repair: what reconcile does, asked for by an operator and on record. It restores what is missing and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.condition import OpenConditionWait
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.repair import Repair, RepairRequested
from backstay.kernel.features.signal import OpenSignalWait
from backstay.kernel.features.start import Reserve
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.task import Block

from ..given import TALKING, Flow, given, names, only, running
from ..stored import snapshot

REPAIR = Repair(work=Reconcile(incarnation="engine-1", force=True), liveness_state="repair_needed", wait_kind="signal")


def signalled() -> Flow:
    flow = given(OpenSignalWait(signal_name="go"), definition=TALKING)
    flow.signal("go")
    return flow


def updated() -> Flow:
    flow = given(OpenConditionWait(), definition=TALKING)
    flow.update("add")
    return flow


def timed_out() -> Flow:
    flow = given(OpenConditionWait(timeout_seconds=5), definition=TALKING)
    flow.due(5)
    return flow


MISSING = {
    "start": given,
    "activity": lambda: given(ScheduleActivity(activity_type="a")),
    "signal": signalled,
    "update": updated,
    "condition timeout": timed_out,
}


@pytest.mark.contract("REPAIR-14")
@pytest.mark.parametrize("flow_of", MISSING.values(), ids=MISSING)
def test_exactly_what_is_missing_is_restored(flow_of: Any) -> None:
    flow = flow_of()
    (lost,) = flow.rows.values()
    flow.lose(lost.id)
    decision = flow.when(REPAIR)
    assert decision.reply.command.outcome == "repair_dispatched"
    assert decision.reply.work.restored == [lost.id]
    assert flow.rows == {lost.id: replace(lost, repair_count=1)}
    command_id = decision.reply.command.command_id
    assert [entry.event for entry in decision.events] == [
        RepairRequested(
            workflow_command_id=command_id,
            outcome="repair_dispatched",
            liveness_state="repair_needed",
            wait_kind="signal",
            task_id=lost.id,
            task_type=lost.kind,
        )
    ]


HEALTHY = {
    "ready task": given,
    "timer": lambda: given(StartTimer(delay_seconds=5)),
    "signal wait": lambda: given(OpenSignalWait(signal_name="go"), definition=TALKING),
    "condition wait": lambda: given(OpenConditionWait()),
    "running activity": running,
}


@pytest.mark.contract("REPAIR-11", "REPAIR-12", "REPAIR-14")
@pytest.mark.parametrize("flow_of", HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_run_needs_none(flow_of: Any) -> None:
    flow = flow_of()
    rows = dict(flow.rows)
    decision = flow.when(REPAIR)
    assert (decision.reply.command.outcome, decision.reply.command.accepted) == ("repair_not_needed", True)
    event = only(decision, RepairRequested)
    assert (event.outcome, event.task_id, event.task_type) == ("repair_not_needed", None, None)
    assert flow.rows == rows


@pytest.mark.contract("REPAIR-13")
def test_a_running_activity_that_lost_its_row_is_left_alone() -> None:
    flow = running()
    flow.lose("RUN1-a1.1")
    assert flow.when(REPAIR).reply.command.outcome == "repair_not_needed"
    assert flow.rows == {}


def test_a_blocked_task_is_tried_again() -> None:
    flow = given()
    flow.break_task(Block(message="diverged", replay_blocked=True, fingerprint="f1"))
    decision = flow.when(REPAIR)
    assert decision.reply.work.revived == ["RUN1-w2"]
    assert only(decision, RepairRequested).task_id == "RUN1-w2"
    assert (flow.workflow_task.state, flow.workflow_task.block) == ("ready", None)


@pytest.mark.contract("REPAIR-03")
def test_a_repair_takes_back_an_expired_lease_and_records_the_buffered_events() -> None:
    flow = given(definition=TALKING)
    flow.lease()
    flow.signal("go")
    decision = flow.when(REPAIR, at=301)
    assert decision.reply.work.released == ["RUN1-w2"]
    assert decision.reply.command.outcome == "repair_dispatched"
    assert set(names(decision.events)) == {"RepairRequested", "SignalReceived"}


def reserved() -> Flow:
    flow = Flow()
    flow.when(Reserve(namespace="default", workflow_id="order-1", workflow_type="order"))
    return flow


def second_run() -> Flow:
    flow = given()
    flow.complete(ContinueAsNew())
    return flow


@pytest.mark.contract("CANCEL-04", "REC-06")
@pytest.mark.parametrize(
    ("flow_of", "run_id", "reason", "outcome"),
    [
        (reserved, None, "instance_not_started", "rejected_not_started"),
        (second_run, "RUN1", "selected_run_not_current", "rejected_not_current"),
        (lambda: given(CompleteWorkflow()), None, "run_not_active", "rejected_not_active"),
    ],
)
def test_a_rejected_repair_is_on_record(flow_of: Any, run_id: str | None, reason: str, outcome: str) -> None:
    flow = flow_of()
    rows = dict(flow.rows)
    decision = flow.when(replace(REPAIR, run_id=run_id))
    (command,) = decision.commands
    assert (command.status, command.rejection_reason, command.outcome) == ("rejected", reason, outcome)
    assert decision.reply.work is None
    assert decision.reply.command.rejection_reason == reason
    assert decision.events == []
    assert flow.rows == rows


def test_a_repair_request_is_no_event_that_code_sees() -> None:
    flow = given(StartTimer(delay_seconds=5))
    before = snapshot(flow)
    flow.when(REPAIR)
    after = snapshot(flow)
    changed = {key for key in before if before[key] != after[key]}
    assert changed == {"last_decision", "command_sequence", "length", "bytes", "checksum"}
