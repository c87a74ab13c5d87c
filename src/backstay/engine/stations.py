"""Stations: workers elsewhere that take several tasks at once, as matching sees them. Memory only; the task rows are the truth.

A station is *open* while somebody listens there. What it was leased counts against its slots until that lease is spent,
released or expired. It is the *home* of the runs whose live code it keeps: their next tasks go there first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from backstay.engine.workers import Lane
from backstay.kernel.decision import TaskChange
from backstay.kernel.features.lease import Claimant
from backstay.kernel.task import Lease, Task
from backstay.kernel.values import LEASE, Micros, run_of

if TYPE_CHECKING:
    from backstay.engine.cache import Entry

LIVE = 50_000  # runs a station is known to be the home of


class Standing(NamedTuple):
    """How far a station's live code has seen its run, and the checksum there."""

    length: int
    checksum: int


class Station:
    def __init__(
        self,
        owner: str,
        namespace: str,
        queues: frozenset[str],
        workflow_types: frozenset[str],
        activity_types: frozenset[str],
        async_types: frozenset[str],
        worker: Claimant,
        slots: dict[str, int],
        deliver: Callable[[Entry, Any], None],
        closed: Callable[[str], None],
        withdrawn: Callable[[str], None],
    ) -> None:
        self.owner = owner
        self.namespace = namespace
        self.queues = queues
        self.resting: frozenset[str] = frozenset()  # queues of which it takes nothing for now
        self.types = {"workflow": workflow_types, "activity": activity_types}
        self.async_types = async_types
        self.worker = worker
        self.slots = slots
        self.deliver = deliver
        self.closed = closed
        self.withdrawn = withdrawn
        self.open = False
        self.held: dict[str, Task] = {}  # promised or leased
        self.used = dict.fromkeys(slots, 0)
        self.live: OrderedDict[int, Standing] = OrderedDict()

    def takes(self, lane: Lane) -> bool:
        """Whether it could take one more task of this lane right now."""
        kind = lane.kind
        slot = self.slot(kind, lane.type)
        return (
            self.open
            and lane.queue in self.queues
            and lane.queue not in self.resting
            and lane.namespace == self.namespace
            and lane.type in self.types[kind]
            and self.used[slot] < self.slots[slot]
            and lane.session is None  # sessions are a matter between the fleet and those who poll
            and self.worker.serves(lane) is None
        )

    def slot(self, kind: str, type: str) -> str:
        """What kind of room a task takes: activities that await need no thread."""
        return "async" if kind == "activity" and type in self.async_types else kind


class Stations:
    def __init__(self, now: Callable[[], Micros]) -> None:
        self._now = now
        self.by_queue: dict[tuple[str, str], dict[Station, None]] = {}  # empty: there are none, as nearly everywhere
        self.by_task: dict[str, Station] = {}  # who has it, or was promised it
        self._homes: dict[int, Station] = {}

    def add(self, station: Station) -> None:
        for queue in station.queues:
            self.by_queue.setdefault((station.namespace, queue), {})[station] = None

    def remove(self, station: Station) -> list[Task]:
        """Take a station out; what it had is for others."""
        for queue in station.queues:
            place = (station.namespace, queue)
            there = self.by_queue.get(place, {})
            there.pop(station, None)
            if not there:
                self.by_queue.pop(place, None)
        station.open = False
        for run in list(station.live):
            self.leave_home(run, station)
        return list(station.held.values())

    def choose(self, task: Task, lane: Lane) -> Station | None:
        """Who gets a task: the home of its run, else whoever has the least to do."""
        there = self.by_queue.get((lane.namespace, lane.queue))
        if there is None:
            return None
        home = self._homes.get(task.run)
        if home is not None and home in there and home.takes(lane):
            return home
        able = [station for station in there if station.takes(lane)]
        return min(able, key=lambda station: len(station.held)) if able else None

    def promise(self, station: Station, task: Task) -> Lease:
        self.keep(station, task)
        return Lease(owner=station.owner, until=self._now() + LEASE)

    def sealed(self, granted: Iterable[Task], tasks: Mapping[str, Task]) -> list[Task]:
        """A turn becomes a decision: what it leased and took back again never was a lease. It is returned."""
        broken: list[Task] = []
        for task in granted:
            now = tasks.get(task.id)
            if (now is None or now.state != "leased") and self.give_back(task.id) is not None:
                broken.append(task)
        return broken

    def keep(self, station: Station, task: Task) -> None:
        before = self.by_task.get(task.id)
        if before is not None and before is not station:
            self.give_back(task.id)
        self.by_task[task.id] = station
        if task.id not in station.held:
            station.used[station.slot(task.kind, task.type)] += 1
        station.held[task.id] = task

    def of(self, task_id: str) -> Station | None:
        return self.by_task.get(task_id)

    def give_back(self, task_id: str) -> Station | None:
        """The lease is over, or never came to be: the slot is free again."""
        station = self.by_task.pop(task_id, None)
        task = None if station is None else station.held.pop(task_id, None)
        if station is not None and task is not None:
            station.used[station.slot(task.kind, task.type)] -= 1
        return station

    def committed(self, changes: Iterable[TaskChange], closing: bool) -> Collection[Station]:
        """Take note of what was committed; the stations that have a slot more are returned.

        `closing`: with the run of these tasks; who works on one may stop.
        """
        freed: dict[Station, None] = {}
        at = self.by_task
        for change in changes:
            station = at.get(change.task_id)
            if station is None:
                continue
            task = change.task
            if task is not None and task.state == "leased" and task.owner == station.owner:
                station.held[task.id] = task
            elif station.held[change.task_id].state == "leased":
                # Before that it is only promised, by a decision behind this one.
                if closing and station.held[change.task_id].kind == "activity":
                    station.closed(run_of(change.task_id))
                self.give_back(change.task_id)
                freed[station] = None
        return freed

    # -- where live code is

    def settle(self, run: int, station: Station, standing: Standing) -> None:
        """The live code of a run is at this station, and has seen this much."""
        before = self._homes.get(run)
        if before is not station:
            if before is not None:
                before.live.pop(run, None)
            self._homes[run] = station
        station.live[run] = standing
        station.live.move_to_end(run)
        if len(station.live) > LIVE:
            oldest, _ = station.live.popitem(last=False)
            self._homes.pop(oldest, None)

    def leave_home(self, run: int, station: Station) -> None:
        if station.live.pop(run, None) is not None and self._homes.get(run) is station:
            del self._homes[run]
