"""A database that is nothing but memory: what was committed and nothing else, under the guard rules of every store.

`Disk` is what survives. A `MemoryStore` is one node's connection to it, and dies with the node.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from backstay.kernel.decision import CommandRecord, Decision, InstanceRow, RunRow
from backstay.kernel.event import Event, HistoryDamaged, Recorded, restore
from backstay.kernel.send import pack
from backstay.kernel.task import Task
from backstay.kernel.values import Micros
from backstay.kernel.views.run_query import RunPlace, RunQuery, fits_row, sort_value
from backstay.store import Applied, Loaded, Located, Opening, RegistryEntry, RunFilter, StoredSend, as_ready
from backstay.store.counting import RunCounts
from backstay.store.errors import StoreError, Unavailable
from backstay.store.ownership import SHARDS, Ownership
from backstay.store.rows import of_call
from backstay.store.search import FoundRun, SearchedRuns

from .ownership import OwnershipRows, OwnershipStore, WriterRow
from .views import ViewRows, ViewStore

EventRow = tuple[int, str, int, bytes, bytes, int]

_encode = msgspec.json.Encoder().encode
_task = lru_cache(20_000)(msgspec.json.Decoder(Task).decode)  # a row that is the same is the same task


READS = (
    *(
        "find",
        "find_all",
        "locate",
        "load",
        "opening",
        "history",
        "last_event",
        "sizes",
        "due",
        "written_in_future",
        "ready",
        "leased",
        "endless",
        "last",
        "moved",
        "failed",
        "mismatched",
    ),
    *("runs", "run", "commands", "command", "sends", "awaiting"),
)
"""The verbs of a store that only look."""


PLAIN = ("workflows", "names", "runs", "run_ids", "sends", "notices", "registry", "registry_version")
NESTED = ("events", "tasks", "commands")
"""The tables, and those that are kept by instance or run."""


class RecordedAlready(StoreError):
    """A request id has one record of each kind of command."""


class Disk:
    """The rows. Whoever changes them moves `version`, and leaves notices for the holder."""

    def __init__(self, shards: int = SHARDS) -> None:
        self.workflows: dict[int, InstanceRow] = {}
        self.names: dict[tuple[str, str], int] = {}
        self.runs: dict[int, RunRow] = {}
        self.run_ids: dict[str, int] = {}
        self.events: dict[int, list[EventRow]] = {}
        self.tasks: dict[int, dict[str, bytes]] = {}
        self.commands: dict[int, list[CommandRecord]] = {}
        self.sends: dict[int, StoredSend] = {}
        self.notices: list[int] = []
        self.registry: dict[tuple[str, str, str], RegistryEntry] = {}
        self.registry_version = 0
        self.views = ViewRows()
        self.ownership = OwnershipRows(shards)
        self._verified: dict[int, list[Recorded]] = {}  # history only grows: what was read once need not be read again
        self.version = 0
        self.holder: object | None = None
        self.witness: Callable[[Decision], None] = lambda decision: None
        self.author: Callable[[Decision, int, bool], None] = lambda decision, writer, told: None
        self.overtaken: dict[int, list[Callable[[], None]]] = {}  # who waits for the next commit of an instance
        self.twice: Callable[[str, str], None] = lambda workflow_id, request_id: None

    def apply(self, decision: Decision, tell: bool, writer: int = 0) -> bool:
        """One decision, if its guard still matches. `tell`: leave a notice; `writer`: the row of who commits it."""
        row = decision.instance
        stored = self.workflows.get(row.key)
        name = (row.namespace, row.workflow_id)
        if decision.after == 0:
            if stored is not None or name in self.names:
                return False
        elif stored is None or stored.last_decision != decision.after:
            return False
        asked = [(c.request_id, c.command_type) for c in decision.commands if c.request_id is not None]
        if asked:
            known = {(c.request_id, c.command_type) for c in self.commands.get(row.key, ())}
            for request_id, _ in [one for n, one in enumerate(asked) if one in known or one in asked[:n]]:
                self.twice(row.workflow_id, request_id)
                raise RecordedAlready(f"request id {request_id!r} has a record already")
        if any(s.key in self.sends for s in decision.sends) or any(n and r.key in self.runs for n, r in decision.runs):
            return False  # two engines may mint the same key
        kept = replace(row, buffered_events=tuple(row.buffered_events))
        if stored is not None and not decision.wake_moved and not any(is_new for is_new, _ in decision.runs):
            kept = replace(kept, next_wake=stored.next_wake)  # as files do: a wake that did not move is not written
        self.workflows[row.key] = kept
        self.names[name] = row.key
        for is_new, run in decision.runs:
            if is_new:
                self.run_ids[run.run_id] = run.key
            self.runs[run.key] = run
        for e in decision.events:
            self.events.setdefault(e.run, []).append((e.sequence, e.type, e.at, e.body, e.context_body, e.checksum))
        tasks = self.tasks.setdefault(row.key, {})
        for change in decision.tasks:
            if change.task is None:
                tasks.pop(change.task_id, None)
            else:
                tasks[change.task_id] = _encode(change.task)
        self.commands.setdefault(row.key, []).extend(decision.commands)
        for s in decision.sends:
            self.sends[s.key] = StoredSend(
                s.key, s.sender, s.namespace, s.workflow_id, type(s.message).__name__, pack(s.message)
            )
        for key in decision.taken_sends:
            self.sends.pop(key, None)
        if tell:
            self.notices.append(row.key)
        self.author(decision, writer, tell)
        self.witness(decision)
        for overtaken in self.overtaken.pop(row.key, ()):
            overtaken()
        return True

    def saved(self) -> dict[str, Any]:
        """All rows as they are now, for `restore`."""
        plain = {name: copy(getattr(self, name)) for name in PLAIN}
        nested = {name: {key: copy(rows) for key, rows in getattr(self, name).items()} for name in NESTED}
        return {**plain, **nested, "views": self.views.copy(), "owners": self.ownership.saved()}

    def restore(self, saved: dict[str, Any]) -> None:
        """All rows as they were."""
        for name in (*PLAIN, *NESTED, "views"):
            setattr(self, name, saved[name])
        self.ownership.restore(saved["owners"])
        self._verified.clear()
        self.version += 1

    def within(self, shards: Sequence[int] | None) -> Callable[[int], bool]:
        """Whether the shard of a key is one of these; None: of all."""
        if shards is None:
            return lambda key: True
        wanted, mask = frozenset(shards), len(self.ownership.shards) - 1
        return lambda key: key & mask in wanted

    def run(self, key: int) -> RunRow:
        """The row of a run, as long as its history is."""
        run = self.runs[key]
        row = self.workflows.get(run.workflow)
        return run if row is None or row.run != key else replace(run, length=row.length)

    def all_tasks(self) -> Iterator[Task]:
        for workflow in sorted(self.tasks):
            for id in sorted(self.tasks[workflow]):
                yield _task(self.tasks[workflow][id])

    def tasks_of(self, workflow: int) -> list[Task]:
        rows = self.tasks.get(workflow, {})
        return [_task(rows[id]) for id in sorted(rows)]

    def put_task(self, task: Task) -> None:
        self.tasks[task.workflow][task.id] = _encode(task)

    def history(self, kinds: dict[str, type[Event]], run: int) -> list[Recorded]:
        rows = self.events.get(run, [])
        events = self._verified.setdefault(run, [])
        previous = (events[-1].sequence, events[-1].checksum) if events else (0, 0)
        for row in rows[len(events) :]:
            entry = restore(kinds, run, row, previous)
            events.append(entry)
            previous = (entry.sequence, entry.checksum)
        return list(events)

    def damage(self, run: int, place: int, row: EventRow) -> None:
        self.events[run][place] = row
        self._verified.pop(run, None)

    def load(self, kinds: dict[str, type[Event]], key: int) -> Loaded | None:
        row = self.workflows.get(key)
        if row is None:
            return None
        tasks = self.tasks_of(key)
        if row.run is None:
            return Loaded(row, None, [], tasks)
        run = self.run(row.run)
        try:
            history = self.history(kinds, row.run)
        except HistoryDamaged as damage:
            raise damage.of(run.workflow_id, run.run_id) from None
        if len(history) != row.length or (history and history[-1].checksum != row.checksum):
            raise HistoryDamaged(row.run, row.length, "it does not end where its workflow says").of(
                run.workflow_id, run.run_id
            )
        return Loaded(row, run, history, tasks)


class MemoryStore(OwnershipStore, ViewStore):
    """A connection. `trouble` is asked before each read and may raise; `written` decides how a commit ends."""

    shared = True

    def __init__(self, disk: Disk, kinds: dict[str, type[Event]], seam: Seam) -> None:
        self.disk = disk
        self._kinds = kinds
        self._seam = seam
        self._version = disk.version
        self._down = False
        self.enrol()

    # -- writing

    def apply(self, decisions: Sequence[Decision], done: Callable[[Applied], None]) -> None:
        self._seam.commit(self, decisions, done)

    def write(self, decisions: Sequence[Decision], broken: frozenset[int] = frozenset()) -> Applied:
        if self._down:
            return Applied(down=Unavailable("the database is closed"))
        deposed = self.deposed()
        if deposed is not None:
            return Applied(down=deposed)
        self.heard(decisions)
        stale: set[int] = set()
        failed: dict[int, Exception] = {}
        touched = False
        for position, decision in enumerate(decisions):
            if position in broken:
                failed[position] = StoreError("this decision cannot be written")
                continue
            try:
                owned = self.disk.holder is self or self.owned[decision.instance.key & (self.shards - 1)]
                if self.disk.apply(decision, not owned, self.row.id):
                    touched = True
                else:
                    stale.add(position)
            except StoreError as error:
                failed[position] = error
        if touched:
            # The commits of this connection do not count as another's for itself.
            current = self._version == self.disk.version
            self.disk.version += 1
            if current:
                self._version = self.disk.version
        return Applied(frozenset(stale), failed)

    def lose_connection(self) -> None:
        self._down = True
        self.row.session = False

    def fail_over(self) -> None:
        """Another server has taken the place of the one that this process was connected to."""
        self._cut = True

    def lose_answer(self, decisions: Sequence[Decision]) -> bool:
        """Whether a commit that nobody heard of may still be to come."""
        return False

    @as_ready
    def probe(self) -> Unavailable | None:
        error = self._seam.probe(self)
        if error is None:
            self._down = False
            self._version = -1
            error = self.reconnect()
        return error

    def keep(self, entry: RegistryEntry, done: Callable[[Unavailable | None], None]) -> None:
        place = (entry.kind, entry.namespace, entry.name)
        self.disk.registry_version += entry.counted
        if entry.body is None:
            self.disk.registry.pop(place, None)
        else:
            self.disk.registry[place] = entry
        done(None)

    def keep_all(self, entries: Sequence[RegistryEntry], done: Callable[[Unavailable | None], None]) -> None:
        for entry in entries:
            MemoryStore.keep(self, entry, lambda _: None)
        done(None)

    @as_ready
    def keep_if(self, entry: RegistryEntry, before: bytes | None) -> bool:
        stored = self.disk.registry.get((entry.kind, entry.namespace, entry.name))
        if (None if stored is None else stored.body) != before:
            return False
        MemoryStore.keep(self, entry, lambda _: None)
        return True

    @as_ready
    def kept(self, kind: str) -> list[RegistryEntry]:
        self._seam.read(self)
        return [entry for place, entry in sorted(self.disk.registry.items()) if place[0] == kind]

    @as_ready
    def registry_version(self) -> int:
        self._seam.read(self)
        return self.disk.registry_version

    # -- one engine

    @as_ready
    def acquire(self) -> bool:
        if self.disk.holder is None:
            self.disk.holder = self
        return self.disk.holder is self

    @as_ready
    def clock(self) -> None:
        """All processes of a simulation have one clock, unless a fault says otherwise."""

    @as_ready
    def changed(self) -> bool:
        if self._down or self._version == self.disk.version or self._seam.misses():
            return False
        self._version = self.disk.version
        return True

    def undisturbed(self) -> bool:
        return False  # only `changed` can be missed

    @as_ready
    def notices(self, *, shards: Sequence[int] | None = None) -> list[int]:
        within = self.disk.within(shards)
        found = [key for key in self.disk.notices if within(key)]
        self.disk.notices = [key for key in self.disk.notices if not within(key)]
        return list(dict.fromkeys(found))

    @as_ready
    def close(self) -> None:
        self.cut()
        self.disk.ownership.resign(self.row)

    def cut(self) -> None:
        """Its node is dead."""
        self.row.session = False
        if self.disk.holder is self:
            self.disk.holder = None

    # -- reading

    @as_ready
    def find(self, namespace: str, workflow_id: str) -> int | None:
        self._seam.read(self)
        return self.disk.names.get((namespace, workflow_id))

    @as_ready
    def find_all(self, namespace: str, workflow_ids: Sequence[str]) -> dict[str, int]:
        self._seam.read(self)
        names = self.disk.names
        return {id: names[namespace, id] for id in workflow_ids if (namespace, id) in names}

    @as_ready
    def locate(self, namespace: str, run_id: str) -> Located | None:
        run = self._run(namespace, run_id)
        return None if run is None else Located(run.workflow, run.key)

    @as_ready
    def load(self, key: int) -> Loaded | None:
        self._seam.read(self)
        self._seam.loads(self, key)
        return self.disk.load(self._kinds, key)

    @as_ready
    def last(self, key: int) -> int | None:
        self._seam.read(self)
        return self._last(key)

    @as_ready
    def moved(self, seen: Mapping[int, int | None]) -> dict[int, int | None]:
        self._seam.read(self)
        return {key: self._last(key) for key, last in seen.items() if self._last(key) != last}

    def _last(self, key: int) -> int | None:
        row = self.disk.workflows.get(key)
        return None if row is None else row.last_decision

    @as_ready
    def opening(self, key: int) -> Opening | None:
        self._seam.read(self)
        row = self.disk.workflows.get(key)
        if row is None:
            return None
        return Opening(row, None if row.run is None else self.disk.run(row.run), self.disk.tasks_of(key))

    @as_ready
    def history(self, run: int, after: int = 0, limit: int | None = None) -> list[Recorded]:
        self._seam.read(self)
        found = self.disk.history(self._kinds, run)[after:]
        return found if limit is None else found[:limit]

    @as_ready
    def sizes(self, runs: Sequence[int]) -> dict[int, tuple[int, int]]:
        self._seam.read(self)
        rows = {run: self.disk.events[run] for run in runs if run in self.disk.events}
        return {run: (len(found), sum(len(row[3]) + len(row[4]) for row in found)) for run, found in rows.items()}

    @as_ready
    def last_event(self, run: int) -> Recorded | None:
        self._seam.read(self)
        found = self.disk.history(self._kinds, run)
        return found[-1] if found else None

    @as_ready
    def due(self, until: Micros, limit: int, *, shards: Sequence[int] | None = None) -> list[tuple[Micros, int]]:
        self._seam.read(self)
        within = self.disk.within(shards)
        rows = [row for row in self.disk.workflows.values() if within(row.key)]
        return sorted((w.next_wake, w.key) for w in rows if w.next_wake is not None and w.next_wake <= until)[:limit]

    @as_ready
    def written_in_future(
        self, now: Micros, after: tuple[Micros, int], limit: int, *, shards: Sequence[int] | None = None
    ) -> list[tuple[Micros, int]]:
        self._seam.read(self)
        within = self.disk.within(shards)
        found: list[tuple[Micros, int]] = []
        for w in self.disk.workflows.values():
            if w.next_wake is None or w.run is None or (w.next_wake, w.key) <= after or not within(w.key):
                continue
            if self.disk.events[w.run][w.length - 1][2] > now:
                insort(found, (w.next_wake, w.key))
        return found[:limit]

    @as_ready
    def ready(
        self, limit: int, after: tuple[Micros, int, str] | None = None, *, shards: Sequence[int] | None = None
    ) -> list[Task]:
        self._seam.read(self)
        place = attrgetter("available_at", "workflow", "id")
        found = sorted(self._tasks("ready", shards), key=place)
        return [task for task in found if after is None or place(task) > after][:limit]

    @as_ready
    def leased(self, *, shards: Sequence[int] | None = None) -> list[Task]:
        self._seam.read(self)
        return self._tasks("leased", shards)

    @as_ready
    def leased_by(self, namespace: str, owner: str, call: str) -> list[Task]:
        self._seam.read(self)
        return of_call(self._tasks("leased", None), namespace, owner, call)

    def _tasks(self, state: str, shards: Sequence[int] | None) -> list[Task]:
        within = self.disk.within(shards)
        return [task for task in self.disk.all_tasks() if task.state == state and within(task.workflow)]

    @as_ready
    def endless(
        self, limit: int, after: tuple[int, str] | None = None, *, shards: Sequence[int] | None = None
    ) -> list[Task]:
        self._seam.read(self)
        found = [task for task in self._tasks("leased", shards) if task.until is None]
        return [task for task in found if after is None or (task.workflow, task.id) > after][:limit]

    @as_ready
    def failed(self, *, shards: Sequence[int] | None = None) -> list[Task]:
        self._seam.read(self)
        return self._tasks("failed", shards)

    @as_ready
    def mismatched(
        self, after: int, limit: int, *, shards: Sequence[int] | None = None
    ) -> tuple[list[int], int | None]:
        self._seam.read(self)
        within = self.disk.within(shards)
        keys = [key for key in sorted(self.disk.workflows) if key > after and within(key)]
        page = [self.disk.workflows[key] for key in keys[:limit]]
        found = [
            w.key
            for w in page
            if w.expects != len(self.disk.tasks.get(w.key, ()))
            or (
                w.expects == 0
                and w.next_wake is None
                and not w.waits_externally
                and w.run is not None
                and self.disk.runs[w.run].closed_at is None
            )
        ]
        return found, (page[-1].key if len(page) == limit else None)

    @as_ready
    def runs(self, where: RunFilter) -> list[RunRow]:
        self._seam.read(self)
        found = [self.disk.run(r.key) for r in self.disk.runs.values() if r.namespace == where.namespace]
        for column in ("workflow_id", "workflow_type", "status", "business_key", "queue"):
            value = getattr(where, column)
            if value is not None:
                found = [r for r in found if getattr(r, column) == value]
        if where.statuses is not None:
            found = [r for r in found if r.status in where.statuses]
        if where.current:
            found = [r for r in found if self.disk.workflows[r.workflow].run == r.key]
        if where.before is not None:
            found = [r for r in found if r.key < where.before]
        return sorted(found, key=lambda r: -r.key)[: where.limit]

    @as_ready
    def search(
        self,
        query: RunQuery,
        after: RunPlace | None,
        limit: int,
        bound: int,
        now: Micros,
        **_: Any,
    ) -> SearchedRuns:
        """All runs are looked at, and every condition but those on summaries counts."""
        self._seam.read(self)
        fitting = self._fitting(query, now)
        if after is not None:
            place = after.value, after.key
            fitting = [
                one
                for one in fitting
                if ((one.value, one.row.key) < place if query.descending else (one.value, one.row.key) > place)
            ]
        page, more = fitting[:limit], len(fitting) > limit
        end = RunPlace(page[-1].value, page[-1].row.key) if more else None
        return SearchedRuns(page, len(self.disk.runs), not more, end)

    @as_ready
    def count(self, query: RunQuery, group_by: str | None, bound: int, now: Micros, **_: Any) -> RunCounts:
        self._seam.read(self)
        assert group_by in (None, "status", "workflow_type", "queue", "compatibility")
        numbers = Counter(getattr(one.row, group_by or "", None) for one in self._fitting(query, now))
        return RunCounts(dict(numbers), len(self.disk.runs), True)

    def _fitting(self, query: RunQuery, now: Micros) -> list[FoundRun]:
        found: list[FoundRun] = []
        for key in self.disk.runs:
            row = self.disk.run(key)
            is_current = self.disk.workflows[row.workflow].run == key
            if fits_row(query, row, is_current=is_current):
                found.append(FoundRun(row, is_current, sort_value(query, row, None, now)))
        return sorted(found, key=lambda one: (one.value, one.row.key), reverse=query.descending)

    @as_ready
    def run(self, namespace: str, run_id: str) -> RunRow | None:
        return self._run(namespace, run_id)

    def _run(self, namespace: str, run_id: str) -> RunRow | None:
        self._seam.read(self)
        run = self.disk.runs.get(self.disk.run_ids.get(run_id, 0))
        return None if run is None or run.namespace != namespace else self.disk.run(run.key)

    @as_ready
    def commands(self, workflow: int, skip: int = 0, limit: int | None = None) -> list[CommandRecord]:
        self._seam.read(self)
        found = self.disk.commands.get(workflow, [])[skip:]
        return found if limit is None else found[:limit]

    @as_ready
    def last_command(self, workflow: int, command_type: str) -> CommandRecord | None:
        self._seam.read(self)
        found = [record for record in self.disk.commands.get(workflow, ()) if record.command_type == command_type]
        return found[-1] if found else None

    @as_ready
    def command(self, workflow: int, command_type: str, request_id: str) -> CommandRecord | None:
        self._seam.read(self)
        for record in self.disk.commands.get(workflow, ()):
            if record.request_id == request_id and record.command_type == command_type:
                return record
        return None

    @as_ready
    def sends(self, after: int, limit: int, *, shards: Sequence[int] | None = None) -> list[StoredSend]:
        self._seam.read(self)
        within = self.disk.within(shards)
        return [send for key, send in sorted(self.disk.sends.items()) if key > after and within(send.sender)][:limit]

    @as_ready
    def sends_of(self, senders: Sequence[int]) -> list[StoredSend]:
        self._seam.read(self)
        return [send for _, send in sorted(self.disk.sends.items()) if send.sender in senders]

    @as_ready
    def awaiting(self, after: int, limit: int, *, shards: Sequence[int] | None = None) -> list[int]:
        self._seam.read(self)
        within = self.disk.within(shards)
        rows = self.disk.workflows.values()
        return sorted(w.key for w in rows if w.unanswered > 0 and w.key > after and within(w.key))[:limit]


class Seam:
    """Where a store can be made to fail. This one never does."""

    def commit(self, store: Any, decisions: Sequence[Decision], done: Callable[[Applied], None]) -> None:
        done(store.write(decisions))

    def probe(self, store: Any) -> Unavailable | None:
        return None

    def read(self, store: Any) -> None:
        pass

    def loads(self, store: Any, key: int) -> None:
        """An instance is read as a whole."""

    def misses(self) -> bool:
        return False

    def looked(self, store: Any, found: Ownership) -> Ownership:
        return found

    def deposed(self, store: Any, row: WriterRow) -> None:
        pass

    def hands_over(self, store: Any) -> None:
        pass

    def handed_over(self, store: Any, given: list[int]) -> None:
        pass


def forged(task: Task, **fields: Any) -> Task:
    return replace(task, **fields)
