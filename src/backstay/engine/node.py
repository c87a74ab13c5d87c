"""A node puts an engine together with its store, shards, recovery, sweep and API. App, server and command line use it.

The parts get what they need as arguments of their constructors, and only here. A node that is not opened answers reads from
disk: it takes no lock, and decides nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from backstay import collector
from backstay.engine.api import Api
from backstay.engine.certificate import Certificate
from backstay.engine.database_clock import DatabaseClock
from backstay.engine.engine import Define, Engine
from backstay.engine.exports import Exporter
from backstay.engine.guest_leases import GuestLeases
from backstay.engine.lifecycle import EngineHooks
from backstay.engine.matching import Matching
from backstay.engine.notices import Notices
from backstay.engine.peers import Links, Peers
from backstay.engine.projector import Projector
from backstay.engine.recovery import Recovery
from backstay.engine.run_views import ViewMaker
from backstay.engine.shards import Shards
from backstay.engine.stealing import Stealing
from backstay.engine.stored_views import StoredViews
from backstay.engine.sweep import Sweep
from backstay.engine.task_news import TaskNews
from backstay.engine.workflow_commands import Payloads
from backstay.engine.world import Pool, World
from backstay.kernel.machine import Machine
from backstay.kernel.values import Micros
from backstay.protocol.native.nodes import Owner
from backstay.store import Store
from backstay.store.ownership import NodeFacts


class Node:
    """`commits`: the thread on which the store commits, if it has one; it ends with the node. `guest`: this process runs no
    tasks, and owns no shards of a database that others can reach. `facts`: what it tells other processes about itself. `overdue`, `sweep_every`, `sweep_rests`: see `Sweep`. `views`:
    whether views of runs are stored, for operators. `certify`: whether to prove again and again that no run is stranded.
    `origin`: see `Engine`. `links`: how to call other nodes of the database; without it they are reached through that."""

    def __init__(
        self,
        world: World,
        store: Store,
        machine: Machine,
        payloads: Payloads,
        exporter: Exporter,
        make_views: ViewMaker,
        *,
        commits: Pool | None = None,
        lifecycle: EngineHooks | None = None,
        matching: Matching | None = None,
        define: Define | None = None,
        cache_bytes: int = 48 << 20,
        guest: bool = False,
        facts: NodeFacts | None = None,
        overdue: Micros | None = None,
        sweep_every: Micros | None = None,
        sweep_rests: Callable[[], bool] = lambda: False,
        views: bool = True,
        certify: bool = False,
        origin: dict[str, Any] | None = None,
        links: Links | None = None,
    ) -> None:
        self.store = store
        self._commits = commits
        self._relaxed = False
        lifecycle = self.lifecycle = lifecycle or EngineHooks()
        engine = self.engine = Engine(
            world,
            store,
            machine,
            cache_bytes=cache_bytes,
            lifecycle=lifecycle,
            matching=matching,
            define=define,
            origin=origin,
        )
        self._guest = guest and store.shared
        self.facts = facts or NodeFacts()
        self.guest_leases = GuestLeases(engine)
        clock = DatabaseClock(world, store)
        self.shards = Shards(engine, lifecycle, self.guest_leases, clock, facts=self._tell)
        self.stealing = Stealing(engine, lambda shard: self.shards.rows[shard].owner)
        self.sweep = Sweep(engine, lifecycle, overdue=overdue, every=sweep_every, rests=sweep_rests)
        self.recovery = Recovery(
            engine,
            self.shards,
            Notices(engine, lifecycle, lambda: self.shards.unlinked, lambda: self.shards.commits),
            self.sweep,
            self.stealing,
            lifecycle,
            clock,
        )
        self.projector = Projector(engine, lifecycle, active=views)
        self.peers: Peers | None = None
        if links is not None:
            self.peers = Peers(
                world,
                links,
                self.shards.owner_of,
                owns_any=lambda: engine.holder,
                new_id=self.shards.new_id,
                origin=origin,
            )
            engine.outbox.elsewhere = self.peers.deliver
            self.shards.on_look = links.keep
        self.api = Api(
            engine,
            payloads,
            exporter,
            guest=self._guest,
            unoffered=self.sweep.unoffered,
            projector=self.projector,
            peers=self.peers,
            links=links,
            is_alone=lambda: not self.shards.others,
            new_id=self.shards.new_id,
        )
        self.news: TaskNews | None = None
        if links is not None:
            self.news = TaskNews(engine, links, self._linked, lambda: self.shards.linked)
        self.views = StoredViews(engine, self.projector, lifecycle, self.api.whole, self.api.aside, make_views)
        self.api.exports.sources = self.views.compared
        self.certificate = Certificate(engine, lifecycle, active=certify)
        lifecycle.on_foreign_commit.insert(0, engine.waiters.check_all)

    async def open(self) -> None:
        """Claim shards of the database, or become a guest beside others. If this fails, the caller still closes the node."""
        collector.relax()
        self._relaxed = True
        await self.recovery.start()
        self.certificate.start()

    def _linked(self) -> Owner | None:
        """How other nodes call this one."""
        return None if self.facts.address is None else Owner(self.shards.me, self.facts.address, 0)

    def _tell(self) -> NodeFacts:
        return replace(self.facts, weight=0) if self._guest else self.facts

    async def leave(self) -> None:
        """Hand all shards over to other processes, before this one closes."""
        await self.shards.leave()

    def stop(self) -> None:
        """Stop all jobs, timers, deliveries and checks."""
        self.projector.stop()
        self.views.stop()
        self.certificate.stop()
        self.recovery.stop()
        for part in (self.news, self.api.workers.fetching):
            if part is not None:
                part.stop()
        self.guest_leases.stop()
        self.engine.close()

    async def close(self) -> None:
        """Stop, and free the database. Decisions that are not on disk are lost: `Engine.drain` waits for them before."""
        self.stop()
        await self.projector.flush()
        if self._commits is not None:
            self._commits.close()
        if self._relaxed:
            self._relaxed = False
            collector.restore()
        await self.store.close()
