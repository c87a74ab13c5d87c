"""A day of nodes that match activities of the same worker sessions, each by itself.

Each has the real `SessionRegistry`, and no links: it learns what others have done when it looks. A worker registers at one node. The law
(S10): a session has one worker, whatever node has matched it. An activity is sent only to the worker that the entry on disk names, never in
a session that was closed, and an entry gets another worker only when the session was over for the one before.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from backstay.kernel.session import WorkerSession
from backstay.kernel.values import Micros
from backstay.server.http.errors import HttpError
from backstay.server.workers.sessions import SessionRecord, SessionRegistry
from backstay.server.workers.worker_registry import RegisteredWorker, WorkerRegistry
from backstay.store import RegistryEntry, Store
from backstay.store.errors import Unavailable

from ..virtual import VirtualLoop, VirtualWorld

WORKERS = ("w0", "w1", "w2")
SESSIONS = ("a", "b")
KIND = "worker_session"


class TwoWorkers(AssertionError):
    """The law does not hold."""


class SessionStore:
    """One node's way to the database: late, lost before or after it was written."""

    exclusive = False

    def __init__(self, day: SessionDay) -> None:
        self._day = day
        self._session = asyncio.Lock()

    async def kept(self, kind: str) -> list[RegistryEntry]:
        await self._day.travel()
        return [RegistryEntry(*place, body) for place, body in self._day.rows.items() if place[0] == kind]

    async def keep_if(self, entry: RegistryEntry, before: bytes | None) -> bool:
        async with self._session:
            await self._day.travel()
            if self._day.fires(0.05):
                raise Unavailable("it is not written")
            if self._day.rows.get((entry.kind, entry.namespace, entry.name)) != before:
                return False
            self._day.write(entry)
        if self._day.fires(0.05):
            raise Unavailable("nobody knows whether it is written")
        await self._day.travel()
        return True

    async def registry_version(self) -> int:
        await self._day.travel()
        return self._day.version

    def keep(self, entry: RegistryEntry, done: Any) -> None:
        self._day.loop.create_task(self._keep(entry, done))

    async def _keep(self, entry: RegistryEntry, done: Any) -> None:
        async with self._session:
            await self._day.travel()
            self._day.write(entry)
        done(None)

    def keep_all(self, entries: list[RegistryEntry], done: Any) -> None:
        done(None)  # heartbeats: everybody is heard all the time


class MatchingNode:
    def __init__(self, day: SessionDay, number: int) -> None:
        self._day = day
        self.store = SessionStore(day)
        store = cast("Store", self.store)
        world = VirtualWorld(day.loop, number)
        self.workers = WorkerRegistry(store, world, 10**6, 10**7)
        nothing: Any = SimpleNamespace(
            of_session=lambda *_: [], count_reserved=lambda *_: 0, serve_polls=lambda *_: None
        )
        engine: Any = SimpleNamespace(
            store=store, world=world, leases=nothing, matching=SimpleNamespace(polls=nothing), dispatcher=nothing
        )
        self.sessions: SessionRegistry = day.registry(store, engine, self.workers)

    async def open(self) -> None:
        await self.workers.load()
        await self.sessions.load()

    async def register(self, name: str) -> None:
        worker = RegisteredWorker(
            worker_id=name, namespace="", task_queue="q", runtime="python", registered_at=0, updated_at=0
        )
        await self.workers.register(worker)

    async def look_for(self, worker: str) -> RegisteredWorker:
        if self.workers.get("", worker) is None:
            await self.workers.kept.load()
        return self.workers.registered("", worker)

    async def look_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._day.dice.random())
            for registry in (self.workers.kept, self.sessions):
                await registry.load()

    async def match(self, session: WorkerSession, worker: str) -> bool:
        """A worker asks for an activity of a session. True: it was sent one."""
        await self.look_for(worker)
        if not self.sessions.admits("", session, worker):
            return False
        self.sessions.took("", session, worker)
        return await self.sessions.holds("", session, worker)

    async def close(self, session_id: str, worker: str) -> None:
        with suppress(HttpError, Unavailable):  # it is another worker's
            await self.sessions.close(await self.look_for(worker), session_id, None)


class SessionDay:
    """One seed is one day. `registry`: the class that the nodes have."""

    def __init__(self, seed: int, registry: Any = SessionRegistry) -> None:
        self.dice = Random(f"{seed}:sessions")
        self.loop = VirtualLoop()
        self.registry = registry
        self.rows: dict[tuple[str, str, str], bytes] = {}
        self.version = 0
        self.closed = 0
        self.sent = 0
        self.moved = 0
        self._broken: list[BaseException] = []
        self._named: dict[str, list[tuple[Micros, str]]] = {}  # the workers that entries have named, and since when
        self.nodes: list[MatchingNode] = []

    def fires(self, chance: float) -> bool:
        return self.dice.random() < chance

    async def travel(self) -> None:
        await asyncio.sleep(self.dice.choice([0, 0.0005, 0.002, 0.01, 0.3 if self.fires(0.1) else 0.001]))

    def now(self) -> Micros:
        return VirtualWorld(self.loop, 0).now()

    def write(self, entry: RegistryEntry) -> None:
        place = (entry.kind, entry.namespace, entry.name)
        before = self.record(entry.name)
        assert entry.body is not None
        self.rows[place] = entry.body
        self.version += 1
        after = self.record(entry.name)
        if entry.kind != KIND or after is None:
            return
        holder = after.worker_id if after.closed_at is None else "nobody"
        self._named.setdefault(entry.name, []).append((self.now(), holder))
        if before is not None and before.worker_id != after.worker_id:
            self.moved += 1
            if before.closed_at is None and before.lease_expires_at > self.now():
                law = f"S10 session {entry.name} goes from {before.worker_id} to {after.worker_id}"
                self._broken.append(TwoWorkers(law))

    def record(self, name: str) -> SessionRecord | None:
        body = self.rows.get((KIND, "", name))
        return None if body is None else msgspec.json.decode(body, type=SessionRecord)

    async def _caller(self) -> None:
        for _ in range(40):
            await asyncio.sleep(self.dice.choice([0, 0.001, 0.01, 0.5, 4]))
            name, worker = f"{self.dice.choice(SESSIONS)}{self.closed}", self.dice.choice(WORKERS)
            session = WorkerSession(session_id=name, lease_seconds=self.dice.choice([1, 2, 5]), ttl_seconds=10**5)
            began = self.now()
            if await self.dice.choice(self.nodes).match(session, worker):
                self.sent += 1
                self._is_sent(name, worker, began)
                if self.fires(0.1):
                    await self.dice.choice(self.nodes).close(name, worker)
                    self.loop.call_later(self.dice.random(), self._next_names)  # others go on to ask for it

    def _next_names(self) -> None:
        self.closed += 1

    def _is_sent(self, name: str, worker: str, began: Micros) -> None:
        """The entry names this worker, or has named it since the activity was matched."""
        named = self._named.get(name, [])
        before = [one for since, one in named if since < began]
        current = {*before[-1:], *(one for since, one in named if since >= began)}
        if worker not in current:
            raise TwoWorkers(f"S10 session {name} is of {sorted(current)}, and {worker} is sent its activity")

    def run(self) -> SessionDay:
        try:
            asyncio.set_event_loop(self.loop)
            self.loop.set_exception_handler(lambda loop, context: self._broken.append(context["exception"]))
            self.loop.run_until_complete(self._story())
        finally:
            for task in asyncio.all_tasks(self.loop):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            self.loop.close()
        for error in self._broken:
            raise error
        return self

    async def _story(self) -> None:
        self.nodes = [MatchingNode(self, number) for number in range(self.dice.choice([2, 3]))]
        for node in self.nodes:
            await node.open()
        for worker in WORKERS:
            await self.dice.choice(self.nodes).register(worker)
        looks = [self.loop.create_task(node.look_now_and_then()) for node in self.nodes if self.fires(0.5)]
        await asyncio.gather(*(self.loop.create_task(self._caller()) for _ in range(4)))
        for look in looks:
            look.cancel()
        await asyncio.gather(*(node.sessions.settle() for node in self.nodes))
