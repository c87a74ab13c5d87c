"""Opening and closing an embedded Backstay: database, engine, worker, client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, TypedDict, TypeVar, Unpack

from backstay.codec.payloads import AvroPayloads
from backstay.engine.cluster.draining import Draining
from backstay.engine.cluster.node_metrics import node_families
from backstay.engine.cluster.other_code import with_code
from backstay.engine.cluster.process_facts import process_facts
from backstay.engine.core.world import AsyncioWorld, World
from backstay.engine.node import Node
from backstay.engine.requests.api import Api
from backstay.engine.views.exposition import engine_families, exposition, open_states
from backstay.kernel.features.start import RecordedDefinition
from backstay.kernel.limits import Limits
from backstay.kernel.machine import Machine
from backstay.kernel.values import Routing
from backstay.protocol.export import exporter
from backstay.protocol.exporting import exporting_of
from backstay.protocol.native.node_links import Links
from backstay.protocol.origin import of_process
from backstay.protocol.redaction import Redactor
from backstay.protocol.requests import Request
from backstay.protocol.run_entries import make_views
from backstay.sdk.author.options import check, expect, listed, served
from backstay.sdk.author.workflow_definition import WorkflowDefinition
from backstay.sdk.client.client import AsyncClient
from backstay.sdk.client.sync import Client
from backstay.sdk.embedded.host import EngineHost
from backstay.sdk.embedded.reading import reading
from backstay.sdk.embedded.thread import EngineThread
from backstay.sdk.replay.guard.shims import install as install_shims
from backstay.sdk.replay.replayer import Replayed, replay
from backstay.sdk.worker.executor import WorkerExecutor
from backstay.sdk.worker.registry import Guard, Registry, Types, redefines
from backstay.sdk.worker.watchdog import WORKFLOW_DEADLINE
from backstay.store import Store
from backstay.store.address import shown
from backstay.store.opening import open_store
from backstay.store.ownership import NodeFacts
from backstay.store.sqlite.writer import Offload

if TYPE_CHECKING:
    from backstay.engine.cluster.node_proofs import NodeProofs
    from backstay.link.nodes import NodeLinks
    from backstay.server.cluster.node_listener import NodeListener

R = TypeVar("R")

GRACE = 1.0  # seconds that running activities get to end when the app closes; those that take longer run again


class BackstayOptions(TypedDict, total=False):
    """Options of `Backstay` and `AsyncBackstay`."""

    namespace: str
    queues: Iterable[str]
    threads: int
    async_tasks: int
    types: Types | None
    guard: Guard
    shims: bool
    diagnostics: bool
    workflow_deadline: float | None
    compatibility: str | None
    limits: Limits | None
    cache_bytes: int
    views: bool
    grace: float
    client_only: bool
    listen: str | None
    advertise: str | None
    weight: int
    export_signing_key: str | None
    export_signing_key_id: str | None
    export_redactor: str | Redactor | None


class InProcess:
    """The transport to an engine in this process."""

    def __init__(self) -> None:
        self.api: Api | None = None

    def call(self, request: Request[R]) -> Awaitable[R]:
        if self.api is None:
            raise RuntimeError("this Backstay is not open; enter it with `with` or `async with` first")
        return self.api.call(request)

    def __str__(self) -> str:
        return "an engine in this process"


class AsyncBackstay(AsyncClient):
    """An embedded engine with its worker and client, on the running event loop.

    Apps that share a PostgreSQL share its work. `listen="HOST:PORT"` lets other processes of the database call this one for its
    workflows, instead of going through the database; `advertise` is the URL by which they do, if it is another one. `weight`:
    the share of the work, in proportion to that of the others.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = "backstay.db",
        register: Iterable[Any] = (),
        *,
        namespace: str = "default",
        queues: Iterable[str] = ("default",),
        threads: int = 200,
        async_tasks: int = 1000,
        types: Types | None = None,
        guard: Guard = "warn",
        shims: bool = False,
        diagnostics: bool = True,
        workflow_deadline: float | None = WORKFLOW_DEADLINE,
        compatibility: str | None = None,
        limits: Limits | None = None,
        cache_bytes: int = 40 << 20,
        views: bool = True,
        grace: float = GRACE,
        client_only: bool = False,
        listen: str | None = None,
        advertise: str | None = None,
        weight: int = 1,
        export_signing_key: str | None = None,
        export_signing_key_id: str | None = None,
        export_redactor: str | Redactor | None = None,
        world: Callable[[], World] | None = None,
        **unknown: Never,
    ) -> None:
        check(unknown, BackstayOptions)
        self.registry = Registry(types, guard, diagnostics)
        if shims:
            install_shims()
        self._engine_room = InProcess()
        super().__init__(self._engine_room, namespace=namespace, exceptions=self.registry.exceptions)
        self.path = os.fspath(path)
        # Missing arguments are taken from DW_EXPORT_SIGNING_KEY, DW_EXPORT_SIGNING_KEY_ID and DW_EXPORT_REDACTOR.
        self._exporting = exporting_of(os.environ, export_signing_key, export_signing_key_id, export_redactor)
        expect("threads", threads)
        expect("async_tasks", async_tasks)
        expect("compatibility", compatibility)
        expect("workflow_deadline", workflow_deadline)
        self._queues = frozenset(listed("queues", queues) if client_only else served(queues))
        self._threads = threads
        self._async_tasks = async_tasks
        self._compatibility = compatibility
        # The watchdog measures real time, which another world does not have.
        self._workflow_deadline = workflow_deadline if world is None else None
        self._limits = limits
        self._cache_bytes = cache_bytes
        self._views = views
        self._grace = grace
        self._client_only = client_only
        self._listen = listen
        self._advertise = advertise
        expect("weight", weight)
        self._weight = weight
        self._listener: NodeListener | None = None
        self._world = world
        self._redefined = self._redefine
        self._node_links: NodeLinks | None = None
        self._proofs: NodeProofs
        self.register(*listed("register", register))

    def register(self, *things: Any) -> None:
        """Register workflows, activities, objects with activity methods, and exception classes.

        A definition that was made again, in a notebook or a reloaded module, replaces the earlier one. Raises
        `DefinitionError` if something cannot be registered or its name is taken.
        """
        before = dict(self.registry.workflows)
        self.registry.register(things)
        if self._engine_room.api is not None:
            after = self.registry.workflows
            self.executor.redefined({type for type, known in before.items() if after[type] is not known})
            self._deployed()
            self.engine.world.spawn(self.recovery.deployed(), "backstay-deployed")
            self.recovery.offer_waiting()

    def __repr__(self) -> str:
        if self._engine_room.api is None:
            state = "not open"
        else:
            state = (
                "the engine"
                if self.engine.owns_all
                else "one of the engines"
                if self.engine.holder
                else "another process is the engine"
            )
        known = ", ".join([*self.registry.workflows, *self.registry.activities])
        return f"<AsyncBackstay {shown(self.path)}: {state}; registered: {known}>"

    def _redefine(self, workflow: Any, definition: WorkflowDefinition) -> None:
        """Register the definition of a workflow that is started, if it is a new definition of a registered one."""
        known = self.registry.workflows.get(definition.type)
        if known is not None and known is not definition and redefines(definition.target, known.target):
            self.register(workflow)

    @property
    def is_engine(self) -> bool:
        """Whether this process runs an engine of the database: it works for all workflows of it, or for its share of them."""
        return self._engine_room.api is not None and self.engine.holder

    async def replay(self, *ids: str) -> Replayed:
        """Replay all open runs, or the current runs of these workflow ids, with the registered code, and return what would block.

        Only workflow code runs, and nothing is written. It also works while the app is not open.
        """
        if self._engine_room.api is not None:
            return await replay(self, self.registry, self.engine.machine, ids)
        async with reading(self.path) as (transport, machine):
            client = AsyncClient(transport, namespace=self.namespace)
            return await replay(client, self.registry, machine, ids)

    async def prometheus(self, *, open_metrics: bool = False) -> str:
        """Return counters and gauges of this app in the text format of Prometheus, or as OpenMetrics."""
        if self._engine_room.api is None:
            raise RuntimeError("this Backstay is not open; enter it with `async with` first")
        states = await open_states(self._node.open_runs, [self.namespace])
        families = [*engine_families(self.engine, states, self._node.projector.lag), *await node_families(self._node)]
        return exposition(families, open_metrics)

    async def open(self) -> Self:
        """Open the database and start engine and worker, as `async with` does; `close()` ends them."""
        return self if self._engine_room.api is not None else await self._open()

    async def close(self) -> None:
        """Take no more work, give running activities `grace` seconds to end, finish writing, and release the database."""
        if self._engine_room.api is not None:
            await self._close()

    async def has_engine(self) -> bool:
        """Return whether any process runs the engine of the database. Without one, started workflows wait."""
        return await self.store.has_engine()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def _open(self) -> Self:
        world = self._world() if self._world is not None else AsyncioWorld(asyncio.get_running_loop())
        machine = Machine(limits=self._limits)
        commits = world.pool(1, "backstay-commit")
        # A database in memory has no slow disk to wait for.
        offload = None if self.path == ":memory:" or self._world is not None else commits.submit
        self.store = await self._open_store(machine, offload)
        try:
            links = self._links(world)
        except BaseException:
            await self.store.close()
            raise
        self._node = Node(
            world,
            self.store,
            machine,
            AvroPayloads(),
            exporter(self._exporting),
            make_views,
            commits=commits,
            define=self._define,
            cache_bytes=self._cache_bytes,
            views=self._views,
            guest=self._client_only,
            origin=of_process(),
            links=links,
            facts=self._facts() if self._world is None else None,
        )
        self._drains = Draining(self._node)
        self.engine = self._node.engine
        self.recovery = self._node.recovery
        self._host = EngineHost(self.engine, world, self._threads)
        self.executor = WorkerExecutor(
            self._host,
            machine,
            self.registry,
            f"{self.engine.incarnation}/worker",
            namespace=self.namespace,
            queues=self._queues,
            threads=self._threads,
            tasks=self._async_tasks,
            compatibility=self._compatibility,
            workflow_deadline=self._workflow_deadline,
        )
        self._host.executor = self.executor
        self.engine.matching.join(self.executor, takes_tasks=not self._client_only)
        self._deployed()
        self._engine_room.api = self._node.api
        try:
            if self._listener is not None:
                await self._listener.start(self._node, self._proofs)
            await self._node.open()
        except BaseException:
            await self._shut()
            raise
        if self._world is None:
            self._drains.start()
        return self

    async def _close(self) -> None:
        # Also if closing is cancelled during the grace, the database is released for the next process.
        try:
            self.executor.activities.take_no_more()
            await self.engine.commits.settle()  # a task that was taken just now begins with its commit
            await self.executor.activities.leave(self._grace)
        finally:
            try:
                await self.engine.commits.drain()
                await self._node.leave()
            finally:
                await self._shut()

    async def _shut(self) -> None:
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        self._drains.end()
        self._node.stop()
        self.executor.stop()
        self._host.close()
        self._engine_room.api = None
        if self._node_links is not None:
            self._node_links.close()
        await self._node.close()

    def _open_store(self, machine: Machine, offload: Offload | None) -> Awaitable[Store]:
        """Open the store at `path`; a subclass may open another one."""
        return open_store(self.path, machine.kinds, offload)

    def _links(self, world: World) -> Links | None:
        """Calls to the servers of the same database, which own some of its workflows."""
        if self._advertise is not None and self._listen is None:
            raise ValueError("advertise= needs listen=: other nodes cannot call an app that does not listen")
        if self.store.exclusive and self._listen is not None:
            raise ValueError(
                f"listen={self._listen!r} is for apps that share a PostgreSQL; one process works for {self.path}"
            )
        if self.store.exclusive or self._world is not None:
            return None
        from backstay.engine.cluster.node_proofs import NodeProofs
        from backstay.engine.cluster.node_secrets import NodeSecrets
        from backstay.link.nodes import NodeLinks

        if self._listen is not None:
            from backstay.server.cluster.node_listener import NodeListener

            self._listener = NodeListener(self._listen, self._advertise)
        secrets = NodeSecrets(world, self.store)
        self._proofs = NodeProofs(world, secrets, lambda: self._node.shards)
        self._node_links = NodeLinks(secrets.ours, secrets.load, self._proofs.sign)
        return self._node_links

    def _facts(self) -> NodeFacts:
        address = None if self._listener is None else self._listener.address
        return process_facts(weight=self._weight, address=address, executes=not self._client_only, embedded=True)

    def _define(self, routing: Routing, workflow_type: str) -> tuple[Routing, RecordedDefinition | None]:
        known = self.registry.workflows.get(workflow_type)
        return routing, None if known is None else known.snapshot

    def _deployed(self) -> None:
        """Notify other processes that the code of this one has changed."""
        if not self._client_only:
            fingerprints = {type: known.fingerprint for type, known in self.registry.workflows.items()}
            self._node.facts = with_code(self._node.facts, fingerprints)


class Backstay(Client):
    """An embedded engine with its worker and client, for code without `await`. It runs on a thread of its own."""

    def __init__(
        self,
        path: str | os.PathLike[str] = "backstay.db",
        register: Iterable[Any] = (),
        **options: Unpack[BackstayOptions],
    ) -> None:
        self._app = AsyncBackstay(path, register, **options)  # pyright: ignore[reportArgumentType]  # a TypedDict may have more keys
        self._engine_thread = EngineThread()
        super().__init__(self._app, self._engine_thread)

    @property
    def path(self) -> str:
        """The database: a path, or a URL."""
        return self._app.path

    def __repr__(self) -> str:
        return repr(self._app).replace("<AsyncBackstay", "<Backstay", 1)

    @property
    def is_engine(self) -> bool:
        """Whether this process runs an engine of the database: it works for all workflows of it, or for its share of them."""
        return self._engine_thread.mine and self._app.engine.holder

    def has_engine(self) -> bool:
        """Return whether any process runs the engine of the database. Without one, started workflows wait."""
        return self._bridge.run(self._app.has_engine())

    def register(self, *things: Any) -> None:
        """Register workflows, activities, objects with activity methods, and exception classes.

        A definition that was made again, in a notebook or a reloaded module, replaces the earlier one. Raises
        `DefinitionError` if something cannot be registered or its name is taken.
        """
        if self._engine_thread.running:
            self._bridge.run(self._register(things))
        else:
            self._app.register(*things)

    async def _register(self, things: tuple[Any, ...]) -> None:
        self._app.register(*things)

    def replay(self, *ids: str) -> Replayed:
        """Replay all open runs, or the current runs of these workflow ids, with the registered code, and return what would block.

        Only workflow code runs, and nothing is written. It also works while the app is not open.
        """
        if self._engine_thread.running:
            return self._bridge.run(self._app.replay(*ids))
        thread = EngineThread()
        thread.start()
        try:
            return thread.run(self._app.replay(*ids))
        finally:
            thread.stop()

    def prometheus(self, *, open_metrics: bool = False) -> str:
        """Return counters and gauges of this app in the text format of Prometheus, or as OpenMetrics."""
        return self._bridge.run(self._app.prometheus(open_metrics=open_metrics))

    def open(self) -> Self:
        """Open the database and start engine and worker, as `with` does; `close()` ends them."""
        if self._engine_thread.running:
            return self
        self._engine_thread.start()
        try:
            self._bridge.run(self._app.open())
        except BaseException:
            self._engine_thread.stop()
            raise
        return self

    def close(self) -> None:
        """Take no more work, give running activities `grace` seconds to end, finish writing, and release the database."""
        if self._engine_thread.mine:
            try:
                self._bridge.run(self._app.close())
            finally:
                self._engine_thread.stop()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
