"""The work that a server shares with the other nodes of its database: draining, rates, sweeps and trials of
suspects."""

from __future__ import annotations

from backstay.engine.cluster.draining import Draining
from backstay.engine.cluster.roster import Roster
from backstay.engine.node import Node
from backstay.engine.tasks.queue_rates import QueueRates
from backstay.protocol.native.node_links import Links
from backstay.server.cluster.rates_of_nodes import RatesOfNodes
from backstay.server.cluster.sweep_of_nodes import SweepOfNodes
from backstay.server.cluster.trials_of_nodes import TrialsOfNodes
from backstay.server.limits.sweep_policy import SweepPolicy


class ClusterPlane:
    """`counted`: the rates of queues, as this node has counted them."""

    def __init__(self, node: Node, links: Links, counted: QueueRates, sweeps: SweepPolicy) -> None:
        world = node.engine.world
        self.drains = Draining(node)
        self.roster = Roster(world, node.store)
        self.rates = RatesOfNodes(node, links, counted)
        self.sweep = SweepOfNodes(node, links, sweeps)
        self.trials = TrialsOfNodes(node, links, world)
