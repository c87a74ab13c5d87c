"""Opens the store for the address of a database: PostgreSQL for its URLs, SQLite for a path."""

from __future__ import annotations

from collections.abc import Awaitable

from backstay.kernel.event import Event
from backstay.store import Ready, Store
from backstay.store.address import checked, is_server
from backstay.store.sqlite import SqliteStore
from backstay.store.sqlite.writer import Offload


def open_store(
    database: str, kinds: dict[str, type[Event]], offload: Offload | None = None, *, create: bool = True
) -> Awaitable[Store]:
    """Open the database of a path, `sqlite:PATH` or `postgresql://...`. `offload` runs slow commits of a file on a thread."""
    if is_server(checked(database)):
        # The driver is only needed for a server.
        from backstay.store.postgresql import PostgresqlStore

        return PostgresqlStore.open(database, kinds, create=create)
    return Ready(SqliteStore(database.removeprefix("sqlite:"), kinds, offload))
