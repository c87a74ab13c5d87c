"""Whatever a worker reports of its progress is one small flat object that can be stored."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from backstay.kernel.features.activity import Progress
from backstay.protocol.progress import DETAILS, MESSAGE, NAME, UNIT, progress

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
NAMES = st.sampled_from(("message", "current", "total", "unit", "details")) | st.text()
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=60)


@given(JSON)
def test_a_report_is_flat_bounded_and_can_be_stored(said: Any) -> None:
    told = progress(said)
    if told is None:
        return
    assert msgspec.json.decode(msgspec.json.encode(told), type=Progress) is not None
    assert len(told.message or "") <= MESSAGE
    assert len(told.unit or "") <= UNIT
    for number in (told.current, told.total):
        assert number is None or number >= 0
    details = told.details or {}
    assert len(details) <= DETAILS
    for name, value in details.items():
        assert len(name) <= NAME
        assert value is None or isinstance(value, bool | int | float | str)
        assert not isinstance(value, str) or len(value) <= MESSAGE


@given(st.integers(1, 3000))
def test_depth_is_no_trouble(depth: int) -> None:
    said: Any = 1
    for _ in range(depth):
        said = {"a": said}
    told = progress(said)
    assert told is not None
    assert told.details is not None
    assert len(told.details) == 1
