"""Side effects: one event for each step, whose value is what replay answers with."""

from __future__ import annotations

import pytest

from backstay.kernel.feature import Value
from backstay.kernel.features.side_effect import RecordSideEffect, SideEffectRecorded
from backstay.kernel.features.timer import StartTimer

from ..given import given
from ..stored import refold, snapshot


@pytest.mark.contract("SIDE-01", "CMD-14")
def test_each_side_effect_is_one_event_and_one_step() -> None:
    flow = given(RecordSideEffect(result=b"a"), RecordSideEffect(result=b"a"))
    assert [entry.event for entry in flow.history[2:]] == [
        SideEffectRecorded(sequence=1, result=b"a"),
        SideEffectRecorded(sequence=2, result=b"a"),
    ]


@pytest.mark.parametrize("result", [b"", b"x", bytes(range(256))])
def test_replay_is_answered_with_the_recorded_bytes(result: bytes) -> None:
    flow = given(RecordSideEffect(result=result))
    flow.reopen()
    assert flow.machine.outcome(flow.history[-1].event) == Value(result)
    assert flow.machine.shape(flow.history[-1].event).name == "side effect"  # type: ignore[union-attr]


def test_a_value_that_is_recorded_stays_when_the_step_is_sent_again() -> None:
    flow = given(RecordSideEffect(result=b"first"), StartTimer(delay_seconds=0))
    assert flow.complete(RecordSideEffect(result=b"second", sequence=1)).events == []
    assert flow.machine.outcome(flow.history[2].event) == Value(b"first")


def test_a_side_effect_waits_for_nothing() -> None:
    flow = given(RecordSideEffect(result=b"a"))
    assert flow.rows == {}
    assert flow.state.next_wake is None
    assert snapshot(flow, refold(flow)) == snapshot(flow)
