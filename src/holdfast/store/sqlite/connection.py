"""Opening a SQLite file safely: pragmas, migrations, and errors that say what to do.

The file is ours (application id) and of a version we know, or it is left untouched.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from holdfast.store import IncompatibleStore, StoreError, Unavailable
from holdfast.store.sql import migrations

APPLICATION_ID = 0x486F6C64  # "Hold"

_DOWN = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
}

_ADVICE = {
    sqlite3.SQLITE_FULL: "the disk is full; free some space and it goes on by itself",
    sqlite3.SQLITE_IOERR: "the disk reports an error; check it and its mount",
    sqlite3.SQLITE_READONLY: "the file or its directory is read-only; make both writable",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened; check that its directory exists and is writable",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; restore it from a backup",
    sqlite3.SQLITE_NOTADB: "this is not a SQLite database",
    sqlite3.SQLITE_BUSY: "another program holds its write lock; find it with `lsof` and let it finish",
}


def primary(error: sqlite3.Error) -> int:
    """The primary SQLite result code behind a Python exception (0 if it has none)."""
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def is_down(error: sqlite3.Error) -> bool:
    """Whether the database as a whole failed, rather than one statement."""
    return primary(error) in _DOWN


def unavailable(path: str, error: sqlite3.Error) -> Unavailable:
    advice = _ADVICE.get(primary(error))
    return Unavailable(f"{path}: {error}" + (f": {advice}" if advice else ""))


def connect(path: str, *, readers: bool = False) -> sqlite3.Connection:
    """A connection with our pragmas. Autocommit: every transaction is begun and ended by name."""
    try:
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=0, cached_statements=256
        )
        connection.execute("pragma busy_timeout = 50")
        connection.execute(f"pragma cache_size = {-4096 if readers else -32768}")
        connection.execute("pragma temp_store = memory")
        if not readers:
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = full")
            connection.execute("pragma wal_autocheckpoint = 1000")
            # Not 0: truncating the log after each checkpoint makes every commit extend the file again.
            connection.execute("pragma journal_size_limit = 67108864")
        return connection
    except sqlite3.Error as error:
        raise unavailable(path, error) from error


def check_path(path: str) -> None:
    """Say what is wrong with a path before SQLite says something vague."""
    if path == ":memory:":
        return
    file = Path(path)
    if file.is_dir():
        raise StoreError(f"{path} is a directory; name a file in it, for example {path.rstrip('/')}/holdfast.db")
    if not file.parent.is_dir():
        raise StoreError(f"the directory {file.parent} does not exist; create it first")
    target = file if file.exists() else file.parent
    if not os.access(target, os.W_OK) or not os.access(file.parent, os.W_OK):
        raise Unavailable(f"{path}: {target} is not writable; SQLite must write the file and its directory")


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Bring the schema to our version. Forward only; a file from a newer version is refused, untouched."""
    try:
        version = connection.execute("pragma user_version").fetchone()[0]
        owner = connection.execute("pragma application_id").fetchone()[0]
        foreign = owner not in (0, APPLICATION_ID) or (
            owner == 0 and connection.execute("select count(*) from sqlite_master").fetchone()[0] > 0
        )
        if foreign:
            raise IncompatibleStore(f"{path} belongs to another program; give Holdfast a file of its own")
        steps = migrations("holdfast.store.sqlite")
        newest = steps[-1][0]
        if version > newest:
            raise IncompatibleStore(
                f"{path} has schema {version}, this version of Holdfast knows up to {newest}; upgrade Holdfast"
            )
        if version == newest:
            return
        _run(connection, steps)
    except sqlite3.Error as error:
        raise unavailable(path, error) from error


def _run(connection: sqlite3.Connection, steps: list[tuple[int, str, str]]) -> None:
    connection.execute("pragma busy_timeout = 5000")
    connection.execute("begin immediate")
    try:
        # Another process may have migrated while we waited for the lock.
        version = connection.execute("pragma user_version").fetchone()[0]
        connection.execute(
            "create table if not exists migration (number integer primary key, name text, checksum text) strict"
        )
        for number, name, script in steps:
            if number <= version:
                continue
            for statement in script.split(";\n"):
                if statement.strip():
                    connection.execute(statement)
            digest = sha256(script.encode()).hexdigest()
            connection.execute("insert into migration values (?, ?, ?)", (number, name, digest))
        connection.execute(f"pragma user_version = {steps[-1][0]}")
        connection.execute(f"pragma application_id = {APPLICATION_ID}")
        connection.execute("commit")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("rollback")
        raise
    finally:
        connection.execute("pragma busy_timeout = 50")
