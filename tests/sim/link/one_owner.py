"""A database that one process owns at a time, as a file is: all of it belongs to who holds its lock, and that ends with its process."""

from __future__ import annotations

from collections.abc import Sequence

from backstay.kernel.values import Micros
from backstay.store import as_ready
from backstay.store.ownership import NodeFacts, NodeRow, Ownership, ShardRow

from ..disk import MemoryStore


class OneOwnerStore(MemoryStore):
    exclusive = True
    _facts = NodeFacts()

    def lose_connection(self) -> None:
        """The disk reports an error. That says nothing about the process, which keeps its lock."""
        self._down = True

    def _owner(self) -> int | None:
        row = self.disk.ownership.owner(0)
        return row.id if row is not None and row.session else None

    @as_ready
    def look(self) -> Ownership:
        self._seam.read(self)
        owner = self._owner()
        nodes = [NodeRow(self.me, self._facts, 0, True)]
        if owner not in (None, self.me):
            nodes.append(NodeRow(owner, NodeFacts(), 0, True))
        return Ownership(self.me, [ShardRow(owner, 0)] * self.shards, nodes)

    @as_ready
    def mark(self, facts: NodeFacts, now: Micros) -> bool:
        self._facts = facts
        return True

    @as_ready
    def claim(self, shards: Sequence[int]) -> dict[int, ShardRow]:
        if self._owner() is not None:
            return {}
        for shard in range(self.shards):
            self.disk.ownership.give(shard, self.me, 0)
        return dict.fromkeys(range(self.shards), ShardRow(self.me, 0))

    @as_ready
    def depose(self, node: int, *, gone: bool = False) -> bool:
        return False

    @as_ready
    def hand_over(self, shards: Sequence[int], to: int | None, now: Micros) -> list[int]:
        if to is not None or self._owner() != self.me or len(set(shards)) < self.shards:
            return []
        for shard in shards:
            self.disk.ownership.give(shard, None, now)
        return list(shards)

    @as_ready
    def has_engine(self) -> bool:
        return self._owner() is not None

    @as_ready
    def registry_version(self) -> None:
        """A file counts commits, not what they change."""
