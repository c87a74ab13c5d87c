"""Fair shares: whoever waits is served in proportion to its weight, and nobody starves."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from backstay.engine.tasks.backlog import Backlog, Shares
from backstay.engine.tasks.matching import Matching
from backstay.kernel.decision import TaskChange
from backstay.kernel.task import Task
from backstay.kernel.values import Routing


def task(number: int, key: str | None, weight: int = 1, priority: int = 5, type: str = "t") -> Task:
    routing = Routing(priority=priority, fairness_key=key, fairness_weight=weight)
    return Task(
        id=f"{number:06}", workflow=number, run=number, kind="workflow", type=type, routing=routing,
        available_at=number, created_at=number,
    )  # fmt: skip


weights = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 10), min_size=2)
arrivals = st.lists(st.sampled_from(" abcdef"), min_size=30, max_size=30)


@settings(deadline=None, max_examples=50)
@given(weights, arrivals)
def test_no_key_starves_however_much_the_others_ask(shares: dict[str, int], coming: list[str]) -> None:
    """While it waits, a key is served within one round of the others' weights, whatever arrives meanwhile."""
    matching = Matching(lambda: 0)
    keys = [key for key in shares for _ in range(30)]
    for number, key in enumerate(keys):
        matching.lanes.add(task(number, key, shares[key], type="xy"[number % 2]))
    served: Counter[str] = Counter()
    since = dict.fromkeys(shares, 0)
    waiting = Counter(keys)
    total = sum(shares.values())
    for turn, greedy in enumerate(coming, 1):
        if greedy in shares:  # some never stop asking
            matching.lanes.add(task(len(keys), greedy, shares[greedy]))
            keys.append(greedy)
            waiting[greedy] += 1
        found = matching.lanes.take_best(lambda lane: True)
        assert found is not None
        key = keys[found[1]]
        served[key] += 1
        waiting[key] -= 1
        since[key] = turn
        for other in shares:
            if waiting[other]:
                assert turn - since[other] <= total / shares[other] + len(shares), f"{other} starves"
                assert served[other] >= turn * shares[other] / total - len(shares), f"{other} gets less than its share"


def test_a_key_that_was_idle_has_saved_up_nothing() -> None:
    known: set[str] = set()
    backlog = Backlog(Shares(), known)
    numbers = iter(range(1000))

    def add(key: str) -> None:
        new = task(next(numbers), key)
        known.add(new.id)
        backlog.add(new)

    def take() -> int:
        assert backlog.first() is not None
        id, number = backlog.take()
        known.discard(id)
        return number

    for _ in range(10):
        add("busy")
    for _ in range(8):
        take()
    for _ in range(5):
        add("idle")  # 10 to 14, after eight turns in which it asked for nothing
    assert [take() for _ in range(4)] == [10, 8, 11, 9], "turn by turn"


def test_priority_goes_before_fairness() -> None:
    matching = Matching(lambda: 0)
    for number in range(3):
        matching.lanes.add(task(number, "a", priority=5))
    matching.lanes.add(task(3, "a", priority=1))
    matching.lanes.add(task(4, "b", priority=9))
    order: list[int] = []
    while (found := matching.lanes.take_best(lambda lane: True)) is not None:
        order.append(found[1])
    assert order == [3, 0, 1, 2, 4]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(4, 6), st.booleans()), max_size=30))
def test_a_task_that_closed_while_it_waited_costs_its_fairness_key_nothing(tasks: list[tuple[str, int, bool]]) -> None:
    matching, without = Matching(lambda: 0), Matching(lambda: 0)
    for number, (key, priority, closes) in enumerate(tasks):
        matching.lanes.add(task(number, key, priority=priority))
        if not closes:
            without.lanes.add(task(number, key, priority=priority))
    for number, (_, _, closes) in enumerate(tasks):
        if closes:
            gone = task(number, "").id
            matching.lanes.remove_closed([TaskChange(gone, None, stored=True)], left=())
    assert matching.lanes.waiting == without.lanes.waiting
    assert [matching.lanes.take_best(lambda _: True) for _ in tasks] == [
        without.lanes.take_best(lambda _: True) for _ in tasks
    ]


def test_the_shares_of_many_fairness_keys_are_seldom_rebuilt() -> None:
    shares = Shares()
    rebuilt = 0
    for number in range(8000):
        before = shares._stamps
        shares.served(f"tenant {number % 4000}", 1)
        rebuilt += shares._stamps is not before
    assert rebuilt < 10
