"""The nodes of a database as operators see them: status, number of shards, draining."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypedDict

from backstay.engine.cluster.gone_nodes import GoneNode, GoneNodeAnswer, gone_nodes, shown
from backstay.kernel.values import SECOND, Micros
from backstay.store import Store
from backstay.store.ownership import SILENT, NodeRow, Ownership

NAMED = 10  # nodes that an error names
NOBODY = "no other process can take its shards, so it keeps them; start another process, and the shards move there"


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
    gone: list[GoneNodeAnswer]


async def all_nodes(store: Store, now: Micros) -> NodesAnswer:
    """The processes at a database, those included that are gone."""
    view = await store.look()
    gone = await gone_nodes(store, now, {row.id: row for row in view.nodes})
    return shown_nodes(view, one_owner=store.exclusive, gone=gone)


class NoSuchNode(Exception):
    """No node, or more than one, has this id or name. `ids`: of those that have it."""

    def __init__(self, message: str, ids: list[str]) -> None:
        super().__init__(message)
        self.ids = ids


def find_node(answer: NodesAnswer, named: str) -> NodeAnswer:
    """The node with this id or name. Two may have one name: then only the id says which."""
    nodes = answer["nodes"]
    matching = [node for node in nodes if node["id"] == named] or [node for node in nodes if node["name"] == named]
    if not matching:
        known = ", ".join(f"{node['name']} ({node['id']})" for node in nodes[:NAMED])
        raise NoSuchNode(f"there is no living node {named!r}; there are: {known or 'none'}", [])
    if len(matching) > 1:
        ids = [node["id"] for node in matching]
        raise NoSuchNode(f"{len(ids)} nodes are called {named!r}; name one by its id: {', '.join(ids[:NAMED])}", ids)
    return matching[0]


def find_gone(answer: NodesAnswer, named: str) -> list[GoneNodeAnswer]:
    """The nodes that are gone and have this id or name. Raises `NoSuchNode` if there is none."""
    gone = answer["gone"]
    matching = [node for node in gone if named in (node["id"], node["name"])]
    if not matching:
        known = ", ".join(f"{node['name']} ({node['id']})" for node in gone[:NAMED])
        raise NoSuchNode(f"there is no node {named!r} that is gone; gone are: {known or 'none'}", [])
    return matching


def shown_nodes(view: Ownership, *, one_owner: bool, gone: Sequence[GoneNode] = ()) -> NodesAnswer:
    """All living processes, and those that still own something: the largest owners first. And those that are gone.

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
        "gone": [shown(node, view) for node in gone],
    }


def _shown(node: NodeRow, shards: int, view: Ownership, there: list[NodeRow]) -> NodeAnswer:
    facts = node.facts
    others = [
        other
        for other in there
        if other.id != node.id and other.is_alive and other.facts.weight and not other.facts.draining
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
