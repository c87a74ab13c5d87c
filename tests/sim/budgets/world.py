"""A day of processes that lease tasks under common limits: they are killed, stand still, are taken for dead, join and leave.

Each has the real `BudgetShares`. The law (S9): leases at once and dispatches in a minute never pass their limit, over all
processes; and while tasks wait at somebody and there is room, something is leased within seconds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Routing
from backstay.server.limits.budget_shares import MINUTE, BudgetShares, LimitScope
from backstay.store import RegistryEntry
from backstay.store.errors import Unavailable
from backstay.store.ownership import NodeFacts, NodeRow, Ownership

from ..virtual import VirtualLoop, VirtualWorld

QUEUE = LimitScope(False, "activity", "default", "q")
NAMESPACE = LimitScope(False, "activity", "default", None)
RATE = LimitScope(True, "activity", "default", "q")

ROOM = 6.0
"""Seconds for which there may be room before something is leased, once nothing goes wrong any more."""

DEAD = 3.0
"""Seconds after which it is known that a process is gone."""


class Broken(AssertionError):
    """A law does not hold."""


class Database:
    def __init__(self, day: Day) -> None:
        self.day = day
        self.registry: dict[tuple[str, str], bytes] = {}
        self.leases: dict[str, Task] = {}
        self.living: set[int] = set()  # rows that are not fenced
        self.dispatched: Counter[int] = Counter()  # by minute
        self.since: float = 0.0  # when something was leased or given back last

    def commit(self, task: Task) -> bool:
        """Write a lease, unless its process is fenced."""
        if task.node not in self.living:
            return False
        self.leases[task.id] = task
        self.dispatched[(task.leased_at or 0) // MINUTE] += 1
        self.since = self.day.loop.time()
        for scope, limit in self.day.limits.items():
            used = self.dispatched[(task.leased_at or 0) // MINUTE] if scope.per_minute else len(self.leases)
            if used > limit:
                raise Broken(f"S9 {scope.name}: {used} of {limit} at {self.day.loop.time():.3f}")
        return True

    def end(self, task_id: str) -> None:
        if self.leases.pop(task_id, None) is not None:
            self.since = self.day.loop.time()


class Handle:
    """One process's way to the database."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._day = node.day
        self._database = node.day.database

    async def _travel(self) -> None:
        await asyncio.sleep(self._day.dice.choice([0, 0.0005, 0.002, 0.01, 0.01 if self._day.calm else 0.4]))
        await self._node.stands()

    async def _reads(self) -> None:
        await self._travel()
        if self._day.fires(0.01):
            raise Unavailable("it cannot be read")

    async def kept(self, kind: str) -> list[RegistryEntry]:
        await self._reads()
        found = [RegistryEntry(kind, place[0], place[1], body) for place, body in self._database.registry.items()]
        await self._travel()
        return found

    async def keep_if(self, entry: RegistryEntry, before: bytes | None) -> bool:
        await self._travel()
        if self._day.fires(0.02):
            raise Unavailable("it is not written")
        if self._day.fires(0.03):  # it is written, perhaps much later
            asyncio.get_running_loop().call_later(self._day.dice.choice([0, 0.1, 3]), self._write, entry, before)
            raise Unavailable("nobody knows whether it is written")
        done = self._write(entry, before)
        await self._travel()
        return done

    def _write(self, entry: RegistryEntry, before: bytes | None) -> bool:
        place = (entry.namespace, entry.name)
        if self._database.registry.get(place) != before:
            return False
        if entry.body is None:
            del self._database.registry[place]
        else:
            self._database.registry[place] = entry.body
        return True

    async def look(self) -> Ownership:
        await self._reads()
        dead = self._day.dead
        rows = [NodeRow(id, NodeFacts(), 0, id not in dead) for id in sorted(self._database.living)]
        return Ownership(self._node.id, [], rows)

    async def depose(self, node: int, *, gone: bool = False) -> bool:
        await self._reads()
        if node not in self._database.living or node not in self._day.dead:
            return False
        self._database.living.discard(node)
        return True

    async def leased(self) -> Sequence[Task]:
        await self._reads()
        found = list(self._database.leases.values())
        await self._travel()
        return found


class Node:
    """One process. It has tasks of its own, and counts what it has leased until it knows that a lease is over."""

    def __init__(self, day: Day) -> None:
        self.day = day
        self.alive = True
        self.paused = False
        self.waiting = 0
        self.nodes: set[int] = set()
        self._spent: Counter[int] = Counter()
        self._standing: list[asyncio.Future[None]] = []
        self._coming: set[str] = set()  # leases that are not written yet
        self.enrol()
        self.world = VirtualWorld(day.loop, day.dice.getrandbits(32))
        self.shares: BudgetShares = day.shares(
            self.world,
            Handle(self),
            me=lambda: self.id,
            nodes=lambda: self.nodes,
            used=self.used,
            waiting=lambda scope: self.waiting,
            check=self._check,
            on_room=self.serve,
        )
        self.job = day.loop.create_task(self._live())

    def enrol(self) -> None:
        self.id = self.day.next_id()
        self.day.database.living.add(self.id)
        self.nodes.add(self.id)
        self.counted: dict[str, Task] = {}  # leases, also those that are not written yet

    def used(self, scope: LimitScope) -> int:
        return self._spent[self.world.now() // MINUTE] if scope.per_minute else len(self.counted)

    async def stands(self) -> None:
        while self.paused or not self.alive:
            self._standing.append(self.day.loop.create_future())
            await self._standing[-1]

    def go_on(self) -> None:
        self.paused = False
        standing, self._standing = self._standing, []
        for one in standing:
            if not one.done():
                one.set_result(None)

    async def _check(self) -> None:
        """Leases that have ended elsewhere are found out by looking."""
        before = [id for id in self.counted if id not in self._coming]
        await asyncio.sleep(0.001)
        found = self.day.database.leases
        for id in before:
            if id in self.counted and id not in found and id not in self._coming:
                del self.counted[id]

    def serve(self) -> None:
        if self.paused or not self.alive:
            return
        for _ in range(self.waiting):
            having: list[LimitScope] = []
            for scope, limit in self.day.limits.items():
                if not self.shares.has_room(scope, self.used(scope)):
                    self.shares.want(scope, limit, having)
                    return
                having.append(scope)
            self._lease()

    def _lease(self) -> None:
        now = self.world.now()
        self.waiting -= 1
        id = self.world.ids.ulid()
        task = Task(
            id=id,
            workflow=0,
            run=0,
            kind="activity",
            type="t",
            routing=Routing(queue="q"),
            available_at=now,
            created_at=now,
            state="leased",
            leased_at=now,
            until=now,
            node=self.id,
        )
        self.counted[id] = task
        self._spent[now // MINUTE] += 1
        for scope in self.day.limits:
            self.shares.spends(scope, self.used(scope))
        self._coming.add(id)
        self.day.loop.call_later(self.day.dice.choice([0.0001, 0.003, 0.1]), self._commit, task)

    def _commit(self, task: Task) -> None:
        day = self.day
        if not self.alive:
            return
        if self.paused:  # it writes when it goes on, if it may
            day.loop.call_later(0.05, self._commit, task)
            return
        self._coming.discard(task.id)
        if day.committed(task):
            length = day.dice.choice([0.01, 0.1, 0.5, 2, 8])
            day.loop.call_later(length, self._ended, task.id)
        else:
            self.counted.pop(task.id, None)
            self.waiting += 1
            self._is_deposed()

    def _ended(self, id: str) -> None:
        """Its worker reports, perhaps to another process."""
        self.day.database.end(id)
        if self.alive and self.day.dice.random() < 0.7:
            self.counted.pop(id, None)
            self.serve()

    def _is_deposed(self) -> None:
        if self.id not in self.day.database.living and self.alive:
            self.nodes.discard(self.id)
            self.enrol()

    async def _live(self) -> None:
        while self.alive:
            await asyncio.sleep(0.2)
            await self.stands()
            self._is_deposed()
            if not self.day.fires(0.6):  # a look may be late
                self.nodes = self.day.database.living - self.day.dead
            if not self.day.tired and self.waiting < 8:
                self.waiting += self.day.dice.choice([0, 0, 1, 3])
            self.serve()

    async def leave(self) -> None:
        with suppress(Unavailable):
            await self.shares.leave()
        self.alive = False
        self.shares.stop()
        self.day.database.living.discard(self.id)


class Day:
    """One seed is one day."""

    def __init__(self, seed: int, shares: Any = BudgetShares, *, faults: bool = True) -> None:
        self.dice = Random(f"{seed}:budgets")
        self.loop = VirtualLoop()
        self.shares = shares
        self.calm = not faults
        self.tired = False  # nobody has new tasks
        self._ids = 0
        self.dead: set[int] = set()  # known to be, and perhaps not fenced yet
        self.limits: dict[LimitScope, int] = {QUEUE: self.dice.choice([1, 2, 2, 3, 5, 20])}
        if self.dice.random() < 0.3:
            self.limits[NAMESPACE] = self.dice.choice([1, 2, 4])
        if self.dice.random() < 0.4:
            self.limits[RATE] = self.dice.choice([2, 10, 60])
        self.database = Database(self)
        self.nodes: list[Node] = []
        self.leases = 0
        self.faults = Counter[str]()

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def fires(self, chance: float) -> bool:
        return not self.calm and self.dice.random() < chance

    def committed(self, task: Task) -> bool:
        try:
            done = self.database.commit(task)
        except Broken as error:
            if not self._failed.done():
                self._failed.set_exception(error)
            raise
        self.leases += done
        return done

    def run(self) -> Day:
        try:
            asyncio.set_event_loop(self.loop)
            self.loop.run_until_complete(self._day())
        finally:
            for task in asyncio.all_tasks(self.loop):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            self.loop.close()
        return self

    async def _day(self) -> None:
        self._failed: asyncio.Future[None] = self.loop.create_future()
        story = self.loop.create_task(self._story())
        self.loop.set_exception_handler(lambda loop, context: None)
        await asyncio.wait([story, self._failed], return_when=asyncio.FIRST_COMPLETED)
        if self._failed.done():
            self._failed.result()
        story.result()

    async def _story(self) -> None:
        self.nodes = [Node(self) for _ in range(self.dice.choice([1, 2, 3, 3, 5]))]
        if not self.calm:
            for _ in range(100):
                await asyncio.sleep(self.dice.random() * 2)
                self._disturb()
        self.calm = True
        for node in self.nodes:
            node.go_on()
        await asyncio.sleep(DEAD + 1)
        for _ in range(60):
            await asyncio.sleep(1)
            self._goes_on()
        self.tired = True
        for _ in range(600):
            await asyncio.sleep(1)
            self._goes_on()
            if not any(node.waiting for node in self.nodes):
                return
        if RATE not in self.limits:
            raise Broken(f"tasks wait for ever: {[node.waiting for node in self.nodes]}")

    def _goes_on(self) -> None:
        """Where there is room and a task, something is leased within seconds."""
        if not any(node.waiting for node in self.nodes):
            return
        minute = VirtualWorld(self.loop, 0).now() // MINUTE
        for scope, limit in self.limits.items():
            used = self.database.dispatched[minute] if scope.per_minute else len(self.database.leases)
            if used >= limit or (scope.per_minute and self._lost(minute)):
                return
        if self.loop.time() - self.database.since > ROOM and not self._has_just_begun():
            held = self.database.registry
            raise Broken(f"stands still at {self.loop.time():.1f}, {[node.waiting for node in self.nodes]}, {held}")

    def _lost(self, minute: int) -> bool:
        """Some of a minute is held by who is gone, until it is over."""
        return minute <= self._troubled

    def _has_just_begun(self) -> bool:
        return VirtualWorld(self.loop, 0).now() % MINUTE < ROOM * SECOND

    _troubled = 0

    def _disturb(self) -> None:
        self._troubled = VirtualWorld(self.loop, 0).now() // MINUTE + 1
        dice = self.dice
        able = [node for node in self.nodes if not node.paused]
        what = dice.choice(["nothing", "nothing", "kill", "pause", "fence", "join", "leave"])
        self.faults[what] += 1
        node = dice.choice(able) if able else None
        if what == "join" or node is None:
            if len(self.nodes) < 6:
                self.nodes.append(Node(self))
        elif what == "kill":
            node.alive = False
            node.shares.stop()
            self.nodes.remove(node)
            missed = self._fence if dice.random() < 0.5 else self.dead.add
            self.loop.call_later(dice.choice([0.2, DEAD]), missed, node.id)
            self.loop.call_later(0.3, lambda: self.nodes.append(Node(self)))
        elif what == "pause":
            node.paused = True
            length = dice.choice([0.3, 2, 10])
            if length > 5:
                self.loop.call_later(4, self._fence, node.id)
            self.loop.call_later(length, node.go_on)
        elif what == "fence":
            self._fence(node.id)
        elif what == "leave" and len(self.nodes) > 1:
            self.nodes.remove(node)
            self.loop.create_task(node.leave())

    def _fence(self, id: int) -> None:
        self.database.living.discard(id)
