"""Starting: an id is checked before anything is stored, used once, and an accepted start writes everything in one decision."""

from __future__ import annotations

import math
from typing import Any

import pytest

from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.start import RecordedDefinition, Reserve, StartAccepted, StartRejected, WorkflowStarted
from backstay.kernel.limits import Limits
from backstay.kernel.machine import Machine
from backstay.kernel.task import START
from backstay.kernel.values import Routing

from ..given import T0, Flow, given, instant, names, only, started
from ..stored import refold, snapshot

DEFINITION = RecordedDefinition(
    workflow_class="shop:Order",
    fingerprint="f1",
    change_ids=["vat"],
    queries=["total"],
    query_contracts=[{"name": "total"}],
    signals=["paid"],
    signal_contracts=[{"name": "paid"}],
    updates=["add"],
    update_contracts=[{"name": "add"}],
    entry_declaring_class="shop:Base",
)


def reserve(workflow_id: str = "order-1", workflow_type: str = "order") -> Reserve:
    return Reserve(namespace="default", workflow_id=workflow_id, workflow_type=workflow_type)


@pytest.mark.contract("START-01")
def test_reserving_makes_an_id_known_before_any_run_exists() -> None:
    flow = Flow()
    decision = flow.when(reserve())
    assert decision.reply.reserved
    assert decision.events == []
    assert decision.instance.run is None
    assert decision.instance.reserved_at == T0
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_reserving_twice_is_harmless() -> None:
    flow = Flow()
    flow.when(reserve())
    again = flow.when(reserve(), at=5)
    assert (again.reply.reserved, again.idle) == (False, True)


def test_a_reserved_id_starts_as_the_type_it_was_reserved_for() -> None:
    flow = Flow()
    flow.when(reserve(workflow_type="order"))
    assert flow.refused(reserve(workflow_type="refund")).reason == "workflow_type_mismatch"
    assert flow.refused(started(workflow_type="refund")).reason == "workflow_type_mismatch"
    assert flow.start("order").reply.outcome == "started_new"


@pytest.mark.contract("START-02")
@pytest.mark.parametrize("id", ["a", "A-z_0.9:~", "x" * 191, "018f-3c", "..", "~"])
def test_an_id_of_the_url_safe_alphabet_is_accepted(id: str) -> None:
    assert Flow(workflow_id=id).start().reply.workflow_id == id


@pytest.mark.contract("START-02", "START-03")
@pytest.mark.parametrize(
    "id",
    [
        "",
        " ",
        "a b",
        " a",
        "a ",
        "a\n",
        "a/b",
        "a\\b",
        "a?b",
        "a#b",
        "a%20b",
        "a+b",
        "a@b",
        "ä",
        "日本",
        "a\x00",
        "x" * 192,
    ],
)
def test_an_id_outside_the_url_safe_alphabet_is_refused_before_anything_is_stored(id: str) -> None:
    flow = Flow(workflow_id=id)
    assert flow.refused(started(id)).reason == "invalid_workflow_id"
    assert flow.refused(reserve(id)).reason == "invalid_workflow_id"
    assert flow.decisions == []
    assert not flow.state.exists


@pytest.mark.contract("START-04")
def test_an_accepted_start_is_a_run_a_command_and_the_first_task_in_one_decision() -> None:
    flow = Flow()
    decision = flow.start(arguments=b"args", source="webhook", request_id="r-1", context={"caller": "shop"})
    assert names(decision.events) == ["StartAccepted", "WorkflowStarted"]
    (command,) = decision.commands
    assert (command.command_type, command.status, command.outcome) == ("start", "accepted", "started_new")
    assert (command.sequence, command.source, command.request_id) == (1, "webhook", "r-1")
    assert (command.context, command.payload) == ({"caller": "shop"}, b"args")
    (change,) = decision.tasks
    assert change.task is not None
    assert (change.task.kind, change.task.state, change.task.resume) == ("workflow", "ready", START)
    ((new, row),) = decision.runs
    assert (new, row.run_id, row.number, row.status) == (True, decision.reply.run_id, 1, "pending")
    assert decision.reply.command_id == command.id
    assert only(decision, WorkflowStarted).workflow_command_id == command.id
    assert only(decision, StartAccepted).outcome == "started_new"


@pytest.mark.contract("START-06")
def test_business_key_and_labels_are_in_the_index_and_in_start_history() -> None:
    decision = Flow().start(business_key="invoice-7", visibility_labels={"region": "eu"})
    for kind in (StartAccepted, WorkflowStarted):
        event = only(decision, kind)
        assert (event.business_key, event.visibility_labels) == ("invoice-7", {"region": "eu"})
    ((_, row),) = decision.runs
    assert (row.business_key, row.labels) == ("invoice-7", {"region": "eu"})


def test_a_memo_is_in_start_history_and_not_in_the_index() -> None:
    decision = Flow().start(memo={"note": b"hi"})
    assert only(decision, WorkflowStarted).memo == {"note": b"hi"}
    ((_, row),) = decision.runs
    assert not hasattr(row, "memo")


def test_search_attributes_of_a_start_are_in_the_index() -> None:
    ((_, row),) = Flow().start(search_attributes={"amount": 7}).runs
    assert row.search_attributes == {"amount": 7}


def test_a_search_attribute_without_a_value_is_no_attribute() -> None:
    flow = Flow()
    ((_, row),) = flow.start(search_attributes={"amount": None, "open": True}).runs
    assert row.search_attributes == {"open": True}
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_the_definition_of_the_starter_is_snapped_into_history() -> None:
    event = only(Flow().start(definition=DEFINITION), WorkflowStarted)
    assert event.workflow_class == "shop:Order"
    assert event.workflow_definition_fingerprint == "f1"
    assert event.declared_change_ids == ["vat"]
    assert (event.declared_queries, event.declared_query_contracts) == (["total"], [{"name": "total"}])
    assert (event.declared_signals, event.declared_signal_contracts) == (["paid"], [{"name": "paid"}])
    assert (event.declared_updates, event.declared_update_contracts) == (["add"], [{"name": "add"}])
    assert (event.declared_entry_method, event.declared_entry_mode) == ("handle", "canonical")
    assert event.declared_entry_declaring_class == "shop:Base"


def test_an_unknown_definition_declares_nothing_at_all() -> None:
    event = only(Flow().start(), WorkflowStarted)
    assert {getattr(event, field) for field in event.__struct_fields__ if field.startswith("declared_")} == {None}
    assert event.workflow_definition_fingerprint is None


def test_a_definition_without_handlers_is_known_to_have_none() -> None:
    event = only(Flow().start(definition=RecordedDefinition()), WorkflowStarted)
    assert (event.declared_queries, event.declared_signals, event.declared_updates) == ([], [], [])


def test_routing_of_the_start_is_that_of_its_tasks() -> None:
    routing = Routing(queue="slow", connection="eu", compatibility="v2", priority=1, fairness_key="shop")
    flow = given(ScheduleActivity(activity_type="charge"), routing=routing)
    assert flow.run.routing == routing
    assert flow.activity_task(1).routing == routing
    assert Flow().start(routing=routing).tasks[0].task.routing == routing  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"workflow_type": ""}, "invalid_workflow_type"),
        ({"business_key": ""}, "invalid_business_key"),
        ({"business_key": "x" * 192}, "invalid_business_key"),
        ({"visibility_labels": {"": "x"}}, "invalid_visibility_label"),
        ({"visibility_labels": {"a b": "x"}}, "invalid_visibility_label"),
        ({"visibility_labels": {"k" * 65: "x"}}, "invalid_visibility_label"),
        ({"visibility_labels": {"region": ""}}, "invalid_visibility_label"),
        ({"visibility_labels": {"region": "x" * 192}}, "invalid_visibility_label"),
        ({"memo": {"a b": b""}}, "invalid_memo"),
        ({"search_attributes": {"x": {}}}, "invalid_search_attributes"),
        ({"execution_timeout_seconds": 0}, "invalid_timeout"),
        ({"run_timeout_seconds": -1}, "invalid_timeout"),
        ({"run_timeout_seconds": math.nan}, "invalid_timeout"),
        ({"execution_timeout_seconds": math.inf}, "invalid_timeout"),
        ({"execution_timeout_seconds": 1e300}, "invalid_timeout"),
    ],
)
def test_a_start_with_a_wrong_option_is_refused(options: dict[str, Any], reason: str) -> None:
    flow = Flow()
    options = {"workflow_type": "order", **options}
    assert flow.refused(started(**options)).reason == reason
    assert not flow.state.exists


@pytest.mark.parametrize(
    ("limits", "options", "kind", "value"),
    [
        (Limits(payload_size=3), {"arguments": b"1234"}, "payload_size", 4),
        (Limits(memo_size=4), {"memo": {"note": b"1"}}, "memo_size", 5),
        (Limits(search_attribute_size=4), {"search_attributes": {"a": 1}}, "search_attribute_size", 7),
    ],
)
def test_a_start_over_a_structural_limit_is_refused_with_the_limit_named(
    limits: Limits, options: dict[str, Any], kind: str, value: int
) -> None:
    refusal = Flow(Machine(limits=limits)).refused(started(**options))
    assert refusal.reason == "structural_limit_exceeded"
    assert (refusal.fields["limit_kind"], refusal.fields["current_value"]) == (kind, value)
    assert refusal.message.startswith("Structural limit exceeded:")


@pytest.mark.parametrize("limits", [Limits(payload_size=4), Limits(payload_size=0)])
def test_a_start_at_its_limit_or_without_one_is_accepted(limits: Limits) -> None:
    assert Flow(Machine(limits=limits)).start(arguments=b"1234").reply.accepted


def test_a_second_start_is_rejected_and_remembered_on_the_run_that_exists() -> None:
    flow = given()
    decision = flow.start(request_id="r-2", at=1)
    assert not decision.reply.accepted
    assert decision.reply.rejection_reason == "instance_already_started"
    assert decision.reply.run_id == flow.run.run_id
    event = only(decision, StartRejected)
    assert (event.outcome, event.rejection_reason) == ("rejected_duplicate", "instance_already_started")
    (command,) = decision.commands
    assert (command.sequence, command.status, command.request_id) == (2, "rejected", "r-2")
    assert decision.tasks == []
    assert decision.runs == []


def test_a_second_start_may_ask_for_the_run_that_is_active() -> None:
    flow = given()
    decision = flow.start(duplicate_policy="return_existing_active", at=1)
    assert decision.reply.accepted
    assert decision.reply.run_id == flow.run.run_id
    assert only(decision, StartAccepted).outcome == "returned_existing_active"
    assert decision.commands[0].status == "accepted"
    assert decision.tasks == []


@pytest.mark.parametrize("policy", ["reject_duplicate", "return_existing_active"])
def test_an_id_is_not_used_again_after_its_run_closed_and_history_stays_closed(policy: str) -> None:
    flow = given(CompleteWorkflow())
    decision = flow.start(duplicate_policy=policy)
    assert decision.reply.outcome == "rejected_duplicate"
    assert decision.events == []
    assert decision.commands[0].rejection_reason == "instance_already_started"


def test_a_second_start_may_ask_for_the_run_whether_or_not_it_has_ended() -> None:
    flow = given()
    decision = flow.start(duplicate_policy="return_existing", at=1)
    assert (decision.reply.outcome, decision.reply.run_id) == ("returned_existing_active", flow.run.run_id)
    assert only(decision, StartAccepted).outcome == "returned_existing_active"
    flow = given(CompleteWorkflow())
    decision = flow.start(duplicate_policy="return_existing")
    assert (decision.reply.accepted, decision.reply.outcome) == (True, "returned_existing_closed")
    assert decision.reply.run_id == flow.run.run_id
    assert decision.events == []
    assert decision.commands[0].status == "accepted"


def test_a_rejected_start_is_still_known_after_a_restart() -> None:
    flow = given()
    flow.start(at=1)
    assert snapshot(flow, refold(flow)) == snapshot(flow)
    assert flow.state.command_sequence == 2


def test_start_times_come_from_the_clock() -> None:
    flow = Flow()
    flow.start(at=3, execution_timeout_seconds=10.5, run_timeout_seconds=2)
    event = only(flow.decisions[0], WorkflowStarted)
    assert (event.execution_deadline_at, event.run_deadline_at) == (instant(13.5), instant(5))
    assert (event.execution_timeout_seconds, event.run_timeout_seconds) == (10.5, 2)
    assert flow.run.started_at == instant(3)
