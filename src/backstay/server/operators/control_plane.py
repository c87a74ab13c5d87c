"""The operator's parts beside single runs: overview, queues, bulk operations, saved views, the audit and the live
feed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from backstay.engine.node import Node
from backstay.server.cluster.rates_of_nodes import RatesByQueue
from backstay.server.limits.admission import QueueAdmission
from backstay.server.operators.bulk import BulkOperations
from backstay.server.operators.causes.collector import CauseCollector
from backstay.server.operators.causes.situation import ProcessState
from backstay.server.operators.database_check import DatabaseCheck
from backstay.server.operators.feed import LiveFeed
from backstay.server.operators.fleet import Fleet
from backstay.server.operators.overview import Overviews
from backstay.server.operators.queue_views import QueueViews
from backstay.server.operators.system_actions import SystemActions
from backstay.server.registries.registry import StoredRegistry
from backstay.server.registries.saved_views import SAVED_VIEWS, SavedView
from backstay.server.settings import Settings
from backstay.server.workers.worker_registry import WorkerRegistry


class ControlPlane:
    """`rates`: the counts of the queues of a namespace. `revision`: a number that changes with the registries. `process`: the state of
    the server."""

    def __init__(
        self,
        node: Node,
        settings: Settings,
        workers: WorkerRegistry,
        fleet: Fleet,
        admission: QueueAdmission,
        *,
        rates: Callable[[str], Awaitable[RatesByQueue | None]],
        revision: Callable[[], int],
        process: Callable[[], ProcessState],
    ) -> None:
        engine, store = node.engine, node.store
        self.system_actions = SystemActions(store)
        self.attributes = StoredRegistry(store, "search_attribute", str)
        self.saved_views = StoredRegistry(store, "saved_view", SavedView, most_bytes=SAVED_VIEWS)
        self.feed = LiveFeed(engine, settings, revision)
        self.bulks = BulkOperations(store, engine, node.api, self.feed.bulk_moved)
        self.queues = QueueViews(engine, workers, admission, rates)
        self.database_check = DatabaseCheck(engine)
        self.causes = CauseCollector(node, self.queues, settings, self.database_check, process)
        self.overviews = Overviews(node, self.queues, fleet, self.causes)

    async def close(self) -> None:
        self.feed.close()
        await self.bulks.close()
        await self.database_check.stop()
