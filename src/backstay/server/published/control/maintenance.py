"""Routes of maintenance: inspect or run the regular passes of the server now: repair, activity timeouts, retention."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from backstay.kernel.decision import RunRow
from backstay.kernel.features.activity import Activities
from backstay.kernel.features.deadline import Due
from backstay.kernel.message import Refused
from backstay.kernel.names import Name
from backstay.kernel.values import Micros, execution_id, run_of
from backstay.protocol.commands import OPERATOR as COMMANDS
from backstay.protocol.history import iso
from backstay.server.access.auth import ADMIN, OPERATOR
from backstay.server.http.errors import HttpError
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.operators import repair
from backstay.server.server import Server

Ids = Annotated[list[Name], Meta(max_length=1000)]
Limit = Annotated[int, Meta(ge=1, le=1000)]
SCAN = 100


class RepairBody(Struct, frozen=True, kw_only=True):
    run_ids: Ids | None = None
    instance_id: Name | None = None
    sweep_owner: Name | None = None


class RetentionBody(Struct, frozen=True, kw_only=True):
    run_ids: Ids | None = None
    limit: Limit = SCAN


class TimeoutBody(Struct, frozen=True, kw_only=True):
    execution_ids: Ids | None = None
    limit: Limit = SCAN


class RepairStatusAnswer(Struct, frozen=True, kw_only=True):
    namespace: str
    policy: dict[str, Any]
    candidates: Annotated[
        dict[str, Any], Meta(description="What a pass would select, and how many there are of each scope.")
    ]


class RetentionStatusAnswer(Struct, frozen=True, kw_only=True):
    namespace: str
    retention_days: int | None
    cutoff: Annotated[str, Meta(description="Runs that closed before have expired.")]
    archive: Annotated[bool, Meta(description="Whether runs are archived before they are removed.")]
    expired_run_count: int
    expired_run_ids: list[str]
    scan_limit: int
    scan_pressure: Annotated[bool, Meta(description="Whether there may be more than were looked at.")]


class TimeoutStatusAnswer(Struct, frozen=True, kw_only=True):
    namespace: str
    expired_count: int
    expired_execution_ids: list[str]
    scan_limit: int
    scan_pressure: Annotated[bool, Meta(description="Whether there may be more than were looked at.")]


class RepairPassAnswer(Struct, frozen=True, kw_only=True):
    namespace: str
    throttled: bool = False
    selected_existing_task_candidates: int
    selected_missing_task_candidates: int
    repaired_existing_tasks: int
    repaired_missing_tasks: int
    dispatched_tasks: int
    candidates_of_other_nodes: int
    swept_shards: int
    existing_task_failures: list[dict[str, Any]]
    missing_run_failures: list[dict[str, Any]] = []
    wake_marker: Annotated[dict[str, Any] | None, Meta(description="The last pass of a named sweep.")]


class RepairRehearsal(Struct, frozen=True, kw_only=True):
    dry_run: bool = True
    namespace: str
    selected_existing_task_candidates: int
    selected_missing_task_candidates: int
    would_reconcile: Annotated[list[str], Meta(description="The ids of these workflows.")]
    existing_task_failures: list[dict[str, Any]]
    missing_run_failures: list[dict[str, Any]] = []


class RetentionPassAnswer(Struct, frozen=True, kw_only=True):
    dry_run: bool | UnsetType = UNSET
    namespace: str
    processed: int
    pruned: int | UnsetType = UNSET
    would_be_pruned: int | UnsetType = UNSET
    skipped: int
    failed: int
    results: Annotated[list[dict[str, Any]], Meta(description="The outcome of each run.")]


class TimeoutPassAnswer(Struct, frozen=True, kw_only=True):
    dry_run: bool | UnsetType = UNSET
    namespace: str
    processed: int
    enforced: int | UnsetType = UNSET
    would_be_enforced: int | UnsetType = UNSET
    skipped: int
    failed: int
    results: Annotated[list[dict[str, Any]], Meta(description="The outcome of each activity execution.")]


async def repair_status(server: Server, request: HttpRequest) -> RepairStatusAnswer:
    """The candidates of a repair pass."""
    candidates = await repair.candidates(server, request.namespace)
    return RepairStatusAnswer(
        namespace=request.namespace,
        policy=repair.policy(server.settings),
        candidates=repair.pressure(candidates, server.settings.task_repair_scan_limit, server.now),
    )


async def repair_pass(server: Server, request: HttpRequest) -> HttpResponse:
    """Reconcile the candidates now, or the named runs and instance.

    With a `sweep_owner` all namespaces are swept as well, at every node, and a wake marker with this name is left.
    """
    body = request.decode(RepairBody)
    engine = server.engine
    if not engine.active:
        raise HttpError(
            503,
            "engine_elsewhere",
            "another process runs the engine of this database; send this request there",
            retryable=True,
            retry_after_seconds=1,
        )
    candidates = await repair.candidates(server, request.namespace)
    failures: list[dict[str, Any]] = []
    if body.run_ids is not None or body.instance_id is not None:
        named = await _named(server, request.namespace, body, failures)
        lost = {candidate.workflow for candidate in candidates.missing}
        missing = [key for key in named if key in lost]
        existing = [key for key in named if key not in lost]
        elsewhere = [key for key in named if not engine.owns(key)]
    else:
        limit = server.settings.task_repair_scan_limit
        missing = [candidate.workflow for candidate in repair.select_fairly(candidates.missing, limit)]
        existing = [candidate.workflow for candidate in repair.select_fairly(candidates.existing, limit)]
        elsewhere = [key for key in dict.fromkeys([*missing, *existing]) if not engine.owns(key)]
    if request.dry_run:
        return HttpResponse(await _would_repair(server, request.namespace, missing, existing, failures))
    there = frozenset(elsewhere)
    moved = {key: await _repair(server, key, key in there) for key in dict.fromkeys([*missing, *existing])}
    repaired = sum(moved.values())
    swept = 0 if body.sweep_owner is None else await server.cluster.sweep.everywhere(body.sweep_owner)
    answer = RepairPassAnswer(
        namespace=request.namespace,
        selected_existing_task_candidates=len(existing),
        selected_missing_task_candidates=len(missing),
        repaired_existing_tasks=sum(moved[key] for key in dict.fromkeys(existing)),
        repaired_missing_tasks=sum(moved[key] for key in dict.fromkeys(missing)),
        dispatched_tasks=repaired,
        candidates_of_other_nodes=len(elsewhere),
        swept_shards=swept,
        existing_task_failures=failures,
        wake_marker=server.sweep_policy.shown(),
    )
    return HttpResponse(answer, 207 if failures else 200)


async def _repair(server: Server, key: int, elsewhere: bool) -> bool:
    """Reconcile an instance here, or have the node that owns it repair it; False if nothing was moved."""
    if not elsewhere:
        return server.sweep.reload_and_reconcile(key)
    loaded = await server.api.stored.load(key)
    if loaded is None:
        return False
    try:
        repair = COMMANDS["repair"](workflow_id=loaded.row.workflow_id, namespace=loaded.row.namespace)
        return (await server.api.call(repair)).work is not None
    except Refused:
        return False


async def _would_repair(
    server: Server, namespace: str, missing: list[int], existing: list[int], failures: list[dict[str, Any]]
) -> RepairRehearsal:
    names: list[str] = []
    for key in dict.fromkeys([*missing, *existing]):
        loaded = await server.api.stored.load(key)
        if loaded is not None:
            names.append(loaded.row.workflow_id)
        await asyncio.sleep(0)  # SQLite answers without a pause: let other tasks run
    return RepairRehearsal(
        namespace=namespace,
        selected_existing_task_candidates=len(existing),
        selected_missing_task_candidates=len(missing),
        would_reconcile=names,
        existing_task_failures=failures,
    )


async def _named(server: Server, namespace: str, body: RepairBody, failures: list[dict[str, Any]]) -> list[int]:
    store = server.api.stored
    keys: list[int] = []
    for run_id in body.run_ids or []:
        located = await store.locate(namespace, run_id)
        if located is None:
            failures.append({"run_id": run_id, "reason": "run_not_found"})
        else:
            keys.append(located.workflow)
    if body.instance_id is not None:
        key = await store.find(namespace, body.instance_id)
        if key is None:
            failures.append({"instance_id": body.instance_id, "reason": "instance_not_found"})
        else:
            keys.append(key)
    return list(dict.fromkeys(keys))


async def retention_status(server: Server, request: HttpRequest) -> RetentionStatusAnswer:
    """The closed runs that are older than the retention of this namespace."""
    expired = await server.retention.expired(request.namespace, SCAN)
    entry = server.namespaces.get(request.namespace)
    return RetentionStatusAnswer(
        namespace=request.namespace,
        retention_days=None if entry is None else entry.retention_days,
        cutoff=iso(server.retention.cutoff(request.namespace)),
        archive=server.settings.retention_archive is not None,
        expired_run_count=len(expired),
        expired_run_ids=[row.run_id for row in expired],
        scan_limit=SCAN,
        scan_pressure=len(expired) >= SCAN,
    )


async def retention_pass(server: Server, request: HttpRequest) -> HttpResponse:
    """Remove expired runs now, or those of them that are named."""
    body = request.decode(RetentionBody)
    runs, results = await _expired(server, request.namespace, body)
    if request.dry_run:
        results += [server.retention.judge(row) or _of(row) | {"outcome": "would_be_pruned"} for row in runs]
        return _counted(RetentionPassAnswer, request.namespace, results, "would_be_pruned", dry_run=True)
    results += await server.retention.sweep(request.namespace, runs)
    await server.retention.expire_streams(request.namespace)
    return _counted(RetentionPassAnswer, request.namespace, results, "pruned")


def _of(row: RunRow) -> dict[str, Any]:
    return {"run_id": row.run_id, "workflow_id": row.workflow_id}


async def _expired(server: Server, namespace: str, body: RetentionBody) -> tuple[list[RunRow], list[dict[str, Any]]]:
    if body.run_ids is None:
        return await server.retention.expired(namespace, body.limit), []
    runs: list[RunRow] = []
    unknown: list[dict[str, Any]] = []
    for run_id in body.run_ids[: body.limit]:
        row = await server.api.stored.run(namespace, run_id)
        if row is None:
            unknown.append({"run_id": run_id, "outcome": "skipped", "reason": "run_not_found"})
        else:
            runs.append(row)
    return runs, unknown


async def timeout_status(server: Server, request: HttpRequest) -> TimeoutStatusAnswer:
    """Activities past a timeout that has not been recorded yet: none, while the engine runs."""
    overdue = await _overdue(server, request.namespace, SCAN)
    return TimeoutStatusAnswer(
        namespace=request.namespace,
        expired_count=len(overdue),
        expired_execution_ids=list(overdue),
        scan_limit=SCAN,
        scan_pressure=len(overdue) >= SCAN,
    )


async def timeout_pass(server: Server, request: HttpRequest) -> HttpResponse:
    """Wake the workflows of these activities now."""
    body = request.decode(TimeoutBody)
    overdue = await _overdue(server, request.namespace, body.limit)
    results: list[dict[str, Any]] = []
    done = "would_be_enforced" if request.dry_run else "enforced"
    for id in body.execution_ids if body.execution_ids is not None else list(overdue):
        if id in overdue:
            if not request.dry_run:
                server.engine.submit(overdue[id], Due())
            results.append({"execution_id": id, "outcome": done, "has_retry": None})
        else:
            located = await server.api.stored.locate(request.namespace, run_of(id))
            reason = "execution_not_found" if located is None else "not_expired"
            results.append({"execution_id": id, "outcome": "skipped", "reason": reason})
    return _counted(TimeoutPassAnswer, request.namespace, results, done, dry_run=request.dry_run)


async def _overdue(server: Server, namespace: str, limit: int) -> dict[str, int]:
    """Activities past a deadline, and their instances."""
    store, now = server.api.stored, server.now
    overdue: dict[str, int] = {}
    for _, key in await store.due(now, limit):
        loaded = await store.load(key)
        if loaded is None or loaded.row.namespace != namespace:
            continue
        run = server.engine.loading.restore(loaded).run
        if run is None or not run.is_open:
            continue
        for step, execution in run.part(Activities).open.items():
            deadlines: list[Micros | None] = [
                execution.start_deadline if not execution.running else None,
                execution.close_deadline,
                execution.total_deadline,
            ]
            if any(at is not None and at <= now for at in deadlines):
                overdue[execution_id(run.run_id, step)] = key
    return overdue


def _counted(
    answer_type: type[RetentionPassAnswer] | type[TimeoutPassAnswer],
    namespace: str,
    results: list[dict[str, Any]],
    done: str,
    *,
    dry_run: bool = False,
) -> HttpResponse:
    """The answer of a pass. `done`: the outcome of what it has done, which is also the name of a field."""
    counts = Counter(result["outcome"] for result in results)
    answer = answer_type(
        **{done: counts[done]},
        dry_run=dry_run or UNSET,
        namespace=namespace,
        processed=len(results),
        skipped=counts["skipped"],
        failed=counts["failed"],
        results=results,
    )
    return HttpResponse(answer, 207 if counts["failed"] else 200)


ROUTES = [
    Route("GET", "/api/system/repair", repair_status, "control", OPERATOR),
    Route("GET", "/api/system/retention", retention_status, "control", OPERATOR),
    Route("GET", "/api/system/activity-timeouts", timeout_status, "control", OPERATOR),
    *(
        Route("POST", f"/api/system/{path}/pass", act, "control", ADMIN, body=body, own_dry_run=True, told=answer)
        for path, act, body, answer in (
            ("repair", repair_pass, RepairBody, RepairPassAnswer | RepairRehearsal),
            ("retention", retention_pass, RetentionBody, RetentionPassAnswer),
            ("activity-timeouts", timeout_pass, TimeoutBody, TimeoutPassAnswer),
        )
    ),
]
