"""What a server keeps beside workflows, in memory and on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from backstay.server.registries.registry import StoredRegistry
from backstay.store import RegistryEntry


class Registry:
    """The store as `StoredRegistry` sees it. A read is answered when it may be, with what was there when it was asked."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], RegistryEntry] = {}
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def kept(self, kind: str) -> list[RegistryEntry]:
        found = list(self.rows.values())
        await self.may_answer.wait()
        return found

    def keep(self, entry: RegistryEntry, done: Callable[[None], None]) -> None:
        if entry.body is None:
            self.rows.pop((entry.namespace, entry.name), None)
        else:
            self.rows[entry.namespace, entry.name] = entry
        done(None)


def test_an_entry_written_during_a_load_is_not_forgotten() -> None:
    async def story() -> None:
        store: Any = Registry()
        kept = StoredRegistry(store, "worker", int)
        await kept.put("n", "changed", 1)
        await kept.put("n", "removed", 1)
        store.may_answer.clear()
        loading = asyncio.ensure_future(kept.load())
        await asyncio.sleep(0)
        await kept.put("n", "new", 1)
        await kept.put("n", "changed", 2)
        await kept.remove("n", "removed")
        store.may_answer.set()
        await loading
        assert dict(kept.of("n")) == {"new": 1, "changed": 2}
        del store.rows["n", "new"]
        await kept.load()
        assert dict(kept.of("n")) == {"changed": 2}

    asyncio.run(story())
