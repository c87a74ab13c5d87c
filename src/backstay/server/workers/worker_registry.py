"""The registry of workers: their types, and their last signs of life.

Registered → active ⇄ stale → forgotten. A worker is stale when its connection has ended, or when it has been silent for too
long. Its server sees the end of a connection: of a link, or of a parked poll (`presence.py`). It records that in the
registration (`left_at`), so that all servers know it. If the worker is heard of again, at any server, the record is removed.

The registration is durable, because a worker does not register again when a server restarts, and so is the time of its
last request (`heartbeats.py`): a worker that was stale stays stale after a restart. A stale worker is *given up* only
later: after the time in which a worker comes back, or, if it was merely silent, after this server has listened for a
full staleness period, since a server that was down has heard no worker. A worker that was killed does not deregister:
it is forgotten after a while, and of many stale ones only the last are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from backstay.engine.core.world import World
from backstay.engine.recovery import COME_BACK
from backstay.kernel.features.start import RecordedDefinition
from backstay.kernel.values import SECOND, Micros
from backstay.server.http.errors import HttpError
from backstay.server.registries.registry import StoredRegistry
from backstay.server.workers.heartbeats import Heartbeats
from backstay.store import Store
from backstay.store.errors import Unavailable

STALE_KEPT = 1000  # of a namespace
POLLS = 3  # periods without a poll after which a worker that polls, and has no task, is stale
SHORTEST = 30 * SECOND  # of that time: other servers hear of a poll only after a while
MOST = 10_000  # registrations of a namespace: more are refused until some are forgotten
REGISTRATION = 256 << 10  # bytes of one, as JSON
REGISTRATIONS = 16 << 20  # bytes of all registrations of a namespace
TOLD = 2 << 10  # bytes for slots or process metrics in a heartbeat


class CommandContract(Struct, frozen=True, kw_only=True):
    """The signals, updates and queries of a workflow type, as its worker declares them."""

    queries: list[str] | None = None
    query_contracts: list[dict[str, Any]] | None = None
    signals: list[str] | None = None
    signal_contracts: list[dict[str, Any]] | None = None
    updates: list[str] | None = None
    update_contracts: list[dict[str, Any]] | None = None
    update_validators: list[str] | None = None


class RegisteredWorker(Struct, frozen=True, kw_only=True):
    """A registration. An empty list of workflow types means every type."""

    worker_id: str
    namespace: str
    task_queue: str
    runtime: str
    registered_at: Micros
    updated_at: Micros
    sdk_version: str | None = None
    build_id: str | None = None
    supported_workflow_types: list[str] = []
    supported_activity_types: list[str] = []
    workflow_definition_fingerprints: dict[str, str] = {}
    workflow_command_contracts: dict[str, CommandContract] = {}
    definitions: dict[str, RecordedDefinition] = {}  # of our own workers
    capabilities: list[str] = []
    capability_manifest: dict[str, Any] = {}
    max_concurrent_workflow_tasks: int = 100
    max_concurrent_activity_tasks: int = 100
    max_concurrent_worker_sessions: int = 100
    task_slots: dict[str, int] = {}
    process_metrics: dict[str, Any] = {}
    heartbeat_interval_seconds: int | None = None
    task_queues: list[str] = []  # of our own workers, which may serve several; `task_queue` is the first
    host: str | None = None
    process_id: int | None = None
    connection: str | None = None  # of the tasks that it takes, unless a poll names another; None: of every one
    compatibility_namespace: str | None = None
    left_at: Micros | None = None  # when its connection ended; None while it has one, or was heard of since

    @property
    def queues(self) -> list[str]:
        return self.task_queues or [self.task_queue]

    @property
    def workflow_types(self) -> frozenset[str] | None:
        return frozenset(self.supported_workflow_types) or None

    def takes(self, kind: str, type: str) -> bool:
        """Whether it runs tasks of this kind and type. Our own workers name all that they run."""
        if kind == "activity":
            return type in self.supported_activity_types
        return type in self.supported_workflow_types or not (self.supported_workflow_types or self.task_queues)

    @property
    def compatibility(self) -> frozenset[str] | None:
        return None if self.build_id is None else frozenset({self.build_id})


class WorkerRegistry:
    def __init__(self, store: Store, world: World, stale_after_seconds: int, forgotten_after_seconds: int) -> None:
        self.kept = StoredRegistry(store, "worker", RegisteredWorker, most_bytes=REGISTRATIONS)
        self.heartbeats = Heartbeats(store, world, stale_after_seconds * SECOND)
        self._now = world.now
        self._began = world.now()
        self.stale_after_seconds = stale_after_seconds
        self._forgotten_after = forgotten_after_seconds * SECOND
        self.on_registered: Callable[[], None] = lambda: None  # after each registration
        self.is_here: Callable[[str, str], bool] = lambda namespace, worker_id: False  # a request of it waits here
        self._spawn = world.spawn

    @property
    def changes(self) -> int:
        return self.kept.changes

    async def load(self) -> None:
        await self.heartbeats.load()
        await self.kept.load()

    async def register(self, worker: RegisteredWorker) -> None:
        if self.get(worker.namespace, worker.worker_id) is None and len(self.of(worker.namespace)) >= MOST:
            raise HttpError(
                429,
                "worker_capacity_exhausted",
                f"namespace {worker.namespace!r} has {MOST} registered workers; deregister those that are gone, or wait"
                " until they are forgotten (worker_forgotten_after_seconds)",
                retryable=True,
                retry_after_seconds=60,
            )
        size = len(msgspec.json.encode(worker))
        if size > REGISTRATION:
            raise HttpError(
                413,
                "registration_too_large",
                f"the registration of worker {worker.worker_id!r} has {size} bytes, at most {REGISTRATION} are stored. Split"
                " its types over several workers, or describe them in less detail",
                configured_limit=REGISTRATION,
            )
        await self.kept.put(worker.namespace, worker.worker_id, worker)
        self.heard(worker)
        self.on_registered()

    async def forget(self) -> None:
        """Remove workers that have been silent for too long, and all but the last `STALE_KEPT` stale ones."""
        stale: dict[str, list[RegisteredWorker]] = {}
        for worker in sorted(self.everybody(), key=self.last_heard, reverse=True):
            if self.stale(worker):
                stale.setdefault(worker.namespace, []).append(worker)
        for many in stale.values():
            for place, worker in enumerate(many):
                since = max(self.last_heard(worker), self._began)
                long_ago = self._now() - since > self._forgotten_after
                gone = (long_ago or place >= STALE_KEPT) and self.stale(worker)  # it may have come back meanwhile,
                if gone and await self.kept.change(worker.namespace, worker.worker_id, None):  # at another server, too
                    await self.heartbeats.forget(worker.namespace, worker.worker_id)

    async def remove(self, namespace: str, worker_id: str) -> RegisteredWorker | None:
        await self.heartbeats.forget(namespace, worker_id)
        return await self.kept.remove(namespace, worker_id)

    def snapshot(self) -> dict[tuple[str, str], frozenset[tuple[str, str]]]:
        """The workers, each with the fingerprints of its definitions."""
        return {
            (worker.namespace, worker.worker_id): frozenset(worker.workflow_definition_fingerprints.items())
            for worker in self.everybody()
        }

    def update(self, worker: RegisteredWorker) -> None:
        """Take over the details of a heartbeat. They are shown, but not stored."""
        self.kept.note(worker.namespace, worker.worker_id, worker)
        self.heard(worker)

    def heard(self, worker: RegisteredWorker, lasts: Micros | None = None) -> None:
        """The worker has sent a request. `lasts`: for how long that counts, if not for as long as others."""
        self.heartbeats.note(worker.namespace, worker.worker_id, lasts)
        known = self.get(worker.namespace, worker.worker_id)
        if known is not None and known.left_at is not None:
            self._return(known)

    async def left(self, namespace: str, worker_id: str) -> None:
        """The connection of a worker has ended here. Another server that has one contradicts (`contradict`)."""
        worker = self.get(namespace, worker_id)
        if worker is None or worker.left_at is not None or self.is_here(namespace, worker_id):
            return
        with suppress(Unavailable):  # then it counts until it has been silent for too long
            await self.kept.change(namespace, worker_id, replace(worker, left_at=self._now()))

    def contradict(self) -> None:
        """Workers that other servers miss have a connection here: they count."""
        for worker in self.everybody():
            if worker.left_at is not None and self.is_here(worker.namespace, worker.worker_id):
                self.heard(worker)

    def _return(self, worker: RegisteredWorker) -> None:
        """A worker that had left is there again."""
        back = replace(worker, left_at=None)
        self.kept.note(worker.namespace, worker.worker_id, back)
        self._spawn(self._write_return(back), "backstay-worker-returns")

    async def _write_return(self, worker: RegisteredWorker) -> None:
        with suppress(Unavailable):  # the next server that reads it hears of it, too
            await self.kept.change(worker.namespace, worker.worker_id, worker)

    def get(self, namespace: str, worker_id: str) -> RegisteredWorker | None:
        return self.kept.get(namespace, worker_id)

    def of(self, namespace: str) -> list[RegisteredWorker]:
        return [worker for _, worker in self.kept.of(namespace)]

    def everybody(self) -> list[RegisteredWorker]:
        return self.kept.all()

    def on(self, namespace: str, queue: str) -> list[RegisteredWorker]:
        return [worker for worker in self.of(namespace) if queue in worker.queues]

    def last_heard(self, worker: RegisteredWorker) -> Micros:
        """Before its first heartbeat is on disk, its registration is."""
        heard = self.heartbeats.last(worker.namespace, worker.worker_id)
        return worker.updated_at if heard is None else heard.recorded_at

    def expires_at(self, worker: RegisteredWorker) -> Micros:
        """Until when a worker counts that is not heard of again."""
        heard = self.heartbeats.last(worker.namespace, worker.worker_id)
        silent = worker.updated_at + self.stale_after_seconds * SECOND if heard is None else heard.expires_at
        return silent if worker.left_at is None else min(worker.left_at, silent)

    def stale(self, worker: RegisteredWorker) -> bool:
        return self._now() > self.expires_at(worker)

    def given_up(self, worker: RegisteredWorker) -> bool:
        """Whether nothing is expected of a worker any more: it has left and not come back, or is silent and could have been
        heard."""
        if worker.left_at is not None:
            return self._now() - worker.left_at > COME_BACK
        return self.stale(worker) and self._now() - self._began > self.stale_after_seconds * SECOND

    def registered(self, namespace: str, worker_id: str) -> RegisteredWorker:
        """A registered worker; raises a 404 if there is none of this id."""
        worker = self.get(namespace, worker_id)
        if worker is None:
            raise HttpError(
                412,
                "worker_not_registered",
                f"worker {worker_id!r} is not registered in namespace {namespace!r}; POST /api/worker/register first",
                worker_id=worker_id,
            )
        return worker

    def polling(
        self, namespace: str, worker_id: str, queue: str, build_id: str | None, seconds: float | None = None
    ) -> RegisteredWorker:
        """The worker that polls; raises why it may not. A poll that waits for so many `seconds` counts for as long as a few
        such polls."""
        worker = self.registered(namespace, worker_id)
        if worker.task_queue != queue:
            raise HttpError(
                409,
                "task_queue_mismatch",
                f"worker {worker_id!r} is registered for queue {worker.task_queue!r}, not {queue!r}",
                worker_id=worker_id,
                task_queue=worker.task_queue,
                field="task_queue",
            )
        if build_id is not None and build_id != worker.build_id:
            raise HttpError(
                409,
                "build_id_mismatch",
                f"worker {worker_id!r} is registered with build {worker.build_id!r}, not {build_id!r}",
                worker_id=worker_id,
                build_id=worker.build_id,
                field="build_id",
            )
        period = None if not seconds else max(POLLS * round(seconds * SECOND), SHORTEST)
        self.heard(worker, None if period is None else min(period, self.stale_after_seconds * SECOND))
        return worker

    def definition(
        self, namespace: str, queue: str, workflow_type: str, build_id: str | None
    ) -> RecordedDefinition | None:
        """The definition of a workflow type by its newest live worker. A new run records it."""
        able = [
            worker
            for worker in self.on(namespace, queue)
            if workflow_type in worker.workflow_command_contracts
            and not self.given_up(worker)
            and (build_id is None or worker.build_id == build_id)
        ]
        if not able:
            return None
        return self.definition_by(max(able, key=lambda worker: worker.registered_at), workflow_type)

    def definition_by(self, worker: RegisteredWorker, workflow_type: str) -> RecordedDefinition | None:
        """The definition that a worker has registered for a workflow type, with contracts; None if it has none."""
        whole = worker.definitions.get(workflow_type)
        contract = worker.workflow_command_contracts.get(workflow_type)
        if whole is not None or contract is None:
            return whole
        return RecordedDefinition(
            fingerprint=worker.workflow_definition_fingerprints.get(workflow_type),
            queries=contract.queries or [],
            query_contracts=contract.query_contracts or [],
            signals=contract.signals or [],
            signal_contracts=contract.signal_contracts or [],
            updates=contract.updates or [],
            update_contracts=contract.update_contracts or [],
            update_validators=list(contract.update_validators or ()),
        )
