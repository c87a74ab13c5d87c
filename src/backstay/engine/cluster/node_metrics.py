"""The metrics of a process as a node: shards, other nodes, calls between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backstay.engine.cluster.gone_nodes import gone_nodes
from backstay.engine.views.exposition import MetricFamily, Sample, one
from backstay.kernel.values import SECOND

if TYPE_CHECKING:
    from backstay.engine.node import Node


async def node_families(node: Node) -> list[MetricFamily]:
    """The metric families of this node."""
    gone = await gone_nodes(node.store, node.engine.world.now(), node.shards.nodes)
    shards, peers, counters = node.shards, node.peers, node.engine.counters
    moves = {kind: shards.counts[kind] for kind in ("claimed", "received", "handed_over", "lost")}
    calls = {
        kind: 0 if peers is None else peers.counts[kind] for kind in ("forwarded", "failed", "misdirected", "here")
    }
    alive = sum(row.is_alive for row in shards.nodes.values())
    return [
        one("backstay_shards_owned", "gauge", "Shards that this process owns.", sum(node.engine.owned)),
        one("backstay_nodes", "gauge", "Living nodes of the database, as of the last check.", alive),
        MetricFamily(
            "backstay_nodes_gone",
            "gauge",
            "Nodes that did not shut down, by name, until they are forgotten. The value is the Unix time since when.",
            [Sample({"node": str(lost.id), "name": lost.name}, lost.since / SECOND) for lost in gone],
        ),
        one("backstay_node_draining", "gauge", "Whether this process hands over its shards.", int(node.facts.draining)),
        MetricFamily(
            "backstay_shard_moves",
            "counter",
            "Shards that were claimed, received from others, handed over, or lost.",
            [Sample({"kind": kind}, n) for kind, n in moves.items()],
        ),
        one("backstay_nodes_deposed", "counter", "Dead nodes that this node has fenced.", shards.counts["deposed"]),
        one(
            "backstay_database_forgotten",
            "counter",
            "How often the database had lost commits that it had confirmed.",
            shards.counts["forgotten"],
        ),
        MetricFamily(
            "backstay_node_calls",
            "counter",
            "Requests that were carried out by the owner of their workflow, calls that failed or reached another node, and"
            " requests that were carried out here in its place.",
            [Sample({"outcome": kind}, n) for kind, n in calls.items()],
        ),
        one(
            "backstay_guest_decisions",
            "counter",
            "Decisions about workflows that other processes own.",
            counters.guest_decisions,
        ),
    ]
