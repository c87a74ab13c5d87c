"""Reading, the same in every dialect: the named query of each method, and the meaning of its rows.

History is verified wherever it is read: each event is chained to the one before it, and the instance row knows where the
chain ends.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from backstay.kernel.decision import CommandRecord, InstanceRow, RunRow
from backstay.kernel.event import Event, HistoryDamaged, Recorded, restore, unpack_buffered
from backstay.kernel.names import is_storable
from backstay.kernel.task import Task
from backstay.kernel.values import Micros
from backstay.kernel.views.run_query import RunPlace, RunQuery, TaskGroup
from backstay.store import (
    Loaded,
    Located,
    LoggedCommand,
    Opening,
    Ready,
    RegistryEntry,
    StoredSend,
    rows,
)
from backstay.store.counting import RunCounts, count, ready_groups, suggest
from backstay.store.figures import Figures, HistorySizes, StatusCount
from backstay.store.measures import Measures
from backstay.store.rows import Row, of_call
from backstay.store.search import SearchedRuns, Steps, search
from backstay.store.search_conditions import Dialect, is_possible, possible
from backstay.store.views import (
    NEVER,
    BlockedPlace,
    InstanceFacts,
    ResumeCounts,
    ResumePage,
    StrandedPlace,
    SummaryCounts,
    SummaryRow,
    Unprojected,
    ViewCounts,
    ViewRow,
)

T = TypeVar("T")
Kinds = dict[str, type[Event]]
Found = Sequence[Row]

_EVERYTHING = 1 << 62


class Reading(Figures, Measures):
    """The methods of a store that are one query each. A dialect implements `_ask`."""

    _kinds: Kinds
    _dialect: Dialect

    @abstractmethod
    def _ask(
        self, query: str, parameters: Sequence[Any], shape: Callable[[Found], T], *, shards: Sequence[int] | None = None
    ) -> Awaitable[T]:
        """Run a named query and return what `shape` makes of its rows. Damage it finds is reported with the run's ids (`named`).

        `shards`: only for instances of these.
        """

    @abstractmethod
    def _walk(self, steps: Callable[[], Steps[T]]) -> Awaitable[T]:
        """Run statements that operators ask for, where the engine does not wait for them."""

    def search(
        self,
        query: RunQuery,
        after: RunPlace | None,
        limit: int,
        bound: int,
        now: Micros,
        *,
        views: bool = True,
        trusts: bool = False,
        untaken: Sequence[TaskGroup] = (),
        whole: bool = False,
    ) -> Awaitable[SearchedRuns]:
        if not is_possible(query):
            return Ready(SearchedRuns([], 0, True, None))
        return self._walk(
            lambda: search(
                *(self._dialect, query, after, limit, bound, now),
                views=views,
                trusts=trusts,
                untaken=untaken,
                whole=whole,
            )
        )

    def count(
        self,
        query: RunQuery,
        group_by: str | None,
        bound: int,
        now: Micros,
        *,
        trusts: bool = False,
        untaken: Sequence[TaskGroup] = (),
    ) -> Awaitable[RunCounts]:
        if not is_possible(query):
            return Ready(RunCounts({}, 0, True))
        return self._walk(lambda: count(self._dialect, query, group_by, bound, now, trusts=trusts, untaken=untaken))

    def suggest(self, namespace: str, field: str, prefix: str, limit: int) -> Awaitable[list[str]]:
        if not possible((namespace, field, prefix))[2:]:
            return Ready([])
        return self._walk(lambda: suggest(self._dialect, namespace, field, prefix, limit))

    def ready_groups(self, namespace: str, limit: int) -> Awaitable[dict[TaskGroup, int]]:
        return self._walk(lambda: ready_groups(namespace, limit))

    def find(self, namespace: str, workflow_id: str) -> Awaitable[int | None]:
        return self._ask("find", (namespace, workflow_id), lambda answer: answer[0][0] if answer else None)

    def find_all(self, namespace: str, workflow_ids: Sequence[str]) -> Awaitable[dict[str, int]]:
        # One impossible id must not fail the query for the others.
        possible = [id for id in workflow_ids if is_storable(id)]
        return self._ask("find_all", (self._listed(possible), namespace), _by_name)

    @abstractmethod
    def _listed(self, names: list[str]) -> Any:
        """Several texts as one parameter."""

    def locate(self, namespace: str, run_id: str) -> Awaitable[Located | None]:
        return self._ask("locate", (run_id, namespace), lambda answer: Located(*answer[0]) if answer else None)

    def last(self, key: int) -> Awaitable[int | None]:
        return self._ask("last", (key,), lambda answer: answer[0][0] if answer else None)

    def moved(self, seen: Mapping[int, int | None]) -> Awaitable[dict[int, int | None]]:
        if not seen:
            return Ready({})
        pairs = rows.encode([(key, last or 0) for key, last in seen.items()]).decode()
        return self._ask("moved", (pairs,), lambda answer: {row[0]: row[1] for row in answer})

    def history(self, run: int, after: int = 0, limit: int | None = None) -> Awaitable[list[Recorded]]:
        # From the middle of a history one row more is read: the next event is chained to its checksum.
        start = max(after - 1, 0)
        count = _EVERYTHING if limit is None else limit + (after - start)
        return self._ask("history", (run, start, count), lambda answer: verified(self._kinds, run, answer, after))

    def last_event(self, run: int) -> Awaitable[Recorded | None]:
        def shape(answer: Found) -> Recorded | None:
            if not answer:
                return None
            previous = (answer[1][0], answer[1][5]) if len(answer) > 1 else (0, 0)
            return restore(self._kinds, run, tuple(answer[0]), previous)

        return self._ask("last_event", (run,), shape)

    def due(
        self, until: Micros, limit: int, *, shards: Sequence[int] | None = None
    ) -> Awaitable[list[tuple[Micros, int]]]:
        return self._ask("due", (until, limit), _pairs, shards=shards)

    def written_in_future(
        self, now: Micros, after: tuple[Micros, int], limit: int, *, shards: Sequence[int] | None = None
    ) -> Awaitable[list[tuple[Micros, int]]]:
        return self._ask("written_in_future", (after[0], *after, now, limit), _pairs, shards=shards)

    def ready(
        self, limit: int, after: tuple[Micros, int, str] | None = None, *, shards: Sequence[int] | None = None
    ) -> Awaitable[list[Task]]:
        def shape(answer: Found) -> list[Task]:
            return [rows.ready_task(body, at, workflow, id) for body, at, workflow, id in answer]

        return self._ask("ready", (*(after or (-1, 0, "")), limit), shape, shards=shards)

    def leased(self, *, shards: Sequence[int] | None = None) -> Awaitable[list[Task]]:
        return self._ask("by_state", ("leased",), tasks_of, shards=shards)

    def leased_by(self, namespace: str, owner: str, call: str) -> Awaitable[list[Task]]:
        return self._ask("by_state", ("leased",), lambda answer: of_call(tasks_of(answer), namespace, owner, call))

    def endless(
        self, limit: int, after: tuple[int, str] | None = None, *, shards: Sequence[int] | None = None
    ) -> Awaitable[list[Task]]:
        return self._ask("endless", (*(after or (-1, "")), limit), tasks_of, shards=shards)

    def tasks(self, workflow: int) -> Awaitable[list[Task]]:
        return self._ask("load_tasks", (workflow,), tasks_of)

    def failed(self, *, shards: Sequence[int] | None = None) -> Awaitable[list[Task]]:
        return self._ask("failed_tasks", (), tasks_of, shards=shards)

    def mismatched(
        self, after: int, limit: int, *, shards: Sequence[int] | None = None
    ) -> Awaitable[tuple[list[int], int | None]]:
        def shape(page: Found) -> tuple[list[int], int | None]:
            return [key for key, wrong in page if wrong], (page[-1][0] if len(page) == limit else None)

        return self._ask("mismatched", (after, limit), shape, shards=shards)

    def run(self, namespace: str, run_id: str) -> Awaitable[RunRow | None]:
        return self._ask("run_by_id", (run_id, namespace), lambda answer: rows.run(answer[0]) if answer else None)

    def count_by_status(self, namespace: str) -> Awaitable[list[StatusCount]]:
        def shape(answer: Found) -> list[StatusCount]:
            archived = {str(status): int(runs) for status, kept, runs in answer if kept}
            return [
                StatusCount(status, kept, runs)
                for status, every in ((str(status), int(runs)) for status, kept, runs in answer if not kept)
                for kept, runs in ((False, every - archived.get(status, 0)), (True, archived.get(status, 0)))
                if runs
            ]

        return self._ask("count_by_status", (namespace, namespace), shape)

    def event_types(self, namespace: str) -> Awaitable[dict[str, int]]:
        return self._ask("event_types", (namespace,), lambda answer: {str(kind): int(count) for kind, count in answer})

    def history_sizes(self, namespace: str, events: int, size: int) -> Awaitable[HistorySizes]:
        parameters = (events or _EVERYTHING, size or _EVERYTHING, namespace)
        return self._ask(
            "history_sizes", parameters, lambda answer: HistorySizes(*(int(number or 0) for number in answer[0]))
        )

    def sizes(self, runs: Sequence[int]) -> Awaitable[dict[int, tuple[int, int]]]:
        named = ",".join(map(str, runs))
        return self._ask("sizes", (named,), lambda answer: {run: (count, int(size)) for run, count, size in answer})

    def commands(self, workflow: int, skip: int = 0, limit: int | None = None) -> Awaitable[list[CommandRecord]]:
        parameters = (workflow, _EVERYTHING if limit is None else limit, skip)
        return self._ask("commands", parameters, lambda answer: [rows.command(row) for row in answer])

    def command_sizes(self, before: int, limit: int, workflow: int | None) -> Awaitable[list[int]]:
        if workflow is None:
            return self._ask("command_sizes", (before, limit), _numbers)
        return self._ask("command_sizes_of", (workflow, before, limit), _numbers)

    def command_log(self, before: int, limit: int, workflow: int | None) -> Awaitable[list[LoggedCommand]]:
        if workflow is None:
            return self._ask("command_log", (before, limit), _logged)
        return self._ask("command_log_of", (workflow, before, limit), _logged)

    def command(self, workflow: int, command_type: str, request_id: str) -> Awaitable[CommandRecord | None]:
        parameters = (workflow, command_type, request_id)
        return self._ask("command_by_request", parameters, lambda answer: rows.command(answer[0]) if answer else None)

    def last_command(self, workflow: int, command_type: str) -> Awaitable[CommandRecord | None]:
        parameters = (workflow, command_type)
        return self._ask("last_command", parameters, lambda answer: rows.command(answer[0]) if answer else None)

    def sends(self, after: int, limit: int, *, shards: Sequence[int] | None = None) -> Awaitable[list[StoredSend]]:
        return self._ask("sends", (after, limit), _sends, shards=shards)

    def sends_of(self, senders: Sequence[int]) -> Awaitable[list[StoredSend]]:
        if not senders:
            return Ready([])
        return self._ask("sends_of", (",".join(map(str, senders)),), _sends)

    def awaiting(self, after: int, limit: int, *, shards: Sequence[int] | None = None) -> Awaitable[list[int]]:
        return self._ask("awaiting", (after, limit), _numbers, shards=shards)

    def expired(
        self, namespace: str, before: Micros, limit: int, *, shards: Sequence[int] | None = None
    ) -> Awaitable[list[RunRow]]:
        return self._ask(
            "expired", (before, namespace, limit), lambda answer: [rows.run(row) for row in answer], shards=shards
        )

    def kept(self, kind: str) -> Awaitable[list[RegistryEntry]]:
        return self._ask("kept", (kind,), lambda answer: [RegistryEntry(kind, *row) for row in answer])

    # -- stored views

    def summaries(self, runs: Sequence[int]) -> Awaitable[dict[int, SummaryRow]]:
        named = ",".join(map(str, runs))
        return self._ask("summaries", (named,), lambda answer: {row[0]: SummaryRow(*row) for row in answer})

    def blocked(self, namespace: str, workflow_type: str, limit: int) -> Awaitable[list[BlockedPlace]]:
        parameters = (namespace, workflow_type, limit)
        return self._ask("blocked", parameters, lambda answer: [BlockedPlace(*row) for row in answer])

    def view_rows(self, view: str, run: int) -> Awaitable[list[ViewRow]]:
        return self._ask(f"rows_of_{view}", (run,), lambda answer: [ViewRow(*row) for row in answer])

    def facts(self, workflows: Sequence[int]) -> Awaitable[dict[int, InstanceFacts]]:
        named = ",".join(map(str, workflows))
        return self._ask("facts", (named,), lambda answer: {row[0]: InstanceFacts(*row) for row in answer})

    def unprojected(self, schema: int, after: int, limit: int) -> Awaitable[Unprojected]:
        def shape(page: Found) -> Unprojected:
            missing = [(run, workflow) for run, workflow, wrong in page if wrong == 2]
            outdated = [(run, workflow) for run, workflow, wrong in page if wrong == 1]
            right = [(run, workflow) for run, workflow, wrong in page if wrong == 0]
            return Unprojected(missing, outdated, right, len(page), page[-1][0] if len(page) == limit else None)

        return self._ask("unprojected", (schema, after, limit), shape)

    def closed_but_open(self) -> Awaitable[list[int]]:
        return self._ask("closed_but_open", (), lambda answer: [run for (run,) in answer])

    def orphaned_views(self, limit: int) -> Awaitable[list[int]]:
        return self._ask("summary_orphans", (limit,), lambda answer: [run for (run,) in answer])

    async def count_summaries(
        self, namespace: str, schema: int, limit: int, settled: Micros = NEVER
    ) -> tuple[SummaryCounts, int]:
        parameters = (settled, schema, namespace, limit)
        counted: Row = await self._ask("summary_counts", parameters, lambda answer: answer[0])
        orphaned: int = await self._ask("count_summary_orphans", (), lambda answer: answer[0][0])
        numbers = [int(number or 0) for number in counted]
        counts = SummaryCounts(
            runs=numbers[0],
            summaries=numbers[1],
            missing=numbers[2],
            stale=numbers[3],
            unprojected=numbers[4],
            orphaned=orphaned,
            open_waits=numbers[5],
            events=numbers[6],
        )
        return counts, numbers[7]

    async def count_view(self, view: str, namespace: str, oldest: int, settled: Micros = NEVER) -> ViewCounts:
        parameters = (settled, oldest, namespace, oldest)
        counted: Row = await self._ask(f"count_{view}", parameters, lambda answer: answer[0])
        orphaned: int = await self._ask(f"count_orphans_of_{view}", (), lambda answer: answer[0][0])
        rows_found, runs, canonical, short, wrong, unknown, waiting = (int(number) for number in counted)
        return ViewCounts(rows_found, runs, canonical, orphaned, short, wrong, unknown, waiting)

    async def resume_sources(self, after: int, limit: int) -> ResumePage:
        def shape(answer: Found) -> tuple[dict[str, ResumeCounts], int, int]:
            counts = {row[0]: ResumeCounts(*row[3:]) for row in answer}
            return counts, sum(row[1] for row in answer), max((row[2] for row in answer), default=0)

        counts, looked, last = await self._ask("resume_page", (after, limit), shape)
        stranded: list[StrandedPlace] = []
        if any(counted.stranded for counted in counts.values()):
            stranded = await self._ask(
                "stranded_page",
                (after, limit),
                lambda answer: [StrandedPlace(*row[:3], resumable=bool(row[3])) for row in answer],
            )
        return ResumePage(counts, stranded, last if looked == limit else None)

    def open_instances(self, after: int, limit: int) -> Awaitable[tuple[list[int], int | None]]:
        def shape(answer: Found) -> tuple[list[int], int | None]:
            return [key for key, is_open in answer if is_open], answer[-1][0] if len(answer) == limit else None

        return self._ask("open_page", (after, limit), shape)

    def run_by_key(self, key: int) -> Awaitable[RunRow | None]:
        return self._ask("run_by_key", (key,), lambda answer: rows.run(answer[0]) if answer else None)


def _numbers(answer: Found) -> list[int]:
    return [number for (number,) in answer]


def _logged(answer: Found) -> list[LoggedCommand]:
    return [LoggedCommand(position, namespace, id, rows.command(record)) for position, namespace, id, *record in answer]


def _by_name(answer: Found) -> dict[str, int]:
    return {row[0]: row[1] for row in answer}


def _pairs(answer: Found) -> list[tuple[Micros, int]]:
    return [(at, key) for at, key in answer]


def _sends(answer: Found) -> list[StoredSend]:
    return [StoredSend(*row) for row in answer]


def tasks_of(answer: Found) -> list[Task]:
    return list(rows.tasks(body for (body,) in answer))


def verified(kinds: Kinds, run: int, answer: Found, after: int = 0) -> list[Recorded]:
    """Stored events as history. If `after` is not 0 the first row is that event, read only for its checksum."""
    events: list[Recorded] = []
    previous = (0, 0)
    if after and answer:
        if answer[0][0] != after:
            raise HistoryDamaged(run, after, f"missing; the next stored event is {answer[0][0]}")
        previous = (after, answer[0][5])
        answer = answer[1:]
    for row in answer:
        entry = restore(kinds, run, tuple(row), previous)
        events.append(entry)
        previous = (entry.sequence, entry.checksum)
    return events


def named(damage: HistoryDamaged, run: Found) -> HistoryDamaged:
    """The same error with the ids of the run, which only its own row has."""
    if not run:
        return damage
    row = rows.run(run[0])
    return damage.of(row.workflow_id, row.run_id)


POINTER = 5  # the column of an instance that names its current run


def opened(kinds: Kinds, instance: Row, tasks: Sequence[bytes], run: Row | None) -> Opening:
    """An instance without its history, from rows that must have been read at one moment."""
    workflow = _instance(kinds, instance)
    if run is None:
        return Opening(workflow, None, rows.readable_tasks(tasks))
    return Opening(workflow, _as_long(rows.run(run), workflow), rows.readable_tasks(tasks))


def _instance(kinds: Kinds, instance: Row) -> InstanceRow:
    *columns, held = instance
    return InstanceRow(*columns, buffered_events=() if held is None else unpack_buffered(kinds, held))


def _as_long(row: RunRow, workflow: InstanceRow) -> RunRow:
    """The row of the current run with the length of its history: the row is not written with every step."""
    return row if row.length == workflow.length else replace(row, length=workflow.length)


def loaded(kinds: Kinds, instance: Row, tasks: Sequence[bytes], run: Row | None, events: Found) -> Loaded:
    """An instance from its rows, which must have been read at one moment."""
    workflow = _instance(kinds, instance)
    if workflow.run is None:
        if workflow.length:
            raise HistoryDamaged(0, 0, f"the row of workflow {workflow.workflow_id!r} names none of its runs")
        return Loaded(workflow, None, [], rows.readable_tasks(tasks))
    if run is None:
        raise HistoryDamaged(workflow.run, 0, f"the row of a run of workflow {workflow.workflow_id!r} is missing")
    row = rows.run(run)
    try:
        history = verified(kinds, row.key, events)
        if len(history) < workflow.length:
            raise HistoryDamaged(row.key, len(history) + 1, "missing, and so is everything after it")
        if history[workflow.length :] or (history and history[-1].checksum != workflow.checksum):
            raise HistoryDamaged(row.key, len(history), "it is not the event its workflow ended with")
    except HistoryDamaged as damage:
        raise damage.of(row.workflow_id, row.run_id) from damage.__cause__
    return Loaded(workflow, _as_long(row, workflow), history, rows.readable_tasks(tasks))


def found_by_order(kinds: Kinds, instance: Row, tasks: Sequence[bytes], newest: Row, events: Found) -> Loaded:
    """The same for an instance whose row names a wrong run: its newest run is taken as the current one."""
    mended = [*instance[:POINTER], newest[0], *instance[POINTER + 1 :]]
    return loaded(kinds, mended, tasks, newest, events)._replace(drifted=True)
