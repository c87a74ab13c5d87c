"""How many shards each process of a database should own: as many as its part of the weight of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from backstay.store.ownership import NodeFacts, NodeRow, ShardRow


def weight_of(node: NodeRow) -> int:
    """The weight of another process: one that is dead or drains gets no shards."""
    return node.facts.weight if node.is_alive and not node.facts.draining else 0


def share_of(facts: NodeFacts, others: Sequence[NodeRow], shards: int, *, exclusive: bool) -> int:
    """How many shards a process with these facts should own: all of them, if it is alone or if the database has one owner only.

    A draining process takes free shards if no other process can: stalled work is worse than a process that cannot be
    stopped yet.
    """
    if not facts.weight:
        return 0
    if exclusive:
        return 0 if facts.draining else shards
    weight = sum(map(weight_of, others))
    if facts.draining:
        return 0 if weight else shards
    return -(-shards * facts.weight // (facts.weight + weight))


def lacking(rows: Sequence[ShardRow], others: Sequence[NodeRow], mine: NodeFacts) -> dict[int, int]:
    """The other processes that own fewer shards than their share, each with the number that is missing. `mine`: the
    facts of this process."""
    owned = Counter(row.owner for row in rows)
    everybody = sum(map(weight_of, others)) + (0 if mine.draining else mine.weight)
    fair = {node.id: -(-len(rows) * weight_of(node) // everybody) for node in others if weight_of(node)}
    return {id: share - owned[id] for id, share in fair.items() if share > owned[id]}
