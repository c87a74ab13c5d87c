"""The messages of a link to a worker that divides its slots between several nodes, and the slots of this node.

A worker gives each node a part of its slots. A node uses its part as if it were all of them: leased and free slots are
the node's until it confirms to the worker that it gives them up. So the parts of all nodes are never more than the
worker has. A node whose part is too small says so at once, and the worker takes slots from nodes that have less to do.
"""

from __future__ import annotations

from msgspec.structs import replace

from backstay.engine.tasks.lanes import Lanes
from backstay.engine.tasks.remote_workers import RemoteWorker
from backstay.engine.tasks.workers import Lane
from backstay.protocol.native import worker as wire

KINDS: tuple[str, ...] = ("workflow", "activity", "async")  # in the order of `wire.Slots`
NONE = wire.Slots()


class SharedSlots:
    """`shared` False: all slots of the worker are here, so there is nothing to send. `nodes`: those that the worker
    knows of."""

    def __init__(self, station: RemoteWorker, lanes: Lanes, shared: bool, nodes: list[wire.WorkerNode]) -> None:
        self._station = station
        self._lanes = lanes
        self.shared = shared
        self.turn = 0
        self._waiting = NONE  # as last sent to the worker
        self._nodes = nodes
        self._news: list[wire.WorkerNode] | None = None  # nodes that were not sent to the worker yet
        self._lacks = False  # tasks wait, and the last message to the worker said that none do
        self._roll_call = False

    @property
    def has_news(self) -> bool:
        """Whether a message to the worker is due soon."""
        return self._lacks or self._roll_call or self._news is not None

    def set(self, slots: wire.Slots, turn: int) -> bool:
        """Take another part of the slots. False: the request is late, and a later one has been here before."""
        if turn <= self.turn:
            return False
        self.turn = turn
        self.shared = True
        self._station.slots = dict(zip(KINDS, (slots.workflow, slots.activity, slots.awaiting), strict=True))
        return True

    def call_roll(self) -> None:
        self._roll_call = True

    def nodes_are(self, nodes: list[wire.WorkerNode]) -> None:
        self._news = None if nodes == self._nodes else nodes

    def waits(self, lane: Lane) -> None:
        """A task waits in this lane."""
        station = self._station
        if self.shared and not self._lacks and station.suits(lane):
            slot = station.slot(lane.kind, lane.type)
            self._lacks = station.used[slot] >= station.slots[slot] and not self._told(slot)

    def _told(self, slot: str) -> int:
        waiting = self._waiting
        return (waiting.workflow, waiting.activity, waiting.awaiting)[KINDS.index(slot)]

    def tell(self, exchanged: wire.Exchanged) -> wire.Exchanged:
        """A reply with the pending news for the worker."""
        if not self.shared and self._news is None:
            return exchanged
        nodes, self._news = self._news, None
        if nodes is not None:
            self._nodes = nodes
        if not self.shared:
            return replace(exchanged, nodes=nodes)
        roll_call, self._roll_call, self._lacks = self._roll_call, False, False
        self._waiting = self._count()
        return replace(
            exchanged, nodes=nodes, waiting=self._waiting, slots=self._taken(), turn=self.turn, roll_call=roll_call
        )

    def _taken(self) -> wire.Slots:
        """The slots that this node has: those that it was given, and those of leases from before it was given fewer."""
        used, slots = self._station.used, self._station.slots
        return wire.Slots(*(max(slots[kind], used[kind]) for kind in KINDS))

    def _count(self) -> wire.Slots:
        if not self._lanes.waiting:
            return NONE
        station = self._station
        found = dict.fromkeys(KINDS, 0)
        for lane, size in self._lanes.sizes():
            if station.suits(lane):
                found[station.slot(lane.kind, lane.type)] += size
        return wire.Slots(*(found[kind] for kind in KINDS))
