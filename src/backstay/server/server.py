"""The server: one engine with its registries, authentication and background tasks. It is opened once and drained once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from backstay.codec.payloads import AvroPayloads
from backstay.engine.cluster.gone_nodes import forget_past
from backstay.engine.cluster.node_proofs import NodeProofs
from backstay.engine.cluster.node_secrets import NodeSecrets
from backstay.engine.cluster.process_facts import process_facts
from backstay.engine.core.cache import Reply
from backstay.engine.core.engine import Engine
from backstay.engine.core.lifecycle import EngineHooks
from backstay.engine.core.world import Alarm, AsyncioWorld, Pool, World
from backstay.engine.node import Node
from backstay.engine.recovery import COME_BACK
from backstay.engine.requests.api import Api
from backstay.engine.tasks.matching import Matching
from backstay.engine.tasks.queue_rates import QueueRates
from backstay.kernel.features.lease import Release
from backstay.kernel.features.start import RecordedDefinition
from backstay.kernel.machine import Machine
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Micros, Routing
from backstay.link.nodes import NodeLinks
from backstay.protocol.export import exporter
from backstay.protocol.run_entries import make_views
from backstay.server.access.access import AccessControl
from backstay.server.cluster.asked_questions import AskedQuestions
from backstay.server.cluster.cluster_plane import ClusterPlane
from backstay.server.http.errors import Stopping
from backstay.server.http.parked_requests import ParkedRequests
from backstay.server.http.reading_turns import ReadingTurns
from backstay.server.http.shared_answers import SharedAnswers
from backstay.server.limits.admission import QueueAdmission
from backstay.server.limits.retention import Retention
from backstay.server.limits.sweep_policy import SweepPolicy
from backstay.server.native.worker_links import WorkerLinks
from backstay.server.operators.causes.situation import ProcessState
from backstay.server.operators.control_plane import ControlPlane
from backstay.server.operators.dashboard import Dashboard
from backstay.server.operators.discovery import server_capabilities
from backstay.server.operators.exporting import exporting
from backstay.server.operators.fleet import Fleet
from backstay.server.operators.loop_watch import LoopWatch
from backstay.server.operators.metrics import Observer
from backstay.server.operators.observability import StandardObservability, observability
from backstay.server.registries.all import Registries
from backstay.server.registries.namespaces import Namespaces
from backstay.server.settings import Settings
from backstay.server.workers.presence import Presence
from backstay.server.workers.remote_queries import RemoteQueries
from backstay.server.workers.rollouts import Rollouts
from backstay.server.workers.sessions import SessionRegistry
from backstay.server.workers.worker_registry import WorkerRegistry
from backstay.store import Store
from backstay.store.address import is_server
from backstay.store.errors import Unavailable
from backstay.store.opening import open_store

FORGET = 60 * SECOND


class Server:
    def __init__(
        self,
        settings: Settings,
        world: Callable[[], World] | None = None,
        address: str | None = None,
    ) -> None:
        """`address`: by which other nodes of the database call this server; None: they reach it through the database."""
        self.settings = settings
        self.address = address
        self._exporting = exporting(settings)
        self._observability = observability(settings.observability)
        self.capabilities = msgspec.Raw(msgspec.json.encode(server_capabilities(settings)))
        self.draining = False
        self.parked = ParkedRequests(settings.max_parked_polls)
        self.requests: Counter[tuple[str, str, int]] = Counter()  # by method, route and status
        self.loop_watch = LoopWatch()
        self.shared_answers = SharedAnswers()
        self.reading_turns = ReadingTurns()
        self.waiting: dict[asyncio.Future[Any], Callable[[], None]] = {}  # waiting requests, and how to end the wait
        self._world = world
        self._forget: Alarm | None = None
        self._forgetting: asyncio.Task[None] | None = None
        self._deploying: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        world = self._world() if self._world is not None else AsyncioWorld(asyncio.get_running_loop())
        settings = self.settings
        machine = Machine(failure_backoff=settings.task_repair_failure_backoff_max_seconds * SECOND)
        path = self.settings.database
        commits = world.pool(1, "backstay-commit")
        offload = None if path == ":memory:" or self._world is not None else commits.submit
        store = self.store = await open_store(path, machine.kinds, offload)
        try:
            self._make_registries(world, store)
            self._make_node(world, store, machine, commits)
            self._make_worker_plane(world)
            self._make_operators(world, store)
        except BaseException:
            commits.close()
            await store.close()
            raise
        try:
            await self._read_registries()
            if self.address is not None and is_server(path):
                await self.node_secrets.ours()  # before the first call
            self.retention.start()
            if self._world is None:
                self.loop_watch.start()
            self._forget_later()
            await self.node.open()
            self.cluster.drains.start()
            if self.engine.holder:
                self.sweep_policy.swept()  # recovery has looked at everything
        except BaseException:
            await self._shut()
            raise
        return self

    def _make_registries(self, world: World, store: Store) -> None:
        """The arguments of the node."""
        settings = self.settings
        self.access = AccessControl(settings, store, world)
        self.namespaces = Namespaces(store, settings.default_namespace)
        self.workers = WorkerRegistry(
            store, world, settings.worker_stale_after_seconds, settings.worker_forgotten_after_seconds
        )
        self.rollouts = Rollouts(store)
        self.fleet = Fleet(self.workers, self.rollouts, settings.compatibility_namespace)
        self.sweep_policy = SweepPolicy(settings, world.now)
        self.node_secrets = NodeSecrets(world, store)
        self.node_proofs = NodeProofs(world, self.node_secrets, lambda: self.node.shards)
        self.links = NodeLinks(self.node_secrets.ours, self.node_secrets.load, self.node_proofs.sign)

    def _make_node(self, world: World, store: Store, machine: Machine, commits: Pool) -> None:
        settings = self.settings
        self.node = Node(
            world,
            store,
            machine,
            AvroPayloads(),
            exporter(self._exporting),
            make_views,
            commits=commits,
            lifecycle=EngineHooks(before_take_over=[self._read_registries], on_sweep=[self.sweep_policy.swept]),
            matching=Matching(world.now, fleet=self.fleet),
            define=self._define,
            overdue=settings.task_repair_redispatch_after_seconds * SECOND,
            sweep_every=settings.task_repair_loop_throttle_seconds * SECOND,
            sweep_rests=self.sweep_policy.rests,
            views=settings.views,
            certify=True,
            guest=settings.weight == 0,
            facts=process_facts(name=settings.node_name, weight=settings.weight, address=self.address),
            links=self.links if is_server(settings.database) else None,
        )
        self.engine: Engine = self.node.engine
        self.engine.knows_workers = self._knows_workers
        self.recovery, self.sweep = self.node.recovery, self.node.sweep
        self.api: Api = self.node.api

    def _make_worker_plane(self, world: World) -> None:
        """The parts for workers, and for matching."""
        settings, engine, matching = self.settings, self.engine, self.engine.matching
        self.admission = QueueAdmission(engine, settings)
        if self.admission.limited:
            matching.admission = self.admission
            if not engine.store.exclusive:
                self.admission.share_with_others(self.node)
        self.sessions = matching.sessions = SessionRegistry(engine.store, engine, self.workers)
        self.worker_links = WorkerLinks(self)
        self.rollouts.on_change = self.worker_links.apply_rollouts
        self.asked_questions = AskedQuestions(self)
        self.questions = matching.remote = RemoteQueries(
            world,
            self.workers,
            settings.query_timeout_seconds,
            settings.query_task_max_pending_per_queue,
            is_engine=lambda: engine.active,
            links=self.worker_links,
            elsewhere=self.asked_questions.ask if is_server(settings.database) else None,
        )
        self.workers.on_registered = self.questions.workers_changed
        self.presence = Presence(world, self.workers, lambda: self.draining)
        self.workers.is_here = lambda namespace, worker_id: (
            self.worker_links.waits(namespace, worker_id) or self.presence.waits(namespace, worker_id)
        )

    def _make_operators(self, world: World, store: Store) -> None:
        """The parts for operators, and the callbacks for gain and loss of the engine."""
        settings, engine = self.settings, self.engine
        rates = QueueRates(world.now, engine.owns)
        engine.commits.observe(rates.committed)
        self.cluster = ClusterPlane(self.node, self.links, rates, self.sweep_policy)
        self.control = control = ControlPlane(
            self.node,
            settings,
            self.workers,
            self.fleet,
            self.admission,
            rates=self.cluster.rates.of,
            revision=self._revision,
            process=self.state,
        )
        self.retention = Retention(engine, self.api.exports, self.namespaces, settings)
        self._counts = Observer(self)
        self.observer = self._observability(
            StandardObservability(self._counts.metrics, Dashboard(store, control.causes, world.now))
        )
        self.registries = Registries(
            store,
            world,
            self.workers,
            [
                self.namespaces,
                self.rollouts,
                self.sessions,
                control.attributes,
                control.saved_views,
                self.access.tokens,
                self.access.browser_sessions,
                control.system_actions,
                control.bulks,
            ],
            self._reloaded,
            links=self.links,
            nodes=lambda: [] if store.exclusive else self.node.shards.linked,
            seen=lambda: self.node.shards.registry,
        )
        feed = control.feed
        hooks = self.node.lifecycle
        # Before the hooks of the node's own parts, but for waiters: those are woken first.
        hooks.on_up[:0] = [self.worker_links.expect, feed.engine_changed, control.bulks.resume]
        hooks.on_lost[:0] = [self._send_away, rates.forget, feed.engine_changed]
        hooks.on_unavailable[:0] = [feed.engine_changed]
        hooks.on_foreign_commit[1:1] = [self.registries.changed_elsewhere, feed.foreign_commit]

    async def _read_registries(self) -> None:
        """Read the registries: at the start, and when this server takes the engine over from another."""
        await self.namespaces.open(self.now)
        await self.registries.load()
        self._workers_known = self.workers.snapshot()

    async def __aexit__(self, *_: object) -> None:
        await self.sessions.settle()
        await self.engine.commits.drain()
        try:
            await self.admission.leave()
            await self.node.leave()
        finally:
            await self._shut()

    def _forget_later(self) -> None:
        self._forget = self.engine.world.at(self.now + FORGET, self._forget_workers)

    def _forget_workers(self) -> None:
        self._forgetting = self.engine.world.spawn(self._forgotten(), "backstay-forget")

    async def _forgotten(self) -> None:
        try:
            if self.engine.owned[0] and self.engine.down is None:  # one process is enough for it
                await self.workers.forget()
                await self.sessions.forget()
                await self.access.forget()
                await forget_past(self.engine.world, self.store, self.node.shards.nodes)
        except Unavailable:
            pass  # tried again next time
        self._forget_later()

    async def _shut(self) -> None:
        self.loop_watch.stop()
        self.worker_links.stop()
        self.admission.stop()
        self._counts.stop()
        await self.workers.heartbeats.stop()
        if self._forget is not None:
            self._forget.cancel()
        if self._forgetting is not None:
            self._forgetting.cancel()
            self._forgetting = None
        if self._deploying is not None:
            self._deploying.cancel()
        self.registries.stop()
        self.cluster.drains.end()
        self.retention.stop()
        await self.control.close()
        self.links.close()
        await self.node.close()

    def _revision(self) -> int:
        """A number that changes when an entry of these registries does."""
        kept = (
            self.access.tokens.kept,
            self.access.browser_sessions.kept,
            self.namespaces.kept,
            self.workers,
            self.rollouts,
        )
        return sum(registry.changes for registry in kept)

    def state(self) -> ProcessState:
        engine = self.engine
        return ProcessState(
            engine_active=engine.active,
            # A node that has just got shards of others serves everything meanwhile, as any node does.
            recovering=engine.store.exclusive and engine.holder and not self.recovery.up,
            stopping=self.draining or self.cluster.drains.ended,
            drained=self.cluster.drains.asked,
            commit_under_way_for=engine.commits.under_way_for,
            polls=len(self.parked),
            polls_full=self.parked.full,
            unreachable=self.links.unreachable,
        )

    def _reloaded(self) -> None:
        """Other processes may have registered workers, or removed some."""
        self.workers.contradict()
        before, self._workers_known = self._workers_known, self.workers.snapshot()
        for namespace, worker_id in before.keys() - self._workers_known.keys():
            for task in self.engine.leases.of(namespace, worker_id):
                self.take_back(task)
        self.questions.workers_changed()
        new = {place: found for place, found in self._workers_known.items() if before.get(place) != found}
        if new:
            self._deploying = self.engine.world.spawn(self._deployed(), "backstay-deployed")

    async def _deployed(self) -> None:
        with suppress(Unavailable):  # recovery looks at all of them then
            await self.recovery.deployed()

    def _define(self, routing: Routing, workflow_type: str) -> tuple[Routing, RecordedDefinition | None]:
        """The routing and definition of a start, as over HTTP: of the promoted build of its queue."""
        namespace, queue = routing.namespace, routing.queue
        build = routing.compatibility or self.rollouts.promoted(namespace, queue)
        return replace(routing, compatibility=build), self.workers.definition(namespace, queue, workflow_type, build)

    def node_id(self) -> int | None:
        return self.node.shards.me or None

    @property
    def now(self) -> Micros:
        return self.engine.world.now()

    def new_id(self) -> str:
        return self.engine.world.ids.ulid()

    def _send_away(self) -> None:
        """Send all waiting workers to another server, since this one is no longer the engine."""
        for waiter in self.engine.matching.polls.all():
            self.engine.dispatcher.end_poll(waiter)
        self.worker_links.send_away()
        self.questions.send_away()

    def _knows_workers(self) -> bool:
        """Whether every live worker is in the registry, or runs here. Embedded apps are workers that are in none."""
        others = self.node.shards.others
        shared = not self.store.exclusive and not any(one.facts.executes for one in others if one.is_alive)
        return shared or self.engine.owns_all

    def announce_drain(self) -> None:
        """Say that this server is about to stop. It still serves callers, and hands its shards to others."""
        self.cluster.drains.end()

    def drain(self) -> None:
        """Stop leasing tasks, and answer all waiting requests at once."""
        self.announce_drain()
        self.draining = True
        # Workers are sent away; they report to the next server.
        over = self.now + round(self.settings.drain_seconds * SECOND) + COME_BACK
        self.engine.wait_for_workers(range(self.store.shards), over, over)
        for waiter in self.engine.matching.polls.all():
            self.engine.dispatcher.end_poll(waiter)
        for link in self.worker_links:
            link.leave()
        for give_up in list(self.waiting.values()):
            give_up()
        self.questions.stop()
        self.control.feed.end("server_draining")
        self.control.bulks.stop()
        self.api.stop_waiting(Stopping)

    def release(self, task: Task, *, begun: bool = True, reply: Reply | None = None) -> None:
        """Release a lease that its worker cannot use. `begun` False: the worker has certainly never received it."""
        release = Release(task_id=task.id, owner=task.owner or "", attempt=task.attempt, begun=begun)
        self.engine.submit(task.workflow, release, reply)

    def take_back(self, task: Task, reply: Reply | None = None) -> None:
        """Release a lease that a living worker returns. An activity may have done some of its work and counts as begun;
        workflow code has only been replayed, and its worker did not die of it."""
        self.release(task, begun=task.kind == "activity", reply=reply)
