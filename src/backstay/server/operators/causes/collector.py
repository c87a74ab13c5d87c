"""The collector of causes: reads the situation of a namespace once, for every surface that tells of it.

Nothing is scanned: the situation comes from counts by index, from leases in memory, and from the last liveness certificate. Requests
that come while it is being read share it. A database that cannot be read leaves the causes of the process, and that one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

from msgspec import Meta, Struct

from backstay.engine.cluster.node_views import all_nodes
from backstay.engine.node import Node
from backstay.engine.reading.gaps import FleetGap, find_gaps
from backstay.engine.views.run_views import decoded
from backstay.kernel.values import SECOND, Micros
from backstay.protocol.history import iso
from backstay.server.cluster.topology import unowned
from backstay.server.operators.causes.cause import Cause, CauseAnswer, CauseVerdict, verdict, worst_first
from backstay.server.operators.causes.of_fleet import of_fleet
from backstay.server.operators.causes.of_process import (
    database_unavailable,
    of_nodes,
    of_process,
    of_views,
    without_engine,
)
from backstay.server.operators.causes.of_runs import of_runs
from backstay.server.operators.causes.of_schedules import of_schedules
from backstay.server.operators.causes.situation import (
    LATE,
    LATE_LOOKED_AT,
    NodesState,
    ProcessState,
    Situation,
    schedule_counts,
)
from backstay.server.operators.database_check import DatabaseCheck
from backstay.server.operators.queue_views import QueueViews
from backstay.server.operators.tallies import Tallies
from backstay.server.settings import Settings
from backstay.store.errors import Unavailable
from backstay.store.figures import OpenSizes
from backstay.store.measures import OverdueTask

GROUPS = 50  # of runs that need attention for the same cause
OVERDUE = 1000  # the oldest ready tasks that are compared with those in memory
SIZES_EVERY = 10 * SECOND


class CausesAnswer(Struct, frozen=True, kw_only=True):
    namespace: str
    read_at: str
    verdict: CauseVerdict
    open_runs: Annotated[int | None, Meta(description="None: the database cannot be read.")]
    causes: Annotated[list[CauseAnswer], Meta(description="Errors first.")]


class CauseReport(Struct, frozen=True, kw_only=True):
    """All causes of a namespace at a moment, worst first. `situation` None: the database cannot be read."""

    namespace: str
    read_at: Micros
    causes: list[Cause]
    situation: Situation | None

    @property
    def verdict(self) -> CauseVerdict:
        return verdict(self.causes, None if self.situation is None else self.situation.open.runs)

    def shown_causes(self) -> list[CauseAnswer]:
        return [cause.shown(self.read_at) for cause in self.causes]

    def shown(self) -> CausesAnswer:
        return CausesAnswer(
            namespace=self.namespace,
            read_at=iso(self.read_at),
            verdict=self.verdict,
            open_runs=None if self.situation is None else self.situation.open.runs,
            causes=self.shown_causes(),
        )


class CauseCollector:
    """`process`: the state of the server; None: the process only reads a database, and knows no workers."""

    def __init__(
        self,
        node: Node,
        queues: QueueViews,
        settings: Settings,
        check: DatabaseCheck,
        process: Callable[[], ProcessState] | None,
    ) -> None:
        self._node = node
        self._engine = node.engine
        self._store = node.store
        self._queues = queues
        self._settings = settings
        self._check = check
        self._process = process
        self._tallies = Tallies(node.store, node.engine.world.now)
        self._sizes: dict[str, tuple[Micros, OpenSizes]] = {}
        self._under_way: dict[str, asyncio.Task[CauseReport]] = {}

    async def read(self, namespace: str) -> CauseReport:
        task = self._under_way.get(namespace)
        if task is None:
            task = self._under_way[namespace] = asyncio.ensure_future(self._read(namespace))
            task.add_done_callback(lambda _: self._under_way.pop(namespace, None))
        return await asyncio.shield(task)

    async def _read(self, namespace: str) -> CauseReport:
        now = self._engine.world.now()
        process = ProcessState() if self._process is None else self._process()
        causes = of_process(process)
        situation: Situation | None = None
        down = None if self._process is None else await self._check.trouble()
        try:
            situation = await self._situation(namespace, now)
            nodes = await self._nodes(down)
        except Unavailable as unavailable:
            down, nodes = down or unavailable, None
        if down is not None:
            causes.insert(0, database_unavailable(down, self._engine.down_since))
        if nodes is not None:
            causes += of_nodes(nodes, process, now)
        if situation is not None:
            causes += without_engine(situation)
            causes += of_views(situation, self._node.projector.lag)
            causes += of_runs(situation)
            causes += of_fleet(situation)
            causes += of_schedules(situation)
        return CauseReport(namespace=namespace, read_at=now, causes=worst_first(causes), situation=situation)

    async def _situation(self, namespace: str, now: Micros) -> Situation:
        store, engine = self._store, self._engine
        # Two at a time, where the database can.
        opened, groups = await asyncio.gather(
            self._node.open_runs.count(namespace), store.attention_groups(namespace, GROUPS)
        )
        queues = await self._queues.states(namespace)
        throttled = {
            queue.name: sentence
            for queue in queues
            if queue.backlog() and (sentence := self._queues.throttled_because(queue)) is not None
        }
        return Situation(
            namespace=namespace,
            now=now,
            engine="here" if engine.holder else "elsewhere" if await store.has_engine() else "none",
            open=opened,
            unseen=await self._node.open_runs.without_view(namespace, opened),
            groups=groups,
            examples=decoded(await store.summaries([group.run for group in groups])) if groups else {},
            queues=queues,
            throttled=throttled,
            gaps=await self._gaps(namespace),
            lost_tasks=await self._lost_tasks(namespace, now),
            overdue=await store.overdue(namespace, now - LATE, LATE_LOOKED_AT),
            sizes=await self._open_sizes(namespace, now),
            schedules=await schedule_counts(store, namespace, now),
            hour=await self._tallies.read(namespace, "1h"),
            proof=self._node.certificate.proof,
        )

    async def _gaps(self, namespace: str) -> list[FleetGap]:
        return [] if self._process is None else await find_gaps(self._engine, namespace)

    async def _lost_tasks(self, namespace: str, now: Micros) -> list[OverdueTask]:
        """Ready tasks that this engine has offered to no worker. Only an owner knows that."""
        if self._process is None:
            return []
        before = now - self._settings.task_repair_redispatch_after_seconds * SECOND
        waiting = await self._store.overdue_tasks(namespace, before, OVERDUE)
        return [one for one in waiting if self._node.sweep.in_no_lane(one.id, one.workflow)]

    async def _open_sizes(self, namespace: str, now: Micros) -> OpenSizes:
        """The sizes of open histories. They grow slowly and all of them are looked at, so they are read now and then only."""
        known = self._sizes.get(namespace)
        if known is None or not 0 <= now - known[0] < SIZES_EVERY:
            settings = self._settings
            events, size = settings.continue_as_new_event_threshold, settings.continue_as_new_size_bytes_threshold
            known = self._sizes[namespace] = (now, await self._store.open_sizes(namespace, events, size))
        return known[1]

    async def _nodes(self, down: Unavailable | None) -> NodesState | None:
        """The nodes of a database that others can reach."""
        node = self._node
        if node.store.exclusive or self._process is None:
            return None
        shards = node.shards
        living = [one for one in shards.nodes.values() if one.is_alive]
        return NodesState(
            shards=len(self._engine.owned),
            unowned=unowned(node),
            able=any(one.facts.weight for one in living),
            releases=sorted({one.facts.version for one in living if one.facts.version}),
            forgotten_at=shards.forgotten_at,
            forgotten=shards.counts["forgotten"],
            gone=[] if down is not None else (await all_nodes(node.store, self._engine.world.now()))["gone"],
        )
