"""The stored views of runs: read and compared, made again where they are missing or wrong, and kept up to date in the background.

There is one comparison. A view counts if the summary of its run was made from the rows that are on disk now, and if every one of its
rows is there as it was written (`run_views.py`). Details, exports, the rebuild command and the counts of operators all use it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence, Sized
from functools import partial
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from backstay.engine.core.engine import Engine
from backstay.engine.core.lifecycle import EngineHooks
from backstay.engine.core.periodic import PeriodicJob
from backstay.engine.core.world import turn
from backstay.engine.views.damaged_runs import DamagedRuns
from backstay.engine.views.projector import Projector
from backstay.engine.views.run_views import Entries, ViewMaker, are_right, cut, stored_summary, summary_row
from backstay.kernel.decision import RunRow
from backstay.kernel.event import HistoryDamaged, Recorded
from backstay.kernel.message import Refused
from backstay.kernel.values import SECOND, Micros
from backstay.kernel.views.summary import SCHEMA
from backstay.store import RunFilter
from backstay.store.errors import Unavailable
from backstay.store.views import HOUR, MINUTE, VIEWS, ViewChanges, ViewRow

log = logging.getLogger("backstay.engine")

T = TypeVar("T")

EVERY = SECOND
BUSY = 20_000  # microseconds of each second that a busy engine spends on views in the background
IDLE = 150_000
PASS = 60 * SECOND  # between two looks for runs without views
LONGEST_PASS = 3600 * SECOND
PAGE = 2000
PATIENT = 50  # a view that took so long to make is made again only after so many times that
REBUILDS = 3  # tries to make views of a run that changes meanwhile
KEPT_MINUTES = 2 * 24 * HOUR
KEPT_HOURS = 35 * 24 * HOUR
LONG = 5000  # events of a run whose stored views are not compared for an export
YOUNG = 3 * SECOND  # a run that was started since then may still be on its way into the stored views
COUNTED = 20_000  # runs that a count of stored views looks at, newest first


class Aside(Protocol):
    """Calls a function: on a thread, if the history it works on is long."""

    def __call__(self, history: Sized, make: Callable[[], T], /) -> Awaitable[T]: ...


class Rebuild(Struct, frozen=True, kw_only=True):
    """The runs to rebuild. Without anything, all of them."""

    run_ids: tuple[str, ...] = ()
    workflow_id: str | None = None
    namespace: str | None = None
    missing: bool = False  # only runs without a summary
    needs_rebuild: bool = False  # only runs whose stored views are missing or wrong
    prune_stale: bool = False  # also remove rows of runs that do not exist
    dry_run: bool = False


class Rebuilt(Struct, kw_only=True):
    """The result of a rebuild, or of its dry run."""

    looked_at: int = 0
    matched: int = 0
    rebuilt: int = 0
    failed: int = 0
    pruned: int = 0
    dry_run: bool = False
    failures: list[str] = []  # the first ones, in words


class StoredViews:
    def __init__(
        self,
        engine: Engine,
        projector: Projector,
        damaged: DamagedRuns,
        lifecycle: EngineHooks,
        whole: Callable[[RunRow], Awaitable[list[Recorded]]],
        aside: Aside,
        make_views: ViewMaker,
    ) -> None:
        self._engine = engine
        self._world = engine.world
        self._store = engine.store
        self._projector = projector
        self._damaged = damaged
        self._whole = whole
        self._aside = aside
        self._make_views = make_views
        self._passes = 0  # that have begun because this process owns more shards
        self._after = 0  # where the pass is
        self._next_pass: Micros = 0
        self._pause: Micros = PASS
        self._found = 0  # in this pass
        self._not_before: dict[int, Micros] = {}  # runs whose views took long
        self._commits = 0
        self._job = PeriodicJob(engine.world, "views", self._work, lambda: engine.holder)
        if projector.active:
            lifecycle.on_up.append(self._begin)

    def _begin(self) -> None:
        """This process owns more shards: look for what their last owner noted and could not write any more."""
        self._passes += 1
        self._after = 0
        self._next_pass = 0
        self._pause = PASS
        self._job.hurry(EVERY)  # it may be in the long pause of an idle engine
        self._job.start(EVERY)
        self._projector.on_work = self._hurry
        self._world.spawn(self._catch_up(), "backstay-views")

    def _hurry(self) -> None:
        """There is something to do in the background again."""
        self._job.hurry(EVERY)

    def stop(self) -> None:
        self._job.stop()

    # -- reading

    async def sources(self, row: RunRow, history: Sequence[Recorded]) -> dict[str, str]:
        """Where the views of a run stand: by view its table, or that and `_rebuilt` if they had to be stored again just now.

        The page of a run is made from its history, so a stored view is only compared with it.
        """
        wrong = await self.wrong_views(row)
        if wrong and self._projector.active:
            await self.project(row, history)
        return {
            f"{view}_projection_source": table + ("_rebuilt" if view in wrong else "") for view, table in VIEWS.items()
        }

    async def compared(self, row: RunRow) -> dict[str, str]:
        """The same for an export, which stores nothing. The views of a long run are not read for it: it is made without them."""
        wrong = list(VIEWS) if row.length > LONG else await self.wrong_views(row)
        return {
            f"{view}_projection_source": table + ("_rebuilt" if view in wrong else "") for view, table in VIEWS.items()
        }

    async def wrong_views(self, row: RunRow) -> list[str]:
        """The views of a run that are missing or wrong; `summary` among them."""
        stored = (await self._store.summaries([row.key])).get(row.key)
        facts = (await self._store.facts([row.workflow])).get(row.workflow)
        if stored is None or stored_summary(stored, row, facts) is None:
            return ["summary", *VIEWS]
        if not stored.projected:
            return list(VIEWS)
        wrong: list[str] = []
        for view in VIEWS:
            expected: int = getattr(stored, view)
            if not are_right(await self._store.view_rows(view, row.key), stored.stamp, expected):
                wrong.append(view)
        return wrong

    # -- making

    async def project(self, row: RunRow, history: Sequence[Recorded] | None = None) -> dict[str, Entries]:
        """Make all views of a run again, its summary too, and store them together."""
        made: dict[str, Entries] = {}
        for _ in range(REBUILDS):
            facts = (await self._store.facts([row.workflow])).get(row.workflow)
            current = facts is not None and facts.run == row.key
            tasks = [task for task in await self._store.tasks(row.workflow) if task.run == row.key] if current else []
            wake = facts.next_wake if current and facts is not None else None
            read = await self._whole(row) if history is None else history
            made = await self._aside(read, partial(self._make_views, row, read, tasks, wake))
            summary = await self._projector.fresh_summary(row)
            after = (await self._store.facts([row.workflow])).get(row.workflow)
            history = None
            if after == facts and summary.events == (read[-1].sequence if read else 0):
                counts = {view: len(entries) for view, entries in made.items()}
                cuts = await self._aside(read, partial(_cut_all, row.key, summary.stamp, made))
                await self._put(ViewChanges([summary_row(summary, counts)], (), cuts))
                break
        return made

    async def _put(self, changes: ViewChanges) -> None:
        written = self._world.future()
        self._store.put_views(changes, lambda error: None if written.done() else written.set_result(error))
        error: Unavailable | None = await written
        if error is not None:
            log.debug("stored views could not be written: %s", error)

    # -- rebuilding on command

    async def rebuild(self, request: Rebuild, progress: Callable[[int], None] = lambda looked: None) -> Rebuilt:
        """Make the views of runs again, page by page, with turns for everybody else between them."""
        done = Rebuilt(dry_run=request.dry_run)
        named = await self._named(request)
        after: int | None = 0
        while after is not None:
            if named is None:
                page = await self._store.unprojected(SCHEMA, after, PAGE // 4)
                done.looked_at += page.looked_at
                keys = [*page.missing] if request.missing else [*page.missing, *page.outdated, *page.right]
                after = page.after
                rows = [row for run, _ in sorted(keys) if (row := await self._store.run_by_key(run)) is not None]
            else:
                rows, after = named, None
                done.looked_at += len(rows)
            for row in rows:
                if request.namespace is None or row.namespace == request.namespace:
                    await self._rebuild_one(row, request, done)
                    await self._turn()
            progress(done.looked_at)
        if request.prune_stale:
            done.pruned = await self._prune(request.dry_run)
        return done

    async def _named(self, request: Rebuild) -> list[RunRow] | None:
        if not request.run_ids and request.workflow_id is None:
            return None
        namespace = request.namespace or "default"
        runs = [await self._store.run(namespace, run_id) for run_id in request.run_ids]
        unknown = [id for id, row in zip(request.run_ids, runs, strict=True) if row is None]
        if unknown:
            raise Refused(
                "run_not_found", f"there is no run {unknown[0]!r} in namespace {namespace!r}", run_id=unknown[0]
            )
        rows = [row for row in runs if row is not None]
        if request.workflow_id is not None:
            rows += await self._store.runs(RunFilter(namespace=namespace, workflow_id=request.workflow_id, limit=1000))
        return rows

    async def _rebuild_one(self, row: RunRow, request: Rebuild, done: Rebuilt) -> None:
        try:
            if request.missing and row.key in await self._store.summaries([row.key]):
                return
            if request.needs_rebuild and not await self.wrong_views(row):
                return
            done.matched += 1
            if not request.dry_run:
                await self.project(row)
                done.rebuilt += 1
        except HistoryDamaged as damage:
            done.failed += 1
            if len(done.failures) < 10:
                done.failures.append(str(damage))

    async def _prune(self, dry_run: bool) -> int:
        pruned = 0
        while orphans := await self._store.orphaned_views(PAGE):
            pruned += len(orphans)
            if dry_run:
                return pruned
            await self._put(ViewChanges((), orphans))
        if not dry_run:
            await self._store.prune_views()
        return pruned

    async def _turn(self) -> None:
        await turn(self._world)

    # -- counting

    async def counts(self, namespace: str) -> dict[str, Any]:
        """How stored views compare with runs: the groups of the contract, over the newest runs of a namespace."""
        settled = self._world.now() - YOUNG
        summaries, oldest = await self._store.count_summaries(namespace, SCHEMA, COUNTED, settled)
        wrong = summaries.missing + summaries.stale + summaries.orphaned
        answer: dict[str, Any] = {
            "run_summaries": {
                "runs": summaries.runs,
                "summaries": summaries.summaries,
                "projected": summaries.summaries,
                "missing": summaries.missing,
                "stale": summaries.stale,
                "orphaned": summaries.orphaned,
                "runs_to_rebuild": wrong,
                "needs_rebuild": wrong > 0,
            }
        }
        groups = {
            "waits": ("run_waits", "wait"),
            "timeline": ("run_timeline_entries", "history"),
            "timers": ("run_timer_entries", "timer"),
            "lineage": ("run_lineage_entries", "lineage"),
        }
        for view, (group, word) in groups.items():
            counted = await self._store.count_view(view, namespace, oldest, settled)
            stale = counted.wrong + summaries.stale
            wrong = counted.short + stale + counted.orphaned + counted.unknown
            answer[group] = {
                "rows": counted.rows,
                "projected_runs": counted.runs,
                f"canonical_{word}_runs": counted.canonical,
                f"projected_canonical_{word}_runs": counted.canonical - counted.short,
                f"missing_{word}_runs": counted.short,
                "stale_projected_runs": stale,
                "orphaned": counted.orphaned,
                "not_yet_stored_runs": summaries.unprojected,
                "runs_to_rebuild": wrong,
                "needs_rebuild": wrong > 0,
            }
            if view == "waits":
                answer[group] |= {
                    "summaries_with_open_waits": summaries.open_waits,
                    "missing_current_open_waits": counted.waiting,
                }
            elif view == "timeline":
                answer[group] |= {
                    "history_events": summaries.events,
                    "missing_history_events": max(0, summaries.events - counted.rows),
                }
        return answer | {
            "looked_at": summaries.runs,
            "complete": summaries.runs < COUNTED,
            "lag_ms": self._projector.lag // 1000,
        }

    # -- in the background

    async def _catch_up(self) -> None:
        """Write the views that the previous engine could no longer write."""
        try:
            forgotten = await self._store.closed_but_open()
            await self._put(ViewChanges((), forgotten))
        except Unavailable:
            pass  # the pass finds it later
        except Exception:
            log.exception("stored views could not be brought up to date")

    async def _work(self) -> None:
        projector = self._projector
        if self._engine.down is not None:
            return
        began = self._world.ticks()
        allowed = BUSY if projector.lag or projector.noted else IDLE
        while self._world.ticks() - began < allowed:
            run = self._next()
            if run is None:
                if not await self._look():
                    # Nothing to do: an idle engine is not woken before the next pass.
                    self._job.interval = max(EVERY, self._next_pass - self._world.now())
                    return
                continue
            await self._background(run)
            await self._turn()

    def _next(self) -> int | None:
        """The next run whose views are out of date: one that has closed, or that rests."""
        projector = self._projector
        for queue in (projector.closed, projector.rested):
            if queue:
                run = next(iter(queue))
                del queue[run]
                return run
        return None

    async def _background(self, run: int) -> None:
        now = self._world.now()
        if run in self._damaged.unreadable or self._not_before.get(run, 0) > now:
            return
        row = await self._store.run_by_key(run)
        if row is None:
            return
        began = self._world.ticks()
        try:
            if await self.wrong_views(row):
                await self.project(row)
        except HistoryDamaged:
            self._damaged.unreadable.add(run)  # so this is not tried again, unless its history is mended
            if row.is_open:
                self._damaged.suspect(row.workflow)
        took = self._world.ticks() - began
        if took > IDLE // 10:
            self._not_before[run] = now + PATIENT * took

    async def _look(self) -> bool:
        """Look for runs without views, a page at a time, every now and then. False: there is nothing to look for now."""
        now = self._world.now()
        if now < self._next_pass:
            return False
        passes = self._passes
        page = await self._store.unprojected(SCHEMA, self._after, PAGE)
        if passes != self._passes:
            return True  # shards have come meanwhile: the pass begins again
        closed = [
            (run, workflow)
            for run, workflow in (*page.missing, *page.outdated)
            if run not in self._damaged.unreadable and self._engine.owns(workflow)
        ]
        for run, workflow in closed:
            self._projector.closed.setdefault(run, workflow)
        self._found += len(closed)
        self._after = page.after or 0
        if page.after is None:
            self._pause = PASS if self._found else min(self._pause * 2, LONGEST_PASS)
            self._found = 0
            self._next_pass = now + self._pause
            self._not_before = {run: at for run, at in self._not_before.items() if at > now}
            old = [(MINUTE, now - KEPT_MINUTES), (HOUR, now - KEPT_HOURS)]
            await self._put(ViewChanges(old_tallies=old))
        return True


def _cut_all(run: int, stamp: int, made: dict[str, Entries]) -> list[tuple[str, int, int, list[ViewRow]]]:
    return [(view, run, 0, cut(run, stamp, entries)) for view, entries in made.items()]
