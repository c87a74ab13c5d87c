"""The fleet as operators see it: the live workers of a queue, with their host, process and builds.

Several apps may share one database. If this server has a compatibility namespace, only workers of the same one count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backstay.kernel.decision import RunRow
from backstay.protocol.history import iso

if TYPE_CHECKING:
    from backstay.server.server import Server
    from backstay.server.workers import RegisteredWorker


def in_scope(server: Server, worker: RegisteredWorker) -> bool:
    """Whether a worker belongs to the compatibility namespace of this server."""
    ours = server.settings.compatibility_namespace
    return ours is None or worker.compatibility_namespace == ours


def live(server: Server, namespace: str, queue: str | None = None) -> list[RegisteredWorker]:
    """Workers of a namespace that were heard of lately; with `queue` those that serve it."""
    found = server.workers.of(namespace) if queue is None else server.workers.on(namespace, queue)
    return [worker for worker in found if in_scope(server, worker) and not server.workers.stale(worker)]


def live_workers(server: Server, row: RunRow) -> dict[str, Any]:
    """The live workers of the queue of a run, and why none of them takes its work."""
    wanted, ours = row.compatibility, server.settings.compatibility_namespace
    there = live(server, row.namespace, row.queue)
    able = {worker.worker_id for worker in there if wanted is None or worker.build_id == wanted}
    if able:
        reason = None
    elif there:
        reason = f"no live worker on queue {row.queue!r} has the build {wanted!r}"
    else:
        where = f"queue {row.queue!r}" if ours is None else f"queue {row.queue!r} of compatibility namespace {ours!r}"
        reason = f"no worker on {where} was heard of in the last {server.workers.stale_after_seconds} s"
    return {
        "compatibility_namespace": ours or row.namespace,
        "compatibility_fleet_reason": reason,
        "compatibility_fleet": [entry(server, worker, worker.worker_id in able, row.queue) for worker in there],
    }


def entry(
    server: Server, worker: RegisteredWorker, supports_required: bool, queue: str | None = None
) -> dict[str, Any]:
    """A worker as an entry of the fleet. `source` is the table of its heartbeat."""
    said = worker.process_metrics
    return {
        "worker_id": worker.worker_id,
        "namespace": worker.compatibility_namespace or worker.namespace,
        "host": worker.host or said.get("host"),
        "process_id": worker.process_id or said.get("process_id"),
        "connection": worker.connection,
        "queue": queue or worker.task_queue,
        "supported": [] if worker.build_id is None else [worker.build_id],
        "supports_required": supports_required,
        "recorded_at": iso(server.workers.last_heard(worker)),
        "expires_at": iso(server.workers.expires_at(worker)),
        "source": "database",
    }
