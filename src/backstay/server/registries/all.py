"""All registries of a server, read again when another process has changed an entry.

Rule: a change that one node has acknowledged is known at all of them. So the node that has written an entry notifies
all nodes that it can call, and acknowledges it when they have read it. It does not wait long: a node that does not
answer gets no further notices until it does, and no request waits for it.

A change without a notice is found by reading. Where a database counts the changes of its registries, the count is read
each second, and before a request is refused because of an unknown entry: a token, a namespace, a worker. Elsewhere
registries are read again after a commit of another process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from backstay.engine.core.periodic import PeriodicJob
from backstay.engine.core.world import Alarm, World
from backstay.kernel.message import Refused
from backstay.kernel.values import SECOND
from backstay.protocol.native.node_links import Links
from backstay.protocol.native.nodes import LinkFailed, Misdirected, Owner, ReadRegistry
from backstay.server.registries.registry import StoredRegistry
from backstay.server.workers.worker_registry import WorkerRegistry
from backstay.store import Store
from backstay.store.errors import Unavailable

EVERY = SECOND
PATIENCE = 0.5  # seconds that a write waits for other nodes
APART = 0.02  # seconds between two reads for unknown entries, however many requests need one


class ReadEntries(Protocol):
    """Entries of one kind, and what depends on them."""

    @property
    def kept(self) -> StoredRegistry[Any]: ...

    async def load(self) -> None: ...


class Registries:
    """`on_reload` is called when they have been read again, and may be others than before. `nodes`: those that can be called
    over `links`. `seen`: the version as of the last read of the owners; None: it found none."""

    def __init__(
        self,
        store: Store,
        world: World,
        workers: WorkerRegistry,
        others: Sequence[ReadEntries],
        on_reload: Callable[[], None],
        links: Links,
        nodes: Callable[[], Sequence[Owner]],
        seen: Callable[[], int | None],
    ) -> None:
        self._store = store
        self._world = world
        self._workers = workers
        registries: list[ReadEntries] = [workers, *others]
        self._registries = {registry.kept.kind: registry for registry in registries}
        for registry in registries:
            registry.kept.on_write = self._tell
        self._on_reload = on_reload
        self._links = links
        self._nodes = nodes
        self._seen = seen
        self._silent: dict[int, asyncio.Task[None]] = {}  # nodes that have not answered yet, though they had time
        self._version: int | None = None
        self._lock = asyncio.Lock()
        self._confirming = asyncio.Lock()
        self._asked = 0  # how often a request was about to be refused
        self._confirmed = 0  # how many of these have been looked after
        self._looked = 0.0
        self._job = PeriodicJob(world, "registries", self.look)
        self._heard = world.now()  # when heartbeats were read last
        self._alarm: Alarm | None = None
        self._loading: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """Read every registry from disk."""
        version = await self._store.registry_version()  # before: later changes are read again
        for registry in self._registries.values():
            await registry.load()
        self._version = version  # after: entries that could not be read are read again
        if self._version is not None:
            self._job.start(EVERY)

    async def refresh(self) -> None:
        """Read them again if an entry has changed since."""
        async with self._lock:
            version = await self._store.registry_version()
            if version is None or version != self._version:
                await self.load()
                self._on_reload()

    async def look(self) -> None:
        """Look, as each second, at what other processes have changed and heard."""
        seen = self._seen()
        if seen is None or seen != self._version:
            await self.refresh()
        heartbeats = self._workers.heartbeats  # of which there are many, so they are not counted
        if self._world.now() - self._heard >= heartbeats.every // 2:
            self._heard = self._world.now()
            await heartbeats.load()

    @property
    def version(self) -> int | None:
        """How often entries had been changed when they were read last; None: changes are not counted."""
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

    async def confirm(self) -> None:
        """Read again, before a request is refused because of an unknown entry.

        This is for callers without a credential, too: all that come within a moment share a look.
        """
        if self._version is None:
            return
        self._asked += 1
        mine = self._asked
        async with self._confirming:
            if self._confirmed >= mine:
                return
            loop = asyncio.get_running_loop()
            await asyncio.sleep(max(self._looked + APART - loop.time(), 0))
            self._looked = loop.time()
            asked = self._asked
            await self.refresh()
            self._confirmed = asked

    # -- between nodes

    async def _tell(self, kind: str) -> None:
        """Let all nodes read entries of a kind again, since one was written here."""
        calls: dict[asyncio.Task[None], int] = {}
        for node in self._nodes():
            if node.id not in self._silent:
                call = self._world.spawn(self._tell_one(node, kind), "backstay-registries")
                calls[call] = node.id
        if calls:
            _, late = await asyncio.wait(calls, timeout=PATIENCE)
            for call in late:
                node_id = calls[call]
                self._silent[node_id] = call
                call.add_done_callback(lambda _, node_id=node_id: self._silent.pop(node_id, None))

    async def _tell_one(self, node: Owner, kind: str) -> None:
        with suppress(LinkFailed, Misdirected, Refused):  # it looks by itself
            await self._links.call(node, ReadRegistry(kind=kind))

    async def read(self, told: ReadRegistry) -> None:
        """Another node has changed an entry."""
        registry = self._registries.get(told.kind)
        if registry is not None:
            await registry.load()
            if registry is self._workers:
                self._on_reload()

    # -- commits of others

    def changed_elsewhere(self) -> None:
        """Another process has committed. Where changes of registries are not counted, read them again, at most once a
        second."""
        if self._version is None and self._alarm is None:
            self._alarm = self._world.at(self._world.now() + EVERY, self._load_soon)

    def stop(self) -> None:
        self._job.stop()
        if self._alarm is not None:
            self._alarm.cancel()
        if self._loading is not None:
            self._loading.cancel()
        for call in list(self._silent.values()):
            call.cancel()

    def _load_soon(self) -> None:
        self._alarm = None
        self._loading = self._world.spawn(self._load_again(), "backstay-registries")

    async def _load_again(self) -> None:
        """Repeat until the database answers: a revoked token must not stay valid because the database was away."""
        try:
            await self.refresh()
        except Unavailable:
            self.changed_elsewhere()
