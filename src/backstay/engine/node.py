"""A node puts an engine together with its store, shards, recovery, sweep and API. App, server and command line use it.

The parts get what they need as arguments of their constructors, and only here. A node that is not opened answers reads from
disk: it takes no lock, and decides nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from backstay import collector
from backstay.engine.cluster.database_clock import DatabaseClock
from backstay.engine.cluster.fetching import Fetching
from backstay.engine.cluster.guest_leases import GuestLeases
from backstay.engine.cluster.notices import Notices
from backstay.engine.cluster.other_code import OtherCode
from backstay.engine.cluster.peers import Peers
from backstay.engine.cluster.shards import Shards
from backstay.engine.cluster.stealing import Stealing
from backstay.engine.cluster.task_news import TaskNews
from backstay.engine.core.engine import Define, Engine
from backstay.engine.core.lifecycle import EngineHooks
from backstay.engine.core.sweep import Sweep
from backstay.engine.core.world import Pool, World
from backstay.engine.reading.exports import Exporter
from backstay.engine.recovery import Recovery
from backstay.engine.requests.api import Api
from backstay.engine.requests.workflow_commands import Payloads
from backstay.engine.tasks.matching import Matching
from backstay.engine.views.certificate import Certificate
from backstay.engine.views.damaged_runs import DamagedRuns
from backstay.engine.views.open_runs import OpenRunCounts
from backstay.engine.views.projector import Projector
from backstay.engine.views.run_views import ViewMaker
from backstay.engine.views.stored_views import StoredViews
from backstay.kernel.machine import Machine
from backstay.kernel.values import Micros
from backstay.protocol.native.node_links import Links
from backstay.protocol.native.nodes import SPEAKS, Owner
from backstay.store import Store
from backstay.store.ownership import NodeFacts


class Node:
    """`commits`: the thread on which the store commits, if it has one; it ends with the node. `guest`: this process
    runs no tasks, and owns no shards of a database that others can reach. `facts`: the facts that it publishes to other
    processes. `overdue`, `sweep_every`, `sweep_rests`: see `Sweep`. `views`: whether views of runs are stored, for
    operators. `certify`: whether to prove again and again that no run is stranded. `origin`: see `Engine`. `links`: how
    to call other nodes of the database; without it they are reached through that."""

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
        cache_bytes: int = 40 << 20,
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
        self.facts = facts or NodeFacts(speaks=SPEAKS)
        self.guest_leases = GuestLeases(engine)
        clock = DatabaseClock(world, store)
        self.shards = Shards(engine, lifecycle, self.guest_leases, clock, facts=self._tell)
        engine.late_deliveries.confirm = self.shards.confirm
        self.stealing = Stealing(engine, lambda shard: self.shards.rows[shard].owner)
        self.sweep = Sweep(engine, lifecycle, overdue=overdue, every=sweep_every, rests=sweep_rests)
        self.recovery = Recovery(
            engine,
            self.shards,
            Notices(engine, lifecycle, lambda: self.shards.unlinked, lambda: self.shards.commits),
            self.sweep,
            self.stealing,
            OtherCode(engine, self.shards),
            lifecycle,
            clock,
        )
        self.damaged = DamagedRuns(engine, stores=views)
        self.projector = Projector(engine, lifecycle, self.damaged, active=views)
        self.peers = None if links is None else self._make_peers(links)
        self.api = Api(
            engine,
            payloads,
            exporter,
            guest=self._guest,
            unoffered=self.sweep.unoffered,
            projector=self.projector,
            peers=self.peers,
            is_alone=lambda: not self.shards.others,
            new_id=self.shards.new_id,
        )
        self.news = None if links is None else self._share_tasks(links)
        self.views = StoredViews(
            engine, self.projector, self.damaged, lifecycle, self.api.whole, self.api.aside, make_views
        )
        self.api.exports.sources = self.views.compared
        self.certificate = Certificate(engine, self.projector, self.damaged, lifecycle, active=certify)
        self.open_runs = OpenRunCounts(world, store)
        lifecycle.on_foreign_commit.insert(0, engine.waiters.check_all)
        for hooks in (lifecycle.on_up, lifecycle.on_foreign_commit):
            hooks.append(self.api.workers.doubted.settle)

    def _make_peers(self, links: Links) -> Peers:
        """Make the part that calls other nodes, and let the engine deliver to them through it."""
        engine, shards = self.engine, self.shards
        peers = Peers(
            engine.world,
            links,
            shards.owner_of,
            owns_any=lambda: engine.holder,
            new_id=shards.new_id,
            origin=engine.origin,
        )
        engine.outbox.elsewhere = peers.deliver
        shards.on_look = links.keep
        return peers

    def _share_tasks(self, links: Links) -> TaskNews:
        """Let workers of this node take tasks of other nodes, and notify those nodes of tasks that wait here."""
        self.api.workers.fetching = Fetching(self.engine, links, self.api.workers.got_by)
        return TaskNews(self.engine, links, self._linked, lambda: self.shards.linked)

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
        self.abandon()
        await self.store.close()

    def abandon(self) -> None:
        """Stop without a last word, as a process that is killed does. The store stays open."""
        self.stop()
        if self._commits is not None:
            self._commits.close()
        if self._relaxed:
            self._relaxed = False
            collector.restore()
