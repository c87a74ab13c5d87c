"""The views of a run: pure functions of its state and history, in the words of the contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from backstay.kernel.command import Command
from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.archive import Archive
from backstay.kernel.features.cancel import Cancel
from backstay.kernel.features.child import StartChildWorkflow
from backstay.kernel.features.close import CompleteWorkflow, FailWorkflow
from backstay.kernel.features.condition import OpenConditionWait, SatisfyConditionWait
from backstay.kernel.features.pause import Pause
from backstay.kernel.features.signal import ApplySignal, DeliverSignal, OpenSignalWait
from backstay.kernel.features.start import Identity, RecordedDefinition
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.features.update import CompleteUpdate, FailUpdate, Update, Updates
from backstay.kernel.task import Block
from backstay.kernel.views.actions import actions, declared
from backstay.kernel.views.failures import failures
from backstay.kernel.views.liveness import liveness, wait_of
from backstay.kernel.views.messages import signals, updates
from backstay.kernel.views.waits import waits
from tests.kernel.given import Flow, given, running

NAME: dict[str, Any] = {"name": "value", "position": 0, "required": True, "type": "string", "allows_null": False}
DEFINITION = RecordedDefinition(
    signals=["go", "note"],
    signal_contracts=[
        {"name": "go", "parameters": [], "mode": "handler"},
        {"name": "note", "parameters": [NAME], "mode": "wait"},
    ],
    updates=["add"],
    update_contracts=[{"name": "add", "parameters": []}],
    queries=["status"],
    query_contracts=[{"name": "status", "parameters": []}],
)


def at(*commands: Command) -> Flow:
    return given(*commands, definition=DEFINITION)


def updating() -> Flow:
    flow = at(OpenConditionWait())
    flow.when(Update(name="add"))
    return flow


def busy_updating() -> Flow:
    """An update is accepted while everything else is open, too."""
    flow = at(
        ScheduleActivity(activity_type="charge"),
        StartTimer(delay_seconds=9),
        StartChildWorkflow(workflow_type="ship"),
        OpenSignalWait(signal_name="note"),
        OpenConditionWait(),
    )
    flow.when(Update(name="add"))
    return flow


def told_beside_a_child() -> Flow:
    flow = at(StartChildWorkflow(workflow_type="ship"))
    flow.when(DeliverSignal(name="go"))
    assert flow.workflow_task.state == "ready"
    return flow


def told() -> Flow:
    flow = at(OpenSignalWait(signal_name="note"))
    flow.when(DeliverSignal(name="note", values=["x"], arguments=b"x"))
    return flow


def timed_out() -> Flow:
    flow = at(OpenConditionWait(condition_key="ready", timeout_seconds=5))
    flow.due(5)
    return flow


STATES: list[tuple[str, Callable[[], Flow], str | None, str | None, str]] = [
    ("a new run", lambda: at(), "workflow-task", "workflow_task", "workflow_task_ready"),
    (
        "an activity",
        lambda: at(ScheduleActivity(activity_type="charge")),
        "activity",
        "activity_execution",
        "activity_task_ready",
    ),
    ("a running activity", running, "activity", "activity_execution", "activity_task_leased"),
    ("a timer", lambda: at(StartTimer(delay_seconds=9)), "timer", "timer", "timer_scheduled"),
    ("a condition", lambda: at(OpenConditionWait()), "condition", "external_input", "waiting_for_condition"),
    (
        "a condition with a timeout",
        lambda: at(OpenConditionWait(timeout_seconds=9)),
        "condition",
        "timer",
        "waiting_for_condition",
    ),
    ("a fired timeout", timed_out, "condition", "timer", "waiting_for_condition"),
    ("a signal", lambda: at(OpenSignalWait(signal_name="note")), "signal", "signal", "waiting_for_signal"),
    ("an update", updating, "update", "workflow_update", "workflow_task_ready"),
    ("an update beside all else", busy_updating, "update", "workflow_update", "activity_task_ready"),
    ("a child and a signal", told_beside_a_child, "child", "child_workflow_run", "waiting_for_child"),
    (
        "a child",
        lambda: at(StartChildWorkflow(workflow_type="ship")),
        "child",
        "child_workflow_run",
        "waiting_for_child",
    ),
]


@pytest.mark.contract("UPD-12", "COND-07", "CHILD-08")
@pytest.mark.parametrize(("make", "kind", "source", "state"), [row[1:] for row in STATES], ids=[r[0] for r in STATES])
def test_a_view_shows_the_wait_and_the_liveness_of_a_run(
    make: Callable[[], Flow], kind: str, source: str, state: str
) -> None:
    flow = make()
    wait = wait_of(flow.state)
    assert (wait.kind, wait.source_kind) == (kind, source)
    assert liveness(flow.machine, flow.state, flow.now) == state


@pytest.mark.contract("UPD-12", "UPD-13")
@pytest.mark.parametrize("make", [updating, busy_updating])
def test_an_accepted_update_is_the_wait_whatever_else_is_open_and_when_its_task_is_lost(
    make: Callable[[], Flow],
) -> None:
    flow = make()
    (update,) = flow.run.part(Updates).pending
    for _ in range(2):
        assert wait_of(flow.state) == ("update", f"update:{update}", "workflow_update", update)
        flow.lose(*(task.id for task in flow.tasks.values() if task.kind == "workflow"))


def test_a_condition_stays_the_wait_beside_an_open_workflow_task() -> None:
    flow = at(OpenConditionWait(condition_key="ready"))
    flow.when(DeliverSignal(name="go"))
    assert flow.workflow_task.state == "ready"
    assert wait_of(flow.state).kind == "condition"


def test_waits_keep_their_end() -> None:
    flow = at(
        OpenConditionWait(condition_key="ready", timeout_seconds=60),
        OpenSignalWait(signal_name="note"),
        StartTimer(delay_seconds=90),
        StartChildWorkflow(workflow_type="ship"),
    )
    flow.when(DeliverSignal(name="note", values=["x"], arguments=b"x"))
    flow.complete(SatisfyConditionWait(step=1), ApplySignal(step=2, signal_id="RUN1-s2", value=b"v"))
    seen = {wait.kind: wait for wait in waits(flow.history, flow.run)}
    assert {kind: (wait.status, wait.source_status) for kind, wait in seen.items()} == {
        "condition": ("resolved", "satisfied"),
        "signal": ("resolved", "applied"),
        "timer": ("open", "pending"),
        "child": ("open", "waiting"),
    }
    assert seen["condition"].condition_key == "ready"
    assert (seen["condition"].resume_source_kind, seen["condition"].deadline_at is not None) == ("timer", True)
    assert seen["signal"].signal_id == "RUN1-s2"
    assert (seen["child"].child_call_id, seen["child"].target_type) == ("RUN1-h4", "ship")
    flow.when(Cancel())
    assert {wait.status for wait in waits(flow.history, flow.run)} == {"resolved", "cancelled"}


@pytest.mark.contract("SIG-02", "SIG-03")
def test_every_signal_has_a_record() -> None:
    flow = told()
    flow.when(DeliverSignal(name="nope"))
    flow.when(DeliverSignal(name="note", values=[5]))
    flow.when(DeliverSignal(name="go"))
    flow.complete(ApplySignal(step=1, signal_id="RUN1-s2", value=b"v"))
    seen = signals(flow.history, flow.commands, flow.state.buffered_events)
    assert [(view.signal_name, view.status, view.rejection_reason) for view in seen] == [
        ("note", "applied", None),
        ("nope", "rejected", "unknown_signal"),
        ("note", "rejected", "invalid_signal_arguments"),
        ("go", "applied", None),
    ]
    assert [view.command_sequence for view in seen] == [2, 3, 4, 5]
    assert seen[0].workflow_sequence == 1
    assert seen[2].validation_errors == {"value": ["must be string, not int"]}


def test_a_signal_that_is_held_is_received() -> None:
    flow = at(OpenConditionWait())
    flow.when(DeliverSignal(name="go"))
    flow.claim(flow.workflow_task.id)
    flow.when(DeliverSignal(name="go"))
    assert [view.status for view in signals(flow.history, flow.commands, flow.state.buffered_events)] == [
        "received",
        "received",
    ]


@pytest.mark.contract("UPD-11", "UPD-22")
def test_every_update_has_a_record() -> None:
    flow = updating()
    flow.complete(CompleteUpdate(update_id="RUN1-u2.3", result=b"r"))
    flow.complete()
    flow.when(Update(name="nope"))
    second = flow.when(Update(name="add")).reply.update_id
    flow.complete(FailUpdate(update_id=second, message="no"))
    third = flow.when(Update(name="add")).reply.update_id
    seen = updates(flow.history)
    assert [(view.update_id, view.status) for view in seen] == [
        ("RUN1-u2.3", "completed"),
        ("RUN1-u3", "rejected"),
        (second, "failed"),
        (third, "accepted"),
    ]
    assert (seen[0].result, seen[2].failure_message, seen[1].rejection_reason) == (b"r", "no", "unknown_update")
    assert updates([entry for entry in flow.history if entry.type != "UpdateAccepted"])[1].status == "failed"


@pytest.mark.contract("FAIL-01", "FAIL-03", "FAIL-11")
def test_failures_in_the_order_of_their_events() -> None:
    flow = running()
    flow.fail(1, "boom")
    flow.complete(ScheduleActivity(activity_type="b"), handled=["RUN1-f5"])
    flow.begin(2)
    flow.fail(2, "again")
    flow.complete(FailWorkflow(message="gave up"))
    seen = failures(flow.history, flow.run.run_id)
    assert [(view.message, view.handled, view.propagation_kind) for view in seen] == [
        ("boom", True, "activity"),
        ("again", False, "activity"),
        ("gave up", False, "terminal"),
    ]
    assert [view.sequence for view in seen] == sorted(view.sequence for view in seen)


def blocked() -> Flow:
    flow = at()
    flow.break_task(Block(message="no", replay_blocked=True, reason="history_shape_mismatch"))
    return flow


def lost() -> Flow:
    flow = at(ScheduleActivity(activity_type="charge"))
    flow.lose(flow.activity_task(1).id)
    return flow


def closed() -> Flow:
    return at(CompleteWorkflow())


def archived() -> Flow:
    flow = closed()
    flow.when(Archive())
    return flow


def paused() -> Flow:
    flow = at(OpenConditionWait())
    flow.when(Pause(reason="incident"))
    return flow


ACTIONS: list[tuple[Callable[[], Flow], dict[str, Any]]] = [
    (
        lambda: at(OpenConditionWait()),
        {
            "can_signal": True,
            "can_update": True,
            "can_cancel": True,
            "can_terminate": True,
            "can_query": True,
            "can_archive": False,
            "archive_blocked_reason": "run_not_closed",
            "can_repair": False,
            "repair_blocked_reason": "repair_not_needed",
            "repair_attention": False,
            "task_problem": False,
            "can_issue_terminal_commands": True,
        },
    ),
    (
        closed,
        {
            "can_signal": False,
            "signal_blocked_reason": "run_closed",
            "can_update": False,
            "can_cancel": False,
            "can_archive": True,
            "can_query": True,
            "can_repair": False,
            "repair_blocked_reason": "run_closed",
            "can_issue_terminal_commands": False,
        },
    ),
    (archived, {"can_archive": False, "archive_blocked_reason": "already_archived"}),
    (blocked, {"can_repair": True, "repair_blocked": None, "task_problem": True}),
    (lost, {"can_repair": True, "task_problem": True}),
    (told, {"can_update": False, "update_blocked_reason": "earlier_signal_pending"}),
    (paused, {"can_pause": False, "can_unpause": True}),
]


@pytest.mark.contract("ACTION-01", "ACTION-02", "ACTION-05")
@pytest.mark.parametrize(("make", "expected"), ACTIONS, ids=[str(number) for number in range(len(ACTIONS))])
def test_a_view_lists_the_actions_that_a_run_allows_now(make: Callable[[], Flow], expected: dict[str, Any]) -> None:
    flow = make()
    told = actions(flow.state, liveness(flow.machine, flow.state, flow.now), flow.now)
    assert {name: getattr(told, name) for name in expected} == expected


def test_an_old_run_takes_no_commands() -> None:
    flow = at(OpenConditionWait())
    told = actions(flow.state, liveness(flow.machine, flow.state, flow.now), flow.now, current=False)
    assert (told.can_signal, told.signal_blocked_reason) == (False, "selected_run_not_current")


@pytest.mark.contract("QRY-16")
def test_a_definition_that_no_worker_knows_blocks_queries_and_updates() -> None:
    flow = at(OpenConditionWait())
    told = actions(
        flow.state, liveness(flow.machine, flow.state, flow.now), flow.now, definition="workflow_definition_unavailable"
    )
    assert (told.can_query, told.can_update) == (False, False)


@pytest.mark.contract("ACTION-01", "QRY-16")
@pytest.mark.parametrize(
    ("validators", "can_update"),
    [(None, False), (["add"], False), ([], True)],
    ids=["not recorded", "each has a validator", "one has none"],
)
def test_without_a_worker_only_an_update_without_a_validator_waits_for_one(
    validators: list[str] | None, can_update: bool
) -> None:
    recorded = replace(DEFINITION, update_validators=validators)
    for definition, expected in ((recorded, can_update), (None, False)):
        flow = given(OpenConditionWait(), definition=definition)
        state = liveness(flow.machine, flow.state, flow.now)
        told = actions(flow.state, state, flow.now, definition="query_worker_unavailable")
        assert (told.can_query, told.query_blocked_reason) == (False, "query_worker_unavailable")
        assert told.can_update == expected
        assert told.update_blocked_reason == (None if expected else "workflow_definition_unavailable")


@pytest.mark.contract("DECL-04", "DECL-06", "DECL-07")
def test_the_declared_contract_of_a_run_comes_from_its_start() -> None:
    told = declared(at().state.current.part(Identity).started)
    assert told.declared_contract_source == "durable_history"
    assert [target.name for target in told.declared_signal_targets] == ["go", "note"]
    assert told.declared_signal_targets[1].parameters == [NAME]
    assert declared(given().state.current.part(Identity).started).declared_contract_source == "unavailable"
    incomplete = declared(given(definition=RecordedDefinition(queries=["status"])).state.current.part(Identity).started)
    assert (incomplete.declared_contract_source, incomplete.declared_query_targets) == ("unavailable", [])
