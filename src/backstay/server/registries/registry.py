"""Registry entries: structs by namespace and name, in memory for reading and in the store for the next start.

Every server holds all of them in memory, so the entries of one namespace are bounded, in number and in bytes.

A write is over when other processes have notice of it (`on_write`): an acknowledged entry is known there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from backstay.server.http.errors import HttpError
from backstay.store import RegistryEntry, Store
from backstay.store.errors import Unavailable

T = TypeVar("T")

READS = 10  # of one load at most, if entries are written meanwhile


async def tell_nobody(kind: str) -> None:
    """No other process has these entries in memory."""


class StoredRegistry(Generic[T]):
    """`on_write` is awaited after each write, with the kind of the entries. `most`, `most_bytes`: how many entries of a namespace
    there may be, and how many bytes of JSON they may have; None: others see to that."""

    def __init__(
        self, store: Store, kind: str, shape: type[T], *, most: int | None = None, most_bytes: int | None = None
    ) -> None:
        self._store = store
        self.kind = kind
        self._most = most
        self._most_bytes = most_bytes
        self._counts: Counter[str] = Counter()  # of entries, by namespace
        self._bytes: Counter[str] = Counter()  # of all entries of a namespace
        self.on_write: Callable[[str], Awaitable[None]] = tell_nobody
        self._decode = msgspec.json.Decoder(shape).decode
        self._entries: dict[tuple[str, str], T] = {}
        self._stored: dict[tuple[str, str], bytes] = {}  # the bytes last read or written
        self.changes = 0  # how often an entry was put or removed, here or by another process
        self._loads = 0  # reads that have ended
        self._written: set[tuple[str, str]] | None = None  # entries written during the load under way
        self._turn = asyncio.Lock()  # of loads: an older one must not end after a newer one
        self._asked = 0  # requested loads
        self._served = 0  # those of them that have been served

    @property
    def kept(self) -> StoredRegistry[T]:
        """These entries."""
        return self

    async def load(self) -> None:
        """Read all entries from disk: at the start, and when another process may have changed them.

        Noted changes stay, unless their entry on disk has changed. A request that comes while a load waits for its turn
        is served by that load.
        """
        self._asked += 1
        mine = self._asked
        async with self._turn:
            if self._served >= mine:
                return
            asked = self._asked
            for _ in range(READS):
                if not await self._read():
                    break
            self._served = asked

    async def _read(self) -> bool:
        """Read all entries. True: some were written here meanwhile, and it is not known what of them is newer."""
        written = self._written = set()
        try:
            found = {(entry.namespace, entry.name): entry.body for entry in await self._store.kept(self.kind)}
        finally:
            self._written = None
        self._loads += 1
        for place in self._stored.keys() - found.keys() - written:
            self._entries.pop(place, None)
            self._remember(place, None)
            self.changes += 1
        for place, body in found.items():
            if body is not None and place not in written and self._stored.get(place) != body:
                self._remember(place, body)
                self._entries[place] = self._decode(body)
                self.changes += 1
        return bool(written)

    def _remember(self, place: tuple[str, str], body: bytes | None) -> None:
        """An entry is on disk, or not any more."""
        namespace = place[0]
        before = self._stored.pop(place, None)
        if before is not None:
            self._counts[namespace] -= 1
            self._bytes[namespace] -= len(before)
        if body is not None:
            self._stored[place] = body
            self._counts[namespace] += 1
            self._bytes[namespace] += len(body)
        elif not self._counts[namespace]:
            del self._counts[namespace], self._bytes[namespace]

    def check_room(self, namespace: str, name: str, size: int) -> None:
        """Refuse an entry of this size that a namespace has no room for."""
        before = self._stored.get((namespace, name))
        where = f"namespace {namespace!r}" if namespace else "this server"
        kind = self.kind.replace("_", " ")
        if self._most is not None and before is None and self._counts[namespace] >= self._most:
            raise self._full(
                f"{where} already has {self._most} entries of the kind {kind}, which is the limit", self._most
            )
        more = size - len(before or b"")
        if self._most_bytes is not None and more > 0 and self._bytes[namespace] + more > self._most_bytes:
            said = f"{where} may keep {self._most_bytes} bytes of entries of the kind {kind}, and this entry would exceed that"
            raise self._full(said, self._most_bytes)

    def _full(self, message: str, limit: int) -> HttpError:
        return HttpError(
            429,
            f"{self.kind}_capacity_exhausted",
            f"{message}; remove unused ones",
            limit=limit,
            retryable=True,
            retry_after_seconds=60,
        )

    def get(self, namespace: str, name: str) -> T | None:
        return self._entries.get((namespace, name))

    def stored(self, namespace: str, name: str) -> T | None:
        """An entry as it was last read or written, without later notes."""
        body = self._stored.get((namespace, name))
        return None if body is None else self._decode(body)

    def count(self, namespace: str) -> int:
        """How many entries of a namespace are on disk."""
        return self._counts[namespace]

    def bytes_of(self, namespace: str) -> int:
        """How many bytes of JSON the entries of a namespace have on disk."""
        return self._bytes[namespace]

    def all(self) -> list[T]:
        return list(self._entries.values())

    def of(self, namespace: str) -> Iterator[tuple[str, T]]:
        for (place, name), entry in list(self._entries.items()):
            if place == namespace:
                yield name, entry

    async def put(self, namespace: str, name: str, entry: T) -> None:
        """Write an entry. Readers see it once it is on disk. Refused if its namespace has no room for it."""
        await self._write(namespace, name, entry)

    async def remove(self, namespace: str, name: str) -> T | None:
        before = self.get(namespace, name)
        await self._write(namespace, name, None)
        return before

    async def change(self, namespace: str, name: str, entry: T | None) -> bool:
        """Write an entry, or remove it, if it is unchanged since it was read here. False: it has changed, and was read
        again."""
        body = None if entry is None else msgspec.json.encode(entry)
        before, loads = self._stored.get((namespace, name)), self._loads
        if body is None and before is None:
            return False
        if body is not None:
            self.check_room(namespace, name, len(body))
        if not await self._store.keep_if(RegistryEntry(self.kind, namespace, name, body), before):
            await self.load()
            return False
        await self._wrote(namespace, name, entry, body, loads)
        return True

    def note(self, namespace: str, name: str, entry: T) -> None:
        """Change an entry in memory only: for values that change often and may be lost."""
        self._entries[namespace, name] = entry

    def undo(self, namespace: str, name: str) -> None:
        """Drop a noted change of an entry."""
        body = self._stored.get((namespace, name))
        if body is None:
            self._entries.pop((namespace, name), None)
        else:
            self._entries[namespace, name] = self._decode(body)

    async def _write(self, namespace: str, name: str, entry: T | None) -> None:
        body = None if entry is None else msgspec.json.encode(entry)
        if body is not None:
            self.check_room(namespace, name, len(body))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        loads = self._loads

        def written(error: Unavailable | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(None)

        self._store.keep(RegistryEntry(self.kind, namespace, name, body), written)
        await future
        await self._wrote(namespace, name, entry, body, loads)

    async def _wrote(self, namespace: str, name: str, entry: T | None, body: bytes | None, loads: int) -> None:
        """An entry is on disk. `loads`: how many reads had ended when its write began."""
        place = (namespace, name)
        if self._written is not None:
            self._written.add(place)
        self.changes += 1
        if self._loads == loads or not await self._has_read():
            if entry is None or body is None:
                self._remember(place, None)
                self._entries.pop(place, None)
            else:
                self._remember(place, body)
                self._entries[place] = entry
        await self.on_write(self.kind)

    async def _has_read(self) -> bool:
        """Read again, since a read during a write may return the later write of another process. False: nothing can be
        read; later it is."""
        try:
            await self.load()
        except Unavailable:
            return False
        return True
