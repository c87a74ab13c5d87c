"""Which dialect a database is of: its URL says so. A path without a scheme is a SQLite file."""

from __future__ import annotations

from collections.abc import Awaitable
from urllib.parse import urlsplit

from backstay.kernel.event import Event
from backstay.store import Now, Store
from backstay.store.sqlite import SqliteStore
from backstay.store.sqlite.writer import Offload

_SERVERS = ("postgresql://", "postgres://")


def is_server(database: str) -> bool:
    """Whether this names a database on a server, rather than a file."""
    return database.startswith(_SERVERS)


def shown(database: str) -> str:
    """A path, or the URL of a server without its password and options."""
    if not is_server(database):
        return database
    parts = urlsplit(database)
    user, at, host = parts.netloc.rpartition("@")
    return f"postgresql://{user.partition(':')[0]}{at}{host}{parts.path}"


def open_store(
    database: str, kinds: dict[str, type[Event]], offload: Offload | None = None, *, create: bool = True
) -> Awaitable[Store]:
    """Open what a path, `sqlite:PATH` or `postgresql://...` names. `offload` runs slow commits of a file elsewhere."""
    if is_server(database):
        # Only who uses a server needs its driver.
        from backstay.store.postgresql import PostgresqlStore

        return PostgresqlStore.open(database, kinds, create=create)
    return Now(SqliteStore(database.removeprefix("sqlite:"), kinds, offload))
