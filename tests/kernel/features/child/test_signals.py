"""Signals from a parent to its child: from its code and from an update, exactly once. Giving a child up."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from backstay.kernel.features.child import CancelChild, SignalChild, SignalChildFromUpdate, signalling
from backstay.kernel.features.child.messages import (
    AskAfterSignals,
    SignalFromParent,
    SignalsArrived,
    StartFromParent,
    StopFromParent,
)
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.reconcile import Reconcile
from backstay.kernel.features.start import RecordedDefinition
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.features.update import CompleteUpdate
from backstay.kernel.send import OutboxMessage
from backstay.kernel.values import child_call_id

from ...given import TALKING, names
from ...stored import refold, snapshot
from ...world import Member, World, call, calling, group


def signals(child: Member) -> list[str]:
    found: list[Any] = [entry.event for entry in child.history if entry.type == "SignalReceived"]
    return [event.signal_name for event in found]


def beside() -> tuple[World, Member, Member, str]:
    """A parent that goes on beside its child."""
    world, parent = calling(call(definition=TALKING), StartTimer(delay_seconds=1), definition=TALKING)
    parent.due(at=1)
    return world, parent, world.child_of(parent), child_call_id(parent.run.run_id, 1)


@pytest.mark.contract("HNDL-05")
def test_a_signal_is_a_step_of_the_parent_and_a_command_of_the_child() -> None:
    world, parent, child, call_id = beside()
    decision = parent.complete(SignalChild(child_call_id=call_id, signal_name="go", arguments=b"[]"))
    assert names(decision.events) == ["ChildSignalSent"]
    assert decision.events[0].event.sequence == 3  # type: ignore[attr-defined]
    world.settle()
    assert signals(child) == ["go"]
    command = child.commands[-1]
    assert (command.command_type, command.source, command.status) == ("signal", "workflow", "accepted")
    assert command.context["workflow"]["child_call_id"] == call_id


def test_a_signal_that_comes_twice_is_received_once() -> None:
    world, parent, child, call_id = beside()
    parent.complete(SignalChild(child_call_id=call_id, signal_name="go"))
    send = world.one(SignalFromParent)
    world.deliver(send)
    again = world.deliver(send)
    assert again.taken_sends == [send.key]
    assert signals(child) == ["go"]
    assert len([c for c in child.commands if c.command_type == "signal"]) == 1


def test_two_signals_are_two() -> None:
    world, parent, child, call_id = beside()
    parent.complete(
        SignalChild(child_call_id=call_id, signal_name="go"), SignalChild(child_call_id=call_id, signal_name="go")
    )
    world.settle()
    assert signals(child) == ["go", "go"]


@pytest.mark.contract("HNDL-06")
def test_an_update_may_signal_the_child_as_part_of_its_completion() -> None:
    world, parent, child, call_id = beside()
    parent.complete(StartTimer(delay_seconds=100))
    accepted = parent.update().reply
    decision = parent.complete(
        SignalChildFromUpdate(update_id=accepted.update_id, number=1, child_call_id=call_id, signal_name="go"),
        SignalChildFromUpdate(update_id=accepted.update_id, number=2, child_call_id=call_id, signal_name="note"),
        CompleteUpdate(update_id=accepted.update_id),
    )
    found = names(decision.events)
    assert [e for e in found if e.startswith("Child")] == ["ChildSignalSentByUpdate"] * 2
    assert "UpdateCompleted" in found
    for send in world.on_their_way(SignalFromParent):
        world.deliver(send)
        world.deliver(send)
    assert signals(child) == ["go", "note"]
    assert snapshot(parent, refold(parent)) == snapshot(parent)


def test_a_signal_to_a_child_that_is_over_goes_nowhere() -> None:
    world, parent, child, call_id = beside()
    child.complete(CompleteWorkflow())
    world.settle()
    decision = parent.complete(SignalChild(child_call_id=call_id, signal_name="go"))
    assert names(decision.events) == ["ChildSignalSent"], "the step is taken all the same"
    assert not decision.sends


def test_a_signal_that_crosses_the_end_of_the_child_is_rejected_there() -> None:
    world, parent, child, call_id = beside()
    child.complete(CompleteWorkflow())
    parent.complete(SignalChild(child_call_id=call_id, signal_name="go"))
    world.settle()
    assert child.commands[-1].status == "rejected"
    assert not world.rows


def test_a_signal_reaches_the_newest_run_of_the_child() -> None:
    world, parent, child, call_id = beside()
    child.complete(ContinueAsNew(definition=TALKING))
    parent.complete(SignalChild(child_call_id=call_id, signal_name="go"))
    world.settle()
    assert (child.run.number, signals(child)) == (2, ["go"])


# -- signals that are lost on their way


def ask(world: World, parent: Member) -> None:
    parent.when(Reconcile(incarnation="e", ask=True))
    world.settle()


def confirmed(parent: Member) -> list[int]:
    found: list[Any] = [entry.event for entry in parent.history if entry.type == "ChildSignalsConfirmed"]
    return [event.through for event in found]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_signal_that_is_lost_is_sent_again(restarted: bool) -> None:
    world, parent, child, call_id = beside()
    parent.complete(SignalChild(child_call_id=call_id, signal_name="go", arguments=b"[7]"))
    sent = parent.run.length
    world.rows.clear()
    for _ in range(3):
        if restarted:
            parent.reopen()
            child.reopen()
        ask(world, parent)
        assert signals(child) == ["go"]
    assert child.commands[-1].payload == b"[7]"
    assert confirmed(parent) == [sent], "and once that is known, nobody asks again"
    assert snapshot(parent, refold(parent)) == snapshot(parent)


def test_a_signal_from_an_update_that_is_lost_is_sent_again() -> None:
    world, parent, child, call_id = beside()
    parent.complete(StartTimer(delay_seconds=100))
    accepted = parent.update().reply
    parent.complete(
        SignalChildFromUpdate(update_id=accepted.update_id, number=1, child_call_id=call_id, signal_name="go"),
        SignalChildFromUpdate(update_id=accepted.update_id, number=2, child_call_id=call_id, signal_name="note"),
        CompleteUpdate(update_id=accepted.update_id),
    )
    first, _ = world.on_their_way(SignalFromParent)
    del world.rows[first.key]
    ask(world, parent)
    ask(world, parent)
    assert signals(child) == ["note", "go"]


def test_a_signal_that_has_arrived_is_known_without_a_second_send() -> None:
    world, parent, child, call_id = beside()
    parent.complete(SignalChild(child_call_id=call_id, signal_name="go"))
    world.settle()
    before = len(world.log)
    ask(world, parent)
    assert [type(send.message) for send in world.log[before:]] == [StartFromParent, AskAfterSignals, SignalsArrived]
    ask(world, parent)
    assert isinstance(world.log[-1].message, StartFromParent), "nothing is left to be asked after"
    assert signals(child) == ["go"]


def test_a_signal_on_its_way_is_not_lost() -> None:
    """What is sent to one receiver arrives in its order: the question comes after the signal."""
    world, parent, child, call_id = beside()
    parent.complete(SignalChild(child_call_id=call_id, signal_name="go"))
    ask(world, parent)
    assert len([send for send in world.log if isinstance(send.message, SignalFromParent)]) == 1
    assert signals(child) == ["go"]


@pytest.mark.parametrize("lost", [AskAfterSignals, SignalsArrived])
def test_a_question_after_signals_that_is_lost_is_asked_again(lost: type[OutboxMessage]) -> None:
    world, parent, child, call_id = beside()
    parent.complete(SignalChild(child_call_id=call_id, signal_name="go"))
    world.rows.clear()
    parent.when(Reconcile(incarnation="e", ask=True))
    while not (found := world.on_their_way(lost)):
        world.deliver(world.on_their_way()[0])
    del world.rows[found[0].key]
    world.settle()
    ask(world, parent)
    ask(world, parent)
    assert signals(child) == ["go"]
    assert len(confirmed(parent)) == 1


@pytest.mark.parametrize("lost", [False, True])
def test_a_child_that_has_continued_as_new_gets_a_signal_once(lost: bool) -> None:
    world, parent, child, call_id = beside()
    parent.complete(SignalChild(child_call_id=call_id, signal_name="go"))
    if lost:
        world.rows.clear()
    world.settle()
    child.complete(ContinueAsNew(definition=TALKING))
    world.settle()
    ask(world, parent)
    ask(world, parent)
    assert child.run.number == 2
    assert len([c for c in child.commands if c.command_type == "signal"]) == 1
    assert signals(child) == ["go"], "an earlier run had no handler for it and carried it on"


def test_of_a_child_that_is_over_the_parent_hears_that_and_asks_no_more() -> None:
    world, parent, child, call_id = beside()
    parent.complete(SignalChild(child_call_id=call_id, signal_name="go"), StartTimer(delay_seconds=100))
    world.rows.clear()
    child.complete(CompleteWorkflow())
    world.rows.clear()  # its report is lost as well
    ask(world, parent)
    assert "ChildRunCompleted" in names(parent.history)
    assert (signals(child), confirmed(parent)) == ([], [])
    assert not parent.when(Reconcile(incarnation="e", ask=True)).sends


def test_an_answer_about_signals_that_comes_late_or_twice_does_nothing() -> None:
    world, parent, child, call_id = beside()
    parent.complete(SignalChild(child_call_id=call_id, signal_name="go"), StartTimer(delay_seconds=100))
    world.rows.clear()
    ask(world, parent)
    answers = [send for send in world.log if isinstance(send.message, SignalsArrived)]
    ask(world, parent)
    for answer in answers:
        assert not world.deliver(answer).sends
    parent.due(at=200)
    parent.complete(ContinueAsNew())
    for answer in answers:
        assert not world.deliver(answer).sends
    assert signals(child) == ["go"]


def test_many_signals_are_asked_after_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signalling, "PAGE", 2)
    world, parent, child, call_id = beside()
    parent.complete(*(SignalChild(child_call_id=call_id, signal_name="go", arguments=b"%d" % n) for n in range(7)))
    for send in world.on_their_way(SignalFromParent)[1::4]:
        del world.rows[send.key]  # the second and the sixth
    ask(world, parent)
    assert signals(child) == ["go"] * 7
    ask(world, parent)
    assert [command.payload for command in child.commands[-7:]] == [b"0", b"2", b"3", b"4", b"6", b"1", b"5"]
    assert confirmed(parent)[-1] == max(e.sequence for e in parent.history if e.type == "ChildSignalSent")
    before = len(world.log)
    ask(world, parent)
    assert [type(send.message) for send in world.log[before:]] == [StartFromParent]


def test_a_signal_that_was_meant_for_another_child_is_ignored() -> None:
    world, parent, child, call_id = beside()
    parent.complete(SignalChild(child_call_id=call_id, signal_name="go"))
    send = world.one(SignalFromParent)
    stranger = world.start("stranger", definition=TALKING)
    world.rows.clear()
    world.deliver(replace(send, workflow_id="stranger"))
    assert signals(stranger) == []
    assert signals(child) == []


def test_giving_up_a_child_asks_it_to_stop_and_wants_no_answer() -> None:
    world, parent, child, _ = beside()
    parent.complete(CancelChild(step=1))
    stop: Any = world.one(StopFromParent).message
    assert (stop.policy, stop.answer) == ("request_cancel", False)
    world.settle()
    assert child.run.closed_reason == "cancelled"
    assert names(parent.history)[-1] == "ChildRunCancelled"
    assert "ParentClosePolicyApplied" not in names(parent.history)


# -- children that a bounded group holds back


def bounded(**options: Any) -> tuple[World, Member]:
    path = [[group(1, 2, index, limit=1)] for index in range(2)]
    return calling(*(call(parallel_group_path=p, **options) for p in path), definition=TALKING)


def test_a_signal_to_a_child_that_is_held_back_goes_with_its_start() -> None:
    world, parent = bounded(definition=TALKING)
    accepted = parent.update().reply
    second = child_call_id(parent.run.run_id, 2)
    parent.complete(
        SignalChildFromUpdate(update_id=accepted.update_id, number=1, child_call_id=second, signal_name="go"),
        CompleteUpdate(update_id=accepted.update_id),
    )
    assert not world.rows, "there is nobody yet who could take it"
    parent.reopen()
    world.child_of(parent, 1).complete(CompleteWorkflow())
    world.settle()
    assert signals(world.child_of(parent, 2)) == ["go"]
    assert snapshot(parent, refold(parent)) == snapshot(parent)


def test_a_child_that_is_held_back_and_given_up_never_starts() -> None:
    world, parent = bounded()
    parent.update()
    parent.complete(CompleteUpdate(update_id=parent.workflow_task.resume.workflow_update_id or ""))
    parent.signal()
    decision = parent.complete(CancelChild(step=2))
    assert names(decision.events)[-1] == "ChildRunCancelled"
    assert not decision.sends
    world.child_of(parent, 1).complete(CompleteWorkflow())
    world.settle()
    assert not world.child_of(parent, 2).state.exists


def test_a_child_that_is_held_back_gets_its_definition_when_it_is_let_go() -> None:
    known = RecordedDefinition(workflow_class="shop:Ship", signals=["go"])
    world, parent = bounded(definition=known)
    parent.reopen()
    world.child_of(parent, 1).complete(CompleteWorkflow())
    world.settle()
    start: Any = [send.message for send in world.log if isinstance(send.message, StartFromParent)][-1]
    assert start.definition == known
