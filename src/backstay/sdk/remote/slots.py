"""How a worker divides its slots between the nodes that it has links to.

A node may lease as many tasks to the worker as it was given slots, without asking. So slots that a node has are the node's until it
says that it has them no more; only then are they given to another. Hence the worker never gets more tasks than it has slots,
whatever is on its way.

Free slots are divided by the number of waiting tasks at each node, plus one: a node that has nothing to do keeps a few,
so that its next task need not wait for them, and not all. If there are none to divide, nodes with waiting tasks get
their fair share of all slots as they become free; with fewer slots than nodes, the nodes take turns of a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backstay.protocol.native.worker import Slots

KINDS = ("workflow", "activity", "awaiting")
NONE = Slots()
TURN = 1.0  # seconds for which a node is the first to get a slot that cannot be divided


class Share:
    """The slots of one node. `turn` counts the changes, `confirmed` is the last one that the node has answered."""

    def __init__(self) -> None:
        self.open = False
        self.is_used = False  # the node has slots: its link is open, or is being opened with them
        self.given = NONE
        self.taken = NONE  # the most slots that the node has leased or may lease
        self.waiting = NONE  # tasks that wait there
        self.turn = 0
        self.confirmed = 0

    @property
    def is_settled(self) -> bool:
        return self.turn == self.confirmed

    def opens(self, slots: Slots) -> None:
        """A link is being opened with these slots."""
        self.is_used = True
        self.given = self.taken = slots
        self.waiting = NONE
        self.turn = self.confirmed = 0

    def close(self) -> None:
        """No more tasks come by the link."""
        self.open = self.is_used = False
        self.waiting = NONE
        self.turn = self.confirmed = 0

    def give(self, slots: Slots) -> None:
        """Give the node other slots with the next request. Until it has answered, it also has its earlier share."""
        self.given = slots
        self.taken = _more(self.taken, slots)
        self.turn += 1

    def heard(self, turn: int, taken: Slots, waiting: Slots) -> None:
        """The node has reported its slots."""
        self.waiting = waiting
        if turn == self.turn:
            self.confirmed = turn
            self.taken = taken


def divide(
    total: Slots, shares: Sequence[Share], held: Mapping[Share, Slots], other: Slots, now: float
) -> dict[Share, Slots]:
    """The shares that change, with their new values. `held`: the tasks that came from each node; `other`: tasks of
    nodes that the worker has no link to."""
    shares = [share for share in shares if share.open]
    kinds = [
        _divide(
            getattr(total, kind) - getattr(other, kind),
            [getattr(share.given, kind) for share in shares],
            [getattr(share.taken, kind) for share in shares],
            [getattr(share.waiting, kind) for share in shares],
            [getattr(held[share], kind) for share in shares],
            int(now / TURN),
        )
        for kind in KINDS
    ]
    wanted = {share: Slots(*(kind[at] for kind in kinds)) for at, share in enumerate(shares)}
    return {share: slots for share, slots in wanted.items() if slots != share.given and share.is_settled}


def _divide(
    total: int, given: list[int], taken: list[int], waiting: list[int], held: list[int], turn: int
) -> list[int]:
    """The share of each node of one kind of slots: at most the slots that the others leave."""
    free = max(total - sum(held), 0)
    targets = [mine + part for mine, part in zip(held, _parts(free, waiting, given, turn), strict=True)]
    starving = [
        waits > 0 and target <= has for waits, target, has in zip(waiting, targets, given, strict=True)
    ]  # free slots are of no help to it
    if any(starving):
        fair = _parts(max(total, 0), waiting, given, turn)
        if any(hungry and has < part for hungry, has, part in zip(starving, given, fair, strict=True)):
            targets = fair
    lacking = any(
        has < target and (waits > 0 or not has) for has, target, waits in zip(given, targets, waiting, strict=True)
    )
    # A node may not know of all that has come from it: it was started again, or its shards have moved.
    room = total - sum(map(max, taken, held))
    wanted: list[int] = []
    for has, target in zip(given, targets, strict=True):
        if target < has and (lacking or room < 0):
            wanted.append(target)
        elif target > has and room > 0:
            more = min(target - has, room)
            room -= more
            wanted.append(has + more)
        else:
            wanted.append(has)
    return wanted


def _parts(total: int, waiting: list[int], given: list[int], turn: int) -> list[int]:
    """A number divided in proportion to waiting tasks, plus one. The remainder goes to nodes with waiting tasks, in
    turns; without waiting tasks it stays."""
    if not waiting:
        return []
    weights = [waits + 1 for waits in waiting]
    parts = [total * weight // sum(weights) for weight in weights]
    count = len(parts)
    places = range(count)
    if any(waiting):
        order = sorted(places, key=lambda at: (not waiting[at], parts[at] > 0, (at - turn) % count))
    else:
        order = sorted(places, key=lambda at: (-(given[at] - parts[at]), at))
    for at in order[: total - sum(parts)]:
        parts[at] += 1
    return parts


def _more(one: Slots, other: Slots) -> Slots:
    return Slots(
        max(one.workflow, other.workflow), max(one.activity, other.activity), max(one.awaiting, other.awaiting)
    )
