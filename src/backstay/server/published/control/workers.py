"""Workers and build ids, as operators see and steer them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import asdict

from backstay.kernel.names import MAX_NAME, Name, is_name
from backstay.protocol.history import iso
from backstay.protocol.tasks import optional_iso
from backstay.server.access.auth import ADMIN, OPERATOR
from backstay.server.http.answer_types import joined
from backstay.server.http.errors import HttpError, invalid
from backstay.server.http.messages import HttpRequest
from backstay.server.http.router import Route
from backstay.server.published.worker.lifecycle import DeregisteredAnswer, deregister_worker
from backstay.server.server import Server
from backstay.server.workers.rollouts import Rollout
from backstay.server.workers.worker_registry import RegisteredWorker

STATUSES = ("active", "stale", "draining")
NAMED = 100  # workers of a build that are named; the others are counted


class RolloutAnswer(Struct, frozen=True, kw_only=True):
    namespace: str
    task_queue: str
    build_id: str | None
    drain_intent: str
    drained_at: str | None
    promoted_at: str | None
    rolled_back_at: str | None
    new_start_selected: Annotated[bool, Meta(description="Whether new runs are pinned to it.")]


class BuildAnswer(RolloutAnswer, frozen=True, kw_only=True):
    rollout_status: str
    active_worker_count: int
    draining_worker_count: int
    stale_worker_count: int
    total_worker_count: int
    runtimes: list[str]
    sdk_versions: list[str]
    last_heartbeat_at: str | None
    first_seen_at: str | None
    workflow_definition_fingerprint_count: int
    workflow_definition_fingerprint_conflicts: list[str]
    open_runs: Annotated[int, Meta(description="Those that wait for this build alone.")]
    drained: Annotated[bool, Meta(description="It takes nothing new, and nothing waits for it.")]
    workers: list[str]


class BuildOverlap(Struct, frozen=True, kw_only=True):
    live: bool
    builds: list[str | None]
    unsafe_claims_blocked: bool
    blocked_reason: str


class BuildsAnswer(Struct, frozen=True, kw_only=True):
    namespace: str
    task_queue: str
    stale_after_seconds: int
    overlap: BuildOverlap
    build_ids: list[BuildAnswer]


class BuildBody(Struct, frozen=True, kw_only=True):
    build_id: Name | None


class WorkerRow(Struct, frozen=True, kw_only=True):
    """A worker in the list. The answer for the single worker has its declarations of workflows."""

    worker_id: str
    namespace: str
    status: str
    task_queue: str
    task_queues: list[str]
    runtime: str
    sdk_version: str | None
    build_id: str | None
    supported_workflow_types: list[str]
    supported_activity_types: list[str]
    capabilities: list[str]
    max_concurrent_workflow_tasks: int
    max_concurrent_activity_tasks: int
    max_concurrent_worker_sessions: int
    task_slots: dict[str, int]
    process_metrics: dict[str, Any]
    heartbeat_interval_seconds: int | None
    host: str | None
    process_id: int | None
    connection: str | None
    compatibility_namespace: str | None
    registered_at: str
    updated_at: str
    last_heartbeat_at: Annotated[str, Meta(description="When a node last heard of it.")]
    left_at: Annotated[str | None, Meta(description="When its connection ended, if it did.")]


if TYPE_CHECKING:

    class WorkerAnswer(WorkerRow, frozen=True, kw_only=True): ...
else:
    WorkerAnswer = joined(
        *("WorkerAnswer", __name__, RegisteredWorker, WorkerRow),
        about="All facts about a worker, with its declarations of workflows.",
    )


class WorkersAnswer(Struct, frozen=True, kw_only=True):
    namespace: str
    workers: list[WorkerRow]
    stale_after_seconds: Annotated[int, Meta(description="Silence after which a worker counts as gone.")]


def status_of(server: Server, worker: RegisteredWorker, on: str | None = None) -> str:
    """The status of a worker on the queue `on`, or on all of its queues."""
    if server.workers.stale(worker):
        return "stale"
    queues = worker.queues if on is None else [on]
    draining = (server.rollouts.draining(worker.namespace, queue, worker.build_id) for queue in queues)
    return "draining" if all(draining) else "active"


def shown(server: Server, worker: RegisteredWorker) -> WorkerAnswer:
    return WorkerAnswer(**(asdict(worker) | asdict(listed(server, worker))))


def listed(server: Server, worker: RegisteredWorker) -> WorkerRow:
    return WorkerRow(
        worker_id=worker.worker_id,
        namespace=worker.namespace,
        status=status_of(server, worker),
        task_queue=worker.task_queue,
        task_queues=worker.task_queues,
        runtime=worker.runtime,
        sdk_version=worker.sdk_version,
        build_id=worker.build_id,
        supported_workflow_types=worker.supported_workflow_types,
        supported_activity_types=worker.supported_activity_types,
        capabilities=worker.capabilities,
        max_concurrent_workflow_tasks=worker.max_concurrent_workflow_tasks,
        max_concurrent_activity_tasks=worker.max_concurrent_activity_tasks,
        max_concurrent_worker_sessions=worker.max_concurrent_worker_sessions,
        task_slots=worker.task_slots,
        process_metrics=worker.process_metrics,
        heartbeat_interval_seconds=worker.heartbeat_interval_seconds,
        host=worker.host,
        process_id=worker.process_id,
        connection=worker.connection,
        compatibility_namespace=worker.compatibility_namespace,
        registered_at=iso(worker.registered_at),
        updated_at=iso(worker.updated_at),
        last_heartbeat_at=iso(server.workers.last_heard(worker)),
        left_at=optional_iso(worker.left_at),
    )


async def workers(server: Server, request: HttpRequest) -> WorkersAnswer:
    status = request.query.get("status") or None
    if status is not None and status not in STATUSES:
        raise invalid("status", f"status must be one of {', '.join(STATUSES)}, not {status!r}")
    queue = request.query.get("task_queue") or None
    found = [listed(server, worker) for worker in server.workers.of(request.namespace)]
    return WorkersAnswer(
        namespace=request.namespace,
        workers=[
            worker
            for worker in found
            if status in (None, worker.status) and queue in (None, worker.task_queue, *worker.task_queues)
        ],
        stale_after_seconds=server.settings.worker_stale_after_seconds,
    )


async def worker(server: Server, request: HttpRequest) -> WorkerAnswer:
    registered = server.workers.get(request.namespace, request.params["worker_id"])
    if registered is None:
        raise HttpError(404, "worker_not_found", f"there is no worker {request.params['worker_id']!r}")
    return shown(server, registered)


async def remove_worker(server: Server, request: HttpRequest) -> DeregisteredAnswer:
    return await deregister_worker(server, request.namespace, request.params["worker_id"])


async def builds(server: Server, request: HttpRequest) -> BuildsAnswer:
    name = request.params["queue"]
    serving = server.workers.on(request.namespace, name)
    pinned = {
        count.build: count.runs
        for count in await server.api.stored.open_builds(request.namespace)
        if count.queue == name
    }
    known = {worker.build_id for worker in serving} | set(pinned)
    known |= {rollout.build_id for rollout in server.rollouts.on(request.namespace, name)}
    return BuildsAnswer(
        namespace=request.namespace,
        task_queue=name,
        stale_after_seconds=server.settings.worker_stale_after_seconds,
        overlap=_overlap(server, name, serving),
        build_ids=[
            _cohort(server, request.namespace, name, build, serving, pinned.get(build or "", 0))
            for build in sorted(known, key=lambda build: build or "")
        ],
    )


def _overlap(server: Server, name: str, serving: list[RegisteredWorker]) -> BuildOverlap:
    """Whether several builds serve the queue, and the refusal that a worker of another build gets for a claim."""
    live = sorted({worker.build_id or "" for worker in serving if status_of(server, worker, name) == "active"})
    return BuildOverlap(
        live=len(live) > 1,
        builds=[build or None for build in live],
        unsafe_claims_blocked=True,
        blocked_reason="compatibility_blocked",
    )


def _cohort(
    server: Server, namespace: str, name: str, build: str | None, serving: list[RegisteredWorker], open_runs: int
) -> BuildAnswer:
    """A build on a queue. `open_runs`: those that wait for this build alone; runs that are pinned to no build count nowhere.

    A build without workers stays listed for as long as there are any. `drained`: it takes nothing new, and nothing waits for it.
    """
    members = [worker for worker in serving if worker.build_id == build]
    states = [status_of(server, member, name) for member in members]
    counts = {state: states.count(state) for state in STATUSES}
    prints: dict[str, set[str]] = {}
    for member in members:
        for type, fingerprint in member.workflow_definition_fingerprints.items():
            prints.setdefault(type, set()).add(fingerprint)
    return BuildAnswer(
        **asdict(_rollout(server, namespace, server.rollouts.get(namespace, name, build))),
        rollout_status=_rollout_status(counts),
        active_worker_count=counts["active"],
        draining_worker_count=counts["draining"],
        stale_worker_count=counts["stale"],
        total_worker_count=len(members),
        runtimes=_distinct(member.runtime for member in members),
        sdk_versions=_distinct(member.sdk_version for member in members),
        last_heartbeat_at=optional_iso(max((server.workers.last_heard(m) for m in members), default=None)),
        first_seen_at=optional_iso(min((member.registered_at for member in members), default=None)),
        workflow_definition_fingerprint_count=sum(len(found) for found in prints.values()),
        workflow_definition_fingerprint_conflicts=sorted(type for type, found in prints.items() if len(found) > 1),
        open_runs=open_runs,
        drained=server.rollouts.draining(namespace, name, build) and not open_runs,
        workers=[member.worker_id for member in members[:NAMED]],
    )


def _distinct(values: Iterable[str | None]) -> list[str]:
    return sorted({value for value in values if value is not None})


def _rollout_status(counts: dict[str, int]) -> str:
    if counts["active"]:
        return "active_with_draining" if counts["draining"] else "active"
    if counts["draining"]:
        return "draining"
    return "stale_only" if counts["stale"] else "no_workers"


def _rollout(server: Server, namespace: str, rollout: Rollout) -> RolloutAnswer:
    chosen = server.rollouts.promotion(namespace, rollout.queue)
    return RolloutAnswer(
        namespace=namespace,
        task_queue=rollout.queue,
        build_id=rollout.build_id,
        drain_intent="draining" if rollout.draining else "active",
        drained_at=optional_iso(rollout.drained_at),
        promoted_at=optional_iso(rollout.promoted_at),
        rolled_back_at=optional_iso(rollout.rolled_back_at),
        new_start_selected=chosen is not None and chosen.build_id == rollout.build_id,
    )


def _queue(request: HttpRequest) -> str:
    """The queue in the path. Nothing can be kept under a text that is no name."""
    queue = request.params["queue"]
    if not is_name(queue):
        raise invalid("queue", f"a queue has 1 to {MAX_NAME} characters, without NUL and without half surrogates")
    return queue


async def drain(server: Server, request: HttpRequest) -> RolloutAnswer:
    build = request.decode(BuildBody).build_id
    return _rollout(
        server,
        request.namespace,
        await server.rollouts.drain(request.namespace, _queue(request), build, server.now),
    )


async def resume(server: Server, request: HttpRequest) -> RolloutAnswer:
    build = request.decode(BuildBody).build_id
    return _rollout(server, request.namespace, await server.rollouts.resume(request.namespace, _queue(request), build))


async def promote(server: Server, request: HttpRequest) -> RolloutAnswer:
    build = request.decode(BuildBody).build_id
    return _rollout(
        server,
        request.namespace,
        await server.rollouts.promote(request.namespace, _queue(request), build, server.now),
    )


ROUTES = [
    Route("GET", "/api/workers", workers, "control", OPERATOR),
    Route("GET", "/api/workers/{worker_id}", worker, "control", OPERATOR),
    Route("DELETE", "/api/workers/{worker_id}", remove_worker, "control", ADMIN),
    Route("GET", "/api/task-queues/{queue}/build-ids", builds, "control", OPERATOR),
    Route("POST", "/api/task-queues/{queue}/build-ids/drain", drain, "control", OPERATOR, body=BuildBody),
    Route("POST", "/api/task-queues/{queue}/build-ids/resume", resume, "control", OPERATOR, body=BuildBody),
    Route("POST", "/api/task-queues/{queue}/build-ids/promote", promote, "control", OPERATOR, body=BuildBody),
]
