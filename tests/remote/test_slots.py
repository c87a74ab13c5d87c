"""A worker divides its slots between nodes: never more than it has, and where tasks wait."""

from __future__ import annotations

from random import Random

from backstay.protocol.native.worker import Slots
from backstay.sdk.remote.slots import NONE, Share, divide


class Node:
    """A node that leases as much as it may, on its side of a link."""

    def __init__(self) -> None:
        self.share = Share()
        self.share.opens(NONE)
        self.share.open = True
        self.slots = 0
        self.used = 0
        self.waiting = 0
        self.turn = 0

    def take(self) -> None:
        """The request with its slots arrives."""
        if self.share.turn > self.turn:
            self.turn, self.slots = self.share.turn, self.share.given.workflow

    def work(self) -> None:
        more = min(self.waiting, max(self.slots - self.used, 0))
        self.used += more
        self.waiting -= more

    def answer(self) -> None:
        taken = Slots(max(self.slots, self.used), 0, 0)
        self.share.heard(self.turn, taken, Slots(self.waiting, 0, 0))


def divided(total: int, nodes: list[Node], now: float = 0.0) -> None:
    held = {node.share: Slots(node.used, 0, 0) for node in nodes}
    for share, slots in divide(Slots(total, 0, 0), [node.share for node in nodes], held, NONE, now).items():
        share.give(slots)


def settle(total: int, nodes: list[Node], now: float = 0.0) -> None:
    for _ in range(6):
        divided(total, nodes, now)
        for node in nodes:
            node.take()
            node.work()
            node.answer()


def test_nodes_without_work_have_equal_parts() -> None:
    nodes = [Node() for _ in range(3)]
    settle(100, nodes)
    assert sorted(node.slots for node in nodes) == [33, 33, 34]


def test_slots_go_where_tasks_wait() -> None:
    first, second = nodes = [Node(), Node()]
    settle(100, nodes)
    first.waiting = 500
    settle(100, nodes)
    assert (first.used, first.slots + second.slots) == (first.slots, 100)
    assert first.slots >= 99
    second.waiting = 30
    settle(100, nodes)
    assert first.used + second.used == 100, "what the first works on stays its own"
    first.used -= 10
    settle(100, nodes)
    assert second.used > 0, "and of what becomes free the second gets its part"
    first.waiting = first.used = 0
    settle(100, nodes)
    assert (second.used, second.waiting) == (30, 0)


def test_one_slot_goes_to_the_node_that_has_a_task() -> None:
    nodes = [Node(), Node(), Node()]
    settle(1, nodes)
    assert sum(node.slots for node in nodes) == 1
    for node in nodes:
        node.waiting = 1
        settle(1, nodes)
        assert (node.used, node.waiting) == (1, 0)
        node.used = 0


def test_nodes_that_always_have_work_take_turns_of_one_slot() -> None:
    nodes = [Node(), Node()]
    done = [0, 0]
    for second in range(40):
        for at, node in enumerate(nodes):
            node.waiting = 5
            done[at] += node.used
            node.used = 0
        settle(1, nodes, float(second))
    assert min(done) >= 15


def test_never_more_is_given_than_there_is() -> None:
    for seed in range(300):
        dice = Random(seed)
        total = dice.choice([1, 2, 3, 7, 50])
        nodes = [Node() for _ in range(dice.choice([2, 3, 5]))]
        for step in range(200):
            node = dice.choice(nodes)
            match dice.randrange(6):
                case 0:
                    divided(total, nodes, step / 3)
                case 1:
                    node.take()
                case 2:
                    node.work()
                case 3:
                    node.answer()
                case 4:
                    node.waiting = dice.choice([0, 0, 1, 5, 100])
                case _:
                    node.used = dice.randint(0, node.used)
            may = sum(max(node.slots, node.used) for node in nodes)
            assert may <= total, f"seed {seed}, step {step}: nodes may lease {may} of {total}"


def test_what_a_node_has_forgotten_takes_a_slot_until_it_is_done() -> None:
    """A node that has lost the shard of a task may not count it any more; the worker still works on it."""
    first, second = nodes = [Node(), Node()]
    first.waiting = 1
    settle(1, nodes)
    assert first.used == 1
    second.waiting = 1
    total, shares, held = Slots(1, 0, 0), [first.share, second.share], {first.share: Slots(1, 0, 0), second.share: NONE}

    def change() -> int:
        second.answer()
        for share, slots in divide(total, shares, held, NONE, 0.0).items():
            share.give(slots)
        first.take()
        first.used = 0
        first.answer()
        return second.share.given.workflow

    assert [change(), change(), change()] == [0, 0, 0]
    held[first.share] = NONE
    assert change() == 1
