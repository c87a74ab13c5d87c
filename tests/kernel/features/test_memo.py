"""Memo: notes on a run, merged step by step; None removes a key, and the whole is bounded."""

from __future__ import annotations

import pytest

from backstay.kernel.feature import Plain
from backstay.kernel.features.close import WorkflowFailed
from backstay.kernel.features.memo import Memo, MemoUpserted, UpsertMemo
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.limits import Limits

from ..given import given
from ..stored import refold, snapshot

AGAIN = StartTimer(delay_seconds=0)


@pytest.mark.parametrize(
    ("before", "entries", "merged"),
    [
        ({}, {"a": b"1"}, {"a": b"1"}),
        ({"a": b"1"}, {"b": b"2"}, {"a": b"1", "b": b"2"}),
        ({"a": b"1"}, {"a": b"2"}, {"a": b"2"}),
        ({"a": b"1"}, {"a": None}, {}),
        ({"a": b"1"}, {"b": None}, {"a": b"1"}),
        ({"a": b"1"}, {}, {"a": b"1"}),
        ({"a": b"1"}, {"a": b""}, {"a": b""}),
    ],
)
def test_an_upsert_records_what_was_asked_and_what_it_came_to(
    before: dict[str, bytes], entries: dict[str, bytes | None], merged: dict[str, bytes]
) -> None:
    flow = given(UpsertMemo(entries=entries), memo=before)
    assert flow.history[-1].event == MemoUpserted(sequence=1, entries=entries, merged=merged)
    assert flow.run.part(Memo).values == merged
    assert snapshot(flow, refold(flow)) == snapshot(flow)


def test_upserts_build_on_each_other() -> None:
    flow = given(UpsertMemo(entries={"b": b"1"}), UpsertMemo(entries={"a": b"2"}), UpsertMemo(entries={"b": None}))
    assert [list(entry.event.merged) for entry in flow.history[2:]] == [["b"], ["a", "b"], ["a"]]  # type: ignore[attr-defined]


def test_replay_goes_on_without_a_value() -> None:
    event = given(UpsertMemo(entries={"a": b"1"})).history[-1].event
    machine = given().machine
    assert machine.outcome(event) == Plain(None)
    assert machine.shape(event).name == "memo upsert"  # type: ignore[union-attr]


@pytest.mark.parametrize("key", ["a", "A.b:c-d_9", "k" * 64, "1a", "-"])
def test_a_memo_key_of_the_alphabet_is_accepted(key: str) -> None:
    assert given(UpsertMemo(entries={key: b"1"})).run.part(Memo).values == {key: b"1"}


@pytest.mark.parametrize("key", ["", " ", "a b", "ä", "a/b", "k" * 65, "12", "-12", "a\n"])
def test_a_memo_key_outside_it_is_refused(key: str) -> None:
    flow = given()
    assert flow.refused(flow.completion(UpsertMemo(entries={key: b"1"}))).reason == "invalid_memo"


def test_a_memo_of_more_than_a_hundred_keys_is_refused() -> None:
    flow = given()
    entries: dict[str, bytes | None] = {f"k{n}": b"" for n in range(101)}
    assert flow.refused(flow.completion(UpsertMemo(entries=entries))).reason == "invalid_memo"
    del entries["k100"]
    assert flow.complete(UpsertMemo(entries=entries)).events


def test_the_merged_memo_is_bounded_and_passing_the_bound_fails_the_run() -> None:
    flow = given(UpsertMemo(entries={"a": b"123"}), AGAIN, limits=Limits(memo_size=8))
    flow.complete(UpsertMemo(entries={"b": b"123"}), AGAIN)
    assert flow.run.is_open
    flow.complete(UpsertMemo(entries={"a": None}), UpsertMemo(entries={"c": b"123"}), AGAIN)
    assert flow.run.is_open
    flow.complete(UpsertMemo(entries={"a": b""}))
    event = flow.history[-1].event
    assert isinstance(event, WorkflowFailed)
    assert (event.structural_limit_kind, event.structural_limit_value) == ("memo_size", 9)
