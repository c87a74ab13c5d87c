"""Nodes: a whole embedded Backstay each, over the one database. Each works for its shards, and is a guest for all others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from backstay.kernel.decision import Decision
from backstay.kernel.machine import Machine
from backstay.kernel.values import SECOND
from backstay.protocol.native.node_links import Links
from backstay.protocol.native.nodes import SPEAKS
from backstay.sdk.embedded.app import AsyncBackstay
from backstay.store import Applied, Ready, Store
from backstay.store.errors import IncompatibleStore, Unavailable
from backstay.store.ownership import Ownership

from . import sharing
from .disk import Seam
from .fleet import AwayFleet
from .node_links import PREFIX, NodeLinks
from .programs import ACTIVITIES, BUILDS, HELPERS
from .sharing import STEPS
from .world import Life, NodeWorld

if TYPE_CHECKING:
    from .simulation import Simulation

SKEWS = [0, 1, -1, 7, -7, 400, -400, 4000, -4000]
"""By how many seconds a node's clock may be wrong: by less and by more than a lease lasts."""


class Troubled(Seam):
    """The connection of one node to its store, with everything that goes wrong on it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._faults = node.sim.faults
        self._down_until = 0.0

    def commit(self, store: Any, decisions: Sequence[Decision], done: Callable[[Applied], None]) -> None:
        node, faults = self._node, self._faults
        if not node.life.survives("kill before commit"):
            return
        for fault, why in (
            ("store down", "the disk reports an error"),
            ("disk full", "the disk is full"),
        ):
            if faults.fires(fault):
                self._fail(store, why, done)
                return
        if faults.fires("busy"):  # another program holds the lock, and is waited for before that is given up
            node.world.later(faults.dice("busy").choice([0, 0.05, 5]), lambda: self._fail(store, "locked", done))
            return
        if faults.fires("ambiguous error"):
            if not store.lose_answer(decisions):
                self._write(store, decisions)
            self._fail(store, "nobody knows whether it is on disk", done)
            return
        if faults.fires("slow commit"):
            pause = faults.dice("slow commit").choice([0.0005, 0.01, 0.2, 3])
            if faults.dice("slow commit").random() < 0.5:
                applied = self._write(store, decisions)
                node.world.later(pause, lambda: self._written(applied, done))
            else:
                node.world.later(pause, lambda: self._written(self._write(store, decisions), done))
            return
        self._written(self._write(store, decisions), done)

    def _write(self, store: Any, decisions: Sequence[Decision]) -> Applied:
        faults = self._faults
        broken: frozenset[int] = frozenset()
        if faults.fires("statement error"):
            broken = frozenset([faults.dice("statement error").randrange(len(decisions))])
        if faults.fires("conflict"):
            self._node.sim.touch(faults.dice("conflict").choice(decisions).instance.key)
        applied = store.write(decisions, broken)
        self._node.sim.rows.written()
        return applied

    def _written(self, applied: Applied, done: Callable[[Applied], None]) -> None:
        sim = self._node.sim
        if (sim.crashes_on_send and sim.disk.sends) or sim.rows.forgotten:
            sim.crashes_on_send = sim.rows.forgotten = False
            for node in list(sim.nodes):
                node.life.die("crashed behind a send")
        if self._node.life.survives("kill after commit"):
            done(applied)

    def _fail(self, store: Any, why: str, done: Callable[[Applied], None]) -> None:
        store.lose_connection()
        self._down_until = self._node.sim.loop.time() + self._faults.dice("store down").choice([0, 0.5, 4, 30])
        done(Applied(down=Unavailable(why)))

    def away(self, length: float) -> None:
        """The server does not answer for so long."""
        self._down_until = self._node.sim.loop.time() + length

    def probe(self, store: Any) -> Unavailable | None:
        return Unavailable("still down") if self._node.sim.loop.time() < self._down_until else None

    def read(self, store: Any) -> None:
        sim, faults = self._node.sim, self._faults
        if self._node.opening:
            self._node.life.survives("kill in recovery")
        engine = getattr(self._node.app, "engine", None)
        coming_up = engine is not None and engine.holder and not self._node.app.recovery.up
        if coming_up and not self._node.opening and (sim.interrupts_takeover() or faults.fires("recovery error")):
            raise Unavailable("the disk reports an error while a node takes over")
        if faults.fires("read error"):
            raise Unavailable("the disk reports an error on reading")

    def loads(self, store: Any, key: int) -> None:
        self._node.sim.auditor.loads(self._node.name, key)

    def looked(self, store: Any, found: Ownership) -> Ownership:
        return self._node.sim.sharing.looked(found)

    def hands_over(self, store: Any) -> None:
        self._node.dies_at("row")
        if not self._node.life.alive:
            raise Unavailable("its process is dead")

    def handed_over(self, store: Any, given: list[int]) -> None:
        self._node.sim.auditor.ownership.handed_over(store.row, given)
        self._node.dies_at("given")

    def misses(self) -> bool:
        return self._node.sim.deaf or self._faults.fires("missed notice")


class SimBackstay(AsyncBackstay):
    """`links`: to other nodes, which call this one at `address`."""

    def __init__(
        self,
        store: Callable[[Machine], Store],
        world: NodeWorld,
        register: list[Any],
        cache: int,
        views: bool,
        links: NodeLinks | None,
        address: str,
        level: int,
        fleet: AwayFleet,
    ) -> None:
        room = world.random.choice(world.faults.swarm.rooms)
        super().__init__(
            "simulated",
            register,
            guard="off",
            world=lambda: world,
            cache_bytes=cache,
            threads=room,
            async_tasks=room,
            views=views,
        )
        self._store = store
        self._to_others = links
        self._address = address
        self._level = level
        self._away = fleet

    def _open_store(self, machine: Machine, offload: Any) -> Ready[Store]:
        return Ready(self._store(machine))

    def _links(self, world: Any) -> Links | None:
        return self._to_others

    def _deployed(self) -> None:
        super()._deployed()
        self._node.engine.matching.fleet = self._away
        address = None if self._to_others is None else self._address
        facts = self._node.facts
        self._node.facts = replace(
            facts, address=address, level=self._level, speaks=SPEAKS
        )  # before its node is opened


class Node:
    """One process. It is never opened twice: whoever comes back is another."""

    def __init__(self, sim: Simulation, place: int, generation: int, build: str) -> None:
        self.sim = sim
        self.place = place
        self.name = f"n{place}.{generation}{build}"
        self.build = build
        self.opening = True
        self.first_row = 0  # what it has until it is taken for dead
        self._dies_at: str | None = None  # the step of a hand-over in which it dies
        self.life = Life(sim.faults, self._died)
        skew = sim.ahead
        if sim.faults.fires("clock"):
            skew = sim.faults.dice("clock").choice(SKEWS) * SECOND
        self.world = NodeWorld(sim.loop, f"{sim.seed}:{self.name}", skew, self.life, sim.faults)
        self.world.before_step = sim.latest
        self.gained_at = 0  # by its clock, when it got shards the last time
        self._floor_of_keys, self.world.ids.after = self.world.ids.after, self._gains  # type: ignore[method-assign]
        cache = self.world.random.choice([48 << 20, 48 << 20, 20_000, 0])
        links = None if sim.links is None else NodeLinks(sim.links, self)
        self.level = sharing.level_of(sim)
        known = [*BUILDS[build], *ACTIVITIES, *HELPERS]
        self.app = SimBackstay(
            self._connect, self.world, known, cache, sim.views, links, f"{PREFIX}{place}", self.level, AwayFleet(sim)
        )
        sim.log(f"{self.name} opens, clock {skew // SECOND:+d} s, cache {cache}")

    def _gains(self, floor: int) -> None:
        self.gained_at = self.world.now()
        self._floor_of_keys(floor)

    def _connect(self, machine: Machine) -> Store:
        return self.sim.connect(self, machine, Troubled(self))

    @property
    def serving(self) -> bool:
        return self.life.alive and not self.opening

    def open(self) -> None:
        self.world.spawn(self._open(), "open")

    async def _open(self) -> None:
        try:
            await self.app.__aenter__()
        except Unavailable as error:
            self.life.die(f"could not open: {error}")
            return
        except IncompatibleStore as error:
            self.sim.auditor.ownership.refused(self)
            self.life.die(f"is refused: {error}")
            return
        if not self.life.alive:
            return
        self.opening = False
        self.sim.builds[self.app.executor.owner] = self.build
        self.first_row = self.shards.me
        self.sim.auditor.watch_refusals(self.app.engine)
        self._watch_hand_over()
        if self.sim.faults.has("node drain"):
            self.app._drains.start()
        self.sim.log(f"{self.name} is up with {sum(self.app.engine.owned)} shards")

    @property
    def shards(self) -> Any:
        return self.app.recovery._shards

    def _watch_hand_over(self) -> None:
        faults, shards, leases = self.sim.faults, self.shards, self.shards._leases
        give, give_ends = shards._give, leases.give_ends

        async def interrupted_give(given: Sequence[int], to: int | None) -> None:
            if faults.fires("hand-over interrupted"):
                self._dies_at = faults.dice("hand-over interrupted").choice(STEPS)
            self.dies_at("begin")
            self.world.soon(lambda: self.dies_at("lost"))
            await give(given, to)

        async def interrupted_ends(given: Collection[int]) -> bool:
            self.dies_at("ends")
            return await give_ends(given)

        shards._give, leases.give_ends = interrupted_give, interrupted_ends

    def dies_at(self, step: str) -> None:
        if self._dies_at == step:
            self._dies_at = None
            self.life.die(f"hand-over interrupted at {step!r}")

    def stop(self) -> None:
        """An orderly end."""
        self.opening = True
        self.world.spawn(self._stop(), "stop")

    async def _stop(self) -> None:
        await self.app.__aexit__(None, None, None)
        self.life.die("stopped")

    def _died(self, why: str) -> None:
        self.sim.log(f"{self.name} dies: {why}")
        self.sim.died(self)

    def bury(self) -> None:
        """Give up what a dead process would have taken with it."""
        self.world.bury()
        executor = getattr(self.app, "executor", None)
        if executor is not None:
            for run in list(executor._live_runs):
                executor._live_runs.pop(run).abandon()

    def disturb(self) -> None:
        """What happens to code and cache in a living process."""
        faults = self.sim.faults
        if not self.serving:
            return
        app = self.app
        if faults.fires("evicted"):
            for entry in app.engine.cache:
                if entry.inflight == 0 and not entry.code_is_busy:
                    app.engine.discard_cached(entry)
                    break
        if faults.fires("moved to thread"):
            types = sorted(app.registry.workflows)
            app.executor._slow.add(faults.dice("moved to thread").choice(types))
