"""Continue as new: one run closes and the next opens in the same decision, with everything that belongs to the instance."""

from __future__ import annotations

from typing import Any

import pytest

from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.close import WorkflowFailed
from backstay.kernel.features.continue_as_new import ContinueAsNew, WorkflowContinuedAsNew
from backstay.kernel.features.memo import Memo, UpsertMemo
from backstay.kernel.features.search import SearchAttributes, UpsertSearchAttributes
from backstay.kernel.features.side_effect import RecordSideEffect
from backstay.kernel.features.start import Identity, RecordedDefinition, WorkflowStarted
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.features.version import RecordVersionMarker, Versions
from backstay.kernel.features.workflow_task import HeartbeatWorkflowTask
from backstay.kernel.limits import Limits
from backstay.kernel.values import Routing

from ..given import Flow, given, instant, names, only
from ..stored import refold, snapshot

ROUTING = Routing(connection="eu", queue="slow", compatibility="v2", priority=1, fairness_key="shop", fairness_weight=3)
DEFINITION = RecordedDefinition(
    workflow_class="shop:Order",
    fingerprint="f1",
    change_ids=["vat"],
    queries=["total"],
    signals=["paid"],
    updates=["add"],
    entry_method="run",
    entry_mode="legacy",
    entry_declaring_class="shop:Base",
)
OPTIONS: dict[str, Any] = {
    "arguments": b"first",
    "routing": ROUTING,
    "business_key": "invoice-7",
    "visibility_labels": {"region": "eu"},
    "memo": {"note": b"hi"},
    "search_attributes": {"amount": 7},
    "execution_timeout_seconds": 100,
    "run_timeout_seconds": 30,
    "definition": DEFINITION,
}


def continued(command: ContinueAsNew | None = None, **options: Any) -> Flow:
    flow = given(**options)
    flow.complete(command or ContinueAsNew(), at=10)
    return flow


@pytest.mark.contract("CAN-01", "CAN-02", "CMD-19")
def test_the_run_closes_as_continued_and_the_next_one_opens_at_once() -> None:
    flow = given()
    decision = flow.complete(ContinueAsNew(arguments=b"again"), at=10)
    assert names(decision.events) == ["WorkflowContinuedAsNew", "StartAccepted", "WorkflowStarted"]
    old, new = (row for _, row in decision.runs)
    assert (old.run_id, old.status, old.closed_reason, old.closed_at) == ("RUN1", "completed", "continued", instant(10))
    assert (new.run_id, new.number, new.status) == ("RUN2", 2, "pending")
    assert {row.workflow_id for row in (old, new)} == {"order-1"}
    assert decision.instance.run == new.key
    assert decision.closed == ["RUN1"]
    assert flow.workflow_task.id == "RUN2-w2"
    assert only(decision, WorkflowStarted).arguments == b"again"


@pytest.mark.contract("CAN-03")
def test_both_runs_name_each_other() -> None:
    flow = continued()
    event = flow.histories[flow.decisions[0].runs[0][1].key][-1].event
    assert isinstance(event, WorkflowContinuedAsNew)
    assert (event.continued_to_run_id, event.continued_to_run_number) == ("RUN2", 2)
    assert event.closed_reason == "continued"
    started = flow.run.part(Identity).started
    assert started is not None
    assert started.continued_from_run_id == "RUN1"


@pytest.mark.contract("CAN-04")
def test_the_new_run_has_a_start_command_of_its_own_that_came_from_the_prior_run() -> None:
    decision = continued().decisions[-1]
    (command,) = decision.commands
    assert (command.command_type, command.status, command.source) == ("start", "accepted", "workflow")
    assert (command.id, command.sequence) == ("RUN2-c1", 1)
    assert command.context["workflow"]["parent_run_id"] == "RUN1"
    assert decision.instance.command_sequence == 1


@pytest.mark.contract("START-07", "START-08")
def test_the_attributes_of_an_instance_go_along_to_the_next_run() -> None:
    flow = continued(**OPTIONS)
    started = flow.run.part(Identity).started
    assert started is not None
    assert (started.business_key, started.visibility_labels) == ("invoice-7", {"region": "eu"})
    assert (started.memo, started.search_attributes) == ({"note": b"hi"}, {"amount": 7})
    assert started.routing == ROUTING
    assert started.arguments == b"first"
    assert (started.execution_timeout_seconds, started.run_timeout_seconds) == (100, 30)
    assert flow.runs[flow.run.key].compatibility == "v2"
    assert flow.workflow_task.routing == ROUTING


def test_without_news_the_next_run_is_judged_by_the_definition_the_last_one_started_with() -> None:
    flow = continued(**OPTIONS)
    started = flow.run.part(Identity).started
    assert started is not None
    assert started.workflow_class == "shop:Order"
    assert (started.workflow_definition_fingerprint, started.declared_change_ids) == ("f1", ["vat"])
    assert (started.declared_queries, started.declared_signals, started.declared_updates) == (
        ["total"],
        ["paid"],
        ["add"],
    )
    assert (started.declared_entry_method, started.declared_entry_mode) == ("run", "legacy")
    assert started.declared_entry_declaring_class == "shop:Base"


@pytest.mark.parametrize(
    ("options", "command", "fingerprint", "declared"),
    [
        ({}, ContinueAsNew(), None, None),
        ({"definition": DEFINITION}, ContinueAsNew(definition=RecordedDefinition(fingerprint="f2")), "f2", []),
        ({}, ContinueAsNew(definition=RecordedDefinition(fingerprint="f2")), "f2", []),
    ],
)
def test_the_worker_that_continues_may_bring_a_newer_definition(
    options: dict[str, Any], command: ContinueAsNew, fingerprint: str | None, declared: list[str] | None
) -> None:
    started = continued(command, **options).run.part(Identity).started
    assert started is not None
    assert (started.workflow_definition_fingerprint, started.declared_queries) == (fingerprint, declared)


def test_memo_and_search_attributes_go_along_as_they_are_now() -> None:
    flow = given(
        UpsertMemo(entries={"a": b"1"}), UpsertSearchAttributes(attributes={"b": 2}), StartTimer(delay_seconds=0)
    )
    flow.complete(ContinueAsNew())
    assert flow.run.part(Memo).values == {"a": b"1"}
    assert flow.run.part(SearchAttributes).values == {"b": 2}
    flow.complete(UpsertMemo(entries={"a": None}), StartTimer(delay_seconds=0))
    flow.complete(ContinueAsNew())
    assert flow.run.part(Memo).values == {}


def test_steps_and_version_markers_begin_anew() -> None:
    flow = given(
        RecordVersionMarker(change_id="vat", version=1, min_supported=-1, max_supported=1),
        RecordSideEffect(result=b"x"),
        StartTimer(delay_seconds=0),
    )
    flow.complete(ContinueAsNew())
    assert flow.run.step == 0
    assert flow.run.part(Versions).markers == {}
    assert flow.state.cursor == 0
    flow.complete(RecordSideEffect(result=b"y"))
    assert [getattr(entry.event, "sequence", None) for entry in flow.history[2:]] == [1]


@pytest.mark.parametrize(
    ("command", "type", "queue"),
    [
        (ContinueAsNew(), "order", "slow"),
        (ContinueAsNew(workflow_type="order-v2"), "order-v2", "slow"),
        (ContinueAsNew(queue="fast"), "order", "fast"),
    ],
)
def test_type_and_queue_may_change_and_the_rest_of_the_routing_stays(
    command: ContinueAsNew, type: str, queue: str
) -> None:
    flow = continued(command, routing=ROUTING)
    assert (flow.run.workflow_type, flow.state.workflow_type, flow.workflow_task.type) == (type, type, type)
    assert flow.run.routing.queue == queue
    assert (flow.run.routing.connection, flow.run.routing.compatibility) == ("eu", "v2")
    assert (flow.run.routing.priority, flow.run.routing.fairness_key, flow.run.routing.fairness_weight) == (
        1,
        "shop",
        3,
    )


def test_the_execution_deadline_spans_all_runs_and_each_run_has_its_own_time() -> None:
    flow = continued(execution_timeout_seconds=100, run_timeout_seconds=30)
    started = flow.run.part(Identity).started
    assert started is not None
    assert started.execution_deadline_at == instant(100)
    assert started.run_deadline_at == instant(40)
    assert flow.state.next_wake == instant(40)


def test_the_continued_run_leaves_no_tasks_and_no_wakes() -> None:
    flow = given(ScheduleActivity(activity_type="charge"), StartTimer(delay_seconds=60), StartTimer(delay_seconds=0))
    flow.begin(1)
    report = flow.finished(1)
    task = flow.claim(flow.workflow_task.id)
    flow.complete(ContinueAsNew())
    assert set(flow.rows) == {"RUN2-w2"}
    assert flow.state.next_wake is None
    assert flow.due(1000).idle
    assert flow.refused(report).reason == "run_closed"
    assert flow.refused(HeartbeatWorkflowTask(task_id=task.id, owner="worker-1", attempt=1)).reason == "task_not_found"
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_an_attempt_of_the_closed_run_is_told_to_stop() -> None:
    flow = given(ScheduleActivity(activity_type="charge"), StartTimer(delay_seconds=0))
    flow.begin(1)
    flow.complete(ContinueAsNew())
    flow.complete(StartTimer(delay_seconds=5))
    reply = flow.beat(1, run_id="RUN1").reply
    assert (reply.can_continue, reply.cancel_requested) == (False, True)
    assert (reply.reason, reply.run_status) == ("run_closed", "closed")


def test_continuing_takes_the_last_step_of_the_run() -> None:
    flow = given(RecordSideEffect(result=b"x"), StartTimer(delay_seconds=0))
    assert only(flow.complete(ContinueAsNew()), WorkflowContinuedAsNew).sequence == 3


def test_arguments_over_the_payload_limit_fail_the_run_instead() -> None:
    flow = given(ContinueAsNew(arguments=b"1234"), limits=Limits(payload_size=3))
    event = flow.history[-1].event
    assert isinstance(event, WorkflowFailed)
    assert (event.structural_limit_kind, event.structural_limit_value) == ("payload_size", 4)
    assert flow.run.number == 1
