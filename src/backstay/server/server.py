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
from backstay.engine.api import Api
from backstay.engine.cache import Reply
from backstay.engine.draining import Draining
from backstay.engine.lifecycle import EngineHooks
from backstay.engine.matching import Matching
from backstay.engine.node import Node
from backstay.engine.node_secrets import NodeSecrets
from backstay.engine.process_facts import process_facts
from backstay.engine.queue_rates import QueueRates
from backstay.engine.recovery import COME_BACK
from backstay.engine.world import Alarm, AsyncioWorld, World
from backstay.kernel.features.lease import Release
from backstay.kernel.features.start import RecordedDefinition
from backstay.kernel.machine import Machine
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Micros, Routing
from backstay.link.nodes import NodeLinks
from backstay.protocol.export import exporter
from backstay.protocol.run_entries import make_views
from backstay.server.admission import QueueAdmission
from backstay.server.asked_questions import AskedQuestions
from backstay.server.auth import Authenticator
from backstay.server.browser import BrowserSessions, WrongTokens
from backstay.server.bulk import BulkOperations
from backstay.server.dashboard import Dashboard
from backstay.server.discovery import server_capabilities
from backstay.server.exporting import exporting
from backstay.server.feed import LiveFeed
from backstay.server.fleet import Fleet
from backstay.server.http_errors import Stopping
from backstay.server.loop_watch import LoopWatch
from backstay.server.metrics import Observer
from backstay.server.namespaces import Namespaces
from backstay.server.native.worker_links import WorkerLinks
from backstay.server.observability import StandardObservability, observability
from backstay.server.overview import Overviews
from backstay.server.queue_views import QueueViews
from backstay.server.rates_of_nodes import RatesOfNodes
from backstay.server.registries import Registries
from backstay.server.registry import StoredRegistry
from backstay.server.remote_queries import RemoteQueries
from backstay.server.retention import Retention
from backstay.server.rollouts import Rollouts
from backstay.server.saved_views import SavedView
from backstay.server.sessions import SessionRegistry
from backstay.server.settings import Settings
from backstay.server.shared_answers import SharedAnswers
from backstay.server.signatures import Signatures
from backstay.server.sweep_of_nodes import SweepOfNodes
from backstay.server.sweep_policy import SweepPolicy
from backstay.server.system_actions import SystemActions
from backstay.server.tokens import Tokens
from backstay.server.workers import WorkerRegistry
from backstay.store import Unavailable
from backstay.store.address import is_server
from backstay.store.opening import open_store

FORGET = 60 * SECOND


class Server:
    def __init__(
        self,
        settings: Settings,
        world: Callable[[], World] | None = None,
        authenticator: type[Authenticator] = Authenticator,
        address: str | None = None,
    ) -> None:
        """`address`: by which other nodes of the database call this server; None: they reach it through the database."""
        self.settings = settings
        self.address = address
        self.node_id: Callable[[], int | None] = lambda: self.node.shards.me or None
        self._authenticator = authenticator
        signs = settings.auth == "signature"
        self.signatures = Signatures(settings.signature_key or "", lambda: self.now) if signs else None
        self._exporting = exporting(settings)
        self._observability = observability(settings.observability)
        self.capabilities = msgspec.Raw(msgspec.json.encode(server_capabilities(settings)))
        self.draining = False
        self.parked = 0
        self.requests: Counter[tuple[str, str, int]] = Counter()  # by method, route and status
        self.loop_watch = LoopWatch()
        self.shared_answers = SharedAnswers()
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
        self.namespaces = Namespaces(store, settings.default_namespace)
        self.workers = WorkerRegistry(
            store, world, settings.worker_stale_after_seconds, settings.worker_forgotten_after_seconds
        )
        self.rollouts = Rollouts(store, lambda: self.worker_links.apply_rollouts())
        self.fleet = Fleet(self.workers, self.rollouts, settings.compatibility_namespace)
        self.tokens = Tokens(store)
        self.browser_sessions = BrowserSessions(
            store, world.now, settings.session_lifetime_seconds, tls=settings.tls_certificate is not None
        )
        self.system_actions = SystemActions(store)
        self.wrong_tokens = WrongTokens(world.now)
        self.authenticator = self._authenticator(settings, self.tokens, self.browser_sessions)
        self.attributes = StoredRegistry(store, "search_attribute", str)
        self.saved_views = StoredRegistry(store, "saved_view", SavedView)
        self.bulks = BulkOperations(store, lambda: self.engine, lambda: self.api, self._bulk_moved)
        self.sweep_policy = SweepPolicy(settings, world.now)
        self.admission = QueueAdmission(lambda: self.engine, settings)
        self.sessions = SessionRegistry(store, lambda: self.engine, self.workers)
        self.asked_questions = AskedQuestions(self)
        self.questions = RemoteQueries(
            world,
            self.workers,
            settings.query_timeout_seconds,
            settings.query_task_max_pending_per_queue,
            is_engine=lambda: self.engine.active,
            links=lambda: self.worker_links,
            elsewhere=self.asked_questions.ask if is_server(path) else None,
        )
        self.registries = Registries(
            store,
            world,
            self.workers,
            [
                self.namespaces,
                self.rollouts,
                self.sessions,
                self.attributes,
                self.saved_views,
                self.tokens,
                self.browser_sessions,
                self.system_actions,
                self.bulks,
            ],
            self._reloaded,
            links=lambda: self.links,
            nodes=lambda: [] if store.exclusive else self.node.shards.linked,
            seen=lambda: self.node.shards.registry,
        )
        self.node_secrets = NodeSecrets(world, store)
        self.links = NodeLinks(self.node_secrets.ours, self.node_secrets.load)
        self.node = Node(
            world,
            store,
            machine,
            AvroPayloads(),
            exporter(self._exporting),
            make_views,
            commits=commits,
            lifecycle=EngineHooks(
                before_take_over=[self._read_registries],
                on_up=[lambda: self.worker_links.expect(), lambda: self.feed.engine_changed(), self.bulks.resume],
                on_lost=[self._send_away, lambda: self.rates.forget(), lambda: self.feed.engine_changed()],
                on_unavailable=[lambda: self.feed.engine_changed()],
                on_foreign_commit=[lambda: self.registries.changed_elsewhere(), lambda: self.feed.foreign_commit()],
                on_sweep=[self.sweep_policy.swept],
            ),
            matching=Matching(
                world.now,
                admission=self.admission if self.admission.limited else None,
                sessions=self.sessions,
                remote=self.questions,
                fleet=self.fleet,
            ),
            define=self._define,
            overdue=settings.task_repair_redispatch_after_seconds * SECOND,
            sweep_every=settings.task_repair_loop_throttle_seconds * SECOND,
            sweep_rests=self.sweep_policy.rests,
            views=settings.views,
            certify=True,
            guest=settings.weight == 0,
            facts=process_facts(name=settings.node_name, weight=settings.weight, address=self.address),
            links=self.links if is_server(path) else None,
        )
        self.engine = self.node.engine
        if self.admission.limited and not store.exclusive:
            self.admission.share_with_others(self.node)
        self.engine.knows_workers = self._knows_workers
        self.drains = Draining(self.node)
        self.rates = QueueRates(world.now, self.engine.owns)
        self.rates_of_nodes = RatesOfNodes(self.node, self.links, self.rates)
        self.sweep_of_nodes = SweepOfNodes(self.node, self.links, self.sweep_policy)
        self.engine.observe_commits(self.rates.committed)
        self.recovery = self.node.recovery
        self.sweep = self.node.sweep
        self.api: Api = self.node.api
        self.feed = LiveFeed(self.engine, settings, self._revision)
        self.retention = Retention(self.engine, self.api.exports, self.namespaces, settings)
        self._counts = Observer(self)
        standard = StandardObservability(self._counts.metrics, Dashboard(store, world.now))
        self.observer = self._observability(standard)
        self.queues = QueueViews(self.engine, self.workers, self.admission, self.rates_of_nodes.of)
        self.overviews = Overviews(self.node, self.queues, self.fleet, settings)
        self.worker_links = WorkerLinks(self)
        try:
            await self._read_registries()
            if self.address is not None and is_server(path):
                await self.node_secrets.ours()  # before anybody calls
            self.retention.start()
            if self._world is None:
                self.loop_watch.start()
            self._forget_later()
            await self.node.open()
            self.drains.start()
            if self.engine.holder:
                self.sweep_policy.swept()  # recovery has looked at everything
        except BaseException:
            await self._shut()
            raise
        return self

    async def _read_registries(self) -> None:
        """Read the registries: at the start, and when this server takes the engine over from another."""
        await self.namespaces.open(self.now)
        await self.registries.load()
        self._workers_known = self.workers.snapshot()

    async def __aexit__(self, *_: object) -> None:
        await self.sessions.settle()
        await self.engine.drain()
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
                await self.browser_sessions.forget()
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
        self.drains.end()
        self.retention.stop()
        self.feed.close()
        await self.bulks.close()
        self.links.close()
        await self.node.close()

    def _revision(self) -> int:
        """A number that changes when an entry of these registries does."""
        kept = (self.tokens.kept, self.browser_sessions.kept, self.namespaces.kept, self.workers, self.rollouts)
        return sum(registry.changes for registry in kept)

    def _bulk_moved(self, namespace: str, id: str, how_far: dict[str, Any]) -> None:
        self.feed.bulk_moved(namespace, id, how_far)

    def _reloaded(self) -> None:
        """Other processes may have registered workers, or removed some."""
        before, self._workers_known = self._workers_known, self.workers.snapshot()
        for namespace, worker_id in before.keys() - self._workers_known.keys():
            for task in self.engine.leases.of(namespace, worker_id):
                self.take_back(task)
        new = {place: found for place, found in self._workers_known.items() if before.get(place) != found}
        fingerprints = {type: known for found in new.values() for type, known in found}
        if fingerprints:
            self.engine.deployed.update(fingerprints)
            self._deploying = self.engine.world.spawn(self._deployed(), "backstay-deployed")

    async def _deployed(self) -> None:
        with suppress(Unavailable):  # recovery looks at all of them then
            await self.recovery.deployed()

    def _define(self, routing: Routing, workflow_type: str) -> tuple[Routing, RecordedDefinition | None]:
        """The routing and definition of a start, as over HTTP: of the promoted build of its queue."""
        namespace, queue = routing.namespace, routing.queue
        build = routing.compatibility or self.rollouts.promoted(namespace, queue)
        return replace(routing, compatibility=build), self.workers.definition(namespace, queue, workflow_type, build)

    @property
    def now(self) -> Micros:
        return self.engine.world.now()

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
        """Say that this server is about to stop. It serves on, and hands its shards to others."""
        self.drains.end()

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
        self.feed.end("server_draining")
        self.bulks.stop()
        self.api.stop_waiting(Stopping)

    def release(self, task: Task, *, begun: bool = True, reply: Reply | None = None) -> None:
        """Release a lease that its worker cannot use. `begun` False: the worker has certainly never received it."""
        release = Release(task_id=task.id, owner=task.owner or "", attempt=task.attempt, begun=begun)
        self.engine.submit(task.workflow, release, reply)

    def take_back(self, task: Task, reply: Reply | None = None) -> None:
        """Release a lease that a living worker returns. An activity may have done some of its work and counts as begun;
        workflow code has only been replayed, and its worker did not die of it."""
        self.release(task, begun=task.kind == "activity", reply=reply)
