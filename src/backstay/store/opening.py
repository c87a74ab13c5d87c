"""Opens the store for the address of a database: PostgreSQL for its URLs, SQLite for a path."""

from __future__ import annotations

from collections.abc import Awaitable

from backstay.kernel.event import Event
from backstay.store import Ready, Store
from backstay.store.address import checked, is_server
from backstay.store.copying.mark import KIND, refuse_mark, refuse_unfinished
from backstay.store.sqlite import SqliteStore
from backstay.store.sqlite.writer import Offload


def open_store(
    database: str,
    kinds: dict[str, type[Event]],
    offload: Offload | None = None,
    *,
    create: bool = True,
    unfinished: bool = False,
) -> Awaitable[Store]:
    """Open the database of a path, `sqlite:PATH` or `postgresql://...`. `offload` runs slow commits of a file on a thread.

    `unfinished`: it may hold a copy that is not finished.
    """
    if is_server(checked(database)):
        from backstay.store.postgresql import PostgresqlStore  # here: its driver is only needed for a server

        opened = PostgresqlStore.open(database, kinds, create=create)
        return opened if unfinished else _finished(opened)
    store = SqliteStore(database.removeprefix("sqlite:"), kinds, offload)
    if not unfinished:
        try:
            entries = store.kept(KIND)
            assert isinstance(entries, Ready), "a file is read at once"
            refuse_mark(entries.value)
        except BaseException:
            store.close()
            raise
    return Ready(store)


async def _finished(opened: Awaitable[Store]) -> Store:
    """The store, unless it holds a copy that is not finished."""
    store = await opened
    try:
        await refuse_unfinished(store)
    except BaseException:
        await store.close()
        raise
    return store
