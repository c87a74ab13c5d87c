"""The situation of a namespace at one moment: everything that causes are made from, each thing read once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from backstay.engine.cluster.gone_nodes import GoneNodeAnswer
from backstay.engine.reading.gaps import FleetGap
from backstay.engine.views.certificate import Proof
from backstay.engine.views.open_runs import WithoutView
from backstay.kernel.values import SCHEDULES, SECOND, Micros
from backstay.kernel.views.summary import RunSummary
from backstay.server.operators.queue_views import QueueState
from backstay.server.operators.tallies import WindowFigures
from backstay.store.figures import AttentionGroup, FiguresStore, OpenRuns, OpenSizes, OverdueCount, ScheduleCounts
from backstay.store.measures import OverdueTask
from backstay.store.views import HOUR

LATE = 10 * SECOND  # a wake that passed longer ago is overdue, and so is a schedule
LATE_LOOKED_AT = 10_000  # overdue wakes that are counted

EnginePlace = Literal["here", "elsewhere", "none"]


class ProcessState(Struct, frozen=True, kw_only=True):
    """The state of the process that answers. A process that only reads a database has none of it."""

    engine_active: bool = True
    recovering: bool = False
    commit_under_way_for: Micros = 0
    stopping: bool = False
    drained: bool = False
    polls: int = 0
    polls_full: bool = False
    unreachable: Sequence[str] = ()


class NodesState(Struct, frozen=True, kw_only=True):
    """The nodes of a shared database, as of the last look of this process."""

    shards: int
    unowned: int
    able: bool
    releases: Sequence[str]
    forgotten_at: Micros | None
    forgotten: int
    gone: Sequence[GoneNodeAnswer] = ()


async def schedule_counts(store: FiguresStore, namespace: str, now: Micros) -> ScheduleCounts:
    """Schedules that are due within an hour, and those that are late."""
    return await store.schedule_counts(namespace + SCHEDULES, now + HOUR, now - LATE)


class Situation(NamedTuple):
    """What is known about a namespace. `open`: its open runs."""

    namespace: str
    now: Micros
    engine: EnginePlace
    open: OpenRuns
    unseen: WithoutView
    groups: list[AttentionGroup]
    examples: dict[int, RunSummary]
    queues: list[QueueState]
    throttled: dict[str, str]
    gaps: list[FleetGap]
    lost_tasks: list[OverdueTask]
    overdue: OverdueCount
    sizes: OpenSizes
    schedules: ScheduleCounts
    hour: WindowFigures
    proof: Proof | None
