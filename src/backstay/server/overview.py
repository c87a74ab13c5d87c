"""The overview of a namespace in one answer: is anything stranded, what needs somebody, and how does it go.

Everything is read beside the engine's thread, from indexes. Requests for the same window that come while one is being answered
share its answer.
"""

from __future__ import annotations

import asyncio

from backstay.engine.certificate import CertificateAnswer, shown_proof
from backstay.engine.node import Node
from backstay.kernel.values import SCHEDULES, SECOND, Micros
from backstay.kernel.views.summary import OPEN_STATES
from backstay.protocol.history import iso
from backstay.protocol.tasks import optional_iso
from backstay.server import attention
from backstay.server.admission import QueueAdmission
from backstay.server.answers.overview import (
    FleetAnswer,
    OverviewAnswer,
    OverviewNodes,
    OverviewQueues,
    OverviewWakes,
    ScheduleCountsAnswer,
    WakeInterval,
)
from backstay.server.fleet import Fleet
from backstay.server.queue_views import QueueState, QueueViews
from backstay.server.settings import Settings
from backstay.server.tallies import Tallies, WindowFigures
from backstay.server.topology import unowned
from backstay.server.workers import WorkerRegistry
from backstay.store import Store
from backstay.store.figures import OpenSizes, ScheduleCounts, Wakes
from backstay.store.views import HOUR, MINUTE

QUEUES = 50  # that are shown, those with the oldest tasks first; the others are counted
SOON = 5 * MINUTE  # the intervals of the next hour
DAY = 24 * HOUR
SIZES_EVERY = 10 * SECOND


class Overviews:
    """`read` answers the route, and anything else that shows these figures. `fleet` None: workers are not known here."""

    def __init__(self, node: Node, queues: QueueViews, fleet: Fleet | None, settings: Settings) -> None:
        self._node = node
        self._engine = node.engine
        self._store = node.store
        self._queues = queues
        self._fleet = fleet
        self._settings = settings
        self._tallies = Tallies(node.store, node.engine.world.now)
        self._large: dict[str, tuple[Micros, OpenSizes]] = {}
        self._under_way: dict[tuple[str, str], asyncio.Task[OverviewAnswer]] = {}

    async def read(self, namespace: str, window: str) -> OverviewAnswer:
        """The overview of a namespace; `window` is one of `tallies.WINDOWS`."""
        key = (namespace, window)
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.ensure_future(self._read(namespace, window))
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return await asyncio.shield(task)

    async def _read(self, namespace: str, window: str) -> OverviewAnswer:
        store, now = self._store, self._engine.world.now()
        # Two at a time, where the database can: these two take longest.
        (states, runs), wakes = await asyncio.gather(
            store.count_states(namespace), store.wakes(namespace, now, now + DAY, SOON)
        )
        figures = await self._tallies.read(namespace, window)
        queues = await self._queues.states(namespace)
        schedules = await schedule_counts(store, namespace, now)
        return {
            "namespace": namespace,
            "window": window,
            "engine": "here" if self._engine.holder else "elsewhere",
            "nodes": self._nodes(),
            "certificate": self._certificate(namespace, now),
            "attention": [one.shown(now) for one in await self._attention(namespace, figures, queues, schedules, now)],
            "stock": {
                "open": runs,
                "states": {state: states.get(state, 0) for state in OPEN_STATES},
                "without_view": max(0, runs - sum(states.values())),
            },
            "series": figures.shown_series(),
            "totals": figures.shown_totals(),
            "types": figures.shown_types(),
            "queues": self._shown_queues(queues, now),
            "fleet": self._shown_fleet(namespace),
            "schedules": shown_schedules(schedules),
            "wakes": shown_wakes(wakes, now),
        }

    def _nodes(self) -> OverviewNodes | None:
        """As of the last look of this process at the others; None if it has never looked."""
        shards = self._node.shards
        if not shards.me:
            return None
        alive = [node for node in shards.nodes.values() if node.is_alive]
        return {
            "alive": len(alive),
            "draining": sum(node.facts.draining for node in alive),
            "shards": len(self._engine.owned),
            "owned_here": sum(self._engine.owned),
            "unowned": unowned(self._node),
        }

    def _certificate(self, namespace: str, now: Micros) -> CertificateAnswer | None:
        """The last proof, of whatever process. None beside the engine of a file, and until the first pass has ended."""
        proof = self._node.certificate.proof
        return None if proof is None else shown_proof(proof, namespace, now)

    async def _attention(
        self, namespace: str, figures: WindowFigures, queues: list[QueueState], schedules: ScheduleCounts, now: Micros
    ) -> list[attention.Attention]:
        store = self._store
        proof = self._node.certificate.proof
        waiting = [group for queue in queues for group in queue.waiting]
        lonely: list[attention.Attention] = []
        fleet = self._fleet
        if fleet is not None and attention.without_worker(fleet, namespace, waiting, (), now):
            # The index of what is ready is read only if it is needed.
            lonely = attention.without_worker(fleet, namespace, waiting, await store.ready_runs(namespace), now)
        late = await store.overdue(namespace, now - attention.LATE, attention.LATE_LOOKED_AT)
        large = await self._sizes(namespace, now)
        found = [
            *attention.stranded(0 if proof is None else proof.of(namespace).stranded),
            *attention.stored(await store.attention_counts(namespace)),
            *lonely,
            *attention.overdue(late, self._engine.holder, now),
            *attention.late_schedules(schedules, now),
            *attention.failing(figures),
            *attention.held_back(self._queues, queues),
            *attention.over_budget(large),
        ]
        return sorted(found, key=lambda one: one.tone != "danger")

    async def _sizes(self, namespace: str, now: Micros) -> OpenSizes:
        """The sizes of open histories. They grow slowly and all of them are looked at, so they are read now and then only."""
        known = self._large.get(namespace)
        if known is None or not 0 <= now - known[0] < SIZES_EVERY:
            settings = self._settings
            events, size = settings.continue_as_new_event_threshold, settings.continue_as_new_size_bytes_threshold
            known = self._large[namespace] = (now, await self._store.open_sizes(namespace, events, size))
        return known[1]

    def _shown_queues(self, queues: list[QueueState], now: Micros) -> OverviewQueues:
        """Queues with the oldest tasks first, and then those without any."""
        ordered = sorted(queues, key=lambda queue: (queue.oldest is None, queue.oldest or 0, queue.name))
        return {
            "count": len(queues),
            "backlog": sum(queue.backlog() for queue in queues),
            "oldest_waiting": [
                {
                    "name": queue.name,
                    "backlog": queue.backlog(),
                    "oldest_ready_at": optional_iso(queue.oldest),
                    "oldest_age_seconds": None if queue.oldest is None else max(now - queue.oldest, 0) / SECOND,
                    "leased": len(queue.leased),
                    "workers": len(self._queues.live(queue)),
                    "throttled_because": self._queues.throttled_because(queue),
                }
                for queue in ordered[:QUEUES]
            ],
        }

    def _shown_fleet(self, namespace: str) -> FleetAnswer | None:
        if self._fleet is None:
            return None
        everybody, live = self._fleet.of(namespace), self._fleet.live(namespace)
        return {
            "active": len(live),
            "stale": len(everybody) - len(live),
            "queues": len({queue for worker in live for queue in worker.queues}),
            "builds": sorted({worker.build_id for worker in live if worker.build_id is not None})[:QUEUES],
        }


def overviews_of(node: Node) -> Overviews:
    """The overviews of a node without a server: from disk, and without its workers."""
    settings = Settings()
    workers = WorkerRegistry(
        node.store,
        node.engine.world,
        settings.worker_stale_after_seconds,
        settings.worker_forgotten_after_seconds,
    )
    admission = QueueAdmission(lambda: node.engine, settings)
    return Overviews(node, QueueViews(node.engine, workers, admission, _unknown_rates), None, settings)


async def _unknown_rates(namespace: str) -> None:
    """A process that does not work counts none."""


async def schedule_counts(store: Store, namespace: str, now: Micros) -> ScheduleCounts:
    return await store.schedule_counts(namespace + SCHEDULES, now + HOUR, now - attention.LATE)


def shown_schedules(counts: ScheduleCounts) -> ScheduleCountsAnswer:
    return {
        "active": counts.active,
        "paused": counts.paused,
        "due_next_hour": counts.due,
        "overdue": counts.overdue,
        "next_fire_at": optional_iso(counts.next),
    }


def shown_wakes(wakes: Wakes, now: Micros) -> OverviewWakes:
    """The next hour in intervals of five minutes, and the next day in hours."""
    hours: dict[Micros, int] = {}
    for at, runs in wakes.counts.items():
        hour = now + (at - now) // HOUR * HOUR
        hours[hour] = hours.get(hour, 0) + runs
    soon = {at: runs for at, runs in wakes.counts.items() if at < now + HOUR}
    return {
        "next_hour": {
            "runs": sum(soon.values()),
            "interval_seconds": SOON // SECOND,
            "intervals": _intervals(soon),
        },
        "next_day": {"runs": sum(hours.values()), "interval_seconds": HOUR // SECOND, "intervals": _intervals(hours)},
        "counted_until": iso(wakes.until),
        "complete": wakes.until >= now + DAY,
    }


def _intervals(counts: dict[Micros, int]) -> list[WakeInterval]:
    """Those in which something wakes."""
    return [{"at": iso(at), "runs": counts[at]} for at in sorted(counts)]
