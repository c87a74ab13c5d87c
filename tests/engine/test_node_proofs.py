"""Which requests between nodes are the first of their number, however they overtake each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backstay.engine.cluster import node_proofs
from backstay.engine.cluster.node_proofs import HeardNumbers


@given(st.lists(st.integers(min_value=1, max_value=40), max_size=120))
def test_a_number_is_taken_once(numbers: list[int]) -> None:
    heard = HeardNumbers(1, 0)
    seen: set[int] = set()
    for number in numbers:
        assert heard.take(number) is (number not in seen)
        seen.add(number)
        assert all(above > heard.floor + 1 for above in heard.above), "only what is after a missing one is remembered"


def test_one_that_never_comes_is_given_up_and_memory_is_bounded() -> None:
    heard = HeardNumbers(1, 0)
    most = node_proofs.AHEAD
    for number in range(2, 3 * most):
        assert heard.take(number)
        assert len(heard.above) <= most
    assert not heard.take(1), "it is too late"
    assert not any(heard.take(number) for number in range(1, 3 * most))
    assert len(heard.above) == 0
