"""Whether the database can be used, for `/api/ready` and `/api/health`.

The engine notices a database that cannot commit. A database that cannot be read commits nothing either, because every start and
signal is preceded by a read. So the same reads are tried here, at most once a second.
"""

from __future__ import annotations

import asyncio

from backstay.engine.core.engine import Engine
from backstay.kernel.values import SECOND
from backstay.store.errors import Unavailable

EVERY = SECOND
PATIENCE = 0.5  # seconds that an answer waits for reads which have begun: a slow database is not a broken one


class DatabaseCheck:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._looked_at = -EVERY
        self._look: asyncio.Task[None] | None = None
        self._found: Unavailable | None = None

    async def trouble(self) -> Unavailable | None:
        """Why the database cannot be used, as far as is known; None: it can."""
        engine = self._engine
        if engine.down is not None:
            return engine.down
        if self._look is None and engine.world.ticks() - self._looked_at >= EVERY:
            self._look = engine.world.spawn(self._read(), "backstay-database-check")
        if self._look is not None:
            await asyncio.wait({self._look}, timeout=PATIENCE)
        return engine.down or self._found

    async def _read(self) -> None:
        engine = self._engine
        try:
            # The read of a start: whether its id is taken. Another id each time, so other pages of the index.
            await engine.store.find_all("default", [engine.world.ids.ulid()])
            await engine.store.due(engine.world.now(), 1)
            self._found = None
        except Unavailable as unavailable:
            self._found = unavailable
        finally:
            self._looked_at, self._look = engine.world.ticks(), None

    async def stop(self) -> None:
        if self._look is not None:
            self._look.cancel()
            await asyncio.wait({self._look})
