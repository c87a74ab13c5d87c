"""The definition of a run: recorded at its start, adopted from the worker that completes its first task, fixed from then on."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.deadline import Due
from backstay.kernel.features.signal import DeliverSignal, SignalApplied, SignalReceived
from backstay.kernel.features.signal_rejection import RejectSignal, SignalRejected
from backstay.kernel.features.start import (
    AdoptDefinition,
    Identity,
    RecordedDefinition,
    WorkflowDefinitionAdopted,
    differs,
    started_of,
)
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.features.update import CompleteUpdate, Update
from backstay.kernel.message import Refused
from backstay.kernel.task import Block

from ..given import given

OLD = RecordedDefinition(fingerprint="sha256:old", change_ids=[], signals=["go"], signal_contracts=[{"name": "go"}])
NEW = RecordedDefinition(
    fingerprint="sha256:new",
    change_ids=["fix"],
    signals=["go"],
    signal_contracts=[{"name": "go", "mode": "wait"}],
    updates=["add"],
    update_contracts=[{"name": "add"}],
    update_validators=[],
)


def adopted(flow: Any) -> list[str | None]:
    return [
        entry.event.workflow_definition_fingerprint
        for entry in flow.history
        if isinstance(entry.event, WorkflowDefinitionAdopted)
    ]


def fingerprint(flow: Any) -> str | None:
    """What the state says, and a fold of the history, and what is read from the history alone."""
    state = flow.state.run.part(Identity).started.workflow_definition_fingerprint
    told = started_of(flow.history)
    assert told is not None
    assert told.workflow_definition_fingerprint == state
    return state


@pytest.mark.parametrize("before", [OLD, None], ids=["another", "none"])
def test_the_worker_that_completes_the_first_task_defines_the_run(before: RecordedDefinition | None) -> None:
    flow = given(definition=before)
    flow.complete(AdoptDefinition(definition=NEW), StartTimer(delay_seconds=1))
    assert adopted(flow) == ["sha256:new"]
    assert fingerprint(flow) == "sha256:new"
    flow.when(Due(), at=5)
    flow.complete(AdoptDefinition(definition=OLD), StartTimer(delay_seconds=1))
    assert adopted(flow) == ["sha256:new"]


def test_a_definition_that_is_recorded_already_is_not_recorded_again() -> None:
    flow = given(definition=NEW)
    flow.complete(AdoptDefinition(definition=NEW), StartTimer(delay_seconds=1))
    assert adopted(flow) == []


def test_a_task_that_failed_has_decided_nothing() -> None:
    flow = given(definition=OLD)
    flow.break_task(Block(message="no"))
    flow.when(Due(), at=600)
    flow.complete(AdoptDefinition(definition=NEW), StartTimer(delay_seconds=1))
    assert fingerprint(flow) == "sha256:new"


def test_an_update_that_was_handled_before_the_first_task_settles_the_definition() -> None:
    flow = given(definition=NEW)
    flow.when(Update(name="add"))
    update_id = next(iter(flow.state.tasks.values())).resume.workflow_update_id
    assert update_id
    flow.complete(CompleteUpdate(update_id=update_id))
    flow.complete(AdoptDefinition(definition=OLD), StartTimer(delay_seconds=1))
    assert adopted(flow) == []


def test_an_update_that_is_the_first_task_may_adopt() -> None:
    flow = given(definition=replace(NEW, fingerprint="sha256:before"))
    flow.when(Update(name="add"))
    update_id = next(iter(flow.state.tasks.values())).resume.workflow_update_id
    assert update_id
    flow.complete(AdoptDefinition(definition=NEW), CompleteUpdate(update_id=update_id))
    assert fingerprint(flow) == "sha256:new"


def test_a_signal_of_before_goes_to_a_wait_if_the_adopted_definition_waits_for_it() -> None:
    flow = given()
    flow.when(DeliverSignal(name="go"))
    flow.complete(AdoptDefinition(definition=NEW), StartTimer(delay_seconds=1))
    assert not any(isinstance(entry.event, SignalApplied) for entry in flow.history)


def test_a_rejected_signal_is_neither_pending_nor_applied() -> None:
    flow = given()
    flow.when(DeliverSignal(name="nope"))
    flow.when(DeliverSignal(name="go"))
    first, second = (e.event.signal_id for e in flow.history if isinstance(e.event, SignalReceived))
    reject = RejectSignal(signal_id=first, rejection_reason="unknown_signal")
    flow.complete(AdoptDefinition(definition=OLD), reject, StartTimer(delay_seconds=1))
    told = [
        (type(e.event), e.event.signal_id) for e in flow.history if isinstance(e.event, SignalRejected | SignalApplied)
    ]
    assert told == [(SignalRejected, first), (SignalApplied, second)]


def test_a_signal_is_rejected_for_two_reasons_only() -> None:
    flow = given()
    with pytest.raises(Refused, match="unknown_signal or invalid_signal_arguments"):
        flow.complete(RejectSignal(signal_id="x", rejection_reason="mood"), StartTimer(delay_seconds=1))


@pytest.mark.parametrize(
    "change",
    [
        {"fingerprint": "sha256:other"},
        {"signal_contracts": []},
        {"query_contracts": [{"name": "q"}]},
        {"update_contracts": []},
        {"update_validators": ["add"]},
        {"cleanup_seconds": 5.0},
    ],
    ids=lambda change: next(iter(change)),
)
def test_any_part_that_callers_or_versions_go_by_makes_another_definition(change: dict[str, Any]) -> None:
    flow = given(definition=NEW)
    assert flow.state.run
    started = flow.state.run.part(Identity).started
    assert started
    assert not differs(started, NEW)
    assert differs(started, replace(NEW, **change))


def test_leading_commands_do_not_count_as_steps() -> None:
    flow = given(definition=OLD)
    flow.complete(AdoptDefinition(definition=NEW), ScheduleActivity(activity_type="a", sequence=1))
    assert flow.state.run
    assert flow.state.run.step == 1
