"""The overview of a namespace in one answer: its causes and their verdict, open runs, and recent figures.

Everything is read beside the engine's thread, from indexes. Requests for the same window that come while one is being answered
share its answer.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from msgspec import Meta, Struct

from backstay.engine.node import Node
from backstay.engine.views.certificate import CertificateAnswer, shown_proof
from backstay.kernel.values import SECOND, Micros
from backstay.kernel.views.summary import OPEN_STATES
from backstay.protocol.history import iso
from backstay.protocol.tasks import optional_iso
from backstay.server.cluster.topology import unowned
from backstay.server.limits.admission import QueueAdmission
from backstay.server.operators.causes.cause import CauseAnswer, CauseVerdict
from backstay.server.operators.causes.collector import CauseCollector
from backstay.server.operators.database_check import DatabaseCheck
from backstay.server.operators.fleet import Fleet
from backstay.server.operators.queue_views import QueueState, QueueViews
from backstay.server.operators.tallies import FlowSeries, FlowTotals, Tallies, TypesAnswer
from backstay.server.settings import Settings
from backstay.server.workers.worker_registry import WorkerRegistry
from backstay.store.errors import Unavailable
from backstay.store.figures import ScheduleCounts, Wakes
from backstay.store.views import HOUR, MINUTE

QUEUES = 50  # that are shown, those with the oldest tasks first; the others are counted
SOON = 5 * MINUTE  # the intervals of the next hour
DAY = 24 * HOUR


class OverviewStock(Struct, frozen=True, kw_only=True):
    open: int
    states: dict[str, int]
    without_view: Annotated[int, Meta(description="Open runs without a summary; `states` leaves them out.")]
    without_view_since: str | None
    without_view_age_seconds: float | None


class OverviewQueue(Struct, frozen=True, kw_only=True):
    name: str
    backlog: int
    oldest_ready_at: str | None
    oldest_age_seconds: float | None
    leased: int
    workers: int
    throttled_because: Annotated[str | None, Meta(description="The limit that holds its tasks back, in a sentence.")]


class OverviewQueues(Struct, frozen=True, kw_only=True):
    count: int
    backlog: int
    oldest_waiting: list[OverviewQueue]


class FleetAnswer(Struct, frozen=True, kw_only=True):
    active: int
    stale: int
    queues: int
    builds: list[str]


class ScheduleCountsAnswer(Struct, frozen=True, kw_only=True):
    active: int
    paused: int
    due_next_hour: int
    overdue: int
    next_fire_at: str | None


class WakeInterval(Struct, frozen=True, kw_only=True):
    at: str
    runs: int


class WakeIntervals(Struct, frozen=True, kw_only=True):
    runs: int
    interval_seconds: int
    intervals: list[WakeInterval]


class OverviewWakes(Struct, frozen=True, kw_only=True):
    next_hour: WakeIntervals
    next_day: WakeIntervals
    counted_until: str
    complete: bool


class OverviewNodes(Struct, frozen=True, kw_only=True):
    """The living nodes of the database, and its shards."""

    alive: int
    draining: int
    shards: int
    owned_here: Annotated[int, Meta(description="Shards of this node; a node without any only serves.")]
    unowned: int


class OverviewAnswer(Struct, frozen=True, kw_only=True):
    namespace: str
    window: str
    engine: Annotated[Literal["here", "elsewhere", "none"], Meta(description="The process that decides.")]
    nodes: OverviewNodes | None
    certificate: CertificateAnswer | None
    verdict: CauseVerdict
    causes: list[CauseAnswer]
    stock: OverviewStock
    series: FlowSeries
    totals: FlowTotals
    types: TypesAnswer
    queues: OverviewQueues
    fleet: FleetAnswer | None
    schedules: ScheduleCountsAnswer
    wakes: OverviewWakes


class Overviews:
    """`read` answers the route, and anything else that shows these figures. `fleet` None: workers are not known here."""

    def __init__(self, node: Node, queues: QueueViews, fleet: Fleet | None, causes: CauseCollector) -> None:
        self._node = node
        self._engine = node.engine
        self._store = node.store
        self._queues = queues
        self._fleet = fleet
        self._causes = causes
        self._tallies = Tallies(node.store, node.engine.world.now)
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
        report, wakes = await asyncio.gather(self._causes.read(namespace), store.wakes(namespace, now, now + DAY, SOON))
        situation = report.situation
        if situation is None:
            raise self._engine.down or Unavailable("the database cannot be read")
        counted = situation.open
        figures = await self._tallies.read(namespace, window)
        unseen = situation.unseen
        return OverviewAnswer(
            namespace=namespace,
            window=window,
            engine=situation.engine,
            nodes=self._nodes(),
            certificate=self._certificate(namespace, now),
            verdict=report.verdict,
            causes=report.shown_causes(),
            stock=OverviewStock(
                open=counted.runs,
                states={state: counted.states.get(state, 0) for state in OPEN_STATES},
                without_view=unseen.runs,
                without_view_since=optional_iso(unseen.oldest),
                without_view_age_seconds=None if unseen.oldest is None else max(now - unseen.oldest, 0) / SECOND,
            ),
            series=figures.shown_series(),
            totals=figures.shown_totals(),
            types=figures.shown_types(),
            queues=self._shown_queues(situation.queues, now),
            fleet=self._shown_fleet(namespace),
            schedules=shown_schedules(situation.schedules),
            wakes=shown_wakes(wakes, now),
        )

    def _nodes(self) -> OverviewNodes | None:
        """As of the last look of this process at the others; None if it has never looked."""
        shards = self._node.shards
        if not shards.me:
            return None
        alive = [node for node in shards.nodes.values() if node.is_alive]
        return OverviewNodes(
            alive=len(alive),
            draining=sum(node.facts.draining for node in alive),
            shards=len(self._engine.owned),
            owned_here=sum(self._engine.owned),
            unowned=unowned(self._node),
        )

    def _certificate(self, namespace: str, now: Micros) -> CertificateAnswer | None:
        """The last proof, of whatever process. None beside the engine of a file, and until the first pass has ended."""
        proof = self._node.certificate.proof
        return None if proof is None else shown_proof(proof, namespace, now)

    def _shown_queues(self, queues: list[QueueState], now: Micros) -> OverviewQueues:
        """Queues with the oldest tasks first, and then those without any."""
        ordered = sorted(queues, key=lambda queue: (queue.oldest is None, queue.oldest or 0, queue.name))
        return OverviewQueues(
            count=len(queues),
            backlog=sum(queue.backlog() for queue in queues),
            oldest_waiting=[
                OverviewQueue(
                    name=queue.name,
                    backlog=queue.backlog(),
                    oldest_ready_at=optional_iso(queue.oldest),
                    oldest_age_seconds=None if queue.oldest is None else max(now - queue.oldest, 0) / SECOND,
                    leased=len(queue.leased),
                    workers=len(self._queues.live(queue)),
                    throttled_because=self._queues.throttled_because(queue),
                )
                for queue in ordered[:QUEUES]
            ],
        )

    def _shown_fleet(self, namespace: str) -> FleetAnswer | None:
        if self._fleet is None:
            return None
        everybody, live = self._fleet.of(namespace), self._fleet.live(namespace)
        return FleetAnswer(
            active=len(live),
            stale=len(everybody) - len(live),
            queues=len({queue for worker in live for queue in worker.queues}),
            builds=sorted({worker.build_id for worker in live if worker.build_id is not None})[:QUEUES],
        )


def overviews_of(node: Node) -> Overviews:
    """The overviews of a node without a server: from disk, and without its workers."""
    settings = Settings()
    workers = WorkerRegistry(
        node.store,
        node.engine.world,
        settings.worker_stale_after_seconds,
        settings.worker_forgotten_after_seconds,
    )
    admission = QueueAdmission(node.engine, settings)
    queues = QueueViews(node.engine, workers, admission, _unknown_rates)
    return Overviews(node, queues, None, CauseCollector(node, queues, settings, DatabaseCheck(node.engine), None))


async def _unknown_rates(namespace: str) -> None:
    """A process that does not work counts none."""


def shown_schedules(counts: ScheduleCounts) -> ScheduleCountsAnswer:
    return ScheduleCountsAnswer(
        active=counts.active,
        paused=counts.paused,
        due_next_hour=counts.due,
        overdue=counts.overdue,
        next_fire_at=optional_iso(counts.next),
    )


def shown_wakes(wakes: Wakes, now: Micros) -> OverviewWakes:
    """The next hour in intervals of five minutes, and the next day in hours."""
    hours: dict[Micros, int] = {}
    for at, runs in wakes.counts.items():
        hour = now + (at - now) // HOUR * HOUR
        hours[hour] = hours.get(hour, 0) + runs
    soon = {at: runs for at, runs in wakes.counts.items() if at < now + HOUR}
    return OverviewWakes(
        next_hour=WakeIntervals(
            runs=sum(soon.values()),
            interval_seconds=SOON // SECOND,
            intervals=_intervals(soon),
        ),
        next_day=WakeIntervals(runs=sum(hours.values()), interval_seconds=HOUR // SECOND, intervals=_intervals(hours)),
        counted_until=iso(wakes.until),
        complete=wakes.until >= now + DAY,
    )


def _intervals(counts: dict[Micros, int]) -> list[WakeInterval]:
    """Those in which something wakes."""
    return [WakeInterval(at=iso(at), runs=counts[at]) for at in sorted(counts)]
