"""The level that the processes of a database have reached together, as the database remembers it.

A process may write rows that need a level once all others can read them, and once the database remembers that. So a
process of an older release is refused also where no other one lives.
"""

from __future__ import annotations

from backstay.store import RegistryEntry, Store

KIND = "level"
FIRST = 1  # the level of a database without an entry


class ReachedLevel:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: bytes | None = None
        self.known = FIRST

    async def read(self) -> int:
        self._kept = next((entry.body for entry in await self._store.kept(KIND)), None)
        self.known = FIRST if self._kept is None else int(self._kept)
        return self.known

    async def reach(self, level: int) -> None:
        """Remember that all processes have this level. It never goes down."""
        if await self.read() < level:
            body = str(level).encode()
            if await self._store.keep_if(RegistryEntry(KIND, "", KIND, body, counted=False), self._kept):
                self.known = level
