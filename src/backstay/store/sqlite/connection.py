"""Opening a SQLite file safely: pragmas, migrations, and errors with advice.

The file is ours (application id) and of a version we know, or it is left untouched: nothing is written before that is
clear.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from backstay.private_files import create_private
from backstay.store.errors import IncompatibleStore, StoreError, Unavailable
from backstay.store.sql import Migration, check_recorded, check_version, migrations
from backstay.store.views import digest

APPLICATION_ID = 0x486F6C64  # "Hold"
OLDEST_SQLITE = (3, 38, 0)  # strict tables and the ->> operator

BUSY = 50  # milliseconds to wait for another writer on the engine's thread
PATIENT = 5000  # the same where the engine is not blocked: on opening, and on the commit thread

_TAKEN = {"UNIQUE constraint failed: run.key", "UNIQUE constraint failed: send.key"}
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

GONE = "earlier commits are only in that file; put the file back, with its -wal, or restore a backup"

_ADVICE = {
    sqlite3.SQLITE_FULL: "the disk is full; free some space and it goes on by itself",
    sqlite3.SQLITE_IOERR: "the disk reports an error; check it and its mount",
    sqlite3.SQLITE_READONLY: "the file or its directory is read-only; make both writable",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened; check that it exists and that its directory is writable",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; restore it from a backup",
    sqlite3.SQLITE_NOTADB: "this is not a SQLite database",
    sqlite3.SQLITE_BUSY: "another program holds its write lock; find it with `lsof` and let it finish",
}


class FileGone(sqlite3.OperationalError):
    """The file that is open is no longer the one of that name."""


def file_of(path: str) -> tuple[int, int] | None:
    """The file that has this name now; None if there is none, or it is in memory."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def primary(error: sqlite3.Error) -> int:
    """The primary SQLite result code of a Python exception (0 if it has none)."""
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def is_down(error: sqlite3.Error) -> bool:
    """Whether the database as a whole failed, rather than one statement."""
    return primary(error) in _DOWN


def is_taken_key(error: Exception) -> bool:
    """Whether the key of a row is another row's: two engines may mint the same one."""
    return isinstance(error, sqlite3.IntegrityError) and str(error) in _TAKEN


def unavailable(path: str, error: sqlite3.Error) -> Unavailable:
    advice = GONE if isinstance(error, FileGone) else _ADVICE.get(primary(error))
    return Unavailable(f"{path}: {error}" + (f": {advice}" if advice else ""))


def open_database(path: str) -> sqlite3.Connection:
    """The writing connection of a file that is made ours if it is new, and refused untouched if it is not ours."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise StoreError(f"this Python brings SQLite {sqlite3.sqlite_version}; Backstay needs {oldest} or newer")
    check_path(path)
    _create(path)
    connection = connect(path, create=True, wait=PATIENT)
    try:
        steps = migrations("backstay.store.sqlite")
        if path == ":memory:":
            _fill(connection, steps)
        check_ours(connection, path, steps)
        _use_wal(connection, path)
        migrate(connection, path, steps)
        connection.execute(f"pragma busy_timeout = {BUSY}")
        return connection
    except sqlite3.Error as error:
        connection.close()
        raise _cannot_open(path, error) from error
    except BaseException:
        connection.close()
        raise


def connect(path: str, *, create: bool = False, readers: bool = False, wait: int = BUSY) -> sqlite3.Connection:
    """A connection with our pragmas. Autocommit: every transaction is begun and ended by name."""
    # Only opening makes a file: a database that is gone must not come back empty.
    name = path if create or path == ":memory:" else Path(path).as_uri() + "?mode=rw"
    try:
        connection = sqlite3.connect(
            name, isolation_level=None, check_same_thread=False, timeout=0, cached_statements=256, uri=name is not path
        )
    except sqlite3.Error as error:
        raise unavailable(path, error) from error
    try:
        connection.execute(f"pragma busy_timeout = {wait}")
        connection.execute(f"pragma cache_size = {-4096 if readers else -12288}")
        connection.execute("pragma temp_store = memory")
        connection.create_function("md5", 1, digest, deterministic=True)
        if not readers:
            connection.execute("pragma synchronous = full")
            connection.execute("pragma wal_autocheckpoint = 1000")
            # Not 0: truncating the log after each checkpoint makes every commit extend the file again.
            connection.execute("pragma journal_size_limit = 67108864")
        return connection
    except sqlite3.Error as error:
        connection.close()
        raise _cannot_open(path, error) from error


def _cannot_open(path: str, error: sqlite3.Error) -> StoreError:
    if primary(error) == sqlite3.SQLITE_NOTADB:
        return IncompatibleStore(f"{path} is not a SQLite database; give Backstay a file of its own")
    return unavailable(path, error)


def check_path(path: str) -> None:
    """Report a wrong path before SQLite raises a vague error."""
    if path == ":memory:":
        return
    if not path:
        raise StoreError("the path of the database is empty; name a file, for example backstay.db, or :memory:")
    file = Path(path)
    try:
        if file.is_dir():
            raise StoreError(f"{path} is a directory; name a file in it, for example {path.rstrip('/')}/backstay.db")
        if not file.parent.is_dir():
            raise StoreError(f"the directory {file.parent} does not exist; create it first")
        target = file if file.exists() else file.parent
    except PermissionError as error:
        raise Unavailable(f"{path}: this user may not read {error.filename}; give it access") from error
    for entry in (target, file.parent):
        if not os.access(entry, os.W_OK):
            raise Unavailable(f"{path}: {entry} is not writable; SQLite must write the file and its directory")


def _create(path: str) -> None:
    """Create the file of a new database for its owner only; SQLite gives its log the same permissions."""
    if path == ":memory:":
        return
    try:
        create_private(os.path.realpath(path))
    except OSError as error:
        raise Unavailable(f"{path}: the file cannot be created: {error.strerror}") from error
    refuse_second_names(path)


def refuse_second_names(path: str) -> None:
    names = os.stat(path).st_nlink
    if names > 1:
        raise StoreError(
            f"{path} has {names} names (hard links). SQLite keeps a log beside each name, so processes that use different names"
            " lose each other's commits; find the others with `find -samefile`, and remove them or make copies"
        )


def check_ours(connection: sqlite3.Connection, path: str, steps: list[Migration]) -> None:
    """Refuse a file of another program or of a newer version. Reads only, and all of it at one moment."""
    connection.execute("begin")
    try:
        owner = _number(connection, "pragma application_id")
        version = _number(connection, "pragma user_version")
        if owner != APPLICATION_ID and (owner != 0 or _number(connection, "select count(*) from sqlite_master") > 0):
            raise IncompatibleStore(f"{path} belongs to another program; give Backstay a file of its own")
        check_version(path, version, steps)
        if owner == APPLICATION_ID:
            recorded = connection.execute("select number, checksum from migration order by number")
            check_recorded(path, recorded, steps)
    finally:
        with suppress(sqlite3.Error):
            connection.execute("rollback")


def _use_wal(connection: sqlite3.Connection, path: str) -> None:
    """Write-ahead logging, for good. Several processes may open a new file at once, and only one can switch it."""
    for last in (False, False, False, True):
        try:
            mode = connection.execute("pragma journal_mode = wal").fetchone()[0]
        except sqlite3.Error as error:
            # SQLite does not wait for this lock by itself. It does for this one, which the other process holds.
            if last or primary(error) != sqlite3.SQLITE_BUSY:
                raise
            connection.execute("begin immediate")
            connection.execute("rollback")
        else:
            if mode not in ("wal", "memory"):
                raise Unavailable(f"{path}: no write-ahead log on this file system ({mode} mode); use a local disk")
            return


_schema: bytes | None = None  # a database with our schema and no rows


def _fill(connection: sqlite3.Connection, steps: list[Migration]) -> None:
    """Copy our schema into a new database in memory. That takes a tenth of making it, and tests open one after the other."""
    global _schema
    if _schema is None:
        with closing(connect(":memory:")) as made:
            migrate(made, ":memory:", steps)
            _schema = made.serialize()
    with closing(sqlite3.connect(":memory:")) as source:
        source.deserialize(_schema)
        source.backup(connection)


def migrate(connection: sqlite3.Connection, path: str, steps: list[Migration]) -> None:
    """Bring the schema to our version, all of it or nothing. Forward only; another process may be faster."""
    if _number(connection, "pragma user_version") == steps[-1].number:
        return
    connection.execute("begin immediate")
    try:
        version = _number(connection, "pragma user_version")
        check_version(path, version, steps)
        connection.execute(
            "create table if not exists migration (number integer primary key, name text, checksum text) strict"
        )
        for step in steps:
            if step.number > version:
                for statement in step.script.split(";\n"):
                    if statement.strip():
                        connection.execute(statement)
                connection.execute("insert into migration values (?, ?, ?)", (step.number, step.name, step.checksum))
        connection.execute(f"pragma user_version = {steps[-1].number}")
        connection.execute(f"pragma application_id = {APPLICATION_ID}")
        connection.execute("commit")
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("rollback")
        raise


def _number(connection: sqlite3.Connection, statement: str) -> int:
    return connection.execute(statement).fetchone()[0]
