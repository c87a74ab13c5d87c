"""The fleet as operators see it: the live workers of a queue, with their host, process and builds.

Several apps may share one database. If a server has a compatibility namespace, only workers of the same one count.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from backstay.kernel.decision import RunRow
from backstay.kernel.fleet import WorkerIdentity
from backstay.kernel.views.facts import Takers
from backstay.protocol.history import iso
from backstay.server.workers.rollouts import Rollouts
from backstay.server.workers.worker_registry import RegisteredWorker, WorkerRegistry


class FleetEntry(Struct, frozen=True, kw_only=True):
    worker_id: str
    namespace: str
    host: str | None
    process_id: int | None
    connection: str | None
    queue: str
    supported: list[str]
    supports_required: Annotated[bool, Meta(description="Whether it has the build that is wanted.")]
    recorded_at: str
    expires_at: str
    source: str


class FleetOfRun(Struct, frozen=True, kw_only=True):
    """The live workers of the queue of a run."""

    compatibility_namespace: str
    compatibility_fleet_reason: Annotated[str | None, Meta(description="Why none of them takes its work.")]
    compatibility_fleet: list[FleetEntry]


class Fleet:
    """`ours`: the compatibility namespace of this server, if it has one."""

    def __init__(self, workers: WorkerRegistry, rollouts: Rollouts, ours: str | None) -> None:
        self._workers = workers
        self._rollouts = rollouts
        self.ours = ours

    def _drains(self, worker: RegisteredWorker, queue: str) -> bool:
        return self._rollouts.draining(worker.namespace, queue, worker.build_id)

    def of(self, namespace: str) -> list[RegisteredWorker]:
        """The workers of a namespace that belong to the compatibility namespace of this server."""
        return [worker for worker in self._workers.of(namespace) if self.ours in (None, worker.compatibility_namespace)]

    def live(self, namespace: str, queue: str | None = None) -> list[RegisteredWorker]:
        """Those of them that are connected or were heard of lately; with `queue` those that serve it."""
        return [
            worker
            for worker in self.of(namespace)
            if (queue is None or queue in worker.queues) and not self._workers.stale(worker)
        ]

    def takers(self, kind: str, type: str, namespace: str, queue: str, build: str | None) -> Takers:
        """The live workers of a queue, and which of them would take a task of this kind, type and build.

        A worker of the published protocol that names no workflow types takes all of them. A build that drains takes nothing.
        """
        there = [worker for worker in self.live(namespace, queue) if not self._drains(worker, queue)]
        of_type = [worker for worker in there if worker.takes(kind, type)]
        able = [worker for worker in of_type if build is None or worker.build_id == build]
        return Takers(
            on_queue=len(there),
            of_type=len(of_type),
            able=len(able),
            connections=_connections(able),
            builds=sorted({worker.build_id for worker in of_type if worker.build_id is not None}),
        )

    def definitions(self, type: str, namespace: str, queue: str, build: str | None) -> set[str]:
        """The definitions of the live workers of a queue that would take a workflow task of this type and build."""
        return {
            _identity(worker, type).definition
            for worker in self.live(namespace, queue)
            if worker.takes("workflow", type)
            and (build is None or worker.build_id == build)
            and not self._drains(worker, queue)
        }

    def identity(self, namespace: str, worker_id: str, type: str) -> WorkerIdentity | None:
        worker = self._workers.get(namespace, worker_id)
        return None if worker is None else _identity(worker, type)

    def of_run(self, row: RunRow) -> FleetOfRun:
        """The live workers of the queue of a run, and why none of them takes its work."""
        wanted, ours = row.compatibility, self.ours
        there = self.live(row.namespace, row.queue)
        of_build = [worker for worker in there if wanted is None or worker.build_id == wanted]
        able = {worker.worker_id for worker in of_build if worker.connection in (None, row.connection)}
        if able:
            reason = None
        elif of_build and row.connection is not None:
            reason = f"no live worker on queue {row.queue!r} takes connection {row.connection!r}"
        elif of_build:
            reason = f"no live worker on queue {row.queue!r} takes tasks without a connection"
        elif there:
            reason = f"no live worker on queue {row.queue!r} has the build {wanted!r}"
        else:
            app = "" if ours is None else f" of compatibility namespace {ours!r}"
            reason = f"no worker on queue {row.queue!r}{app} is connected"
        return FleetOfRun(
            compatibility_namespace=ours or row.namespace,
            compatibility_fleet_reason=reason,
            compatibility_fleet=[self.entry(worker, worker.worker_id in able, row.queue) for worker in there],
        )

    def entry(self, worker: RegisteredWorker, supports_required: bool, queue: str | None = None) -> FleetEntry:
        """A worker as an entry of the fleet. `source` says where its heartbeat is kept."""
        said = worker.process_metrics
        return FleetEntry(
            worker_id=worker.worker_id,
            namespace=worker.compatibility_namespace or worker.namespace,
            host=_host(worker),
            process_id=worker.process_id or said.get("process_id"),
            connection=worker.connection,
            queue=queue or worker.task_queue,
            supported=[] if worker.build_id is None else [worker.build_id],
            supports_required=supports_required,
            recorded_at=iso(self._workers.last_heard(worker)),
            expires_at=iso(self._workers.expires_at(worker)),
            source="database",
        )


def _connections(workers: list[RegisteredWorker]) -> frozenset[str] | None:
    """The connections that these workers serve; None: every one."""
    named = {worker.connection for worker in workers}
    return None if None in named else frozenset(one for one in named if one is not None)


def _identity(worker: RegisteredWorker, type: str) -> WorkerIdentity:
    return WorkerIdentity(_host(worker), worker.build_id, worker.workflow_definition_fingerprints.get(type))


def _host(worker: RegisteredWorker) -> str | None:
    return worker.host or worker.process_metrics.get("host")
