"""The connection through which a SQLite store writes, for tests that damage or inspect its rows."""

from __future__ import annotations

import sqlite3

from backstay.store import Store
from backstay.store.sqlite import SqliteStore


def connection_of(store: Store) -> sqlite3.Connection:
    assert isinstance(store, SqliteStore)
    connection = store.writer.connection
    assert connection is not None
    return connection
