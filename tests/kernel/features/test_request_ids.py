"""Request ids: a retry is answered from the record of the first try, accepted or rejected, except where the answer was to try
again; one id means one thing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from backstay.kernel.features.activity import RetryPolicy
from backstay.kernel.features.archive import Archive
from backstay.kernel.features.cancel import Cancel, Terminate
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.pause import Pause, Unpause
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.repair import Repair
from backstay.kernel.features.retry_now import RetryNow
from backstay.kernel.features.signal import DeliverSignal
from backstay.kernel.features.skip_wait import SkipWait
from backstay.kernel.features.start import Start
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.features.update import CompleteUpdate, Update

from ..deciding import vars_of
from ..given import TALKING, Flow, given, running, started


def waiting() -> Flow:
    return given(StartTimer(delay_seconds=600), definition=TALKING)


def backing_off() -> Flow:
    flow = running(RetryPolicy(max_attempts=2, backoff_seconds=[600]), definition=TALKING)
    flow.fail(1)
    return flow


def closed() -> Flow:
    return given(CompleteWorkflow(), definition=TALKING)


def command(message: Any) -> Any:
    return replace(message, request_id="r1")


REPAIR = Repair(work=Reconcile(incarnation="engine-1"))
ACCEPTED: list[tuple[Any, Any]] = [
    (waiting, DeliverSignal(name="go", arguments=b"1")),
    (waiting, Update(name="add", arguments=b"1")),
    (waiting, Cancel(reason="why")),
    (waiting, Terminate(reason="why")),
    (waiting, REPAIR),
    (closed, Archive(reason="why")),
    (waiting, Pause(reason="why")),
    (waiting, Unpause(reason="why")),
    (backing_off, RetryNow(reason="why")),
    (waiting, SkipWait(reason="why")),
    (Flow, started(definition=TALKING, arguments=b"1")),
]
REJECTED: list[tuple[Any, Any]] = [
    (waiting, DeliverSignal(name="typo", arguments=b"1")),
    (waiting, Update(name="typo", arguments=b"1")),
    (closed, Cancel(reason="why")),
    (closed, Terminate(reason="why")),
    (closed, REPAIR),
    (waiting, Archive(reason="why")),
    (closed, Pause(reason="why")),
    (closed, Unpause(reason="why")),
    (waiting, RetryNow(activity_execution_id="RUN1-1")),
    (waiting, SkipWait(wait_id="RUN1-t7")),
    (closed, started(definition=TALKING, arguments=b"1")),
]


def name_of(value: Any) -> str:
    return type(value).__name__.lower() if hasattr(value, "request_id") else ""


def answer(reply: Any) -> dict[str, Any]:
    reply = getattr(reply, "command", reply)
    fields = ("workflow_id", "run_id", "command_id", "outcome", "accepted", "rejection_reason")
    more = (
        () if not hasattr(reply, "signal_id") else ("command_sequence", "signal_id", "update_id", "validation_errors")
    )
    return vars_of(reply, (*fields, *more))


@pytest.mark.parametrize(("flow_of", "message"), ACCEPTED + REJECTED, ids=name_of)
def test_a_retry_gets_the_first_answer_and_changes_nothing(flow_of: Any, message: Any) -> None:
    flow = flow_of()
    first = flow.when(command(message))
    assert first.commands[0].request_id == "r1"
    again = flow.again(command(message), at=60)
    assert again.idle
    assert answer(again.reply) == answer(first.reply)
    if not isinstance(message, Start):
        assert getattr(again.reply, "command", again.reply).repeated


@pytest.mark.parametrize(("flow_of", "message"), ACCEPTED, ids=name_of)
def test_a_retry_is_answered_the_same_by_a_later_run(flow_of: Any, message: Any) -> None:
    if isinstance(message, Cancel | Terminate | Archive):
        return  # they are the end of the chain
    flow = flow_of()
    first = flow.when(command(message))
    if isinstance(message, Update):
        flow.complete(CompleteUpdate(update_id=first.reply.update_id))
    if isinstance(message, Pause):
        flow.when(Unpause())
    flow.signal("note")
    flow.complete(ContinueAsNew())
    again = flow.again(command(message))
    assert again.idle
    assert answer(again.reply) == answer(first.reply)
    assert answer(again.reply)["run_id"] == "RUN1"


@pytest.mark.parametrize("in_the_way", ["a signal", "no code"])
def test_a_request_that_was_told_to_retry_is_decided_anew(in_the_way: str) -> None:
    flow = waiting()
    message = Update(
        name="add", arguments=b"1", request_id="r1", missing="no worker" if in_the_way == "no code" else None
    )
    if in_the_way == "a signal":
        flow.signal("note")
    first = flow.when(message)
    assert not first.reply.accepted
    assert (first.commands[0].status, first.commands[0].request_id) == ("rejected", None)
    if in_the_way == "a signal":
        flow.complete()
    again = flow.again(replace(message, missing=None))
    assert again.reply.accepted
    assert answer(flow.again(message).reply) == answer(again.reply)


CONFLICTS: list[tuple[Any, Any, Any]] = [
    (waiting, DeliverSignal(name="go"), DeliverSignal(name="stop")),
    (waiting, DeliverSignal(name="go"), DeliverSignal(name="go", arguments=b"1")),
    (waiting, DeliverSignal(name="go"), DeliverSignal(name="go", run_id="RUN1")),
    (waiting, Update(name="add"), Update(name="add", arguments=b"1")),
    (waiting, Update(name="add"), Update(name="typo")),
    (waiting, Cancel(), Cancel(run_id="RUN1")),
    (waiting, Terminate(), Terminate(run_id="RUN1")),
    (waiting, REPAIR, replace(REPAIR, run_id="RUN1")),
    (closed, Archive(), Archive(reason="another")),
    (waiting, Pause(), Pause(reason="another")),
    (waiting, Unpause(), Unpause(reason="another")),
    (backing_off, RetryNow(), RetryNow(activity_execution_id="RUN1-1")),
    (Flow, started(), started(arguments=b"1")),
    (Flow, started(), started(workflow_type="other")),
]


@pytest.mark.parametrize(("flow_of", "message", "other"), CONFLICTS, ids=name_of)
def test_another_intent_under_the_same_id_is_a_conflict(flow_of: Any, message: Any, other: Any) -> None:
    flow = flow_of()
    first = flow.when(command(message))
    refusal = flow.refused(flow.retried(command(other)))
    assert (refusal.reason, refusal.fields["field"]) == ("request_id_conflict", "request_id")
    assert refusal.fields["retained_command_id"] == first.commands[0].id
    assert refusal.fields["retained_command_type"] == first.commands[0].command_type


def test_without_a_request_id_every_command_counts() -> None:
    flow = waiting()
    over_http = {"request": {"route": "/api/workflows/one/signal/go"}}
    ids = [flow.signal("go", context=over_http).reply.signal_id for _ in range(2)]
    assert ids == ["RUN1-s2", "RUN1-s3"]
    first, second = [entry.fingerprint for entry in flow.commands if entry.command_type == "signal"]
    assert first == second is not None, "the record tells that both said the same, and both counted"


@pytest.mark.parametrize("held", [False, True])
def test_a_retry_while_the_first_is_held_is_a_retry(held: bool) -> None:
    flow = given(definition=TALKING)
    if held:
        flow.lease()
    message = DeliverSignal(name="go", request_id="r1")
    flow.when(message)
    assert flow.again(message).idle
    assert len([entry for entry in flow.commands if entry.command_type == "signal"]) == 1
    assert len(flow.state.buffered_events) == int(held)
