"""Output streams: what is appended has an offset for ever, a key counts once, and a long stream costs what a short one does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as given_
from hypothesis import strategies as st

from backstay.kernel.event import Recorded
from backstay.kernel.features.delivery import Deliver
from backstay.kernel.features.side_effect import SideEffectRecorded
from backstay.kernel.features.stream import (
    SEGMENT,
    AppendItems,
    FinishStream,
    Items,
    Stream,
    StreamItem,
    StreamItemAppended,
    StreamKey,
    WriteStream,
    WriteToStream,
    of,
)
from backstay.kernel.limits import Limits
from backstay.kernel.machine import Machine
from backstay.kernel.message import Refused
from backstay.kernel.send import Send, pack, unpack

from ..given import MACHINE, Flow, given, names
from ..stored import refold, snapshot

OUT = StreamKey(stream_name="out", workflow_instance_id="order-1", workflow_run_id="RUN")


def stream(machine: Machine = MACHINE) -> Flow:
    return Flow(machine, OUT.id, namespace="default/streams")


def some(*payloads: bytes, keys: str | None = None, **more: Any) -> AppendItems:
    items = [StreamItem(payload=payload, idempotency_key=keys and f"{keys}{n}") for n, payload in enumerate(payloads)]
    return AppendItems(to=OUT, batch=Items(items=items, **more))


def items(flow: Flow) -> list[bytes | None]:
    """Of the whole stream, in order."""
    history: list[Recorded] = [entry for run in sorted(flow.histories) for entry in flow.histories[run]]
    return [entry.event.payload for entry in history if isinstance(entry.event, StreamItemAppended)]


def state(flow: Flow) -> Stream:
    found = of(flow.run)
    assert found is not None
    return found


def delivery(number: int, what: WriteToStream) -> Deliver:
    return Deliver(send=Send(number, 1, "default/streams", OUT.id, unpack(WriteToStream, pack(what))))


def test_offsets_count_from_0_and_go_on() -> None:
    flow = stream()
    first = flow.when(some(b"a", b"b"))
    assert (first.reply.accepted_offsets, first.reply.stream.total_items) == ([0, 1], 2)
    assert flow.when(some(b"c")).reply.accepted_offsets == [2]
    assert items(flow) == [b"a", b"b", b"c"]
    assert (flow.rows, flow.state.next_wake, flow.row and flow.row.waits_externally) == ({}, None, 1)
    assert snapshot(flow, refold(flow)) == snapshot(flow)
    assert state(flow) == of(refold(flow).current)


def test_a_key_counts_once_also_within_one_append() -> None:
    flow = stream()
    flow.when(some(b"a", b"b", keys="k"))
    again = flow.when(some(b"a", b"b", b"c", keys="k")).reply
    assert (again.offsets, again.accepted_offsets, again.deduped) == ([0, 1, 2], [2], 2)
    twice = [StreamItem(payload=b"x", idempotency_key="same")] * 2
    reply = flow.when(AppendItems(to=OUT, batch=Items(items=twice))).reply
    assert (reply.offsets, reply.deduped) == ([3, 3], 1)


@pytest.mark.parametrize(
    ("limit", "read", "taken"), [(3, 0, True), (2, 0, False), (2, 1, True), (2, 99, True), (None, 0, True)]
)
def test_a_stream_is_full_when_too_much_of_it_is_unread(limit: int | None, read: int, taken: bool) -> None:
    flow = stream()
    flow.when(some(b"a", b"b", keys="k"))
    more = some(b"a", b"b", b"c", keys="k", max_pending_items=limit, read=read)
    if taken:
        assert flow.when(more).reply.accepted_offsets == [2]
    else:
        refusal = flow.refused(more)
        assert (refusal.reason, refusal.fields["pending_items"]) == ("stream_full", 2)
    assert flow.when(some(b"a", keys="k", max_pending_items=1)).reply.deduped == 1, "nothing new is never too much"


@pytest.mark.parametrize(("reason", "status"), [(None, "closed"), ("broke", "errored")])
def test_an_end_is_final_and_may_be_repeated(reason: str | None, status: str) -> None:
    flow = stream()
    flow.when(some(b"a"))
    ended = flow.when(FinishStream(to=OUT, error_reason=reason, retention_seconds=60), at=5).reply
    assert (ended.status, ended.error_reason, ended.retention_seconds) == (status, reason, 60)
    assert flow.when(FinishStream(to=OUT, error_reason=reason)).idle
    assert flow.refused(some(b"b")).reason == "stream_closed"
    assert flow.refused(FinishStream(to=OUT, error_reason="otherwise")).reason == "stream_closed"
    assert flow.runs[flow.run.key].status == "expiring"
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_a_long_stream_is_cut_into_histories_of_a_fixed_length() -> None:
    flow = stream()
    batch = [StreamItem(payload=b"x", idempotency_key=str(n)) for n in range(2 * SEGMENT + 300)]
    for begin in range(0, len(batch), 300):
        flow.when(AppendItems(to=OUT, batch=Items(items=batch[begin : begin + 300])))
    lengths = [len(history) for _, history in sorted(flow.histories.items())]
    assert lengths == [SEGMENT + 2, SEGMENT + 2, 301], "opening, items, roll-over"
    assert (state(flow).total_items, state(flow).first_offset) == (2 * SEGMENT + 300, 2 * SEGMENT)
    assert len(state(flow).keys) == 1000, "what is remembered does not grow"
    last = flow.when(AppendItems(to=OUT, batch=Items(items=batch[-1:]))).reply
    assert (last.offsets, last.deduped) == ([len(batch) - 1], 1)
    assert flow.runs[flow.run.key].business_key == "RUN"
    assert state(flow) == of(refold(flow).current)


def test_an_item_that_code_emits_is_a_step_and_a_send_of_one_commit() -> None:
    item = StreamItem(payload=b"a", idempotency_key="k")
    flow = given()
    decision = flow.complete(WriteStream(result=b"-", stream_name="out", items=[item], command_identity="task"))
    assert decision.events[-1].event == SideEffectRecorded(sequence=1, result=b"-", stream_name="out", stream_items=1)
    (send,) = decision.sends
    assert (send.namespace, send.workflow_id) == ("default/streams", "RUN1:out")
    assert send.message.items == [item]  # type: ignore[attr-defined]


def test_a_send_that_comes_twice_appends_once_and_one_that_comes_late_nothing() -> None:
    flow = stream()
    write = WriteToStream(to=OUT, items=[StreamItem(payload=b"a", idempotency_key="k")], command_identity="task")
    flow.when(delivery(1, write))
    flow.when(delivery(2, write))
    assert items(flow) == [b"a"]
    event = flow.history[-1].event
    assert isinstance(event, StreamItemAppended)
    assert (event.origin, event.origin_reference) == ("workflow", "task")
    flow.when(delivery(3, WriteToStream(to=OUT, finish=True, error_reason="broke")))
    late = flow.when(delivery(4, WriteToStream(to=OUT, items=[StreamItem(payload=b"b", idempotency_key="l")])))
    assert (late.events, late.taken_sends) == ([], [4])
    assert (state(flow).status, names(flow.history)[-1]) == ("errored", "StreamClosed")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (AppendItems(to=OUT, batch=Items(items=[])), "invalid_stream_items"),
        (some(*[b"x"] * 501), "invalid_stream_items"),
        (AppendItems(to=OUT, batch=Items(items=[StreamItem()])), "invalid_stream_items"),
        (some(b"x" * 101), "structural_limit_exceeded"),
        (some(b"x", b"y", max_pending_items=1), "stream_full"),
        (
            FinishStream(to=StreamKey(stream_name="a/b", workflow_instance_id="o", workflow_run_id="r")),
            "invalid_stream_name",
        ),
    ],
)
def test_an_item_that_is_refused_opens_no_stream(message: Any, reason: str) -> None:
    flow = stream(Machine(limits=Limits(payload_size=100)))
    with pytest.raises(Refused) as refusal:
        flow.when(message)
    assert refusal.value.reason == reason
    assert flow.state.run is None


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (
            WriteStream(result=b"-", stream_name="", items=[StreamItem(payload=b"a", idempotency_key="k")]),
            "invalid_stream_name",
        ),
        (WriteStream(result=b"-", stream_name="out"), "invalid_stream_items"),
        (WriteStream(result=b"-", stream_name="out", items=[StreamItem(payload=b"a")]), "invalid_stream_items"),
    ],
)
def test_a_completion_that_writes_nonsense_is_refused_whole(command: WriteStream, reason: str) -> None:
    flow = given()
    completion = flow.completion(command)
    assert flow.refused(completion).reason == reason


def test_code_that_writes_too_much_fails_its_run_by_the_limit() -> None:
    flow = given(limits=Limits(payload_size=100))
    flow.complete(
        WriteStream(result=b"-", stream_name="out", items=[StreamItem(payload=b"x" * 101, idempotency_key="k")])
    )
    assert (flow.run.status, flow.decisions[-1].sends) == ("failed", [])


@given_(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4), st.booleans()), max_size=30))
def test_each_idempotency_key_of_a_stream_stands_once_in_the_order_it_first_came(
    appends: list[tuple[int, int, bool]],
) -> None:
    flow = stream()
    wanted: list[bytes] = []
    for number, (first, count, by_code) in enumerate(appends):
        batch = [StreamItem(payload=str(key).encode(), idempotency_key=str(key)) for key in range(first, first + count)]
        if by_code:
            flow.when(delivery(number, WriteToStream(to=OUT, items=batch)))
        else:
            reply = flow.when(AppendItems(to=OUT, batch=Items(items=batch))).reply
            assert reply.deduped + len(reply.accepted_offsets) == count
        wanted += [item.payload for item in batch if item.payload and item.payload not in wanted]
    assert items(flow) == wanted
    if appends:
        assert (state(flow).total_items, state(flow)) == (len(wanted), of(refold(flow).current))
