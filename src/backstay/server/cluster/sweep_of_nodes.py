"""A sweep on request of `dw repair-pass --loop`: each node sweeps its own shards, whichever node gets the request."""

from __future__ import annotations

import asyncio

from backstay.engine.node import Node
from backstay.protocol.native.node_links import Links, asked_of
from backstay.protocol.native.nodes import SweepShards
from backstay.server.limits.sweep_policy import SweepPolicy

PATIENCE = 5.0  # seconds for another node


class SweepOfNodes:
    def __init__(self, node: Node, links: Links, policy: SweepPolicy) -> None:
        self._node = node
        self._links = links
        self._policy = policy

    async def here(self, asked: SweepShards) -> int:
        """Sweep the shards of this node, and leave a marker; how many they are."""
        await self._node.sweep.sweep()
        self._policy.swept(asked.owner)
        return sum(self._node.engine.owned)

    async def everywhere(self, owner: str) -> int:
        """The same at all nodes. One that cannot be called sweeps by itself."""
        asked = SweepShards(owner=owner)
        others = [] if self._node.store.exclusive else self._node.shards.linked
        there = (asked_of(self._links, other, asked, PATIENCE) for other in others)
        return sum(swept or 0 for swept in await asyncio.gather(self.here(asked), *there))
