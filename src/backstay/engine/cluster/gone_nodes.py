"""Gone nodes: processes that did not shut down, and that others have declared dead.

The process that deposes a node writes an entry of the registry: its id and name, the time of its last sign of life, and
its shards. Operators see the entry until an operator forgets it, a day has passed, or a process of the same name
starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypedDict

import msgspec
from msgspec import Struct

from backstay.engine.core.local_kinds import GONE_NODE
from backstay.engine.core.registry_writes import write
from backstay.engine.core.world import World
from backstay.kernel.spans import iso
from backstay.kernel.values import SECOND, Micros
from backstay.store import RegistryEntry, Store
from backstay.store.ownership import NodeRow, Ownership

KEPT: Micros = 24 * 3600 * SECOND
"""For so long a node that is gone is named."""


class GoneNode(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: int
    name: str
    address: str | None = None
    version: str = ""
    since: Micros
    """When it was heard for the last time."""
    shards: list[int] = []
    """Those that it owned."""


class TakenOver(TypedDict):
    """A process that owns shards of one that is gone. `id` None: they have no owner."""

    id: str | None
    name: str
    shards: int


class GoneNodeAnswer(TypedDict):
    id: str
    name: str
    address: str | None
    version: str
    gone_since: str
    shards: int
    taken_over_by: list[TakenOver]


def is_named(row: NodeRow, shards: Sequence[int]) -> bool:
    """Whether people miss this process: it had work, or others called it."""
    return bool(shards) or row.facts.address is not None


def entry_of(row: NodeRow, shards: Sequence[int], now: Micros) -> RegistryEntry:
    facts = row.facts
    gone = GoneNode(
        id=row.id,
        name=facts.name or f"process {row.id}",
        address=facts.address,
        version=facts.version,
        since=now - row.silent,
        shards=list(shards),
    )
    return RegistryEntry(GONE_NODE, "", str(row.id), msgspec.json.encode(gone), counted=False)


async def gone_nodes(store: Store, now: Micros, living: Mapping[int, NodeRow]) -> list[GoneNode]:
    """The processes that are gone, the last one first. Those whose name another process has are back."""
    if store.exclusive:
        return []
    nodes = [_read(entry) for entry in await store.kept(GONE_NODE)]
    named = [node for node in nodes if not _is_over(node, now, living) and node.id not in living]
    return sorted(named, key=lambda node: -node.since)


def _is_over(gone: GoneNode, now: Micros, living: Mapping[int, NodeRow]) -> bool:
    """Whether a day has passed, or a process of the same name is there."""
    return now - gone.since >= KEPT or any(row.is_alive and row.facts.name == gone.name for row in living.values())


def _read(entry: RegistryEntry) -> GoneNode:
    return msgspec.json.decode(entry.body or b"", type=GoneNode)


async def forget(world: World, store: Store, nodes: Sequence[int]) -> None:
    await write(world, store, [RegistryEntry(GONE_NODE, "", str(node), None, counted=False) for node in nodes])


async def forget_past(world: World, store: Store, living: Mapping[int, NodeRow]) -> None:
    """Remove outdated entries. A process that is back may end by itself later, and is not missed then."""
    if not store.exclusive:
        nodes = map(_read, await store.kept(GONE_NODE))
        past = [node.id for node in nodes if _is_over(node, world.now(), living)]
        if past:
            await forget(world, store, past)


def shown(gone: GoneNode, view: Ownership) -> GoneNodeAnswer:
    names = {row.id: row.facts.name for row in view.nodes}
    owners = Counter(view.shards[shard].owner for shard in gone.shards if shard < len(view.shards))
    return {
        "id": str(gone.id),
        "name": gone.name,
        "address": gone.address,
        "version": gone.version,
        "gone_since": iso(gone.since),
        "shards": len(gone.shards),
        "taken_over_by": [
            {"id": None, "name": "nobody", "shards": count}
            if owner is None or owner not in names
            else {"id": str(owner), "name": names[owner] or f"process {owner}", "shards": count}
            for owner, count in owners.most_common()
        ],
    }


def told(gone: GoneNodeAnswer) -> str:
    """A node that is gone, in a sentence for people."""
    takers = ", ".join(f"{taker['name']} ({taker['shards']})" for taker in gone["taken_over_by"])
    work = f"its {gone['shards']} shards are with {takers}" if takers else "it owned nothing"
    return f"{gone['name']} is gone since {gone['gone_since']}; {work}"
