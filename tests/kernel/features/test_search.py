"""Search attributes: small typed values in the index of runs, merged step by step; None removes a key."""

from __future__ import annotations

import math
from typing import Any

import pytest

from backstay.kernel.feature import Plain
from backstay.kernel.features.close import WorkflowFailed
from backstay.kernel.features.search import SearchAttributes, SearchAttributesUpserted, UpsertSearchAttributes
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.limits import Limits

from ..given import given
from ..stored import refold, snapshot

AGAIN = StartTimer(delay_seconds=0)


@pytest.mark.contract("CMD-16")
@pytest.mark.parametrize(
    ("before", "attributes", "merged"),
    [
        ({}, {"a": 1}, {"a": 1}),
        ({"a": 1}, {"b": "x"}, {"a": 1, "b": "x"}),
        ({"a": 1}, {"a": 2.5}, {"a": 2.5}),
        ({"a": 1}, {"a": None}, {}),
        ({"a": 1}, {"b": None}, {"a": 1}),
        ({"b": 1}, {"a": True}, {"a": True, "b": 1}),
    ],
)
def test_an_upsert_is_recorded_merged_and_written_to_the_index(
    before: dict[str, Any], attributes: dict[str, Any], merged: dict[str, Any]
) -> None:
    flow = given(AGAIN, search_attributes=before)
    decision = flow.complete(UpsertSearchAttributes(attributes=attributes))
    assert decision.events[0].event == SearchAttributesUpserted(sequence=2, attributes=attributes, merged=merged)
    ((_, row),) = decision.runs
    assert row.search_attributes == merged
    assert flow.run.part(SearchAttributes).values == merged


@pytest.mark.parametrize(
    "value",
    ["", "x" * 2048, 0, -(2**63), 2**63 - 1, 1.5, True, False, [], ["a", "b" * 255]],
    ids=lambda value: repr(value)[:20],
)
def test_a_value_of_the_index_is_kept_exactly(value: Any) -> None:
    flow = given(UpsertSearchAttributes(attributes={"key": value}))
    assert snapshot(flow, refold(flow)) == snapshot(flow)
    flow.reopen()
    kept = flow.run.part(SearchAttributes).values["key"]
    assert (kept, type(kept)) == (value, type(value))


@pytest.mark.parametrize(
    "value",
    ["x" * 2049, {}, {"a": 1}, b"x", [1], ["x" * 256], [["a"]], ..., math.nan, math.inf, -math.inf, 2**64, -(2**64)],
    ids=lambda value: repr(value)[:20],
)
def test_a_value_that_the_index_cannot_hold_is_refused(value: Any) -> None:
    flow = given()
    refusal = flow.refused(flow.completion(UpsertSearchAttributes(attributes={"key": value})))
    assert (refusal.reason, refusal.fields["field"]) == ("invalid_search_attributes", "search_attributes.key")


@pytest.mark.parametrize("key", ["", " ", "a b", "ä", "a/b", "k" * 65, "a\n"])
def test_a_key_outside_the_alphabet_is_refused(key: str) -> None:
    flow = given()
    refusal = flow.refused(flow.completion(UpsertSearchAttributes(attributes={key: 1})))
    assert refusal.reason == "invalid_search_attributes"


def test_more_than_a_hundred_attributes_are_refused() -> None:
    flow = given()
    attributes = {f"k{n}": n for n in range(101)}
    refusal = flow.refused(flow.completion(UpsertSearchAttributes(attributes=attributes)))
    assert refusal.reason == "invalid_search_attributes"
    del attributes["k100"]
    assert flow.complete(UpsertSearchAttributes(attributes=attributes)).events


def test_replay_goes_on_without_a_value() -> None:
    flow = given(UpsertSearchAttributes(attributes={"a": 1}))
    event = flow.history[-1].event
    assert flow.machine.outcome(event) == Plain(None)
    assert flow.machine.shape(event).name == "search attributes upsert"  # type: ignore[union-attr]


def test_the_merged_attributes_are_bounded_and_passing_the_bound_fails_the_run() -> None:
    limits = Limits(search_attribute_size=len('{"a":1,"b":2}'))
    flow = given(UpsertSearchAttributes(attributes={"a": 1}), AGAIN, limits=limits)
    flow.complete(UpsertSearchAttributes(attributes={"b": 2}), AGAIN)
    assert flow.run.is_open
    flow.complete(UpsertSearchAttributes(attributes={"b": None}), UpsertSearchAttributes(attributes={"c": 3}), AGAIN)
    assert flow.run.is_open
    flow.complete(UpsertSearchAttributes(attributes={"d": 4}))
    event = flow.history[-1].event
    assert isinstance(event, WorkflowFailed)
    assert event.structural_limit_kind == "search_attribute_size"
