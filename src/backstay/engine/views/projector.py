"""The projector: keeps the stored views of runs up to date, after commits and out of their way.

A commit only notes its instance. A moment later (`TICK`) the projector reads the notes: a run that has closed meanwhile
costs nothing; an open run at rest gets its summary from the state in memory. While the engine is busy, all of this
takes at most a few percent of its time (`SHARE`), and the rest waits: stored views may be out of date, which their
stamp shows. A reader compares a summary with the rows it was made from, and makes it again if they differ.

Waits, timeline, timers and lineage are made from history, which is read for that: in the background, for runs at rest and closed
runs, and on request (`backfill.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from backstay.engine.core.batch import BatchEntry
from backstay.engine.core.engine import Engine
from backstay.engine.core.lifecycle import EngineHooks
from backstay.engine.core.world import Alarm
from backstay.engine.views.damaged_runs import DamagedRuns
from backstay.engine.views.run_views import stored_summary, summary_row
from backstay.kernel.decision import RunRow
from backstay.kernel.event import HistoryDamaged
from backstay.kernel.state import Instance
from backstay.kernel.values import SECOND, Micros
from backstay.kernel.views.summary import RunSummary, summarize
from backstay.store import RunFilter
from backstay.store.errors import Unavailable
from backstay.store.views import HOUR, MINUTE, SummaryRow, TallyRow, ViewChanges

TICK = SECOND // 10
SHARE = 25  # of the time of a busy engine, one part in so many goes into summaries
SLICE = 10_000  # microseconds that an idle engine spends at a stretch
MOVING = SECOND  # a run that never rests is written once in this time
CLOSED = 10_000  # closed runs that are remembered for the background; the others are found by their missing rows


class Projector:
    """`active` False: nothing is stored, and summaries are made on request."""

    def __init__(self, engine: Engine, lifecycle: EngineHooks, damaged: DamagedRuns, *, active: bool = True) -> None:
        self._engine = engine
        self._damaged = damaged
        self._world = engine.world
        self._store = engine.store
        self.active = active
        self.noted: dict[int, Instance] = {}  # instances with a commit since the last tick
        self.indexed: list[tuple[bool, RunRow]] = []  # index rows that those commits wrote
        self.closed: dict[int, int] = {}  # runs that have closed, and their instances, for the background
        self.rested: dict[int, None] = {}  # open runs with a new summary, for the background
        self._waiting: dict[int, Micros] = {}  # instances whose summary is out of date, and since when
        self._forgotten: list[int] = []  # runs that have closed, and whose summary may still be that of an open run
        self._tallies: Counter[tuple[str, int, Micros, str, str, int]] = Counter()
        self._alarm: Alarm | None = None
        self._writing = False
        self._stopped = False
        self.on_work: Callable[[], None] = lambda: None  # called when there is something for the background
        self.lag: Micros = 0  # for how long a summary has been out of date, at the last tick
        if active:
            engine.commits.observe(self.committed)
            lifecycle.on_lost.append(self._forget)

    # -- commits

    def committed(self, batch: Sequence[BatchEntry]) -> None:
        """A batch is on disk. This is called for every one of them, so it only takes notes."""
        noted = self.noted
        for item in batch:
            instance = item.entry.instance
            noted[instance.key] = instance
            decision = item.decision
            if decision is not None and decision.runs:
                self.indexed += decision.runs
        if self._alarm is None:
            self._alarm = self._world.at(self._world.now() + TICK, self._tick)

    def note(self, workflow: int) -> None:
        """Make the summary of an instance again soon: its rows were changed."""
        if self.active and not self._stopped:
            self._waiting.setdefault(workflow, self._world.now())
            if self._alarm is None:
                self._alarm = self._world.at(self._world.now() + TICK, self._tick)

    def stop(self) -> None:
        self._stopped = True
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    async def flush(self) -> None:
        """Write the counts so far: the engine is about to close."""
        if self.active and self._engine.down is None:
            forgotten = [*self._forgotten, *self._count_indexed()]
            if not self._engine.holder:
                forgotten = []
            tallies = self._take_tallies()
            if tallies or forgotten:
                written = self._world.future()
                self._store.put_views(
                    ViewChanges((), forgotten, (), tallies),
                    lambda error: None if written.done() else written.set_result(error),
                )
                await written

    def _forget(self) -> None:
        """This process is not the engine any more: the next one finds outdated views by their stamps."""
        self.noted.clear()
        self.indexed.clear()
        self.closed.clear()
        self.rested.clear()
        self._forgotten.clear()
        self._waiting.clear()
        self._tallies.clear()

    def _tick(self) -> None:
        self._alarm = None
        if self._stopped:
            return
        if not self._engine.holder:
            self._tick_beside()
            return
        busy = bool(self.noted)
        self._forgotten += self._count_indexed()
        noted, self.noted = self.noted, {}
        now = self._world.now()
        for key, instance in noted.items():
            if not self._engine.owns(key):
                self._waiting.pop(key, None)  # its summary is made where it goes on
            elif instance.kind == "workflow" and instance.run is not None and instance.run.is_open:
                self._waiting.setdefault(key, now)
            else:
                self._waiting.pop(key, None)
        if self._engine.down is None and not self._writing:
            rows = self._summaries(noted, now, busy)
            tallies = self._take_tallies()
            forgotten, self._forgotten = self._forgotten, []
            if rows or forgotten or tallies:
                self._write(ViewChanges(rows, forgotten, (), tallies))
        self.lag = max((now - since for since in self._waiting.values()), default=0)
        if self.closed or self.rested:
            self.on_work()
        if (self.noted or self._waiting or self._forgotten or self._tallies) and self._alarm is None:
            self._alarm = self._world.at(now + TICK, self._tick)

    def _tick_beside(self) -> None:
        """Beside the engine, count the runs that this process has started and ended. Summaries are made where runs go
        on."""
        self._count_indexed()
        for notes in (self.noted, self.closed, self.rested, self._waiting):
            notes.clear()
        if self._tallies and self._engine.down is None and not self._writing:
            self._write(ViewChanges(tallies=self._take_tallies()))
        if self._tallies and self._alarm is None:
            self._alarm = self._world.at(self._world.now() + SECOND, self._tick)

    def _take_tallies(self) -> list[TallyRow]:
        """The counts since the last write. In one order, so that two processes never wait for each other in a
        circle."""
        tallies = [TallyRow(*key, n) for key, n in sorted(self._tallies.items())]
        self._tallies.clear()
        return tallies

    def _count_indexed(self) -> list[int]:
        """Count runs that started or closed since the last tick. Returns those that may have the summary of an open run."""
        indexed, self.indexed = self.indexed, []
        new: set[int] = set()
        forgotten: list[int] = []
        counts: defaultdict[tuple[str, Micros, str, str, int], int] = defaultdict(int)  # of minutes
        for is_new, row in indexed:
            namespace, started, closed = row.namespace, row.started_at, row.closed_at
            if "/" in namespace:
                continue  # a schedule or a stream
            if is_new:
                new.add(row.key)
                counts[namespace, started // MINUTE, row.workflow_type, "started", 0] += 1
            if closed is not None:
                if is_new or row.archived_at is None:
                    # A bucket: n for less than 2^n milliseconds.
                    bucket = (closed - started) // 1000 if closed > started else 0
                    outcome = "continued" if row.closed_reason == "continued" else row.status
                    counts[namespace, closed // MINUTE, row.workflow_type, outcome, bucket.bit_length()] += 1
                    if row.key not in new:
                        forgotten.append(row.key)
                if len(self.closed) < CLOSED:
                    self.closed[row.key] = row.workflow
        for (namespace, minute, workflow_type, outcome, bucket), n in counts.items():
            at = minute * MINUTE
            for grain in (MINUTE, HOUR):
                self._tallies[namespace, grain, at - at % grain, workflow_type, outcome, bucket] += n
        return forgotten

    def _summaries(self, noted: dict[int, Instance], now: Micros, busy: bool) -> list[SummaryRow]:
        """Summaries of instances at rest, as many as there is time for, those first that have waited longest."""
        rows: list[SummaryRow] = []
        began = self._world.ticks()
        allowed = TICK // SHARE if busy else SLICE
        for key, since in list(self._waiting.items()):
            if key in noted and now - since < MOVING:
                continue  # it is moving: its next state is as good as this one
            entry = self._engine.cache.get(key)
            if entry is not None and entry.inflight:
                continue  # its state in memory is ahead of the disk
            del self._waiting[key]
            if entry is None:
                self._world.spawn(self._from_disk(key), "backstay-summary")
            elif entry.instance.run is not None and entry.instance.run.is_open:
                rows.append(summary_row(summarize(self._engine.machine, entry.instance)))
                self.rested[entry.instance.run.key] = None
            if self._world.ticks() - began > allowed:
                break
        return rows

    async def _from_disk(self, workflow: int) -> None:
        """The summary of an instance that is not in memory any more."""
        try:
            opening = await self._store.opening(workflow)
            if opening is None or opening.run is None or opening.run.closed_at is not None:
                return
            summary = summarize(self._engine.machine, await self._engine.loading.fold_slowly(opening))
        except Unavailable:
            return
        except Exception:
            self._damaged.suspect(workflow)
            return
        if not self._stopped:
            self._write(ViewChanges([summary_row(summary)]))
            self.rested[summary.run] = None
            self.on_work()

    def _write(self, changes: ViewChanges) -> None:
        self._writing = True

        def written(error: Unavailable | None) -> None:
            self._writing = False
            if error is None:
                return
            now = self._world.now()
            for row in changes.summaries:
                self._waiting.setdefault(row.workflow, now)
            self._forgotten += changes.forgotten
            for tally in changes.tallies:
                self._tallies[tally[:6]] += tally.n
            if self._alarm is None and not self._stopped:
                self._alarm = self._world.at(now + SECOND, self._tick)

        self._store.put_views(changes, written)

    # -- reading

    async def summary(self, row: RunRow) -> RunSummary:
        """The summary of a run as its rows are now: the stored one if it was made from them, else made again and stored."""
        return (await self.summaries([row]))[row.key]

    async def summaries(self, rows: Sequence[RunRow]) -> dict[int, RunSummary]:
        """The summaries of runs. Raises `HistoryDamaged` for a run whose history cannot be read."""
        stored = await self._store.summaries([row.key for row in rows])
        facts = await self._store.facts([row.workflow for row in rows])
        summaries: dict[int, RunSummary] = {}
        fresh: list[SummaryRow] = []
        for row in rows:
            summary = stored_summary(stored.get(row.key), row, facts.get(row.workflow))
            if summary is None:
                summary = await self.fresh_summary(row)
                # The entries of the views are older than it: the background makes them again.
                fresh.append(summary_row(summary))
            summaries[row.key] = summary
        if fresh and self.active and self._engine.holder and not self._stopped:
            self._store.put_views(ViewChanges(fresh), lambda error: None)
        return summaries

    async def fresh_summary(self, row: RunRow) -> RunSummary:
        """The summary of a run from its rows and history, whatever is stored."""
        engine = self._engine
        opening = await self._store.opening(row.workflow)
        if opening is not None and row.is_open and opening.row.run != row.key:
            row = await self._store.run_by_key(row.key) or row  # it may have been continued since it was read
            if row.is_open:
                # The row of the instance names an older run. An open run is always the newest one.
                named = replace(opening.row, run=row.key)
                opening = opening._replace(row=named, run=replace(row, length=named.length))
        if opening is None or opening.run is None or opening.run.key != row.key:
            return summarize(engine.machine, await engine.loading.fold_older(row), stamp=row.length)
        # No await between the look at the state in memory and its summary: the engine may go on to change it.
        instance = engine.loading.unchanged(opening)
        if instance is None:
            try:
                instance = await engine.loading.fold_slowly(opening)
            except HistoryDamaged:
                older = None if row.is_open else await self._if_older(row)
                if older is None:
                    raise
                return summarize(engine.machine, await engine.loading.fold_older(older), stamp=older.length)
        return summarize(engine.machine, instance)

    async def _if_older(self, row: RunRow) -> RunRow | None:
        """The row of a run as it is stored, if it is not the newest of its instance."""
        where = RunFilter(namespace=row.namespace, workflow_id=row.workflow_id, limit=1)
        newest = next(iter(await self._store.runs(where)), None)
        return None if newest is None or newest.number <= row.number else await self._store.run_by_key(row.key)
