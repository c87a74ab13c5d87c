"""Metrics for operators, counted from what is on disk. A restart resets only which workers are connected."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from backstay.engine.gaps import find_gaps, stranded_runs
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Micros, run_of
from backstay.protocol.history import iso
from backstay.server import repair
from backstay.server.discovery import matching_role

if TYPE_CHECKING:
    from backstay.server.server import Server

PAGE = 500
NAMED = 10  # blocked runs that are named; the others are only counted
FAILED_ATTEMPTS = ("ActivityRetryScheduled", "ActivityFailed", "ActivityTimedOut")
OPEN = ("pending", "running", "waiting")


class Observer:
    """Counts for one namespace."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def metrics(self, namespace: str) -> dict[str, Any]:
        server, now = self.server, self.server.now
        ready = [task for task in await self._ready() if task.routing.namespace == namespace]
        leased = [task for task in await server.store.leased() if task.routing.namespace == namespace]
        failed = [task for task in await server.store.failed() if task.routing.namespace == namespace]
        found = await repair.candidates(server, namespace)
        tasks = self._tasks(ready, leased, failed)
        blocked = stranded_runs(server.engine, ready)
        runs = await self._runs(namespace) | {
            "repair_needed": len({one.workflow for one in found.missing}),
            "claim_failed": len({task.run for task in failed}),
            "compatibility_blocked": len(blocked),
        }
        activities = await self._activities(namespace, [*ready, *leased])
        return {
            "generated_at": iso(now),
            "matching_role": matching_role(server),
            "runs": runs,
            "blocked": await self._blocked(namespace, failed),
            "tasks": tasks,
            "activities": activities,
            "backlog": self._backlog(namespace)
            | {
                "delayed_tasks": tasks["delayed"],
                "leased_tasks": tasks["leased"],
                "retrying_activities": activities["retrying"],
                "unhealthy_tasks": tasks["unhealthy"],
                "repair_needed_runs": runs["repair_needed"],
                "claim_failed_runs": runs["claim_failed"],
                "compatibility_blocked_runs": runs["compatibility_blocked"],
            },
            "leases": {
                "active": len(leased),
                "expired": tasks["lease_expired"],
                "redelivered": sum(task.attempt > 1 for task in leased),
            },
            "repair_policy": repair.policy(server.settings),
            "repair": repair.pressure(found, server.settings.task_repair_scan_limit, now),
            "history": await self._history(namespace),
            "workers": self._workers(namespace),
            "compatibility": {"gaps": [gap.view() for gap in await find_gaps(server.engine, namespace)]},
            "projections": await server.node.views.counts(namespace),
            "backend": self._backend(),
        }

    async def _ready(self) -> list[Task]:
        found: list[Task] = []
        after: tuple[Micros, int, str] | None = None
        while True:
            page = await self.server.store.ready(PAGE, after)
            found += page
            if len(page) < PAGE:
                return found
            after = (page[-1].available_at, page[-1].workflow, page[-1].id)
            await asyncio.sleep(0)  # SQLite answers without a pause: let other tasks run between two pages

    async def _runs(self, namespace: str) -> dict[str, Any]:
        census = await self.server.store.count_by_status(namespace)
        by_status: dict[str, int] = dict.fromkeys((*OPEN, "completed", "failed", "cancelled", "terminated"), 0)
        for one in census:
            by_status[one.status] = by_status.get(one.status, 0) + one.runs
        return {
            "total": sum(by_status.values()),
            **by_status,
            "running": sum(by_status[status] for status in OPEN),
            "archived": sum(one.runs for one in census if one.archived),
        }

    async def _blocked(self, namespace: str, failed: list[Task]) -> dict[str, Any]:
        """Blocked runs, the oldest first: they go on only after a deployment or a repair."""
        blocks = [(task, task.block) for task in failed if task.block is not None and task.block.replay_blocked]
        blocks.sort(key=lambda found: found[0].created_at)
        reasons = {run_of(task.id): block.reason or "replay_blocked" for task, block in blocks}
        named: list[dict[str, Any]] = []
        for run_id in list(reasons)[:NAMED]:
            row = await self.server.store.run(namespace, run_id)
            if row is not None:
                named.append({"workflow_id": row.workflow_id, "run_id": run_id, "reason": reasons[run_id]})
        return {"count": len(reasons), "by_reason": dict(Counter(reasons.values())), "runs": named}

    def _tasks(self, ready: list[Task], leased: list[Task], failed: list[Task]) -> dict[str, Any]:
        now = self.server.now
        due = [task for task in ready if task.is_due(now)]
        overdue = [task for task in due if self.server.sweep.unoffered(task)]
        expired = [task for task in leased if task.until is not None and task.until <= now]
        counts = {
            "claim_failed": len(failed),
            "dispatch_overdue": len(overdue),
            "lease_expired": len(expired),
        }
        return {
            "open": len(ready) + len(leased) + len(failed),
            "ready": len(ready),
            "ready_due": len(due),
            "delayed": len(ready) - len(due),
            "leased": len(leased),
            **counts,
            "unhealthy": sum(counts.values()),
            "max_attempt_count": max((task.attempt for task in (*ready, *leased, *failed)), default=0),
            "max_repair_count": max((task.repair_count for task in (*ready, *leased, *failed)), default=0),
            "max_ready_due_age_ms": _age((task.available_at for task in due), now),
            "max_lease_expired_age_ms": _age((task.until for task in expired if task.until is not None), now),
        }

    async def _activities(self, namespace: str, tasks: list[Task]) -> dict[str, Any]:
        """Activities of open runs. A task that is not the first of its activity is a retry."""
        own = [task for task in tasks if task.kind == "activity"]
        counted = await self.server.store.event_types(namespace)
        return {
            "open": len(own),
            "pending": sum(task.state == "ready" for task in own),
            "running": sum(task.state == "leased" for task in own),
            "retrying": sum(task.state == "ready" and not task.id.endswith(".1") for task in own),
            "failed_attempts": sum(counted.get(kind, 0) for kind in FAILED_ATTEMPTS),
        }

    def _backlog(self, namespace: str) -> dict[str, Any]:
        places = self.server.engine.matching.lanes.waiting_since().items()
        waiting = [at for (_, place, _), since in places if place == namespace for at in since]
        return {
            "runnable_tasks": len(waiting),
            "oldest_ready_at": iso(min(waiting)) if waiting else None,
            "oldest_ready_age_ms": _age(waiting, self.server.now),
        }

    async def _history(self, namespace: str) -> dict[str, Any]:
        settings = self.server.settings
        events, size = settings.continue_as_new_event_threshold, settings.continue_as_new_size_bytes_threshold
        budget = await self.server.store.history_sizes(namespace, events, size)
        return {
            "continue_as_new_recommended_runs": budget.over,
            "max_event_count": budget.events,
            "max_size_bytes": budget.size,
            "event_threshold": events,
            "size_bytes_threshold": size,
        }

    def _workers(self, namespace: str) -> dict[str, Any]:
        server = self.server
        everybody, live = server.fleet.of(namespace), server.fleet.live(namespace)
        queues = sorted({queue for worker in live for queue in worker.queues})
        scopes = [
            {
                "queue": queue,
                "required_compatibility": (wanted := server.rollouts.promoted(namespace, queue)),
                "active_workers": len(there := [worker for worker in live if queue in worker.queues]),
                "active_workers_supporting_required": sum(wanted in (None, worker.build_id) for worker in there),
            }
            for queue in queues
        ]
        able = [
            worker
            for worker in live
            if all(server.rollouts.promoted(namespace, queue) in (None, worker.build_id) for queue in worker.queues)
        ]
        return {
            "compatibility_namespace": server.fleet.ours or namespace,
            "active": len(live),
            "stale": len(everybody) - len(live),
            "active_workers": len(live),
            "active_worker_scopes": len(queues),
            "active_workers_supporting_required": len(able),
            "scopes": scopes,
            "parked_polls": server.parked,
        }

    def _backend(self) -> dict[str, Any]:
        """The database of this server, and its capabilities."""
        server = self.server
        dialect = "postgresql" if "://" in server.settings.database else "sqlite"
        return {
            "supported": server.engine.down is None,
            "database": {
                "driver": dialect,
                "shared": server.store.shared,
                "durable": server.settings.database != ":memory:",
                "many_machines": dialect == "postgresql",
                "available": server.engine.down is None,
                "engine_here": server.engine.holder,
            },
            "queue": {"driver": "long_poll", "leases": True, "priorities": True, "fair_shares": True, "delays": True},
            "cache": {"driver": "process", "required": False},
        }


def _age(since: Iterable[Micros], now: Micros) -> int:
    oldest = min(since, default=now)
    return max(0, now - oldest) * 1000 // SECOND
