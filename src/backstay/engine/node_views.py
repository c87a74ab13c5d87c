"""The processes at a database as people see them: who is there, who owns how much, and who is leaving."""

from __future__ import annotations

from collections import Counter
from typing import TypedDict

from backstay.kernel.values import SECOND
from backstay.store.ownership import SILENT, NodeRow, Ownership

NAMED = 10  # nodes that an error names
NOBODY = "no other process can take its shards, so it keeps them; start one, and they move"


class NodeAnswer(TypedDict):
    id: str
    name: str
    address: str | None
    version: str
    weight: int
    shards: int
    draining: bool
    status: str
    note: str | None
    silent_seconds: float
    level: int
    speaks: list[int]
    this: bool


class NodesAnswer(TypedDict):
    shards: int
    unowned_shards: int
    one_owner: bool
    nodes: list[NodeAnswer]


class NoSuchNode(Exception):
    """No node, or more than one, has this id or name. `ids`: of those that have it."""

    def __init__(self, message: str, ids: list[str]) -> None:
        super().__init__(message)
        self.ids = ids


def find_node(found: NodesAnswer, named: str) -> NodeAnswer:
    """The node with this id or name. Two may have one name: then only the id says which."""
    nodes = found["nodes"]
    matching = [node for node in nodes if node["id"] == named] or [node for node in nodes if node["name"] == named]
    if not matching:
        known = ", ".join(f"{node['name']} ({node['id']})" for node in nodes[:NAMED])
        raise NoSuchNode(f"there is no living node {named!r}; there are: {known or 'none'}", [])
    if len(matching) > 1:
        ids = [node["id"] for node in matching]
        raise NoSuchNode(f"{len(ids)} nodes are called {named!r}; name one by its id: {', '.join(ids[:NAMED])}", ids)
    return matching[0]


def shown_nodes(view: Ownership, *, one_owner: bool) -> NodesAnswer:
    """All living processes, and those that still own something: the largest owners first.

    `one_owner`: one process owns all shards, or none, as of a file. Ids are text: they have more digits than numbers in JSON.
    """
    counts = Counter(row.owner for row in view.shards)
    there = [node for node in view.nodes if counts[node.id] or node.is_alive]
    owned = sum(counts[node.id] for node in there)
    ordered = sorted(there, key=lambda node: (-counts[node.id], node.facts.name, node.id))
    return {
        "shards": len(view.shards),
        "unowned_shards": len(view.shards) - owned,
        "one_owner": one_owner,
        "nodes": [_shown(node, counts[node.id], view, there) for node in ordered],
    }


def _shown(node: NodeRow, shards: int, view: Ownership, there: list[NodeRow]) -> NodeAnswer:
    facts = node.facts
    others = [
        one for one in there if one.id != node.id and one.is_alive and one.facts.weight and not one.facts.draining
    ]
    keeps = facts.draining and shards > 0 and not others
    return {
        "id": str(node.id),
        "name": facts.name,
        "address": facts.address,
        "version": facts.version,
        "weight": facts.weight,
        "shards": shards,
        "draining": facts.draining,
        "status": _status(node, shards),
        "note": NOBODY if keeps else None,
        "silent_seconds": round(node.silent / SECOND, 3),
        "level": facts.level,
        "speaks": list(facts.speaks),
        "this": node.id == view.me,
    }


def _status(node: NodeRow, shards: int) -> str:
    if node.session is False:
        return "gone"  # and deposed within a moment, unless it reconnects
    if node.silent >= SILENT:
        return "silent"
    if node.facts.draining:
        return "draining" if shards else "drained"
    return "active" if shards else "guest" if not node.facts.weight else "joining"
