"""A day of nodes at one database that write entries of a registry, tell each other, and answer from memory.

Each has the real `Registries` and `StoredRegistry`. The law (S14): what was acknowledged at one node is known at every node that can
be called; at one that could not be told, within seconds. And when nothing goes on any more, all nodes have what is on disk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, cast

import msgspec

from backstay.engine.cluster.shards import LOOK
from backstay.engine.core.periodic import PeriodicJob
from backstay.protocol.native.nodes import LinkFailed, Owner, ReadRegistry
from backstay.server.registries.all import PATIENCE, Registries
from backstay.server.registries.registry import StoredRegistry
from backstay.server.workers.worker_registry import WorkerRegistry
from backstay.store import RegistryEntry, Store
from backstay.store.errors import Unavailable

from ..virtual import VirtualLoop, VirtualWorld

NAMES: tuple[str, ...] = ("a", "b", "c")
LATE = 4.0 + PATIENCE
"""Seconds within which a node knows what it was not told."""


class Unknown(AssertionError):
    """The law does not hold."""


class Entries:
    """What is on disk, and in which order it got there. Every body is another number."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, str], bytes] = {}
        self.version = 0
        self.commits = 0
        self._orders: dict[tuple[str, int | None], list[int]] = {}

    def write(self, entry: RegistryEntry) -> None:
        place = (entry.kind, entry.namespace, entry.name)
        self.version += entry.counted
        self.commits += 1
        if entry.body is None:
            self.rows.pop(place, None)
        else:
            self.rows[place] = entry.body
        body = None if entry.body is None else msgspec.json.decode(entry.body, type=int)
        self._orders.setdefault((entry.name, body), []).append(self.commits)

    def order(self, name: str, body: int | None) -> int:
        """When this was written last; 0: it has always been so."""
        return self._orders.get((name, body), [0])[-1]

    def first(self, name: str, body: int | None, after: int) -> int:
        """When this was written first, after a commit."""
        return next(order for order in self._orders[name, body] if order > after)


class Handle:
    """One node's way to the database. Commits of one node are in the order in which they were asked for."""

    def __init__(self, day: Day) -> None:
        self._day = day
        self._session = asyncio.Lock()

    async def kept(self, kind: str) -> list[RegistryEntry]:
        await self._day.travel()
        if self._day.fires(0.03):
            raise Unavailable("it cannot be read")
        found = [RegistryEntry(*place, body) for place, body in self._day.entries.rows.items() if place[0] == kind]
        await self._day.travel()
        return found

    async def registry_version(self) -> int:
        await self._day.travel()
        version = self._day.entries.version
        await self._day.travel()
        return version

    def keep(self, entry: RegistryEntry, done: Callable[[Unavailable | None], None]) -> None:
        self._day.loop.create_task(self._keep(entry, done))

    async def _keep(self, entry: RegistryEntry, done: Callable[[Unavailable | None], None]) -> None:
        async with self._session:
            await self._day.travel()
            if self._day.fires(0.03):
                done(Unavailable("it is not written"))
                return
            self._day.entries.write(entry)
            await self._day.travel()
        done(Unavailable("nobody knows whether it is written") if self._day.fires(0.03) else None)

    async def keep_if(self, entry: RegistryEntry, before: bytes | None) -> bool:
        async with self._session:
            await self._day.travel()
            if self._day.entries.rows.get((entry.kind, entry.namespace, entry.name)) != before:
                return False
            self._day.entries.write(entry)
            await self._day.travel()
        return True


class Node:
    def __init__(self, day: Day, id: int) -> None:
        self._day = day
        self.id = id
        store = cast("Store", Handle(day))
        world = VirtualWorld(day.loop, id)
        self.kept: StoredRegistry[int] = day.stored(store, "token", int)
        workers = WorkerRegistry(store, world, 60, 600)
        self._store = store
        self._seen: int | None = None
        self._job = PeriodicJob(world, "look", self._look)
        self._job.start(LOOK)
        self.registries: Registries = day.registries(
            store,
            world,
            workers,
            [self.kept],
            lambda: None,
            links=self,
            nodes=self._others,
            seen=lambda: self._seen,
        )

    async def _look(self) -> None:
        self._seen = await self._store.registry_version()

    def _others(self) -> list[Owner]:
        return [Owner(node.id, "http://node", 0) for node in self._day.nodes if node is not self]

    async def call(self, owner: Owner, request: ReadRegistry) -> None:
        await self._day.travel()
        if self._day.fires(0.1):
            raise LinkFailed("it is lost", sent=True)
        await self._day.nodes[owner.id].registries.read(request)
        await self._day.travel()
        if self._day.fires(0.1):
            raise LinkFailed("the answer is lost", sent=True)

    async def write(self) -> None:
        """Write, remove or change an entry. What is acknowledged counts from then on."""
        day, name = self._day, self._day.dice.choice(NAMES)
        value = day.dice.choice([None, day.next_value(), day.next_value()])
        before = day.entries.commits
        try:
            if day.dice.random() < 0.3:
                if not await self.kept.change("", name, value):
                    return
            elif value is None:
                await self.kept.remove("", name)
            else:
                await self.kept.put("", name, value)
        except Unavailable:
            return
        day.acknowledged(name, day.entries.first(name, value, before))


class Day:
    """One seed is one day. `stored` and `registries`: the classes that the nodes have."""

    def __init__(
        self, seed: int, stored: Any = StoredRegistry, registries: Any = Registries, *, faults: bool = True
    ) -> None:
        self.dice = Random(f"{seed}:registries")
        self.loop = VirtualLoop()
        self.stored = stored
        self.registries = registries
        self.entries = Entries()
        self.faults = faults
        self.calm = not faults
        self._value = 0
        self._said: deque[tuple[float, str, int]] = deque()  # what was acknowledged, and may still be unknown
        self._least = dict.fromkeys(NAMES, 0)  # what every node knows at least, by the order of commits
        self.acknowledgements = 0

    def next_value(self) -> int:
        self._value += 1
        return self._value

    def fires(self, chance: float) -> bool:
        return not self.calm and self.dice.random() < chance

    async def travel(self) -> None:
        slow = 0.01 if self.calm else 0.8
        await asyncio.sleep(self.dice.choice([0, 0.0005, 0.001, 0.002, 0.005, slow if self.fires(0.2) else 0.003]))

    def acknowledged(self, name: str, order: int) -> None:
        self.acknowledgements += 1
        self._said.append((self.loop.time(), name, order))
        self._check()

    def _check(self) -> None:
        """Nobody answers with less than was acknowledged."""
        until = self.loop.time() - (LATE if self.faults else 0.0)
        while self._said and self._said[0][0] <= until:
            _, name, order = self._said.popleft()
            self._least[name] = max(self._least[name], order)
        for name, least in self._least.items():
            for node in self.nodes:
                known = self.entries.order(name, node.kept.get("", name))
                if known < least:
                    raise Unknown(f"S14 {name} at node {node.id}: {known} after {least}, at {self.loop.time():.4f}")

    def run(self) -> Day:
        try:
            asyncio.set_event_loop(self.loop)
            self.loop.set_exception_handler(lambda loop, context: None)
            self.loop.run_until_complete(self._story())
        finally:
            for task in asyncio.all_tasks(self.loop):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            self.loop.close()
        return self

    async def _story(self) -> None:
        self.nodes: list[Node] = []
        self.nodes = [Node(self, id) for id in range(self.dice.choice([2, 3, 3]))]
        calm, self.calm = self.calm, True
        for node in self.nodes:
            await node.registries.load()
        self.calm = calm
        callers = [self.loop.create_task(self._caller()) for _ in range(4)]
        watch = self.loop.create_task(self._watch())
        await asyncio.gather(*callers)
        self.calm = True
        watch.cancel()
        await asyncio.sleep(2 * LATE)
        for node in self.nodes:
            for name in NAMES:
                body = self.entries.rows.get(("token", "", name))
                if node.kept.get("", name) != (None if body is None else msgspec.json.decode(body)):
                    raise Unknown(f"{name} at node {node.id} is not what is on disk")

    async def _caller(self) -> None:
        for _ in range(40):
            await asyncio.sleep(self.dice.choice([0, 0.001, 0.01, 0.5]))
            await self.dice.choice(self.nodes).write()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(0.037 if self.faults else 0.0037)
            self._check()
