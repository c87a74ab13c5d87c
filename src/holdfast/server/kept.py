"""Registry entries: structs by namespace and name, in memory for reading and in the store for the next start."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.store import Entry, Store, Unavailable

T = TypeVar("T")


class Kept(Generic[T]):
    def __init__(self, store: Store, kind: str, shape: type[T]) -> None:
        self._store = store
        self._kind = kind
        self._decode = msgspec.json.Decoder(shape).decode
        self._entries: dict[tuple[str, str], T] = {}

    async def load(self) -> None:
        found = await self._store.kept(self._kind)
        self._entries = {(e.namespace, e.name): self._decode(e.body) for e in found if e.body is not None}

    def get(self, namespace: str, name: str) -> T | None:
        return self._entries.get((namespace, name))

    def all(self) -> list[T]:
        return list(self._entries.values())

    def of(self, namespace: str) -> Iterator[tuple[str, T]]:
        for (place, name), entry in list(self._entries.items()):
            if place == namespace:
                yield name, entry

    async def put(self, namespace: str, name: str, entry: T) -> None:
        """On disk when this returns, and known only then."""
        await self._write(Entry(self._kind, namespace, name, msgspec.json.encode(entry)))
        self._entries[namespace, name] = entry

    def note(self, namespace: str, name: str, entry: T) -> None:
        """Known now, and not worth a write: what changes all the time and may be lost."""
        self._entries[namespace, name] = entry

    async def remove(self, namespace: str, name: str) -> T | None:
        await self._write(Entry(self._kind, namespace, name, None))
        return self._entries.pop((namespace, name), None)

    async def _write(self, entry: Entry) -> None:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def written(error: Unavailable | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(None)

        self._store.keep(entry, written)
        await future
