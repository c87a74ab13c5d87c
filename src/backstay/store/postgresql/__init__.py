"""PostgreSQL: one database for many processes. One engine per schema, with others reading and submitting beside it.

Writes go through one session in group commits; reads use a few others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Self, TypeVar

from backstay.kernel.decision import Decision, InstanceRow, RunRow
from backstay.kernel.event import Event, HistoryDamaged
from backstay.kernel.task import Task
from backstay.kernel.values import Micros
from backstay.store import Applied, Deferred, Loaded, Located, Opening, RegistryEntry, RunFilter
from backstay.store.errors import Unavailable
from backstay.store.ownership import SHARDS, NodeFacts, Ownership, ShardRow, bytes_of
from backstay.store.postgresql.connection import Address, address, check_commits, check_sessions, connect, prepare
from backstay.store.postgresql.listing import DIALECT, select_runs
from backstay.store.postgresql.nodes import PostgresqlNodes
from backstay.store.postgresql.readers import Readers
from backstay.store.postgresql.writer import PostgresqlWriter
from backstay.store.reading import POINTER, Found, Reading, found_by_order, loaded, named, opened, tasks_of
from backstay.store.rows import call_hash, of_call
from backstay.store.rows import run as run_row
from backstay.store.search import Steps
from backstay.store.sql import OF_SHARDS, number, queries
from backstay.store.views import VIEWS, ViewChanges, view_statements

T = TypeVar("T")

CLOSING = 5.0  # seconds to leave in good order
INSTANCE = len(InstanceRow.__struct_fields__)  # columns of an instance at the beginning of a row of `load`
RUN = len(RunRow.__struct_fields__)  # the columns of its run, which follow


class PostgresqlStore(Reading):
    """Bound to the event loop that opened it. `kinds` maps event type names to event classes."""

    shared = True
    _dialect = DIALECT

    def __init__(self, database: Address, kinds: dict[str, type[Event]], readers: Readers, evidence: bool) -> None:
        self.path = database.shown
        self._kinds = kinds
        self._sql = queries("backstay.store.postgresql", numbered=True)
        self._readers = readers
        self.exclusive = False
        self.shards = SHARDS
        self.owned = bytearray(SHARDS)
        self.writer = PostgresqlWriter(database, self._sql, self.owned, evidence=evidence)
        self._nodes = PostgresqlNodes(self.writer, self._sql, self._fetch)
        self._others: Found | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, url: str, kinds: dict[str, type[Event]], *, create: bool = True) -> Self:
        database = address(url)
        connection = await connect(database)
        try:
            evidence = await check_sessions(database, connection)
            if database.pooled:
                await check_commits(database, connection)
            await prepare(connection, database, create)
        except BaseException:
            connection.terminate()
            raise
        store = cls(database, kinds, Readers(database, connection), evidence)
        try:
            await store.changed()
        except BaseException:
            connection.terminate()
            raise
        return store

    # -- writing

    def apply(self, decisions: Sequence[Decision], done: Callable[[Applied], None]) -> None:
        async def go() -> None:
            done(await self.writer.apply(decisions))

        self._spawn(go())

    def keep(self, entry: RegistryEntry, done: Callable[[Unavailable | None], None]) -> None:
        self.keep_all([entry], done)

    def keep_all(self, entries: Sequence[RegistryEntry], done: Callable[[Unavailable | None], None]) -> None:
        async def go() -> None:
            try:
                await self.writer.keep(entries)
            except Unavailable as error:
                done(error)
            else:
                done(None)

        self._spawn(go())

    async def keep_if(self, entry: RegistryEntry, before: bytes | None) -> bool:
        return await self.writer.keep_if(entry, before)

    def prune(self, runs: Sequence[Located], done: Callable[[frozenset[int] | Unavailable], None]) -> None:
        async def go() -> None:
            try:
                stay = await self.writer.prune(runs)
            except Unavailable as error:
                done(error)
            else:
                done(stay)

        self._spawn(go())

    def put_views(self, changes: ViewChanges, done: Callable[[Unavailable | None], None]) -> None:
        async def go() -> None:
            try:
                await self._readers.write_views([(self._sql[name], rows) for name, rows in view_statements(changes)])
            except Unavailable as error:
                done(error)
            else:
                done(None)

        self._spawn(go())

    async def prune_views(self) -> None:
        await self._readers.write_views([(self._sql[f"orphans_of_{view}"], [()]) for view in VIEWS])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="backstay-commit")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def probe(self) -> Unavailable | None:
        self._readers.forget()
        self._others = None  # `changed` is true at its next call
        try:
            await self.writer.probe()
        except Unavailable as error:
            return error
        return None

    # -- owners

    @property
    def me(self) -> int:
        return self.writer.id

    def look(self) -> Awaitable[Ownership]:
        return self._nodes.look()

    def mark(self, facts: NodeFacts, now: Micros) -> Awaitable[bool]:
        return self._nodes.mark(facts, now)

    def claim(self, shards: Sequence[int]) -> Awaitable[dict[int, ShardRow]]:
        return self._nodes.claim(shards)

    def depose(self, node: int, *, gone: bool = False) -> Awaitable[bool]:
        return self._nodes.depose(node, gone=gone)

    def hand_over(self, shards: Sequence[int], to: int | None, now: Micros) -> Awaitable[list[int]]:
        return self._nodes.hand_over(shards, to, now)

    async def acquire(self) -> bool:
        return await self.writer.acquire()

    async def clock(self) -> Micros:
        return (await self._fetch("clock"))[0][0]

    async def has_engine(self) -> bool:
        return self.writer.holder or await self._nodes.is_any_alive()

    async def changed(self) -> bool:
        await self.writer.check()
        before, self._others = self._others, await self._fetch("others", self.writer.id)
        return self._others != before

    def undisturbed(self) -> bool:
        return False  # only the database knows

    async def registry_version(self) -> int | None:
        return (await self._fetch("registry_version"))[0][0]

    async def notices(self, *, shards: Sequence[int] | None = None) -> list[int]:
        """Read and delete the notices. They are returned again if the answer of the delete is lost."""
        rows: Found = await self._ask("notices", (), lambda rows: rows, shards=shards)
        if rows:
            await self.writer.forget_notices([key for key, _ in rows])
        return list(dict.fromkeys(workflow for _, workflow in rows))

    async def close(self) -> None:
        await self.writer.close(CLOSING)
        await self._readers.close(CLOSING)

    # -- reading

    def _ask(
        self, query: str, parameters: Sequence[Any], shape: Callable[[Found], T], *, shards: Sequence[int] | None = None
    ) -> Deferred[T]:
        if shards is not None:
            query, parameters = f"{query}{OF_SHARDS}", (*parameters, bytes_of(shards))
        return Deferred(lambda: self._answer(query, parameters, shape))

    def _listed(self, names: list[str]) -> list[str]:
        return names

    async def _answer(self, query: str, parameters: Sequence[Any], shape: Callable[[Found], T]) -> T:
        rows = await self._fetch(query, *parameters)
        try:
            return shape(rows)
        except HistoryDamaged as damage:
            raise named(damage, await self._fetch("run_by_key", damage.run)) from damage.__cause__

    def leased_by(self, namespace: str, owner: str, call: str) -> Awaitable[list[Task]]:
        hashed = call_hash(namespace, owner, call)
        return self._ask("by_call", (hashed,), lambda rows: of_call(tasks_of(rows), namespace, owner, call))

    async def load(self, key: int) -> Loaded | None:
        rows = await self._fetch("load", key)
        if not rows:
            return None
        *columns, tasks, events = rows[0]
        run = columns[INSTANCE:]
        assert len(run) == RUN
        instance = columns[:INSTANCE]
        try:
            return loaded(self._kinds, instance, tasks, None if run[0] is None else run, events)
        except HistoryDamaged:
            newest = await self._fetch("newest_run", key)
            if not newest or newest[0][0] == instance[POINTER]:
                raise
            # Read in another statement than its instance: if it changed in between, the guard of the next decision fails.
            events = await self._fetch("history", newest[0][0], 0, 1 << 62)
            return found_by_order(self._kinds, instance, tasks, newest[0], events)

    async def opening(self, key: int) -> Opening | None:
        rows = await self._fetch("opening", key)
        if not rows:
            return None
        *columns, tasks = rows[0]
        run = columns[INSTANCE:]
        return opened(self._kinds, columns[:INSTANCE], tasks, None if run[0] is None else run)

    async def runs(self, where: RunFilter) -> list[RunRow]:
        statement, parameters = select_runs(self._sql["runs"], where)
        return [run_row(row) for row in await self._read(statement, *parameters)]

    def _walk(self, steps: Callable[[], Steps[T]]) -> Deferred[T]:
        return Deferred(lambda: self._walked(steps()))

    async def _walked(self, steps: Steps[T]) -> T:
        try:
            statement, given = next(steps)
            while True:
                statement, given = steps.send(await self._readers.fetch(number(statement), *given))
        except StopIteration as end:
            return end.value

    def _fetch(self, name: str, *parameters: Any) -> Awaitable[Found]:
        return self._read(self._sql[name], *parameters)

    async def _read(self, statement: str, *parameters: Any) -> Found:
        # No text of a database has a zero byte in it, so nothing is found by one; the server would call it an error.
        if any(isinstance(value, str) and "\0" in value for value in parameters):
            return ()
        return await self._readers.fetch(statement, *parameters)
