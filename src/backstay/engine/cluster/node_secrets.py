"""The secret by which nodes know each other. It is in the database, so exactly the processes that can read the database
know it.

Each secret is an entry of its own and is never changed, so nodes that make one at the same moment do no harm: every stored
one is accepted.
"""

from __future__ import annotations

from secrets import token_urlsafe

import msgspec

from backstay.engine.core.local_kinds import NODE_SECRET
from backstay.engine.core.registry_writes import write
from backstay.engine.core.world import World
from backstay.kernel.values import SECOND
from backstay.store import RegistryEntry, Store
from backstay.store.errors import Unavailable

AGAIN = SECOND  # between two looks for secrets that are not known yet


class NodeSecrets:
    def __init__(self, world: World, store: Store) -> None:
        self._world = world
        self._store = store
        self._known: list[str] = []  # by the names of their entries: the first is ours
        self._looked: int | None = None

    async def load(self) -> None:
        entries = sorted(await self._store.kept(NODE_SECRET), key=lambda entry: entry.name)
        self._known = [msgspec.json.decode(entry.body, type=str) for entry in entries if entry.body is not None]

    async def ours(self) -> str:
        """The secret that this node proves to know. The first node of a database makes it."""
        if not self._known:
            await self.load()
        if not self._known:
            await self._make()
            await self.load()
        return self._known[0]

    @property
    def known(self) -> list[str]:
        """All secrets that nodes of the database may use, as far as they were read."""
        return self._known

    async def _make(self) -> None:
        body = msgspec.json.encode(token_urlsafe(32))
        entry = RegistryEntry(NODE_SECRET, "", self._world.ids.ulid(), body, counted=False)
        await write(self._world, self._store, [entry])

    def look_for_others(self) -> None:
        """A caller uses a secret that is not known. It may have been made a moment ago, so the database is looked at for the next
        try."""
        now = self._world.ticks()
        if self._looked is None or now - self._looked >= AGAIN:
            self._looked = now
            self._world.spawn(self._look_again(), "backstay-node-secrets")

    async def _look_again(self) -> None:
        try:
            await self.load()
        except Unavailable:
            self._looked = None
