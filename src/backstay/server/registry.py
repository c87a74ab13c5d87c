"""Registry entries: structs by namespace and name, in memory for reading and in the store for the next start."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from backstay.store import RegistryEntry, Store, Unavailable

T = TypeVar("T")


class StoredRegistry(Generic[T]):
    def __init__(self, store: Store, kind: str, shape: type[T]) -> None:
        self._store = store
        self._kind = kind
        self._decode = msgspec.json.Decoder(shape).decode
        self._entries: dict[tuple[str, str], T] = {}
        self._stored: dict[tuple[str, str], bytes] = {}  # the bytes last read or written
        self.changes = 0  # how often an entry was put or removed, here or by another process
        self._loading: list[set[tuple[str, str]]] = []  # for each load under way: the entries written meanwhile

    async def load(self) -> None:
        """Read all entries from disk: at the start, and when another process may have changed them.

        Noted changes stay, unless their entry on disk has changed.
        """
        written: set[tuple[str, str]] = set()
        self._loading.append(written)
        try:
            found = {(entry.namespace, entry.name): entry.body for entry in await self._store.kept(self._kind)}
        finally:
            self._loading = [other for other in self._loading if other is not written]
        # Entries that were written while the rows were read are newer than the rows.
        for place in self._stored.keys() - found.keys() - written:
            self._entries.pop(place, None)
            del self._stored[place]
            self.changes += 1
        for place, body in found.items():
            if body is not None and place not in written and self._stored.get(place) != body:
                self._stored[place] = body
                self._entries[place] = self._decode(body)
                self.changes += 1

    def get(self, namespace: str, name: str) -> T | None:
        return self._entries.get((namespace, name))

    def all(self) -> list[T]:
        return list(self._entries.values())

    def of(self, namespace: str) -> Iterator[tuple[str, T]]:
        for (place, name), entry in list(self._entries.items()):
            if place == namespace:
                yield name, entry

    async def put(self, namespace: str, name: str, entry: T) -> None:
        """Write an entry. Readers see it once it is on disk."""
        body = msgspec.json.encode(entry)
        await self._write(RegistryEntry(self._kind, namespace, name, body))
        self._stored[namespace, name] = body
        self._entries[namespace, name] = entry
        self.changes += 1

    async def change(self, namespace: str, name: str, entry: T | None) -> bool:
        """Write an entry, or remove it, if nobody has changed it since it was read here. False: somebody has, and it was read
        again."""
        place = (namespace, name)
        body = None if entry is None else msgspec.json.encode(entry)
        before = self._stored.get(place)
        if body is None and before is None:
            return False
        if not await self._store.keep_if(RegistryEntry(self._kind, namespace, name, body), before):
            await self.load()
            return False
        for places in self._loading:
            places.add(place)
        self.changes += 1
        if entry is None or body is None:
            self._stored.pop(place, None)
            self._entries.pop(place, None)
        else:
            self._stored[place] = body
            self._entries[place] = entry
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

    async def remove(self, namespace: str, name: str) -> T | None:
        await self._write(RegistryEntry(self._kind, namespace, name, None))
        self._stored.pop((namespace, name), None)
        self.changes += 1
        return self._entries.pop((namespace, name), None)

    async def _write(self, entry: RegistryEntry) -> None:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def written(error: Unavailable | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(None)

        self._store.keep(entry, written)
        await future
        for places in self._loading:
            places.add((entry.namespace, entry.name))
