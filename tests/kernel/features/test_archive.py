"""Archive: any closed run of an instance, once; everything else stays as it was."""

from __future__ import annotations

import pytest

from backstay.kernel.features.archive import Archive, Archived, ArchiveRequested, EarlierRun, WorkflowArchived
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.start import Reserve

from ..deciding import decide
from ..given import Flow, given, instant, names
from ..stored import refold, reread, snapshot


def closed() -> Flow:
    return given(CompleteWorkflow())


@pytest.mark.contract("ARCH-01", "ARCH-02")
def test_a_closed_run_is_archived_with_typed_history() -> None:
    flow = closed()
    decision = flow.when(Archive(reason="dealt with"), at=9)
    assert (decision.reply.outcome, decision.reply.accepted, decision.reply.run_id) == ("archived", True, "RUN1")
    assert [entry.event for entry in decision.events] == [
        ArchiveRequested(workflow_command_id="RUN1-c2", outcome="archived", reason="dealt with"),
        WorkflowArchived(archive_command_id="RUN1-c2", reason="dealt with"),
    ]
    assert flow.runs[flow.run.key].archived_at == instant(9)
    assert (flow.run.part(Archived).at, flow.run.part(Archived).reason) == (instant(9), "dealt with")
    assert (flow.run.status, flow.run.closed_reason) == ("completed", "completed")
    assert snapshot(flow, refold(flow)) == snapshot(flow)


@pytest.mark.contract("ARCH-03")
def test_a_second_time_is_accepted_and_not_needed() -> None:
    flow = closed()
    flow.when(Archive(reason="first"), at=9)
    decision = flow.when(Archive(reason="second"), at=10)
    assert (decision.reply.outcome, decision.reply.accepted) == ("archive_not_needed", True)
    assert names(decision.events) == ["ArchiveRequested"]
    assert flow.runs[flow.run.key].archived_at == instant(9)
    assert flow.run.part(Archived).reason == "first"


@pytest.mark.contract("ARCH-04", "CANCEL-04")
def test_an_open_run_is_not_archived() -> None:
    flow = given()
    decision = flow.when(Archive())
    (command,) = decision.commands
    assert (command.status, command.outcome) == ("rejected", "rejected_run_not_closed")
    assert command.rejection_reason == "run_not_closed"
    assert decision.events == []


@pytest.mark.contract("CANCEL-04")
def test_an_instance_without_a_run_has_nothing_to_archive() -> None:
    flow = Flow()
    flow.when(Reserve(namespace="default", workflow_id="order-1", workflow_type="order"))
    reply = flow.when(Archive()).reply
    assert (reply.outcome, reply.rejection_reason) == ("rejected_not_started", "instance_not_started")


def earlier(flow: Flow, key: int, run_id: str, number: int) -> EarlierRun:
    """An earlier run, as the shell hands it in."""
    return EarlierRun(key=key, run_id=run_id, number=number, history=reread(flow.machine, flow.histories[key]))


@pytest.mark.contract("ARCH-01", "REC-06")
def test_an_earlier_run_can_be_archived_while_the_current_one_goes_on() -> None:
    flow = given()
    key = flow.run.key
    flow.complete(ContinueAsNew(), at=1)
    tasks, length = dict(flow.rows), flow.run.length
    message = Archive(run_id="RUN1", earlier=earlier(flow, key, "RUN1", 1))
    decision = flow.when(message, at=9)
    assert (decision.reply.outcome, decision.reply.run_id) == ("archived", "RUN1")
    assert {entry.run for entry in decision.events} == {key}
    assert names(flow.histories[key])[-3:] == ["WorkflowContinuedAsNew", "ArchiveRequested", "WorkflowArchived"]
    reread(flow.machine, flow.histories[key])
    assert (flow.runs[key].archived_at, flow.runs[key].status) == (instant(9), "completed")
    assert flow.runs[flow.run.key].archived_at is None
    assert (flow.rows, flow.run.length, flow.run.run_id) == (tasks, length, "RUN2")
    assert snapshot(flow, refold(flow)) == snapshot(flow)
    again = flow.when(Archive(run_id="RUN1", earlier=earlier(flow, key, "RUN1", 1)))
    assert again.reply.outcome == "archive_not_needed"


def test_time_does_not_run_backwards_in_an_archived_run_either() -> None:
    flow = given()
    key = flow.run.key
    flow.complete(ContinueAsNew(), at=1)
    for at in (90, 30):
        flow.when(Archive(run_id="RUN1", earlier=earlier(flow, key, "RUN1", 1)), at=at)
    assert [entry.at for entry in flow.histories[key][-3:]] == [instant(90)] * 3


def test_a_run_that_is_no_longer_the_current_one_is_not_mistaken_for_it() -> None:
    flow = given()
    flow.complete(ContinueAsNew())
    flow.complete(CompleteWorkflow())
    decision = flow.when(Archive(run_id="RUN1"))
    assert (decision.reply.outcome, decision.reply.rejection_reason) == (
        "rejected_not_current",
        "selected_run_not_current",
    )
    assert flow.runs[flow.run.key].archived_at is None


def test_deciding_an_archive_again_finds_no_trace_of_its_first_try() -> None:
    """A decision that did not commit is made once more, from the same message."""
    flow = given()
    key = flow.run.key
    flow.complete(ContinueAsNew(), at=1)
    message = Archive(run_id="RUN1", earlier=earlier(flow, key, "RUN1", 1))
    first = decide(flow.machine, refold(flow), message, flow.now, flow.ids)
    again = decide(flow.machine, refold(flow), message, flow.now, flow.ids)
    assert [entry.sequence for entry in again.events] == [entry.sequence for entry in first.events]
    assert names(again.events) == ["ArchiveRequested", "WorkflowArchived"]
