"""The nodes of a database, as operators see and drain them."""

from __future__ import annotations

from collections.abc import Sequence

from backstay.engine.cluster.draining import wish
from backstay.engine.cluster.gone_nodes import forget
from backstay.engine.cluster.node_views import NodesAnswer, all_nodes
from backstay.engine.core.world import World
from backstay.store import Store


class Roster:
    def __init__(self, world: World, store: Store) -> None:
        self._world = world
        self._store = store

    async def read(self) -> NodesAnswer:
        """The processes at the database, those included that are gone."""
        return await all_nodes(self._store, self._world.now())

    async def forget(self, nodes: Sequence[int]) -> None:
        """Name processes that are gone no more."""
        await forget(self._world, self._store, nodes)

    async def wish(self, node: int, draining: bool) -> None:
        """Ask a process to drain, or not to any more."""
        await wish(self._world, self._store, node, draining)
