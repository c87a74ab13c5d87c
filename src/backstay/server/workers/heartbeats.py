"""The last sign of life of each worker, in memory and on disk, so that a restarted server still knows which are gone.

A worker is heard of with every request. That is noted in memory at once and written soon: at most once in ten seconds
for a worker, or four times in the time that a heartbeat counts, and all of them in one transaction. Each server writes
its own times, and the latest of all servers counts. After a crash a worker may look up to ten seconds older than it
was, never younger.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from backstay.engine.core.world import Alarm, World
from backstay.kernel.values import SECOND, Micros
from backstay.store import RegistryEntry, Store
from backstay.store.errors import Unavailable

EVERY = 10 * SECOND

Place = tuple[str, str]
"""The namespace and the id of a worker."""


class StoredHeartbeat(Struct, frozen=True):
    recorded_at: Micros
    expires_at: Micros


_decode = msgspec.json.Decoder(StoredHeartbeat).decode
KIND = "heartbeat"


class Heartbeats:
    """`lasts`: how long a heartbeat counts."""

    def __init__(self, store: Store, world: World, lasts: Micros) -> None:
        self._store = store
        self._world = world
        self._lasts = lasts
        self._heard: dict[Place, StoredHeartbeat] = {}
        self._unwritten: set[Place] = set()
        self._alarm: Alarm | None = None
        self._writing: asyncio.Task[None] | None = None

    @property
    def every(self) -> Micros:
        """How often they are written."""
        return min(EVERY, self._lasts // 4)

    async def load(self) -> None:
        """Read the times on disk. Another server may have heard of a worker later than this one."""
        for entry in await self._store.kept(KIND):
            if entry.body is not None:
                read, place = _decode(entry.body), (entry.namespace, entry.name)
                known = self._heard.get(place)
                if known is None or read.recorded_at > known.recorded_at:
                    self._heard[place] = read

    def note(self, namespace: str, worker_id: str, lasts: Micros | None = None) -> None:
        """`lasts`: for how long this counts, if not for as long as others."""
        now = self._world.now()
        self._heard[namespace, worker_id] = StoredHeartbeat(now, now + (self._lasts if lasts is None else lasts))
        self._unwritten.add((namespace, worker_id))
        if self._alarm is None:
            self._alarm = self._world.at(self._world.now() + self.every, self._ring)

    def last(self, namespace: str, worker_id: str) -> StoredHeartbeat | None:
        return self._heard.get((namespace, worker_id))

    async def forget(self, namespace: str, worker_id: str) -> None:
        self._unwritten.discard((namespace, worker_id))
        if self._heard.pop((namespace, worker_id), None) is not None:
            await self._write([RegistryEntry(KIND, namespace, worker_id, None, counted=False)])

    async def flush(self) -> None:
        """Write every heartbeat that is not on disk yet, in one transaction."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if not self._unwritten:
            return
        places, self._unwritten = self._unwritten, set()
        try:
            await self._write([self._entry(place) for place in sorted(places)])
        except BaseException:
            self._unwritten |= {place for place in places if place in self._heard}
            raise

    async def stop(self) -> None:
        """Write for the last time. While the database is away, the times in memory stay."""
        if self._writing is not None:
            await self._writing
        await self._flush_or_wait()

    def _entry(self, place: Place) -> RegistryEntry:
        return RegistryEntry(KIND, *place, msgspec.json.encode(self._heard[place]), counted=False)

    def _ring(self) -> None:
        self._alarm = None
        self._writing = self._world.spawn(self._flush_or_wait(), "backstay-heartbeats")

    async def _flush_or_wait(self) -> None:
        with suppress(Unavailable):  # the next heartbeat sets the alarm again
            await self.flush()

    async def _write(self, entries: list[RegistryEntry]) -> None:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def written(error: Unavailable | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(None)

        self._store.keep_all(entries, written)
        await future
