"""Task queues as operators see them: waiting tasks, workers, rates, and the limit that throttles.

Waiting and leased tasks are counted on disk, so every server answers the same. Rates and waits are those of all nodes
(`rates_of_nodes.py`); they are null where not every node can be reached. Limits hold over all nodes
(`budget_shares.py`): `used` is what all of them use, or hold to use it next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct
from msgspec.structs import replace

from backstay.engine.core.engine import Engine
from backstay.engine.tasks.leases import Queue
from backstay.engine.tasks.queue_rates import Rates, rates
from backstay.kernel.spans import whole_span
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Micros
from backstay.protocol.history import iso
from backstay.protocol.tasks import optional_iso
from backstay.server.cluster.rates_of_nodes import RatesByQueue
from backstay.server.limits.admission import MINUTE, AdmissionAnswer, QueueAdmission
from backstay.server.workers.worker_registry import RegisteredWorker, WorkerRegistry
from backstay.store.figures import WaitingGroup

KINDS = ("workflow", "activity")
NAMED = 100  # workers and leases of a queue that are named; the others are counted
HOLDERS = 3  # of a limit, in a sentence
NONE = rates(())


class QueueTasks(Struct, frozen=True, kw_only=True):
    """The tasks of one kind. Rates are the engine's own, and null elsewhere."""

    ready_count: int
    leased_count: int
    expired_lease_count: int
    oldest_ready_at: str | None
    oldest_ready_age_seconds: float | None
    added_last_minute: float | None
    dispatched_last_minute: float | None
    completed_last_minute: float | None


class QueuePollers(Struct, frozen=True, kw_only=True):
    active_count: int
    stale_count: int
    stale_after_seconds: int


class QueueStats(Struct, frozen=True, kw_only=True):
    approximate_backlog_count: int
    approximate_backlog_age: str | None
    approximate_backlog_age_seconds: float | None
    oldest_ready_at: str | None
    workflow_tasks: QueueTasks
    activity_tasks: QueueTasks
    pollers: QueuePollers


class QueueRatesAnswer(Struct, frozen=True, kw_only=True):
    added_per_minute: float
    dispatched_per_minute: float
    completed_per_minute: float


class WaitPercentiles(Struct, frozen=True, kw_only=True):
    count: int
    p50_ms: float | None
    p95_ms: float | None


class QueueWaits(Struct, frozen=True, kw_only=True):
    workflow_tasks: WaitPercentiles
    activity_tasks: WaitPercentiles


class QueueAdmissionAnswer(Struct, frozen=True, kw_only=True):
    workflow_tasks: AdmissionAnswer
    activity_tasks: AdmissionAnswer


class QueueWorkers(Struct, frozen=True, kw_only=True):
    ids: list[str]
    active: int
    stale: int


class PollerAnswer(Struct, frozen=True, kw_only=True):
    worker_id: str
    runtime: str
    sdk_version: str | None
    build_id: str | None
    status: str
    last_heartbeat_at: str


class LeaseAnswer(Struct, frozen=True, kw_only=True):
    task_id: str
    task_type: str
    type: str
    lease_owner: str | None
    attempt: int
    leased_at: str | None
    lease_expires_at: str | None


class QueueAnswer(Struct, frozen=True, kw_only=True):
    name: str
    namespace: str
    stats: QueueStats
    rates: QueueRatesAnswer | None
    schedule_to_start: QueueWaits | None
    throttled_because: Annotated[str | None, Meta(description="The limit that holds its tasks back, in a sentence.")]
    open_runs_by_build: dict[str, int]
    counted_by: Annotated[str, Meta(description="`engine` or `disk`: the source of the figures.")]
    admission: QueueAdmissionAnswer
    workers: QueueWorkers
    pollers: list[PollerAnswer]
    current_leases: list[LeaseAnswer]


class QueueState(NamedTuple):
    """Everything that is known about one queue at a moment."""

    namespace: str
    name: str
    waiting: list[WaitingGroup]
    leased: list[Task]
    serving: list[RegisteredWorker]
    builds: dict[str, int]  # open runs by the build that they are pinned to
    rates: Mapping[str, Rates] | None = None  # by the kind of task; None: they are not known

    def place(self, kind: str) -> Queue:
        return kind, self.namespace, self.name

    def backlog(self, kind: str | None = None) -> int:
        return sum(group.tasks for group in self.waiting if kind in (None, group.kind))

    def leases(self, kind: str) -> int:
        """Tasks that remote workers hold."""
        return sum(task.kind == kind and task.until is not None for task in self.leased)

    @property
    def oldest(self) -> Micros | None:
        return min((group.oldest for group in self.waiting), default=None)


class QueueViews:
    """`rates`: those of all queues of a namespace."""

    def __init__(
        self,
        engine: Engine,
        workers: WorkerRegistry,
        admission: QueueAdmission,
        rates: Callable[[str], Awaitable[RatesByQueue | None]],
    ) -> None:
        self._engine = engine
        self._workers = workers
        self._admission = admission
        self._rates = rates

    async def states(self, namespace: str) -> list[QueueState]:
        """The queues that have workers, tasks, or open runs that are pinned to a build."""
        store = self._engine.store
        await self._admission.refresh()
        waiting: dict[str, list[WaitingGroup]] = {}
        for group in await store.waiting_tasks(namespace, self._engine.world.now()):
            waiting.setdefault(group.queue, []).append(group)
        leased: dict[str, list[Task]] = {}
        for task in await self._leased():
            if task.routing.namespace == namespace:
                leased.setdefault(task.routing.queue, []).append(task)
        builds: dict[str, dict[str, int]] = {}
        for pinned in await store.open_builds(namespace):
            builds.setdefault(pinned.queue, {})[pinned.build] = pinned.runs
        serving: dict[str, list[RegisteredWorker]] = {}
        for worker in self._workers.of(namespace):
            for queue in worker.queues:
                serving.setdefault(queue, []).append(worker)
        known = await self._rates(namespace)
        return [
            QueueState(
                namespace,
                name,
                waiting.get(name, []),
                leased.get(name, []),
                serving.get(name, []),
                builds.get(name, {}),
                None if known is None else {kind: known.get((kind, name), NONE) for kind in KINDS},
            )
            for name in sorted(waiting.keys() | leased.keys() | builds.keys() | serving.keys())
        ]

    async def state(self, namespace: str, name: str) -> QueueState:
        found = [state for state in await self.states(namespace) if state.name == name]
        return found[0] if found else QueueState(namespace, name, [], [], [], {})

    async def _leased(self) -> Iterable[Task]:
        """The leases of all workers: the engine knows them, other processes read them."""
        return self._engine.leases if self._engine.owns_all else await self._engine.store.leased()

    def live(self, queue: QueueState) -> list[RegisteredWorker]:
        return [worker for worker in queue.serving if not self._workers.stale(worker)]

    def shown(self, queue: QueueState, *, leases: int = NAMED) -> QueueAnswer:
        """A queue as its routes show it."""
        now = self._engine.world.now()
        live = self.live(queue)
        oldest = queue.oldest
        age = None if oldest is None else max(now - oldest, 0) / SECOND
        return QueueAnswer(
            name=queue.name,
            namespace=queue.namespace,
            stats=QueueStats(
                approximate_backlog_count=queue.backlog(),
                approximate_backlog_age=None if age is None else f"{age:.3f}s",
                approximate_backlog_age_seconds=age,
                oldest_ready_at=optional_iso(oldest),
                workflow_tasks=self._stats(queue, "workflow", now),
                activity_tasks=self._stats(queue, "activity", now),
                pollers=QueuePollers(
                    active_count=len(live),
                    stale_count=len(queue.serving) - len(live),
                    stale_after_seconds=self._workers.stale_after_seconds,
                ),
            ),
            rates=self._minute(queue),
            schedule_to_start=self._waits(queue),
            throttled_because=self.throttled_because(queue),
            open_runs_by_build=queue.builds,
            counted_by="engine" if self._engine.owns_all else "disk",
            admission=QueueAdmissionAnswer(
                workflow_tasks=self._limits(queue, "workflow", sum(one.max_concurrent_workflow_tasks for one in live)),
                activity_tasks=self._limits(queue, "activity", sum(one.max_concurrent_activity_tasks for one in live)),
            ),
            workers=QueueWorkers(
                ids=[worker.worker_id for worker in queue.serving[:NAMED]],
                active=len(live),
                stale=len(queue.serving) - len(live),
            ),
            pollers=[self._poller(worker) for worker in queue.serving[:NAMED]],
            current_leases=[_lease(task) for task in queue.leased[:leases]],
        )

    def _stats(self, queue: QueueState, kind: str, now: Micros) -> QueueTasks:
        leased = [task for task in queue.leased if task.kind == kind]
        rates = None if queue.rates is None else queue.rates[kind]
        oldest = min((group.oldest for group in queue.waiting if group.kind == kind), default=None)
        return QueueTasks(
            ready_count=queue.backlog(kind),
            leased_count=len(leased),
            expired_lease_count=sum(task.until is not None and task.until <= now for task in leased),
            oldest_ready_at=optional_iso(oldest),
            oldest_ready_age_seconds=None if oldest is None else max(now - oldest, 0) / SECOND,
            added_last_minute=None if rates is None else rates.added,
            dispatched_last_minute=None if rates is None else rates.dispatched,
            completed_last_minute=None if rates is None else rates.completed,
        )

    def _minute(self, queue: QueueState) -> QueueRatesAnswer | None:
        """Tasks of both kinds a minute."""
        if queue.rates is None:
            return None
        known = queue.rates.values()
        return QueueRatesAnswer(
            added_per_minute=sum(rates.added for rates in known),
            dispatched_per_minute=sum(rates.dispatched for rates in known),
            completed_per_minute=sum(rates.completed for rates in known),
        )

    def _waits(self, queue: QueueState) -> QueueWaits | None:
        """For how long tasks waited for a worker, in the last five to ten minutes."""
        if queue.rates is None:
            return None
        return QueueWaits(
            workflow_tasks=_waited(queue.rates["workflow"]), activity_tasks=_waited(queue.rates["activity"])
        )

    def _limits(self, queue: QueueState, kind: str, slots: int) -> AdmissionAnswer:
        if self._engine.owns_all:
            return self._admission.view(queue.place(kind), slots)
        view = self._admission.view(queue.place(kind), slots, queue.leases(kind))
        known = not self._engine.store.exclusive
        return view if known else replace(view, status="unavailable", reason="not_the_engine")

    def _poller(self, worker: RegisteredWorker) -> PollerAnswer:
        return PollerAnswer(
            worker_id=worker.worker_id,
            runtime=worker.runtime,
            sdk_version=worker.sdk_version,
            build_id=worker.build_id,
            status="stale" if self._workers.stale(worker) else "active",
            last_heartbeat_at=iso(self._workers.last_heard(worker)),
        )

    # -- limits

    def throttled_because(self, queue: QueueState) -> str | None:
        """The limit that throttles this queue, and the holders of its leases; None if none does."""
        if not self._engine.owns_all and not self._admission.shared:
            return None
        said = [self._throttled(queue.place(kind)) for kind in KINDS]
        return " ".join(sentence for sentence in said if sentence is not None) or None

    def _throttled(self, place: Queue) -> str | None:
        kind, namespace, name = place
        full = next((budget for budget in self._admission.budgets(place) if budget.full), None)
        if full is None:
            return None
        where = f"namespace {namespace!r}" if "per_namespace" in full.limit else f"queue {name!r}"
        if "budget_group" in full.limit:
            where = "its budget group"
        source = f"{full.limit}, from {full.source}"
        if full.here < full.used:
            return f"{full.used} of {full.allowed} {kind} tasks of {where} are out at all nodes, {full.here} at this one ({source})."
        used = f"{full.used} of {full.allowed} {kind} tasks of {where}"
        if "per_minute" in full.limit:
            left = whole_span(MINUTE - self._engine.world.now() % MINUTE)
            return f"{used} went out this minute ({source}); more follow in {left}."
        return f"{used} are leased ({source}): {self._held(place, full.limit)}."

    def _held(self, place: Queue, limit: str) -> str:
        """The holders of the leases: workers, or queues for a limit of the namespace."""
        kind, namespace, name = place
        holders: Counter[str] = Counter()
        for task in self._engine.leases:
            routing = task.routing
            if task.kind == kind and routing.namespace == namespace:
                if "per_namespace" in limit:
                    holders[f"queue {routing.queue!r}"] += 1
                elif routing.queue == name:
                    holders[f"worker {task.owner!r}"] += 1
        if not holders:
            return "their leases are being written to disk"
        named = [f"{who} holds {count}" for who, count in holders.most_common(HOLDERS)]
        more = len(holders) - HOLDERS
        return ", ".join(named) + (f", and {more} others hold the rest" if more > 0 else "")


def _waited(rates: Rates) -> WaitPercentiles:
    return WaitPercentiles(count=rates.waits, p50_ms=_milliseconds(rates.p50), p95_ms=_milliseconds(rates.p95))


def _milliseconds(length: Micros | None) -> float | None:
    return None if length is None else length / 1000


def _lease(task: Task) -> LeaseAnswer:
    return LeaseAnswer(
        task_id=task.id,
        task_type=task.kind,
        type=task.type,
        lease_owner=task.owner,
        attempt=task.attempt,
        leased_at=optional_iso(task.leased_at),
        lease_expires_at=optional_iso(task.until),
    )
