"""Archive: any closed run of an instance, once; everything else stays as it was."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backstay.kernel.features.archive import Archive, Archived, ArchiveRequested, WorkflowArchived
from backstay.kernel.features.cancel import Cancel
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.instance_commands import NOT_LOOKED_AT
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


@pytest.mark.contract("ARCH-01", "REC-06")
def test_an_earlier_run_can_be_archived_while_the_current_one_goes_on() -> None:
    flow = given()
    key = flow.run.key
    flow.complete(ContinueAsNew(), at=1)
    tasks, length = dict(flow.rows), flow.run.length
    message = Archive(run_id="RUN1")
    decision = flow.when(message, at=9)
    assert (decision.reply.outcome, decision.reply.run_id) == ("archived", "RUN1")
    assert {entry.run for entry in decision.events} == {key}
    assert names(flow.histories[key])[-3:] == ["WorkflowContinuedAsNew", "ArchiveRequested", "WorkflowArchived"]
    reread(flow.machine, flow.histories[key])
    assert (flow.runs[key].archived_at, flow.runs[key].status) == (instant(9), "completed")
    assert flow.runs[flow.run.key].archived_at is None
    assert (flow.rows, flow.run.length, flow.run.run_id) == (tasks, length, "RUN2")
    assert snapshot(flow, refold(flow)) == snapshot(flow)
    again = flow.when(Archive(run_id="RUN1"))
    assert again.reply.outcome == "archive_not_needed"


def test_time_does_not_run_backwards_in_an_archived_run_either() -> None:
    flow = given()
    key = flow.run.key
    flow.complete(ContinueAsNew(), at=1)
    for at in (90, 30):
        flow.when(Archive(run_id="RUN1"), at=at)
    assert [entry.at for entry in flow.histories[key][-3:]] == [instant(90)] * 3


@pytest.mark.contract("REC-01", "CANCEL-04")
def test_commands_are_numbered_in_the_run_that_they_name() -> None:
    flow = given()
    key = flow.run.key
    flow.complete(ContinueAsNew(), at=1)
    looked = flow.earlier(key)
    flow.when(Cancel(run_id="RUN1", earlier=looked))
    late = Archive(run_id="RUN1", earlier=looked)
    assert flow.refused(late).reason == NOT_LOOKED_AT, "its number and the end of the history are taken"
    flow.when(Archive(run_id="RUN1"))
    flow.when(Cancel())
    own = [(c.command_type, c.sequence, c.id) for c in flow.commands if c.run == key]
    assert own == [("start", 1, "RUN1-c1"), ("cancel", 2, "RUN1-c2"), ("archive", 3, "RUN1-c3")]
    assert [(c.command_type, c.sequence) for c in flow.commands if c.run == flow.run.key] == [
        ("start", 1),
        ("cancel", 2),
    ]


def test_a_number_that_was_counted_before_the_instance_was_read_again_is_not_used() -> None:
    """Another process may have numbered a command in between."""
    flow = given()
    key = flow.run.key
    flow.complete(ContinueAsNew(), at=1)
    looked = flow.earlier(key)
    assert looked is not None
    stale = replace(looked, loaded_from=looked.loaded_from + 1)
    assert flow.refused(Cancel(run_id="RUN1", earlier=stale)).reason == NOT_LOOKED_AT


def test_deciding_an_archive_again_finds_no_trace_of_its_first_try() -> None:
    """A decision that did not commit is made once more, from the same message."""
    flow = given()
    key = flow.run.key
    flow.complete(ContinueAsNew(), at=1)
    message = Archive(run_id="RUN1", earlier=flow.earlier(key))
    first = decide(flow.machine, refold(flow), message, flow.now, flow.ids)
    again = decide(flow.machine, refold(flow), message, flow.now, flow.ids)
    assert [entry.sequence for entry in again.events] == [entry.sequence for entry in first.events]
    assert names(again.events) == ["ArchiveRequested", "WorkflowArchived"]
