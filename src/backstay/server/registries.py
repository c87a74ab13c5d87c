"""All registries of a server, read again when another process has changed an entry.

Where a database counts the changes of its registries, the count is looked at each second, before a worker is refused for not being
registered, and before anything that reads is refused: what it names may have been registered at another node a moment ago. Elsewhere
they are read again after a commit of another process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from backstay.engine.periodic import PeriodicJob
from backstay.engine.world import Alarm, World
from backstay.kernel.values import SECOND
from backstay.server.workers import WorkerRegistry
from backstay.store import Store, Unavailable

EVERY = SECOND


class Loads(Protocol):
    async def load(self) -> None: ...


class Registries:
    """`on_reload` is called when they have been read again, and may be others than before."""

    def __init__(
        self,
        store: Store,
        world: World,
        workers: WorkerRegistry,
        others: Sequence[Loads],
        on_reload: Callable[[], None],
    ) -> None:
        self._store = store
        self._world = world
        self._workers = workers
        self._registries: list[Loads] = [workers, *others]
        self._on_reload = on_reload
        self._version: int | None = None
        self._lock = asyncio.Lock()
        self._job = PeriodicJob(world, "registries", self.refresh)
        self._alarm: Alarm | None = None
        self._loading: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """Read every registry from disk."""
        self._version = await self._store.registry_version()  # before: what changes meanwhile is read again
        for registry in self._registries:
            await registry.load()
        if self._version is not None:
            self._job.start(EVERY)

    async def refresh(self) -> None:
        """Read them again if an entry has changed since."""
        async with self._lock:
            version = await self._store.registry_version()
            if version is None or version != self._version:
                await self.load()
                self._on_reload()

    @property
    def version(self) -> int | None:
        """How often entries had been changed when they were read last; None: nobody counts."""
        return self._version

    async def changed_since(self, version: int | None) -> bool:
        """Read them again if they are no longer as they were. Whether they are not."""
        if version is not None:
            await self.refresh()
        return self._version != version

    async def look_for_worker(self, namespace: str, worker_id: str) -> None:
        """Look again if a worker is not known: it may be known to another process."""
        if self._workers.get(namespace, worker_id) is None and self._version is not None:
            await self.refresh()

    def changed_elsewhere(self) -> None:
        """Another process has committed. If nobody counts changes of registries, read them again, at most once a second."""
        if self._version is None and self._alarm is None:
            self._alarm = self._world.at(self._world.now() + EVERY, self._load_soon)

    def stop(self) -> None:
        self._job.stop()
        if self._alarm is not None:
            self._alarm.cancel()
        if self._loading is not None:
            self._loading.cancel()

    def _load_soon(self) -> None:
        self._alarm = None
        self._loading = self._world.spawn(self._load_again(), "backstay-registries")

    async def _load_again(self) -> None:
        """Repeat until the database answers: a revoked token must not stay valid because the database was away."""
        try:
            await self.refresh()
        except Unavailable:
            self.changed_elsewhere()
