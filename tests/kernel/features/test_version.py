"""Version markers: which branch a run took, recorded once; and when a change without a marker is new code."""

from __future__ import annotations

import pytest

from backstay.kernel.feature import Plain
from backstay.kernel.features.side_effect import RecordSideEffect
from backstay.kernel.features.timer import StartTimer
from backstay.kernel.features.version import (
    DEFAULT_VERSION,
    RecordVersionMarker,
    VersionMarkerRecorded,
    Versions,
    is_fresh,
)

from ..given import given, names
from ..stored import refold, snapshot


def marker(change_id: str = "vat", version: int = 1, low: int = DEFAULT_VERSION, high: int = 1) -> RecordVersionMarker:
    return RecordVersionMarker(change_id=change_id, version=version, min_supported=low, max_supported=high)


@pytest.mark.contract("VER-01", "CMD-15")
def test_a_marker_is_one_event_and_one_step_with_the_range_it_was_taken_from() -> None:
    flow = given(marker(), RecordSideEffect(result=b"x"))
    assert flow.history[2].event == VersionMarkerRecorded(
        sequence=1, change_id="vat", version=1, min_supported=-1, max_supported=1
    )
    assert flow.history[3].event.sequence == 2  # type: ignore[attr-defined]
    assert flow.run.part(Versions).markers == {"vat": 1}
    assert snapshot(flow, refold(flow)) == snapshot(flow)


@pytest.mark.contract("VER-02")
def test_the_first_marker_of_a_change_counts_for_the_rest_of_the_run() -> None:
    flow = given(marker(version=1, high=1), StartTimer(delay_seconds=0))
    flow.complete(marker(version=2, high=2))
    assert flow.run.part(Versions).markers == {"vat": 1}
    flow.reopen()
    assert flow.run.part(Versions).markers == {"vat": 1}


def test_replay_is_answered_with_the_recorded_version() -> None:
    flow = given(marker(version=0))
    event = flow.history[-1].event
    assert flow.machine.outcome(event) == Plain(0)
    shape = flow.machine.shape(event)
    assert shape is not None
    assert shape.name == "version marker"
    assert shape.detail is not None
    assert shape.detail(event) == "vat"


@pytest.mark.contract("CMD-15")
@pytest.mark.parametrize(
    ("command", "field"),
    [
        (marker(change_id=""), "change_id"),
        (marker(version=2, high=1), "version"),
        (marker(version=-2), "version"),
        (marker(version=1, low=2, high=0), "version"),
    ],
)
def test_a_marker_outside_its_own_range_is_refused(command: RecordVersionMarker, field: str) -> None:
    flow = given()
    refusal = flow.refused(flow.completion(command))
    assert (refusal.reason, refusal.fields["field"]) == ("invalid_commands", field)
    assert names(flow.history) == ["StartAccepted", "WorkflowStarted"]


@pytest.mark.parametrize("version", [-1, 0, 1])
def test_the_whole_supported_range_is_accepted(version: int) -> None:
    assert given(marker(version=version)).run.part(Versions).markers == {"vat": version}


@pytest.mark.contract("VER-03")
@pytest.mark.parametrize(
    ("change_ids", "started", "current", "was", "now", "fresh"),
    [
        # what the starter's source already named is fresh, whatever has changed since
        (["vat"], "f1", "f2", "v1", "v2", True),
        (["vat"], None, None, "v1", "v2", True),
        # otherwise the fingerprint decides
        (["other"], "f1", "f1", "v1", "v2", True),
        (["other"], "f1", "f2", "v1", "v1", False),
        ([], "f1", "f1", "v1", "v2", True),
        ([], "f1", "f2", None, None, False),
        (None, "f1", "f1", "v1", "v2", True),
        (None, "f1", "f2", "v1", "v1", False),
        # only where one of the two is unknown do the compatibility markers
        (None, None, "f2", "v1", "v1", True),
        (None, None, "f2", "v1", "v2", False),
        (None, "f1", None, "v1", "v1", True),
        (None, "f1", None, "v1", "v2", False),
        (None, None, None, None, None, True),
        (None, None, None, None, "v1", False),
        (None, None, None, "v1", None, False),
        (["other"], None, "f2", "v1", "v1", True),
        (["other"], None, "f2", "v1", "v2", False),
    ],
)
def test_a_change_without_a_marker_is_fresh(
    change_ids: list[str] | None,
    started: str | None,
    current: str | None,
    was: str | None,
    now: str | None,
    fresh: bool,
) -> None:
    found = is_fresh(
        "vat",
        started_fingerprint=started,
        current_fingerprint=current,
        started_change_ids=change_ids,
        started_compatibility=was,
        current_compatibility=now,
    )
    assert found is fresh
