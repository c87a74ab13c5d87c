"""What this node is, does and owns among the processes at its database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backstay.server.server import Server


def topology(server: Server) -> dict[str, Any]:
    """The shape of the deployment, and the part of this node in it, as of its last look at the others."""
    engine, node = server.engine, server.node
    alive = sum(one.is_alive for one in node.shards.nodes.values())
    return {
        "current_shape": _shape(server, alive),
        "current_process_class": _process_class(server),
        "current_roles": roles(server),
        "node": {
            "id": str(node.shards.me),
            "name": node.facts.name,
            "address": node.facts.address,
            "weight": node.facts.weight,
            "shards": sum(engine.owned),
            "draining": node.facts.draining,
        },
        "nodes": alive,
        "shards": len(engine.owned),
        "unowned_shards": unowned(server),
    }


def roles(server: Server) -> list[str]:
    """What this node does now. `matching`: it hands tasks to workers. `repair`: it looks for lost work by itself."""
    engine = server.engine
    found = ["api"]
    if engine.active and not server.draining:
        found.append("matching")
    if engine.holder:
        found.append("timers")
        if not server.sweep_policy.rests():
            found.append("repair")
    return found


def unowned(server: Server) -> int:
    """Shards that no living node works for."""
    shards = server.node.shards
    return sum(row.owner not in shards.nodes for row in shards.rows)


def _shape(server: Server, alive: int) -> str:
    if server.store.exclusive and not server.engine.holder:
        return "standby_server"
    if not server.settings.v2_matching_role_queue_wake:
        return "dedicated_matching"
    return "server_cluster" if alive > 1 else "standalone_server"


def _process_class(server: Server) -> str:
    if server.store.exclusive:
        return "server" if server.engine.holder else "standby"
    return "server" if server.engine.holder else "front_end"
