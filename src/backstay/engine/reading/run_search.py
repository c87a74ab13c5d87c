"""Search and count of runs by any field of their summaries, within a bound.

The store finds candidates by their columns; here each gets its current summary, with the facts of the clock and the
fleet. A search among few runs (`SMALL`) looks at each of them, so that it is right whatever is stored; one among many
relies on the indexes of stored summaries, which lag a moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from backstay.engine.core.engine import Engine
from backstay.engine.core.world import turn
from backstay.engine.reading.facts import FactFinder
from backstay.engine.views.projector import Projector
from backstay.engine.views.run_views import stored_summary
from backstay.kernel.decision import RunRow
from backstay.kernel.event import HistoryDamaged
from backstay.kernel.views.facts import Facts
from backstay.kernel.views.present import Present, present
from backstay.kernel.views.run_query import RunPlace, RunQuery, TaskGroup, check, fits_summary
from backstay.kernel.views.summary import RunSummary, summarize
from backstay.protocol.run_lists import CountedRuns, CountRuns, FoundRuns, ListedRun, SearchRuns
from backstay.store.search import FoundRun

SMALL = 500
BOUND = 1_000  # runs that one statement looks at
LOOKED_AT = 20_000  # that one page looks at
COUNTED = 2_000  # rows that a count looks at
EACH = 200  # runs that a count asks for their summary
ENOUGH = 20_000  # microseconds after which a page ends where it is
TOGETHER = 50  # runs that are told of without a pause
LONG = 500  # events from which on the history of a closed run is folded a page at a time
GROUPS = 1_000

_NEEDS_FLEET = ("waiting_for_compatible_worker", "no_worker", "throttled")


class RunSearch:
    def __init__(self, engine: Engine, projector: Projector) -> None:
        self._engine = engine
        self._store = engine.store
        self._projector = projector

    @property
    def _trusts(self) -> bool:
        """Whether stored summaries are kept up to date by this process."""
        return self._projector.active and self._engine.holder

    async def search(self, request: SearchRuns) -> FoundRuns:
        query, limit = request.query, max(1, request.limit)
        check(query, request.after)
        finder = await self._finder()
        if not query.needs_summary:
            page = await self._store.search(query, request.after, limit, BOUND, self._now)
            return FoundRuns(
                runs=[_bare(one) for one in page.found]
                if request.rows_only
                else await self._listed(page.found, finder),
                looked_at=page.looked_at,
                complete=page.complete,
                end=page.end,
                is_part=page.is_part,
            )
        small = await self._store.search(query, request.after, SMALL, SMALL, self._now, views=False, whole=True)
        if small.complete:
            fitting = [run for run in await self._listed(small.found, finder) if _fits(query, run)]
            last = fitting[limit - 1] if len(fitting) > limit else None
            end = None if last is None else RunPlace(last.value, last.row.key, _top(query, small.found))
            return FoundRuns(runs=fitting[:limit], looked_at=small.looked_at, complete=last is None, end=end)
        return await self._among_many(query, request.after, limit, finder)

    async def _among_many(self, query: RunQuery, after: RunPlace | None, limit: int, finder: FactFinder) -> FoundRuns:
        untaken = await self._untaken(query, finder)
        found: list[ListedRun] = []
        looked = 0
        began = self._engine.world.ticks()
        while True:
            page = await self._store.search(
                query, after, limit - len(found), BOUND, self._now, trusts=self._trusts, untaken=untaken
            )
            looked += page.looked_at
            found += [run for run in await self._listed(page.found, finder) if _fits(query, run)]
            after = page.end
            late = self._engine.world.ticks() - began > ENOUGH
            if after is None or len(found) == limit or looked >= LOOKED_AT or late:
                return FoundRuns(runs=found, looked_at=looked, complete=page.complete, end=after, is_part=page.is_part)

    async def count(self, request: CountRuns) -> CountedRuns:
        query, group_by = replace(request.query, sort="started", descending=True), request.group_by
        check(query, group_by=group_by)
        finder = await self._finder()
        by_summary = query.needs_summary or group_by in ("state", "attention")
        if by_summary:
            small = await self._store.search(query, None, SMALL, SMALL, self._now, views=False, whole=True)
            if small.complete:
                return await self._each(query, group_by, small.found, small.looked_at, finder)
        if query.needs_present:
            return await self._some(query, group_by, finder)
        untaken = await self._untaken(query, finder)
        if any(self._of_group(finder, query.namespace, group).takers.is_divided for group in untaken):
            return await self._some(query, group_by, finder)
        counts = await self._store.count(query, group_by, COUNTED, self._now, trusts=self._trusts, untaken=untaken)
        groups = Counter(counts.groups)
        for run in await self._listed(counts.stale, finder):
            if _fits(query, run):
                groups[group_of(run, group_by)] += 1
        if group_by == "attention":
            groups.update(await self._causes(query, finder))
        return _counted(groups, counts.looked_at, counts.complete)

    async def _each(
        self, query: RunQuery, group_by: str | None, found: Sequence[FoundRun], looked: int, finder: FactFinder
    ) -> CountedRuns:
        """Count runs one by one: they are few."""
        runs = [run for run in await self._listed(found, finder) if _fits(query, run)]
        return _counted(Counter(group_of(run, group_by) for run in runs), looked, True)

    async def _some(self, query: RunQuery, group_by: str | None, finder: FactFinder) -> CountedRuns:
        """Count runs one by one, as far as a count goes: no column answers the query."""
        groups: Counter[str | None] = Counter()
        after, looked, asked = None, 0, 0
        began = self._engine.world.ticks()
        while True:
            page = await self._among_many(query, after, TOGETHER, finder)
            groups.update(group_of(run, group_by) for run in page.runs)
            looked += page.looked_at
            asked += len(page.runs)
            after = page.end
            late = self._engine.world.ticks() - began > ENOUGH
            if after is None or asked >= EACH or looked >= LOOKED_AT or late:
                return _counted(groups, looked, page.complete and after is None)

    async def _causes(self, query: RunQuery, finder: FactFinder) -> dict[str | None, int]:
        """How many runs need attention because of the fleet. A run with two causes is counted for both."""
        if query.flags.get("is_terminal"):
            return {}
        found: Counter[str | None] = Counter()
        divided = False
        for group, number in (await self._store.ready_groups(query.namespace, GROUPS)).items():
            facts = self._of_group(finder, query.namespace, group)
            divided |= facts.takers.is_divided
            if facts.takers.missing is not None:
                found["no_worker"] += number
            elif facts.limit is not None:
                found["throttled"] += number
        if divided:
            lonely = replace(query, fields=query.fields | {"attention": ("no_worker",)})
            found["no_worker"] = (await self._some(lonely, None, finder)).total
        return found

    async def _untaken(self, query: RunQuery, finder: FactFinder) -> list[TaskGroup]:
        """The ready tasks that no worker takes, or that a limit holds back, if the query asks for such runs. Of some of them the
        connection decides, which only the summary of each run tells."""
        fields = query.fields
        asked = [
            value for name in ("liveness_state", "attention", "repair_blocked_reason") for value in fields.get(name, ())
        ]
        if "repair_attention" not in query.flags and not any(word in value for value in asked for word in _NEEDS_FLEET):
            return []
        held = "throttled" in fields.get("attention", ())
        groups = await self._store.ready_groups(query.namespace, GROUPS)
        found: list[TaskGroup] = []
        for group in groups:
            facts = self._of_group(finder, query.namespace, group)
            if facts.takers.missing is not None or facts.takers.is_divided or (held and facts.limit is not None):
                found.append(group)
        return found

    def _of_group(self, finder: FactFinder, namespace: str, group: TaskGroup) -> Facts:
        return finder.of_task(group.kind, group.type, namespace, group.queue, group.build)

    # -- summaries of runs

    async def _listed(self, found: Sequence[FoundRun], finder: FactFinder) -> list[ListedRun]:
        runs: list[ListedRun] = []
        for start in range(0, len(found), TOGETHER):
            if start:
                await self._turn()
            part = found[start : start + TOGETHER]
            summaries = await self._summaries(part)
            runs += [self._told(one, summaries[one.row.key], finder) for one in part]
        return runs

    def _told(self, one: FoundRun, summary: RunSummary | None, finder: FactFinder) -> ListedRun:
        facts = Facts() if summary is None else finder.of(summary)
        said = present(one.row, summary, facts, self._now, is_current=one.is_current)
        return ListedRun(row=one.row, is_current=one.is_current, summary=summary, present=said, value=one.value)

    async def _summaries(self, found: Sequence[FoundRun]) -> dict[int, RunSummary | None]:
        """Summaries of runs as their rows are now; None: the history of a run is damaged."""
        stored = await self._store.summaries([one.row.key for one in found])
        facts = await self._store.facts([one.row.workflow for one in found])
        summaries: dict[int, RunSummary | None] = {}
        for one in found:
            row = one.row
            summary = stored_summary(stored.get(row.key), row, facts.get(row.workflow))
            if summary is None:
                try:
                    summary = await self._fresh(row, one.is_current)
                except HistoryDamaged:
                    summary = None
                await self._turn()
            summaries[row.key] = summary
        return summaries

    async def _fresh(self, row: RunRow, is_current: bool) -> RunSummary:
        if row.closed_at is not None and row.length > LONG:
            # Only the background stores it: reading all of a long history once more for each list would cost too much.
            folded = await self._engine.loading.fold_older(row)
            return replace(summarize(self._engine.machine, folded, stamp=row.length), is_current_run=is_current)
        return await self._projector.summary(row)

    async def _finder(self) -> FactFinder:
        engine = self._engine
        return FactFinder(engine, has_engine=engine.holder or await self._store.has_engine())

    @property
    def _now(self) -> int:
        return self._engine.world.now()

    async def _turn(self) -> None:
        """Let the engine do other work."""
        await turn(self._engine.world)


def group_of(run: ListedRun, group_by: str | None) -> str | None:
    """The key by which a run is counted."""
    match group_by:
        case None:
            return None
        case "state":
            return run.present.damaged_state if run.summary is None else run.summary.state
        case "attention":
            return run.present.attention
        case "status" | "workflow_type" | "queue" | "compatibility":
            return getattr(run.row, group_by)
        case _:
            kind, _, name = group_by.partition(":")
            value = (run.row.labels if kind == "label" else run.row.search_attributes).get(name)
            if isinstance(value, bool):
                return "true" if value else "false"
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            return None if value is None else str(value)


def _counted(groups: Counter[str | None], looked: int, complete: bool) -> CountedRuns:
    ordered = sorted(groups.items(), key=lambda group: (-group[1], group[0] or ""))
    found = [(name, number) for name, number in ordered if number]
    return CountedRuns(groups=found, total=sum(groups.values()), looked_at=looked, complete=complete)


def _bare(one: FoundRun) -> ListedRun:
    unsaid = Present(liveness_state="closed" if one.row.closed_at is not None else "open")
    return ListedRun(row=one.row, is_current=one.is_current, summary=None, present=unsaid, value=one.value)


def _fits(query: RunQuery, run: ListedRun) -> bool:
    return fits_summary(query, run.summary, run.present)


def _top(query: RunQuery, found: Iterable[FoundRun]) -> int | None:
    if query.sort == "started":
        return None
    return max((one.row.key for one in found), default=None)
