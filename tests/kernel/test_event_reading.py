"""Whatever stands in the rows of a history: it is read back as it was written, or refused by name. Nothing else."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backstay.kernel.event import HistoryDamaged, chain, restore
from backstay.kernel.features.timer import StartTimer

from .given import MACHINE, Flow
from .given import given as flow_with

KINDS = MACHINE.kinds
Row = tuple[int, str, int, bytes, bytes, int]

json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
noise = st.binary(max_size=40) | json_like.map(msgspec.json.encode)


def rows() -> list[Row]:
    flow: Flow = flow_with(StartTimer(delay_seconds=5))
    flow.due(5)
    return [(e.sequence, e.type, e.at, e.body, e.context_body, e.checksum) for e in flow.history]


ROWS = rows()


def read(stored: list[Row]) -> None:
    previous = (0, 0)
    for row in stored:
        entry = restore(KINDS, 1, row, previous)
        assert (entry.sequence, entry.type, entry.at, entry.body) == (row[0], row[1], row[2], row[3])
        previous = (entry.sequence, entry.checksum)


def test_an_event_is_read_as_it_was_written() -> None:
    read(ROWS)
    assert len(ROWS) == 4


@settings(deadline=None)
@given(place=st.integers(0, len(ROWS) - 1), part=st.sampled_from([3, 4]), bit=st.integers(0, 10_000))
def test_a_bit_of_a_body_or_context_that_is_another_is_found(place: int, part: int, bit: int) -> None:
    row = list(ROWS[place])
    content = bytearray(row[part])  # type: ignore[arg-type]
    if not content:
        return
    bit %= len(content) * 8
    content[bit // 8] ^= 1 << (bit % 8)
    row[part] = bytes(content)
    damaged = [*ROWS]
    damaged[place] = tuple(row)  # type: ignore[call-overload]
    with pytest.raises(HistoryDamaged):
        read(damaged)


@settings(deadline=None)
@given(
    place=st.integers(0, len(ROWS) - 1),
    part=st.sampled_from([0, 2, 5]),
    by=st.integers(-(2**31), 2**31).filter(bool),
)
def test_a_number_that_is_another_is_found(place: int, part: int, by: int) -> None:
    row = list(ROWS[place])
    row[part] += by  # type: ignore[operator]
    damaged = [*ROWS]
    damaged[place] = tuple(row)  # type: ignore[call-overload]
    with pytest.raises(HistoryDamaged):
        read(damaged)


@pytest.mark.parametrize("change", ["gone", "twice", "swapped"])
@pytest.mark.parametrize("place", range(len(ROWS) - 1))
def test_an_event_that_is_gone_or_stands_elsewhere_is_found(change: str, place: int) -> None:
    changed = [*ROWS]
    if change == "gone":
        del changed[place]
    elif change == "twice":
        changed.insert(place, changed[place])
    else:
        changed[place], changed[place + 1] = changed[place + 1], changed[place]
    with pytest.raises(HistoryDamaged):
        read(changed)


@settings(deadline=None, max_examples=300)
@given(type_name=st.sampled_from(sorted(KINDS)) | st.text(max_size=8), body=noise, context=st.just(b"") | noise)
def test_noise_under_a_right_checksum_is_an_event_or_a_refusal(type_name: str, body: bytes, context: bytes) -> None:
    """A newer version, or a bug, may have written it: its checksum is fine and it makes no sense."""
    row = (1, type_name, 7, body, context, chain(0, 1, type_name, 7, body, context))
    try:
        entry = restore(KINDS, 1, row, (0, 0))
    except HistoryDamaged:
        return
    assert entry.type == type_name
