"""Rates of task queues over all nodes of a database: each counts its commits, and the node with the request adds them
up.

They are unknown while a node that owns shards cannot be reached: an embedded app counts none, and a part of the whole
would mislead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from backstay.engine.node import Node
from backstay.engine.tasks.queue_rates import QueueRates, Rates, rates
from backstay.protocol.native.node_links import Links, asked_of
from backstay.protocol.native.nodes import Owner, QueueCounts, ReadRates

PATIENCE = 1.0  # seconds for which an operator waits for other nodes

RatesByQueue = Mapping[tuple[str, str], Rates]
"""By the kind of task and the name of the queue."""


class RatesOfNodes:
    """`counted`: the counts of this process."""

    def __init__(self, node: Node, links: Links, counted: QueueRates) -> None:
        self._node = node
        self._links = links
        self._counted = counted

    async def here(self, asked: ReadRates) -> list[QueueCounts]:
        """Another node asks."""
        return self._counted.of(asked.namespace)

    async def of(self, namespace: str) -> RatesByQueue | None:
        """The rates of all queues of a namespace that have any; None: they are not known here."""
        node = self._node
        counts = [self._counted.of(namespace)]
        if not node.engine.owns_all:
            asked = self._to_ask(node)
            if asked is None:
                return None
            request = ReadRates(namespace=namespace)
            for one in await asyncio.gather(*(asked_of(self._links, other, request, PATIENCE) for other in asked)):
                if one is None:
                    return None
                counts.append(one)
        by_queue: dict[tuple[str, str], list[QueueCounts]] = {}
        for of_node in counts:
            for one in of_node:
                by_queue.setdefault((one.kind, one.queue), []).append(one)
        return {queue: rates(found) for queue, found in by_queue.items()}

    def _to_ask(self, node: Node) -> list[Owner] | None:
        """All other nodes that own something; None: not all nodes can be reached."""
        if node.store.exclusive:
            return None
        owners = {row.owner for row in node.shards.rows} - {node.shards.me}
        linked = [one for one in node.shards.linked if one.id in owners]
        return linked if len(linked) == len(owners) else None
