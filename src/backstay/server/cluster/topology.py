"""The roles of this node and its shards, for discovery."""

from __future__ import annotations

from typing import Any

from backstay.engine.node import Node
from backstay.server.settings import Settings


def topology(node: Node, settings: Settings, *, stopping: bool, rests: bool) -> dict[str, Any]:
    """The shape of the deployment, and the part of this node in it, as of its last look at the others.

    `rests`: it leaves the search for lost work to another process.
    """
    alive = sum(one.is_alive for one in node.shards.nodes.values())
    return {
        "current_shape": _shape(node, settings, alive),
        "current_process_class": _process_class(node),
        "current_roles": _roles(node, stopping, rests),
        "node": {
            "id": str(node.shards.me),
            "name": node.facts.name,
            "address": node.facts.address,
            "weight": node.facts.weight,
            "shards": sum(node.engine.owned),
            "draining": node.facts.draining,
        },
        "nodes": alive,
        "shards": len(node.engine.owned),
        "unowned_shards": unowned(node),
    }


def unowned(node: Node) -> int:
    """Shards that no living node works for."""
    return sum(row.owner not in node.shards.nodes for row in node.shards.rows)


def _roles(node: Node, stopping: bool, rests: bool) -> list[str]:
    """The current role of this node. `matching`: it hands tasks to workers. `repair`: it looks for lost work by
    itself."""
    found = ["api"]
    if node.engine.active and not stopping:
        found.append("matching")
    if node.engine.holder:
        found.append("timers")
        if not rests:
            found.append("repair")
    return found


def _shape(node: Node, settings: Settings, alive: int) -> str:
    if node.store.exclusive and not node.engine.holder:
        return "standby_server"
    if not settings.v2_matching_role_queue_wake:
        return "dedicated_matching"
    return "server_cluster" if alive > 1 else "standalone_server"


def _process_class(node: Node) -> str:
    if node.engine.holder:
        return "server"
    return "standby" if node.store.exclusive else "front_end"
