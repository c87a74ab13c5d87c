"""The copy itself: its checks, its pages, and the comparison at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from backstay.kernel.machine import Machine
from backstay.store.copying.checking import StoredInstance, read_instances
from backstay.store.copying.mark import KIND, CopyMark, mark_of
from backstay.store.copying.sqlite_end import SqliteEnd
from backstay.store.copying.tables import (
    COPIED,
    LAST_KEY,
    OF_INSTANCES,
    OF_RUNS,
    REGISTRY,
    SEND,
    TALLY,
    WHOLE,
    CopiedTable,
    CopyEnd,
    Insert,
    KeyRange,
    Row,
    all_rows,
    rows_of,
)
from backstay.store.errors import StoreError
from backstay.store.opening import open_store
from backstay.store.sqlite import SqliteStore

PAGE, EVENTS = 500, 20_000  # instances of a transaction; their events, if it is more than one
ROWS, BYTES = 5000, 4 << 20  # of one statement, and so in memory

Progress = Callable[[str, int, int], None]
"""Called with the current step, and the number of finished instances and of all."""

_PUT_MARK = (
    "insert into registry (kind, namespace, name, body) values (?, '', '', ?)"
    " on conflict (kind, namespace, name) do update set body = excluded.body"
)


class CopyReport(NamedTuple):
    """The result of a copy. `differences` and `damaged` say of which workflow and what, one a line."""

    compared: int  # instances
    resumed: int  # how many of the instances an earlier copy had brought over
    discarded: bool  # whether an earlier copy was discarded, because the source had changed since or on request
    differences: list[str]
    damaged: list[str]


class DamagedSource(Exception):
    """Histories of the source do not match their checksums, and the caller did not ask to copy them."""

    def __init__(self, damages: list[str]) -> None:
        super().__init__(f"{len(damages)} workflows of the source are damaged")
        self.found = damages


class Copier:
    """`source` and `target` are open. `leaves_out`: whether entries of the registry of this kind are not copied."""

    def __init__(
        self,
        source: CopyEnd,
        target: CopyEnd,
        machine: Machine,
        progress: Progress,
        *,
        leaves_out: Callable[[str], bool],
    ) -> None:
        self._source = source
        self._target = target
        self._machine = machine
        self._progress = progress
        self._leaves_out = leaves_out
        self._total = 0
        self._discarded = False

    async def copy(self, *, restart: bool = False, with_damaged: bool = False) -> CopyReport:
        """Copy everything, compare it, and take the mark off if nothing differs."""
        await self._hold()
        mark = await self._begin(await self._fingerprint(), restart)
        await self._pages(mark, with_damaged)
        await self._rest()
        await self._target.settle()
        differences, damaged = await self._compared()
        if not differences:
            await self._write_mark(None)
        return CopyReport(self._total, mark.copied, self._discarded, differences, damaged)

    async def compare(self) -> CopyReport:
        """Only compare."""
        await self._hold()
        differences, damaged = await self._compared()
        return CopyReport(self._total, 0, False, differences, damaged)

    async def _hold(self) -> None:
        if self._source.shown == self._target.shown:
            raise StoreError(f"{self._source.shown} cannot be copied into itself; name another database")
        await self._source.hold()
        await self._target.hold()
        await self._source.freeze()
        self._total = int((await _first(self._source.rows("select count(*) from workflow")))[0])

    # -- copying

    async def _fingerprint(self) -> str:
        """The state that shows whether the source has changed since: every decision changes the row of its instance."""
        seen = blake2b(digest_size=16)
        for statement in ("select key, last from workflow order by key", "select key from run order by key"):
            async for row in self._source.rows(statement):
                seen.update(repr(row).encode())
            seen.update(b";")
        return seen.hexdigest()

    async def _begin(self, fingerprint: str, restart: bool) -> CopyMark:
        """The mark of this copy: a new one, or that of an earlier one that can go on."""
        target, here = self._target, self._source.shown
        mark = mark_of(await target.store.kept(KIND))
        if mark is None:
            await self._refuse_full()
        elif mark.fingerprint == fingerprint and not restart:
            return mark
        elif mark.source != here and not restart:
            raise StoreError(
                f"{target.shown} has an unfinished copy of {mark.source}, not of {here}; copy that one to its end, or"
                " discard it with --restart"
            )
        else:
            await target.clear()
            self._discarded = True
        mark = CopyMark(source=here, target=target.shown, fingerprint=fingerprint)
        await self._write_mark(mark)
        return mark

    async def _refuse_full(self) -> None:
        await self._target.freeze()
        try:
            for table in COPIED:
                if await _first(self._target.rows(f"select 1 from {table.name} limit 1"), None) is not None:
                    raise StoreError(
                        f"{self._target.shown} is not empty (it has rows in the table {table.name}); copy into a new"
                        " database or another schema (?schema=name)"
                    )
        finally:
            await self._target.thaw()

    async def _pages(self, mark: CopyMark, with_damaged: bool) -> None:
        refused: list[str] = []
        done = mark.copied
        async for part, keys in self._parts(mark.after):
            instances = await read_instances(self._source, self._machine, part)
            refused += [] if with_damaged else _damaged(instances)
            done += len(keys)
            if refused:
                self._progress("checked", done, self._total)
                continue  # all that are damaged are named before it ends
            mark = msgspec.structs.replace(mark, after=part.last, copied=done)
            await self._page(part, mark)
            self._progress("copied", done, self._total)
        if refused:
            raise DamagedSource(refused)

    async def _page(self, part: KeyRange, mark: CopyMark) -> None:
        async def insert_all(insert: Insert) -> None:
            for table in (*OF_INSTANCES, *OF_RUNS):
                await _pour(rows_of(self._source, table, part), table, insert)

        await self._target.write(insert_all, _put(mark))

    async def _rest(self) -> None:
        """The rows that belong to no instance: few, and so in one transaction, which an earlier copier may have done
        already."""

        async def insert_all(insert: Insert) -> None:
            for table in WHOLE:
                await _pour(self._copied_rows(self._source, table), table, insert)

        await self._target.write(
            insert_all,
            ("delete from send", ()),
            ("delete from tally", ()),
            ("delete from registry where kind <> ?", (KIND,)),
        )

    async def _copied_rows(self, end: CopyEnd, table: CopiedTable) -> AsyncIterator[Row]:
        async for row in all_rows(end, table):
            if table is not REGISTRY or not (row[0] == KIND or self._leaves_out(row[0])):
                yield row

    async def _parts(self, after: int) -> AsyncIterator[tuple[KeyRange, list[int]]]:
        """All instances after a key, in pages. The last page has no end, and rows without an instance are in some page, too."""
        while after < LAST_KEY:
            statement = f"select key, length from workflow where key > ? order by key limit {PAGE + 1}"
            rows = [(row[0], row[1]) async for row in self._source.rows(statement, after)]
            sizes = accumulate(length for _, length in rows)
            fitting = sum(size <= EVENTS for size in sizes)
            keys = [key for key, _ in rows[: max(1, min(fitting, PAGE))]]
            part = KeyRange(after, keys[-1] if len(keys) < len(rows) else LAST_KEY)
            yield part, keys
            after = part.last

    async def _write_mark(self, mark: CopyMark | None) -> None:
        async def nothing(_: Insert) -> None: ...

        forget = ("delete from registry where kind = ?", (KIND,))
        await self._target.write(nothing, forget if mark is None else _put(mark))

    # -- comparing

    async def _compared(self) -> tuple[list[str], list[str]]:
        """The differences between the two ends, and the damage that both have."""
        differences: list[str] = []
        damaged: list[str] = []
        done = 0
        await self._target.freeze()
        async for part, keys in self._parts(-1):
            there = await read_instances(self._source, self._machine, part)
            here = await read_instances(self._target, self._machine, part)
            for key in sorted(there.keys() | here.keys()):
                differences += _differing(there.get(key), here.get(key))
            damaged += _damaged(there)
            done += len(keys)
            self._progress("compared", done, self._total)
        for table, width in ((SEND, 4), (REGISTRY, 3), (TALLY, 6)):
            differences += await self._differing_rows(table, width)
        await self._target.thaw()
        return differences, damaged

    async def _differing_rows(self, table: CopiedTable, width: int) -> list[str]:
        """Rows by their first columns, which name them."""
        there, here = [
            {
                tuple(row[:width]): blake2b(repr(tuple(row)).encode(), digest_size=16).digest()
                async for row in self._copied_rows(end, table)
            }
            for end in (self._source, self._target)
        ]
        return [
            f"{table.name} {'/'.join(map(str, name))}: {_how(there.get(name), here.get(name))}"
            for name in {**there, **here}
            if there.get(name) != here.get(name)
        ]


def _how(there: object, here: object) -> str:
    if here is None:
        return "is missing in the target"
    return "is only in the target" if there is None else "differs"


def _differing(there: StoredInstance | None, here: StoredInstance | None) -> list[str]:
    instance = there or here
    assert instance is not None
    if there is None or here is None:
        return [f"workflow {_name(instance)}: {_how(there, here)}"]
    kinds = there.differences(here)
    differences = [f"its {' and '.join(kinds)} differ"] if kinds else []
    if here.damage != there.damage:
        differences += [f"damaged in the target, {damage}" for damage in here.damage]
    return [f"workflow {_name(instance)}: {'; '.join(differences)}"] if differences else []


def _damaged(instances: dict[int, StoredInstance]) -> list[str]:
    return [f"workflow {_name(instance)}: {damage}" for instance in instances.values() for damage in instance.damage]


def _name(instance: StoredInstance) -> str:
    return (
        instance.workflow_id
        if instance.namespace in ("", "default")
        else f"{instance.namespace}/{instance.workflow_id}"
    )


def _put(mark: CopyMark) -> tuple[str, Row]:
    return _PUT_MARK, (KIND, msgspec.json.encode(mark))


async def _pour(source: AsyncIterator[Row], table: CopiedTable, insert: Insert) -> None:
    rows: list[Row] = []
    size = 0
    async for row in source:
        rows.append(row)
        size += sum(len(value) for value in row if isinstance(value, bytes))
        if len(rows) >= ROWS or size >= BYTES:
            await insert(table, rows)
            rows, size = [], 0
    if rows:
        await insert(table, rows)


_MISSING: Any = object()


async def _first(source: AsyncIterator[Row], default: Any = _MISSING) -> Any:
    rows: Sequence[Row] = [row async for row in source]
    return rows[0] if rows or default is _MISSING else default


async def open_end(database: str, machine: Machine, *, create: bool, unfinished: bool) -> CopyEnd:
    """Open a database for a copy. `create`: it may be new. `unfinished`: it may hold a copy that is not finished."""
    store = await open_store(database, machine.kinds, create=create, unfinished=unfinished)
    if isinstance(store, SqliteStore):
        return SqliteEnd(store)
    # The driver is only needed for a server.
    from backstay.store.copying.postgresql_end import PostgresqlEnd
    from backstay.store.postgresql import PostgresqlStore
    from backstay.store.postgresql.connection import address

    assert isinstance(store, PostgresqlStore)
    return PostgresqlEnd(store, address(database))
