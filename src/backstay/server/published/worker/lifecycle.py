"""Routes of a worker: register, heartbeat, deregister."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from backstay.engine.core.instances import resolver
from backstay.kernel.names import Name
from backstay.kernel.task import Task
from backstay.server.access.auth import WORKER
from backstay.server.http.errors import HttpError, invalid
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import SMALL_BODY, Route
from backstay.server.server import Server
from backstay.server.workers.worker_registry import REGISTRATION, TOLD, CommandContract, RegisteredWorker
from backstay.store.errors import Unavailable

Slots = Annotated[int, Meta(ge=1, le=100_000)]
Interval = Annotated[int, Meta(ge=1, le=3600)]


class RegisterWorkerBody(Struct, frozen=True, kw_only=True):
    task_queue: Name
    worker_id: Name | None = None
    runtime: Name = "external"
    sdk_version: str | None = None
    build_id: Name | None = None
    supported_workflow_types: list[Name] = []
    supported_activity_types: list[Name] = []
    workflow_definition_fingerprints: dict[str, str] | None = None
    workflow_command_contracts: dict[str, CommandContract] | None = None
    capabilities: list[str] | None = None
    capability_manifest: dict[str, Any] | None = None
    max_concurrent_workflow_tasks: Slots = 100
    max_concurrent_activity_tasks: Slots = 100
    max_concurrent_worker_sessions: Slots = 100
    task_slots: dict[str, int] | None = None
    process_metrics: dict[str, Any] | None = None
    heartbeat_interval_seconds: Interval | None = None
    host: Name | None = None
    process_id: Annotated[int, Meta(ge=0)] | None = None
    connection: Name | None = None
    compatibility_namespace: Name | None = None


class HeartbeatWorkerBody(Struct, frozen=True, kw_only=True):
    worker_id: Name
    task_slots: dict[str, int] | None = None
    process_metrics: dict[str, Any] | None = None
    heartbeat_interval_seconds: Interval | None = None


async def register(server: Server, request: HttpRequest) -> HttpResponse:
    body = request.decode(RegisterWorkerBody)
    worker_id = body.worker_id or f"worker-{server.new_id()}"
    now = server.now
    for field in ("task_slots", "process_metrics"):
        _check_told(field, getattr(body, field))
    before = server.workers.get(request.namespace, worker_id)
    fingerprints = body.workflow_definition_fingerprints or {}
    if before is not None and not server.workers.stale(before):
        _refuse_changed(before, fingerprints)
    worker = RegisteredWorker(
        worker_id=worker_id,
        namespace=request.namespace,
        task_queue=body.task_queue,
        runtime=body.runtime,
        registered_at=now,
        updated_at=now,
        sdk_version=body.sdk_version,
        build_id=body.build_id,
        supported_workflow_types=list(body.supported_workflow_types),
        supported_activity_types=list(body.supported_activity_types),
        workflow_definition_fingerprints=fingerprints,
        workflow_command_contracts=body.workflow_command_contracts or {},
        capabilities=body.capabilities or [],
        capability_manifest=body.capability_manifest or {},
        max_concurrent_workflow_tasks=body.max_concurrent_workflow_tasks,
        max_concurrent_activity_tasks=body.max_concurrent_activity_tasks,
        max_concurrent_worker_sessions=body.max_concurrent_worker_sessions,
        task_slots=body.task_slots or {},
        process_metrics=body.process_metrics or {},
        heartbeat_interval_seconds=body.heartbeat_interval_seconds,
        host=body.host,
        process_id=body.process_id,
        connection=body.connection,
        compatibility_namespace=body.compatibility_namespace or server.settings.compatibility_namespace,
    )
    await server.workers.register(worker)
    if fingerprints or worker.build_id is not None:
        # Runs that were blocked by another definition are tried again.
        await server.recovery.deployed()
    draining = server.rollouts.draining(request.namespace, worker.task_queue, worker.build_id)
    acknowledged = _acknowledged(server, worker) | {
        "registered": True,
        "task_queue": worker.task_queue,
        "status": "draining" if draining else "active",
    }
    return HttpResponse(acknowledged, 201)


async def heartbeat(server: Server, request: HttpRequest) -> dict[str, Any]:
    body = request.decode(HeartbeatWorkerBody)
    await server.registries.look_for_worker(request.namespace, body.worker_id)
    worker = server.workers.get(request.namespace, body.worker_id)
    if worker is None:
        raise HttpError(
            404,
            "worker_not_registered",
            f"worker {body.worker_id!r} is not registered in namespace {request.namespace!r}",
            worker_id=body.worker_id,
        )
    for field in ("task_slots", "process_metrics"):
        _check_told(field, getattr(body, field))
    server.workers.update(
        replace(
            worker,
            updated_at=server.now,
            task_slots=worker.task_slots if body.task_slots is None else body.task_slots,
            process_metrics=worker.process_metrics if body.process_metrics is None else body.process_metrics,
            heartbeat_interval_seconds=body.heartbeat_interval_seconds or worker.heartbeat_interval_seconds,
        )
    )
    return _acknowledged(server, worker) | {"acknowledged": True}


async def deregister(server: Server, request: HttpRequest) -> DeregisteredAnswer:
    return await deregister_worker(server, request.namespace, request.params["worker_id"])


class DeregisteredAnswer(Struct, frozen=True, kw_only=True):
    worker_id: str
    outcome: str
    recovered_workflow_task_count: Annotated[int, Meta(description="Tasks that went back to their queues.")]
    recovered_activity_task_count: int


async def deregister_worker(server: Server, namespace: str, worker_id: str) -> DeregisteredAnswer:
    """Remove a worker that deregisters or is removed, and offer its tasks to others.

    Its leases are given back on disk before its registration is removed. The next server gives up the leases of registered
    workers that do not come back to it (`WorkerLinks.expect`). If a server died after the registration was gone and before the
    leases were, no server would know whose they are, and they would wait until they run out
    (`tests/sim/seeds/left-before-its-leases.json`).
    """
    await server.registries.look_for_worker(namespace, worker_id)
    worker = server.workers.get(namespace, worker_id)
    if worker is None:
        raise HttpError(404, "worker_not_found", f"there is no worker {worker_id!r}", worker_id=worker_id)
    held = await _held(server, namespace, worker_id)
    given_back = [server.engine.world.future() for _ in held]
    for task, future in zip(held, given_back, strict=True):
        server.take_back(task, resolver(future))
    for outcome in await asyncio.gather(*given_back, return_exceptions=True):
        if isinstance(outcome, Unavailable):
            raise outcome  # any other refusal means that the lease had already ended
    await server.workers.remove(namespace, worker_id)
    for task in await _held(server, namespace, worker_id):  # leased by a poll meanwhile
        server.take_back(task)
    server.sessions.relieve(namespace, worker.task_queue)
    return DeregisteredAnswer(
        worker_id=worker_id,
        outcome="deregistered",
        recovered_workflow_task_count=sum(task.kind == "workflow" for task in held),
        recovered_activity_task_count=sum(task.kind == "activity" for task in held),
    )


async def _held(server: Server, namespace: str, worker_id: str) -> list[Task]:
    """The leases of a worker, whichever process has given them."""
    if not server.node.shards.others:
        return server.engine.leases.of(namespace, worker_id)
    leased = await server.api.stored.leased()
    return [task for task in leased if task.owner == worker_id and task.routing.namespace == namespace]


def _acknowledged(server: Server, worker: RegisteredWorker) -> dict[str, Any]:
    return {
        "worker_id": worker.worker_id,
        "namespace": worker.namespace,
        "heartbeat_interval_seconds": server.settings.heartbeat_interval_seconds,
        "stale_after_seconds": server.settings.worker_stale_after_seconds,
    }


def _check_told(field: str, told: dict[str, Any] | None) -> None:
    if told is not None and len(msgspec.json.encode(told)) > TOLD:
        raise invalid(field, f"{field} has at most {TOLD} bytes, since the server keeps it in memory for every worker")


def _refuse_changed(before: RegisteredWorker, fingerprints: dict[str, str]) -> None:
    for workflow_type, fingerprint in fingerprints.items():
        known = before.workflow_definition_fingerprints.get(workflow_type)
        if known is not None and known != fingerprint:
            raise HttpError(
                409,
                "workflow_definition_changed",
                f"worker {before.worker_id!r} is active with another definition of {workflow_type!r}",
                workflow_type=workflow_type,
                remediation="Give the worker with the new code another worker_id, or deregister the old one first.",
            )


ROUTES = [
    Route(
        "POST",
        "/api/worker/register",
        register,
        "worker",
        WORKER,
        body=RegisterWorkerBody,
        max_body_bytes=REGISTRATION,
    ),
    Route(
        "POST",
        "/api/worker/heartbeat",
        heartbeat,
        "worker",
        WORKER,
        body=HeartbeatWorkerBody,
        max_body_bytes=SMALL_BODY,
    ),
    Route("DELETE", "/api/worker/registrations/{worker_id}", deregister, "worker", WORKER),
]
