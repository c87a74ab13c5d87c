"""Draining: a process hands all its shards to others, still serves callers as a guest, and is not ready for new
callers.

An operator asks for it at any process of the database, so the wish is an entry of the registry. Each process looks for
its own about once a second. If no other process can take the shards, it keeps them and continues: stalled work is worse
than a process that cannot be stopped yet.
"""

from __future__ import annotations

import logging

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from backstay.engine.core.periodic import PeriodicJob
from backstay.engine.core.registry_writes import write
from backstay.engine.core.world import World
from backstay.engine.node import Node
from backstay.kernel.values import SECOND, Micros
from backstay.store import RegistryEntry, Store

log = logging.getLogger("backstay.engine")

KIND = "node_drain"
EVERY = SECOND
TIDY = 60 * SECOND  # how often to look for the wishes of processes that are gone
FORGOTTEN = 600 * SECOND  # after which the wish for a process that was not seen is removed


class DrainWish(Struct, frozen=True):
    """When an operator asked for it."""

    at: Micros


class Draining:
    """Follows the wishes for the process of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._world = node.engine.world
        self._store = node.store
        self._job = PeriodicJob(self._world, "drain", self._look)
        self._read: tuple[int | None, int] | None = (
            None  # what the registries' version was when wishes were read, and who this is
        )
        self._tidied: Micros = 0
        self.ended = False  # the process is about to end: wishes do not count any more

    def start(self) -> None:
        if not self._store.exclusive:  # the one engine of a file hands over by ending
            self._job.start(EVERY)

    def end(self) -> None:
        """The process is about to end: it drains, whatever operators wish."""
        self.ended = True
        self._job.stop()
        self._node.facts = replace(self._node.facts, draining=True)

    @property
    def asked(self) -> bool:
        """Whether this process hands over its shards."""
        return self._node.facts.draining

    async def _look(self) -> None:
        """Read the wishes if there may be others than before."""
        shards = self._node.shards
        now = (shards.registry, shards.me)
        if self.asked and self._read is not None and self._read[1] != shards.me:
            # The process was declared dead meanwhile, and has another row. The wish holds for the process, not for the
            # row.
            await wish(self._world, self._store, shards.me, True)
        if shards.registry is None or now != self._read or self._world.now() - self._tidied > TIDY:
            await self.read()
            self._read = now

    async def read(self) -> None:
        """Follow the wishes of operators for this process."""
        self._tidied = self._world.now()
        wishes = {entry.name: entry.body for entry in await self._store.kept(KIND) if entry.body is not None}
        me = str(self._node.shards.me)
        self._set(me in wishes)
        if self._node.engine.owned[0]:  # one process is enough for it
            known = {str(id) for id in self._node.shards.nodes}
            for name in wishes.keys() - known:
                if self._world.now() - msgspec.json.decode(wishes[name], type=DrainWish).at > FORGOTTEN:
                    await wish(self._world, self._store, int(name), False)

    def _set(self, draining: bool) -> None:
        if draining != self.asked and not self.ended:
            self._node.facts = replace(self._node.facts, draining=draining)
            log.warning("this process hands its shards to others" if draining else "this process takes shards again")


async def wish(world: World, store: Store, node: int, draining: bool) -> None:
    """Ask a process to drain, or not to any more. It looks for that about once a second."""
    body = msgspec.json.encode(DrainWish(world.now())) if draining else None
    await write(world, store, [RegistryEntry(KIND, "", str(node), body)])
