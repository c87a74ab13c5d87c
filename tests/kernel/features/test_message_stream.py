"""Message streams: positions that go on for the life of an instance, ids that count once, cursors that only advance."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as given_
from hypothesis import strategies as st
from msgspec.structs import replace

from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.condition import OpenConditionWait
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.message_stream import (
    AdvanceMessageCursor,
    Inboxes,
    MessageAppend,
    MessageCursorAdvanced,
    MessageCursorCarried,
    MessageReceived,
    request_id,
)
from backstay.kernel.limits import Limits
from backstay.kernel.message import Refused

from ..given import TALKING, Flow, given, names, only
from ..stored import refold, snapshot

WAIT = OpenConditionWait(condition_key="message-stream:in:0")


def message(id: str, payload: bytes = b"[]", stream: str = "in") -> MessageAppend:
    return MessageAppend(name=stream, message_id=id, arguments=payload, values=None, request_id=request_id(stream, id))


def send(flow: Flow, id: str, payload: bytes = b"[]", stream: str = "in") -> Any:
    """As the shell does: with the record of the first one that had its id."""
    asked = message(id, payload, stream)
    found = [command for command in flow.commands if command.request_id == asked.request_id]
    return flow.when(replace(asked, retained=found[0] if found else None))


def cursor(position: int, stream: str = "in") -> AdvanceMessageCursor:
    return AdvanceMessageCursor(stream_name=stream, through_position=position)


def inbox(flow: Flow, stream: str = "in") -> tuple[int, int, list[int]]:
    found = flow.run.part(Inboxes).streams[stream]
    again = refold(flow).current.part(Inboxes).streams[stream]
    assert (found.cursor, found.last, list(found.unread)) == (again.cursor, again.last, list(again.unread))
    return found.cursor, found.last, list(found.unread)


def test_messages_are_numbered_per_stream_and_wake_the_run() -> None:
    flow = given(WAIT, definition=TALKING)
    assert flow.rows == {}
    first = send(flow, "a", b"[1]")
    assert only(first, MessageReceived).payload == b"[1]"
    assert [task.kind for task in flow.rows.values()] == ["workflow"]
    assert [send(flow, "b").reply.position, send(flow, "a", stream="other").reply.position] == [2, 1]
    assert inbox(flow) == (0, 2, [1, 2])
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_code_that_waits_for_something_else_is_shown_messages_when_that_has_come() -> None:
    flow = given(ScheduleActivity(activity_type="charge"))
    send(flow, "a")
    assert [task.kind for task in flow.rows.values()] == ["activity"]
    assert set(flow.machine.expect(flow.state).tasks) == set(flow.rows)
    flow.begin(1)
    flow.finish(1)
    task = flow.lease()
    assert task.seen == flow.run.length
    decision = flow.complete(cursor(1), WAIT)
    assert names(decision.events) == ["MessageCursorAdvanced", "ConditionWaitOpened"]
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_an_id_counts_once_and_means_one_thing() -> None:
    flow = given(WAIT)
    send(flow, "a", b"[1]")
    again = send(flow, "a", b"[1]")
    assert (again.reply.position, again.reply.command.repeated, again.events) == (1, True, [])
    with pytest.raises(Refused) as refusal:
        send(flow, "a", b"[2]")
    assert refusal.value.reason == "request_id_conflict"
    assert send(flow, "b").reply.position == 2


def test_a_cursor_is_recorded_when_it_advances_and_only_then() -> None:
    flow = given(WAIT)
    for id in ("a", "b", "c"):
        send(flow, id)
    decision = flow.complete(cursor(2), WAIT, numbered=False)
    assert only(decision, MessageCursorAdvanced) == MessageCursorAdvanced(
        stream_key="in", previous_position=0, new_position=2
    )
    assert inbox(flow) == (2, 3, [3])
    send(flow, "d")
    assert "MessageCursorAdvanced" not in names(flow.complete(cursor(1), WAIT, numbered=False).events)
    assert inbox(flow) == (2, 4, [3, 4])


@pytest.mark.parametrize(("position", "stream"), [(3, "in"), (-1, "in"), (1, "other"), (0, "a/b")])
def test_a_cursor_cannot_be_where_nothing_was(position: int, stream: str) -> None:
    flow = given(WAIT)
    send(flow, "a")
    send(flow, "b")
    completion = flow.completion(cursor(position, stream), CompleteWorkflow())
    assert flow.refused(completion).reason in ("invalid_commands", "invalid_stream_name")


def test_a_message_that_arrives_during_a_task_is_recorded_after_it() -> None:
    flow = given()
    flow.lease()
    assert [send(flow, id).reply.position for id in ("a", "b")] == [1, 2]
    assert flow.refused(flow.completion(cursor(1), WAIT)).reason == "invalid_commands", "code has not seen it"
    decision = flow.complete(WAIT)
    assert names(decision.events) == ["ConditionWaitOpened", "MessageReceived", "MessageReceived"]
    assert [task.kind for task in flow.rows.values()] == ["workflow"]
    assert inbox(flow) == (0, 2, [1, 2])


def test_a_run_that_continues_hands_on_its_cursors_and_the_messages_after_them() -> None:
    flow = given(WAIT)
    for id in ("a", "b", "c"):
        send(flow, id)
    send(flow, "x", stream="done")
    flow.lease()
    send(flow, "d")
    flow.complete(cursor(2), cursor(1, "done"), ContinueAsNew())
    told = [entry.event for entry in flow.history[2:]]
    assert [type(event).__name__ for event in told] == ["MessageCursorCarried"] * 2 + ["MessageReceived"] * 2
    assert {event.stream_name: event.through_position for event in told if isinstance(event, MessageCursorCarried)} == {
        "in": 2,
        "done": 1,
    }
    assert [event.position for event in told if isinstance(event, MessageReceived)] == [3, 4]
    assert (inbox(flow), inbox(flow, "done")) == ((2, 4, [3, 4]), (1, 1, []))
    assert send(flow, "e").reply.position == 5
    assert send(flow, "y", stream="done").reply.position == 2
    assert send(flow, "a").reply.position == 1, "an id counts once in all runs"
    assert snapshot(flow, refold(flow)) == snapshot(flow)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (message("a", stream="a/b"), "invalid_stream_name"),
        (message("a", stream=""), "invalid_stream_name"),
        (message("x" * 256), "invalid_message_id"),
        (message("a", b"x" * 101), "structural_limit_exceeded"),
    ],
)
def test_a_message_that_the_stream_refuses_leaves_no_trace(asked: MessageAppend, reason: str) -> None:
    flow = given(WAIT, limits=Limits(payload_size=100))
    assert flow.refused(asked).reason == reason


def test_a_message_that_a_full_stream_refused_may_be_sent_again() -> None:
    flow = given(WAIT, limits=Limits(pending_signal_count=1))
    send(flow, "a")
    assert flow.refused(message("b")).reason == "structural_limit_exceeded"
    flow.complete(cursor(1), WAIT, numbered=False)
    assert send(flow, "b").reply.position == 2


def test_a_run_that_is_over_takes_no_message() -> None:
    flow = given(CompleteWorkflow())
    assert flow.refused(message("a")).reason == "run_not_active"


ACTIONS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 6)),
    st.tuples(st.just("lease"), st.just(0)),
    st.tuples(st.just("complete"), st.integers(0, 3)),
    st.tuples(st.just("continue"), st.integers(0, 3)),
)


@given_(st.lists(ACTIONS, max_size=25))
def test_code_reads_every_message_once_in_order(actions: list[tuple[str, int]]) -> None:
    """`number` of complete and continue: how many of the messages that its task was shown the code reads."""
    flow = given(WAIT)
    sent: list[str] = []
    read: list[str] = []
    shown: list[MessageReceived] = []
    for action, number in actions:
        tasks = [task for task in flow.tasks.values() if task.kind == "workflow"]
        if action == "send":
            id = f"m{number}"
            position = send(flow, id).reply.position
            if id not in sent:
                sent.append(id)
            assert position == sent.index(id) + 1
            continue
        if not tasks:
            continue
        if tasks[0].state == "ready":
            flow.lease()
            unread = flow.run.part(Inboxes).streams["in"].unread.values() if Inboxes in flow.run.parts else ()
            shown = [event for _, event, _ in unread]
        if action == "lease":
            continue
        batch = shown[:number]
        read += [event.message_id for event in batch]
        commands = [cursor(batch[-1].position)] if batch else []
        flow.complete(*commands, ContinueAsNew() if action == "continue" else WAIT, numbered=False)
        shown = []
        assert snapshot(flow, refold(flow)) == snapshot(flow)
    assert read == sent[: len(read)]
    held = [event.message_id for event, _ in flow.state.buffered_events if isinstance(event, MessageReceived)]
    waiting = [e.message_id for _, e, _ in inbox_of(flow)]
    assert read + waiting + held == sent


def inbox_of(flow: Flow) -> list[Any]:
    found = flow.run.part(Inboxes).streams.get("in")
    return [] if found is None else list(found.unread.values())
