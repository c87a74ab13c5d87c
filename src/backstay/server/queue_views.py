"""Task queues as operators see them: what waits and since when, who serves it, how fast it goes, and why it does not.

What waits is counted on disk, so a server that is not the engine says the same. Rates, waits and limits are known to the
engine's process only; elsewhere they are null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from backstay.engine.queue_rates import Rates
from backstay.kernel.spans import whole_span
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Micros
from backstay.protocol.history import iso
from backstay.protocol.tasks import optional_iso
from backstay.server.admission import MINUTE
from backstay.server.workers import RegisteredWorker
from backstay.store.figures import WaitingGroup

if TYPE_CHECKING:
    from backstay.server.server import Server

KINDS = ("workflow", "activity")
NAMED = 100  # workers and leases of a queue that are named; the others are counted
HOLDERS = 3  # of a limit, in a sentence


class QueueState(NamedTuple):
    """Everything that is known about one queue at a moment."""

    name: str
    waiting: list[WaitingGroup]
    leased: list[Task]
    serving: list[RegisteredWorker]
    builds: dict[str, int]  # open runs by the build that they are pinned to

    def backlog(self, kind: str | None = None) -> int:
        return sum(group.tasks for group in self.waiting if kind in (None, group.kind))

    @property
    def oldest(self) -> Micros | None:
        return min((group.oldest for group in self.waiting), default=None)


async def queue_states(server: Server, namespace: str) -> list[QueueState]:
    """The queues that have workers, tasks, or open runs that are pinned to a build."""
    waiting: dict[str, list[WaitingGroup]] = {}
    for group in await server.store.waiting_tasks(namespace, server.now):
        waiting.setdefault(group.queue, []).append(group)
    leased: dict[str, list[Task]] = {}
    for task in await _leased(server):
        if task.routing.namespace == namespace:
            leased.setdefault(task.routing.queue, []).append(task)
    builds: dict[str, dict[str, int]] = {}
    for pinned in await server.store.open_builds(namespace):
        builds.setdefault(pinned.queue, {})[pinned.build] = pinned.runs
    serving: dict[str, list[RegisteredWorker]] = {}
    for worker in server.workers.of(namespace):
        for queue in worker.queues:
            serving.setdefault(queue, []).append(worker)
    return [
        QueueState(name, waiting.get(name, []), leased.get(name, []), serving.get(name, []), builds.get(name, {}))
        for name in sorted(waiting.keys() | leased.keys() | builds.keys() | serving.keys())
    ]


async def queue_state(server: Server, namespace: str, name: str) -> QueueState:
    found = [state for state in await queue_states(server, namespace) if state.name == name]
    return found[0] if found else QueueState(name, [], [], [], {})


async def _leased(server: Server) -> Iterable[Task]:
    """The leases of all workers: the engine knows them, other processes read them."""
    return server.engine.leases if server.engine.holder else await server.store.leased()


def shown_queue(server: Server, namespace: str, queue: QueueState, *, leases: int = NAMED) -> dict[str, Any]:
    """A queue as its routes show it."""
    now = server.now
    live = [worker for worker in queue.serving if not server.workers.stale(worker)]
    oldest = queue.oldest
    age = None if oldest is None else max(now - oldest, 0) / SECOND
    return {
        "name": queue.name,
        "namespace": namespace,
        "stats": {
            "approximate_backlog_count": queue.backlog(),
            "approximate_backlog_age": None if age is None else f"{age:.3f}s",
            "approximate_backlog_age_seconds": age,
            "oldest_ready_at": optional_iso(oldest),
            "workflow_tasks": _stats(server, namespace, queue, "workflow", now),
            "activity_tasks": _stats(server, namespace, queue, "activity", now),
            "pollers": {
                "active_count": len(live),
                "stale_count": len(queue.serving) - len(live),
                "stale_after_seconds": server.workers.stale_after_seconds,
            },
        },
        "rates": _rates(server, namespace, queue.name),
        "schedule_to_start": _waits(server, namespace, queue.name),
        "throttled_because": throttled_because(server, namespace, queue),
        "open_runs_by_build": queue.builds,
        "counted_by": "engine" if server.engine.holder else "disk",
        "admission": {
            "workflow_tasks": _admission(
                server, ("workflow", namespace, queue.name), sum(one.max_concurrent_workflow_tasks for one in live)
            ),
            "activity_tasks": _admission(
                server, ("activity", namespace, queue.name), sum(one.max_concurrent_activity_tasks for one in live)
            ),
        },
        "workers": {
            "ids": [worker.worker_id for worker in queue.serving[:NAMED]],
            "active": len(live),
            "stale": len(queue.serving) - len(live),
        },
        "pollers": [_poller(server, worker) for worker in queue.serving[:NAMED]],
        "current_leases": [_lease(task) for task in queue.leased[:leases]],
    }


def _stats(server: Server, namespace: str, queue: QueueState, kind: str, now: Micros) -> dict[str, Any]:
    leased = [task for task in queue.leased if task.kind == kind]
    rates = _known_rates(server, kind, namespace, queue.name)
    oldest = min((group.oldest for group in queue.waiting if group.kind == kind), default=None)
    return {
        "ready_count": queue.backlog(kind),
        "leased_count": len(leased),
        "expired_lease_count": sum(task.until is not None and task.until <= now for task in leased),
        "oldest_ready_at": optional_iso(oldest),
        "oldest_ready_age_seconds": None if oldest is None else max(now - oldest, 0) / SECOND,
        "added_last_minute": None if rates is None else rates.added,
        "dispatched_last_minute": None if rates is None else rates.dispatched,
        "completed_last_minute": None if rates is None else rates.completed,
    }


def _known_rates(server: Server, kind: str, namespace: str, name: str) -> Rates | None:
    return server.rates.of((kind, namespace, name)) if server.engine.holder else None


def _rates(server: Server, namespace: str, name: str) -> dict[str, float] | None:
    """Tasks of both kinds a minute."""
    found = [_known_rates(server, kind, namespace, name) for kind in KINDS]
    known = [rates for rates in found if rates is not None]
    if not known:
        return None
    return {
        "added_per_minute": sum(rates.added for rates in known),
        "dispatched_per_minute": sum(rates.dispatched for rates in known),
        "completed_per_minute": sum(rates.completed for rates in known),
    }


def _waits(server: Server, namespace: str, name: str) -> dict[str, Any] | None:
    """For how long tasks waited for a worker, in the last five to ten minutes."""
    if not server.engine.holder:
        return None
    return {
        f"{kind}_tasks": {
            "count": (rates := server.rates.of((kind, namespace, name))).waits,
            "p50_ms": _milliseconds(rates.p50),
            "p95_ms": _milliseconds(rates.p95),
        }
        for kind in KINDS
    }


def _milliseconds(length: Micros | None) -> float | None:
    return None if length is None else length / 1000


def _admission(server: Server, place: tuple[str, str, str], slots: int) -> dict[str, Any]:
    view = server.admission.view(place, slots)
    return view if server.engine.holder else view | {"status": "unavailable", "reason": "not_the_engine"}


def _poller(server: Server, worker: RegisteredWorker) -> dict[str, Any]:
    return {
        "worker_id": worker.worker_id,
        "runtime": worker.runtime,
        "sdk_version": worker.sdk_version,
        "build_id": worker.build_id,
        "status": "stale" if server.workers.stale(worker) else "active",
        "last_heartbeat_at": iso(server.workers.last_heard(worker)),
    }


def _lease(task: Task) -> dict[str, Any]:
    return {
        "task_id": task.id,
        "task_type": task.kind,
        "type": task.type,
        "lease_owner": task.owner,
        "attempt": task.attempt,
        "leased_at": optional_iso(task.leased_at),
        "lease_expires_at": optional_iso(task.until),
    }


# -- limits


def throttled_because(server: Server, namespace: str, queue: QueueState) -> str | None:
    """Which limit holds tasks of this queue back, and who has used it up; None if none does."""
    if not server.engine.holder:
        return None
    said = [_throttled(server, (kind, namespace, queue.name)) for kind in KINDS]
    return " ".join(sentence for sentence in said if sentence is not None) or None


def _throttled(server: Server, place: tuple[str, str, str]) -> str | None:
    kind, namespace, name = place
    full = next((budget for budget in server.admission.budgets(place) if budget.full), None)
    if full is None:
        return None
    where = f"namespace {namespace!r}" if "per_namespace" in full.limit else f"queue {name!r}"
    if "budget_group" in full.limit:
        where = "its budget group"
    source = f"{full.limit}, from {full.source}"
    if "per_minute" in full.limit:
        left = whole_span(MINUTE - server.now % MINUTE)
        return f"{full.used} of {full.allowed} {kind} tasks of {where} went out this minute ({source}); more follow in {left}."
    held = _held(server, place, full.limit)
    return f"{full.used} of {full.allowed} {kind} tasks of {where} are leased ({source}): {held}."


def _held(server: Server, place: tuple[str, str, str], limit: str) -> str:
    """Who holds the leases: workers, or for a limit of the namespace queues."""
    kind, namespace, name = place
    holders: Counter[str] = Counter()
    for task in server.engine.leases:
        routing = task.routing
        if task.kind == kind and routing.namespace == namespace:
            if "per_namespace" in limit:
                holders[f"queue {routing.queue!r}"] += 1
            elif routing.queue == name:
                holders[f"worker {task.owner!r}"] += 1
    if not holders:
        return "their leases are on their way to disk"
    named = [f"{who} holds {count}" for who, count in holders.most_common(HOLDERS)]
    more = len(holders) - HOLDERS
    return ", ".join(named) + (f", and {more} others hold the rest" if more > 0 else "")
