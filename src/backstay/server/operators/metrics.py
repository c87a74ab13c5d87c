"""Metrics for operators, counted on disk. A restart resets only which workers are connected.

Runs are counted by index, tasks and waits among open work only, failures by an index of their own; long counts run on threads of the
store. The engine's thread only compares. A slow count is reused for a while, with the time at which it was made.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from backstay.engine.reading.gaps import find_gaps
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Micros, run_of
from backstay.kernel.views.actions import UNSUPPORTED
from backstay.kernel.views.summary import OPEN_STATES
from backstay.protocol.history import iso
from backstay.protocol.tasks import optional_iso
from backstay.server.operators import repair
from backstay.server.operators.discovery import matching_role
from backstay.store.figures import DamagedRun
from backstay.store.measures import ReadyCount

if TYPE_CHECKING:
    from backstay.server.server import Server

NAMED = 10  # blocked runs that are named; the others are only counted
DAMAGED = 10_000  # damaged runs that are counted
FLEET = 1000  # live workers that are shown
FAILED_ATTEMPTS = ("ActivityRetryScheduled", "ActivityFailed", "ActivityTimedOut")
OPEN = ("pending", "running", "waiting")
CLOSED = ("completed", "failed", "cancelled", "terminated")
WAITING = ("waiting", "sleeping")
QUICK = SECOND // 4  # a faster count is repeated for every request
TOLD_AGAIN = 10  # times as long as it took to count; at most half a minute
LONGEST = 30 * SECOND
PATIENCE = 2.0  # seconds for the comparison of stored views


class Count(Struct, frozen=True):
    """A count, its time, and until when it is reused."""

    metrics: dict[str, Any]
    counted_at: Micros
    good_until: Micros


class Observer:
    """Counts the contents of each namespace."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._last: dict[str, Count] = {}
        self._counting: dict[str, asyncio.Task[Count]] = {}
        self._compared: dict[str, dict[str, Any]] = {}  # stored views, as they were compared last
        self._comparing: dict[str, asyncio.Task[dict[str, Any]]] = {}

    async def metrics(self, namespace: str) -> dict[str, Any]:
        """The metrics of a namespace. `generated_at`: now. `counted_at`: when they were counted."""
        found = self._last.get(namespace)
        world = self.server.engine.world
        if found is None or found.good_until <= world.ticks():
            counting = self._counting.get(namespace)
            if counting is None:  # many callers share one count
                counting = self._counting[namespace] = world.spawn(self._count(namespace), "backstay-metrics")
                counting.add_done_callback(lambda _: self._counting.pop(namespace, None))
            found = await asyncio.shield(counting)
        return {"generated_at": iso(self.server.now), "counted_at": iso(found.counted_at), **found.metrics}

    def stop(self) -> None:
        """Give up every count that is under way."""
        for counting in (*self._counting.values(), *self._comparing.values()):
            counting.cancel()

    async def _count(self, namespace: str) -> Count:
        world = self.server.engine.world
        at, began = world.now(), world.ticks()
        counted = await self._counted(namespace)
        took = world.ticks() - began
        again = 0 if took < QUICK else min(took * TOLD_AGAIN, LONGEST)
        found = Count(counted, at, world.ticks() + again)
        if again:
            self._last[namespace] = found
        return found

    async def _counted(self, namespace: str) -> dict[str, Any]:
        server, store, now = self.server, self.server.store, self.server.now
        ready = {one.kind: one for one in await store.ready_counts(namespace, now)}
        worn = await store.worn_tasks(namespace)
        leased = [task for task in worn if task.state == "leased"]
        failed = [task for task in worn if task.state == "failed"]
        found = await repair.candidates(server, namespace, worn)
        damaged = await store.damaged_runs(namespace, DAMAGED)
        tasks = self._tasks(ready, worn, leased, failed, found.unoffered, damaged)
        holes = await find_gaps(server.engine, namespace)
        states = {one.state: one for one in await store.open_states(namespace)}
        counted = await server.node.open_runs.count(namespace)
        unseen = await server.node.open_runs.without_view(namespace, counted)
        waits = [one.oldest for state, one in states.items() if state in WAITING]
        since = min((gap.oldest for gap in holes), default=None)
        lost = {one.workflow: one.since for one in found.missing}
        runs = await self._runs(namespace) | {
            "waiting": sum(one.runs for state, one in states.items() if state in WAITING),
            "oldest_wait_started_at": optional_iso(min(waits, default=None)),
            "max_wait_age_ms": _age(waits, now),
            "running": counted.runs,
            "states": {state: counted.states.get(state, 0) for state in OPEN_STATES} | {"without_view": unseen.runs},
            "oldest_without_view_at": optional_iso(unseen.oldest),
            "max_without_view_age_ms": _age(() if unseen.oldest is None else (unseen.oldest,), now),
            "repair_needed": len(lost),
            "oldest_repair_needed_at": optional_iso(min(lost.values(), default=None)),
            "max_repair_needed_age_ms": _age(lost.values(), now),
            "claim_failed": len({task.run for task in failed}),
            "compatibility_blocked": sum(gap.runs for gap in holes),
        }
        activities = await self._activities(namespace, ready.get("activity"), leased)
        return {
            "matching_role": matching_role(server),
            "runs": runs,
            "blocked": await self._blocked(namespace, failed, damaged),
            "tasks": tasks,
            "activities": activities,
            "backlog": {
                "runnable_tasks": tasks["ready_due"],
                "oldest_ready_at": tasks["oldest_ready_due_at"],
                "oldest_ready_age_ms": tasks["max_ready_due_age_ms"],
                "delayed_tasks": tasks["delayed"],
                "leased_tasks": tasks["leased"],
                "retrying_activities": activities["retrying"],
                "unhealthy_tasks": tasks["unhealthy"],
                "repair_needed_runs": runs["repair_needed"],
                "claim_failed_runs": runs["claim_failed"],
                "compatibility_blocked_runs": runs["compatibility_blocked"],
                "oldest_compatibility_blocked_started_at": optional_iso(since),
                "max_compatibility_blocked_age_ms": _age(() if since is None else (since,), now),
            },
            "leases": {
                "active": len(leased),
                "expired": tasks["lease_expired"],
                "redelivered": sum(task.attempt > 1 for task in leased),
            },
            "repair_policy": repair.policy(server.settings),
            "repair": repair.pressure(found, server.settings.task_repair_scan_limit, now),
            "history": await self._history(namespace),
            "schedules": await self._schedules(namespace),
            "workers": self._workers(namespace),
            "compatibility": {"gaps": [gap.view() for gap in holes]},
            "projections": await self._projections(namespace),
            "backend": self._backend(),
            "structural_limits": msgspec.to_builtins(server.engine.machine.limits),
            "update_wait": {
                "completion_timeout_seconds": server.settings.update_wait_completion_timeout_seconds,
            },
        }

    async def _projections(self, namespace: str) -> dict[str, Any]:
        """How stored views compare with runs. That may take long: no request waits longer than `PATIENCE` for it, and
        before the first count it is marked as such."""
        counting = self._comparing.get(namespace)
        if counting is None:
            world = self.server.engine.world
            counting = self._comparing[namespace] = world.spawn(self._compare(namespace), "backstay-projections")
            counting.add_done_callback(lambda _: self._comparing.pop(namespace, None))
        await asyncio.wait([counting], timeout=PATIENCE)
        if counting.done():
            return counting.result()
        return self._compared.get(namespace, {"counting": True})

    async def _compare(self, namespace: str) -> dict[str, Any]:
        found = self._compared[namespace] = await self.server.node.views.counts(namespace)
        return found

    async def _runs(self, namespace: str) -> dict[str, Any]:
        """`running` are all open runs, as in the list of that name; `by_status` tells them apart."""
        census = await self.server.store.count_by_status(namespace)
        by_status: dict[str, int] = dict.fromkeys((*OPEN, *CLOSED), 0)
        for one in census:
            by_status[one.status] = by_status.get(one.status, 0) + one.runs
        return {
            "total": sum(by_status.values()),
            "running": sum(by_status[status] for status in OPEN),
            **{status: by_status[status] for status in CLOSED},
            "by_status": by_status,
            "archived": sum(one.runs for one in census if one.archived),
        }

    async def _blocked(self, namespace: str, failed: list[Task], damaged: list[DamagedRun]) -> dict[str, Any]:
        """Blocked runs, the oldest first: they go on only after a deployment, a repair or, if damaged, from a backup."""
        lost = {one.workflow for one in damaged}
        blocks = [
            (task, task.block)
            for task in failed
            if task.block is not None and task.is_blocked and task.workflow not in lost
        ]
        blocks.sort(key=lambda found: found[0].created_at)
        reasons = {run_of(task.id): block.reason or "replay_blocked" for task, block in blocks}
        named: list[dict[str, Any]] = []
        for run_id in list(reasons)[:NAMED]:
            row = await self.server.store.run(namespace, run_id)
            if row is not None:
                named.append({"workflow_id": row.workflow_id, "run_id": run_id, "reason": reasons[run_id]})
        named += [
            {"workflow_id": one.workflow_id, "run_id": one.run_id, "reason": UNSUPPORTED}
            for one in damaged[: NAMED - len(named)]
        ]
        by_reason = dict(Counter(reasons.values())) | ({UNSUPPORTED: len(damaged)} if damaged else {})
        return {"count": len(reasons) + len(damaged), "by_reason": by_reason, "runs": named}

    def _tasks(
        self,
        ready: dict[str, ReadyCount],
        worn: list[Task],
        leased: list[Task],
        failed: list[Task],
        unoffered: list[tuple[int, Micros]],
        damaged: list[DamagedRun],
    ) -> dict[str, Any]:
        """An unhealthy task counts once: that of a damaged run as such, whatever else is wrong with it."""
        now = self.server.now
        lost = {one.workflow for one in damaged}
        waiting, due = sum(one.tasks for one in ready.values()), sum(one.due for one in ready.values())
        oldest_due = [one.oldest_due for one in ready.values() if one.oldest_due is not None]
        over = [task for task in leased if task.workflow not in lost]
        expired = [task.until for task in over if task.until is not None and task.until <= now]
        failed_at = [task.leased_at or task.created_at for task in failed if task.workflow not in lost]
        overdue = [since for workflow, since in unoffered if workflow not in lost]
        of_damaged = [one.since for one in damaged if one.tasks]
        counts = {
            "claim_failed": len(failed_at),
            "dispatch_overdue": len(overdue),
            "lease_expired": len(expired),
            "history_damaged": sum(one.tasks for one in damaged),
        }
        unhealthy = [*expired, *failed_at, *overdue, *of_damaged]
        return {
            "open": waiting + len(leased) + len(failed),
            "ready": waiting,
            "ready_due": due,
            "delayed": waiting - due,
            "leased": len(leased),
            **counts,
            "unhealthy": sum(counts.values()),
            "oldest_unhealthy_at": optional_iso(min(unhealthy, default=None)),
            "max_unhealthy_age_ms": _age(unhealthy, now),
            "max_attempt_count": max((task.attempt for task in worn), default=0),
            "max_repair_count": max((task.repair_count for task in worn), default=0),
            "oldest_ready_due_at": optional_iso(min(oldest_due, default=None)),
            "max_ready_due_age_ms": _age(oldest_due, now),
            "oldest_lease_expired_at": optional_iso(min(expired, default=None)),
            "max_lease_expired_age_ms": _age(expired, now),
            "oldest_claim_failed_at": optional_iso(min(failed_at, default=None)),
            "max_claim_failed_age_ms": _age(failed_at, now),
            "oldest_dispatch_overdue_since": optional_iso(min(overdue, default=None)),
            "max_dispatch_overdue_age_ms": _age(overdue, now),
        }

    async def _activities(self, namespace: str, ready: ReadyCount | None, leased: list[Task]) -> dict[str, Any]:
        """A task that is not the first of its activity is a retry. Failed attempts are those of all runs, closed ones too."""
        running = [task for task in leased if task.kind == "activity"]
        pending = 0 if ready is None else ready.tasks
        failures = await self.server.store.failures(namespace, 0)
        return {
            "open": pending + len(running),
            "pending": pending,
            "running": len(running),
            "retrying": 0 if ready is None else ready.retrying,
            "failed_attempts": sum(failures.get(kind, 0) for kind in FAILED_ATTEMPTS),
            "max_attempt_count": max((task.attempt for task in running), default=0),
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

    async def _schedules(self, namespace: str) -> dict[str, Any]:
        now = self.server.now
        late = now - 10 * SECOND
        counts = await self.server.store.schedule_counts(f"{namespace}/schedules", now, late)
        oldest = counts.next if counts.next is not None and counts.next <= late else None
        return {
            "active": counts.active,
            "paused": counts.paused,
            "missed": counts.overdue,
            "oldest_overdue_at": optional_iso(oldest),
            "max_overdue_ms": _age(() if oldest is None else (oldest,), now),
        }

    def _workers(self, namespace: str) -> dict[str, Any]:
        server = self.server
        everybody, live = server.fleet.of(namespace), server.fleet.live(namespace)
        wanted = {queue: server.rollouts.promoted(namespace, queue) for worker in live for queue in worker.queues}
        able = {
            worker.worker_id: all(wanted[queue] in (None, worker.build_id) for queue in worker.queues)
            for worker in live
        }
        scopes = [
            {
                "queue": queue,
                "required_compatibility": wanted[queue],
                "active_workers": len(there := [worker for worker in live if queue in worker.queues]),
                "active_workers_supporting_required": sum(wanted[queue] in (None, one.build_id) for one in there),
            }
            for queue in sorted(wanted)
        ]
        return {
            "compatibility_namespace": server.fleet.ours or namespace,
            "active": len(live),
            "stale": len(everybody) - len(live),
            "active_workers": len(live),
            "active_worker_scopes": len(wanted),
            "active_workers_supporting_required": sum(able.values()),
            "scopes": scopes,
            "fleet": [asdict(server.fleet.entry(worker, able[worker.worker_id])) for worker in live[:FLEET]],
            "parked_polls": len(server.parked),
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
                "shards": len(server.engine.owned),
                "shards_owned": sum(server.engine.owned),
            },
            "queue": {"driver": "long_poll", "leases": True, "priorities": True, "fair_shares": True, "delays": True},
            "cache": {"driver": "process", "required": False},
        }


def _age(since: Iterable[Micros], now: Micros) -> int:
    oldest = min(since, default=now)
    return max(0, now - oldest) * 1000 // SECOND
