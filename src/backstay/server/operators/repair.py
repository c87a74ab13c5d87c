"""The candidates of a repair pass: runs and tasks that do not move as history expects.

A queue with a thousand candidates does not delay the single one of another queue: they are taken from each scope in turn. A
scope is a connection, a queue and a build.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Micros
from backstay.protocol.history import iso
from backstay.store import Store

if TYPE_CHECKING:
    from backstay.server.server import Server
    from backstay.server.settings import Settings

STRATEGY = "scope_fair_round_robin"
MOST = 1000  # tasks in no lane that one pass reads
TURN = 20  # of them without a pause

Scope = tuple[str | None, str, str | None]


class Candidate(Struct, frozen=True):
    """An instance, and since when it should have moved."""

    workflow: int
    scope: Scope
    since: Micros


class Candidates(Struct, frozen=True):
    missing: list[Candidate]  # history expects a task that has no row, or another wake
    existing: list[Candidate]  # the task has a row, but is not taken or has failed
    unoffered: list[
        tuple[int, Micros]
    ] = []  # of those of them that are ready and in no lane: the instance, and since when


def policy(settings: Settings) -> dict[str, Any]:
    return {
        "redispatch_after_seconds": settings.task_repair_redispatch_after_seconds,
        "loop_throttle_seconds": settings.task_repair_loop_throttle_seconds,
        "scan_limit": settings.task_repair_scan_limit,
        "scan_strategy": STRATEGY,
        "failure_backoff_max_seconds": settings.task_repair_failure_backoff_max_seconds,
        "failure_backoff_strategy": "exponential_by_repair_count",
    }


async def candidates_on_disk(store: Store, namespace: str) -> Candidates:
    """The candidates that any process can find: only an owner knows whether a waiting task was lost."""
    failed = [task for task in await store.worn_tasks(namespace) if task.state == "failed"]
    return Candidates(await _missing(store, namespace), [_of_task(task) for task in failed])


async def candidates(server: Server, namespace: str, worn: list[Task] | None = None) -> Candidates:
    """`worn`: the tasks of the namespace that are leased or have failed, if they were read already."""
    engine, store = server.engine, server.engine.store
    if worn is None:
        worn = await store.worn_tasks(namespace)
    missing = await _missing(store, namespace)
    before = server.now - server.settings.task_repair_redispatch_after_seconds * SECOND
    waiting = await store.overdue_tasks(namespace, before)
    overdue = [one for one in waiting if server.sweep.in_no_lane(one.id, one.workflow)]
    unoffered: list[Task] = []
    for place, one in enumerate(overdue[:MOST]):
        unoffered += [task for task in await store.tasks(one.workflow) if task.id == one.id and task.state == "ready"]
        if place % TURN == TURN - 1:
            await asyncio.sleep(0)  # SQLite answers without a pause: let other tasks run between two of them
    held = engine.held_tasks()
    stuck = [t for t in worn if t.state == "failed" or (t.state == "leased" and t.until is None and t.id not in held)]
    existing = [_of_task(task) for task in [*unoffered, *stuck] if task.routing.namespace == namespace]
    return Candidates(missing, existing, [(one.workflow, one.available_at) for one in overdue])


async def _missing(store: Store, namespace: str) -> list[Candidate]:
    lost = [*await store.lost_work(namespace), *await store.lost_wakes(namespace)]
    found = {
        one.workflow: Candidate(one.workflow, (one.connection, one.queue, one.compatibility), one.started_at)
        for one in lost
    }
    return list(found.values())


def _of_task(task: Task) -> Candidate:
    routing = task.routing
    return Candidate(task.workflow, (routing.connection, routing.queue, routing.compatibility), task.available_at)


def select_fairly(found: Iterable[Candidate], limit: int) -> list[Candidate]:
    """At most `limit` candidates: the oldest of each scope, then the second oldest of each, and so on."""
    scopes: dict[Scope, list[Candidate]] = defaultdict(list)
    for candidate in sorted(found, key=lambda one: (one.since, one.workflow)):
        scopes[candidate.scope].append(candidate)
    order = sorted(scopes.values(), key=lambda scope: (scope[0].since, named(scope[0].scope)))
    rounds = max((len(scope) for scope in order), default=0)
    return [scope[turn] for turn in range(rounds) for scope in order if turn < len(scope)][:limit]


def named(scope: Scope) -> str:
    connection, queue, compatibility = scope
    return f"{connection or 'default'}:{queue}:{compatibility or 'any'}"


def pressure(found: Candidates, limit: int, now: Micros) -> dict[str, Any]:
    """The candidates that a pass would select, and how many there are in each scope."""
    missing, existing = select_fairly(found.missing, limit), select_fairly(found.existing, limit)
    total = len(found.missing) + len(found.existing)
    oldest_task = min((one.since for one in found.existing), default=None)
    oldest_run = min((one.since for one in found.missing), default=None)
    return {
        "existing_task_candidates": len(found.existing),
        "missing_task_candidates": len(found.missing),
        "total_candidates": total,
        "scan_limit": limit,
        "scan_strategy": STRATEGY,
        "selected_existing_task_candidates": len(existing),
        "selected_missing_task_candidates": len(missing),
        "selected_total_candidates": len(existing) + len(missing),
        "existing_task_scan_limit_reached": len(found.existing) > limit,
        "missing_task_scan_limit_reached": len(found.missing) > limit,
        "scan_pressure": len(found.existing) > limit or len(found.missing) > limit,
        "oldest_task_available_at": None if oldest_task is None else iso(oldest_task),
        "oldest_missing_run_started_at": None if oldest_run is None else iso(oldest_run),
        "max_task_candidate_age_ms": _age(oldest_task, now),
        "max_missing_run_age_ms": _age(oldest_run, now),
        "scopes": _scopes(found, missing, existing, now),
    }


def _scopes(
    found: Candidates, missing: list[Candidate], existing: list[Candidate], now: Micros
) -> list[dict[str, Any]]:
    scopes = {one.scope for one in (*found.missing, *found.existing)}
    shown = [
        {
            "scope_key": named(scope),
            "connection": scope[0],
            "queue": scope[1],
            "compatibility": scope[2],
            "candidates": sum(one.scope == scope for one in (*found.missing, *found.existing)),
            "existing_task_candidates": sum(one.scope == scope for one in found.existing),
            "missing_task_candidates": sum(one.scope == scope for one in found.missing),
            "selected_existing_task_candidates": sum(one.scope == scope for one in existing),
            "selected_missing_task_candidates": sum(one.scope == scope for one in missing),
            "max_age_ms": _age(min(one.since for one in (*found.missing, *found.existing) if one.scope == scope), now),
        }
        for scope in scopes
    ]
    return sorted(shown, key=lambda one: (-one["candidates"], -one["max_age_ms"], one["scope_key"]))


def _age(since: Micros | None, now: Micros) -> int:
    return 0 if since is None else max(0, now - since) * 1000 // SECOND
