"""Checks of a SQLite file. Nothing is written: a file of an older release is not brought up to date, either."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from backstay.cli.doctor.results import CheckResult, error, ok, warning
from backstay.cli.format import span
from backstay.cli.problems import waiting_for
from backstay.store.errors import StoreError
from backstay.store.sql import migrations
from backstay.store.sqlite.connection import APPLICATION_ID, check_ours, check_path, refuse_second_names

NAMES = ("file", "permissions", "disk", "clock", "schema", "pages", "write lock")

MEGABYTE = 1 << 20
LONGEST = 10.0  # seconds for the pages
STEPS = 100_000  # of SQLite between two looks at the clock
PATIENCE = 2.0  # seconds for a write lock
CLOSE = 5.0  # seconds

RESTORE = "restore a backup of the file"


def checks(path: str, free_megabytes: int) -> Iterator[CheckResult]:
    """Ends with the first result that makes the rest impossible."""
    found = _file(path)
    yield found
    if found.status == "error":
        return
    yield _permissions(path)
    yield _disk(path, free_megabytes)
    yield _clock(path)
    try:
        with closing(
            sqlite3.connect(Path(path).absolute().as_uri() + "?mode=ro", uri=True, timeout=1, isolation_level=None)
        ) as connection:
            found = _schema(connection, path)
            yield found
            if found.status != "error":
                yield _pages(connection)
    except sqlite3.Error as problem:
        yield error("schema", f"{path} cannot be read: {problem}", f"{RESTORE}, or name another one")
        return
    if found.status != "error":
        yield _write_lock(path)


def _file(path: str) -> CheckResult:
    if not os.path.lexists(path):
        fix = "name the file with --db or DW_DB, or make one: `dw dev FILE`, `dw server`"
        return error("file", f"there is no database {path}", fix)
    try:
        check_path(path)
        refuse_second_names(path)
    except StoreError as problem:
        return error(
            "file", str(problem), f"see `ls -la {Path(path).parent}`; run as the user that the file belongs to"
        )
    return ok("file", f"{path}, {Path(path).stat().st_size / MEGABYTE:,.1f} MB, can be read and written by this user")


def _permissions(path: str) -> CheckResult:
    found = [name for name in (path, f"{path}-wal", f"{path}-shm") if _is_open_to_others(name)]
    if found:
        names = " ".join(found)
        return warning("permissions", f"other users of this machine may use {', '.join(found)}", f"chmod 600 {names}")
    return ok("permissions", "the file and its log are for their owner only")


def _is_open_to_others(path: str) -> bool:
    return os.path.exists(path) and bool(stat.S_IMODE(os.stat(path).st_mode) & 0o077)


def _disk(path: str, least: int) -> CheckResult:
    directory = str(Path(path).absolute().parent)
    free = shutil.disk_usage(directory).free // MEGABYTE
    if free >= least:
        return ok("disk", f"{free:,} MB are free in {directory}")
    fix = "free some space or enlarge the volume; commits fail on a full disk, and go on by themselves when there is space"
    return error("disk", f"{free:,} MB are free in {directory}, less than {least:,}", fix)


def _clock(path: str) -> CheckResult:
    written = max(os.stat(name).st_mtime for name in (path, f"{path}-wal") if os.path.exists(name))
    ahead = written - time.time()
    if ahead <= CLOSE:
        return ok("clock", "not behind the last write of the file")
    message = (
        f"the file was written {span(round(ahead * 1_000_000))} after the time of this machine: its clock was set back"
    )
    return warning("clock", message, "set the clock (`timedatectl set-ntp true`); until then timers fire late")


def _schema(connection: sqlite3.Connection, path: str) -> CheckResult:
    steps = migrations("backstay.store.sqlite")
    try:
        check_ours(connection, path, steps)
    except StoreError as problem:
        return error("schema", str(problem), "install that release of Backstay (`dw --version`), or name another file")
    ((owner,),) = connection.execute("pragma application_id").fetchall()
    ((version,),) = connection.execute("pragma user_version").fetchall()
    return compared(path, version if owner == APPLICATION_ID else 0, steps[-1].number)


def compared(where: str, version: int, newest: int) -> CheckResult:
    """A schema that this release can bring up to date, or that is up to date."""
    if version < newest:
        message = f"{where} has schema {version}, this release uses {newest}" if version else f"{where} is empty"
        return warning("schema", message, "make a backup; the next start of a server or a program brings it up to date")
    return ok("schema", f"{version}, the one of this release")


def _pages(connection: sqlite3.Connection) -> CheckResult:
    """Whether SQLite finds the file sound, as far as it gets in ten seconds."""
    deadline = time.monotonic() + LONGEST
    connection.set_progress_handler(lambda: int(time.monotonic() > deadline), STEPS)
    try:
        with waiting_for("the pages of the file"):
            ((said,), *more) = connection.execute("pragma quick_check(3)").fetchall()
    except sqlite3.OperationalError as problem:
        if problem.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            return ok("pages", f"sound as far as {LONGEST:.0f} s go; `pragma integrity_check` looks at all of them")
        raise
    if (said, more) != ("ok", []):
        return error("pages", f"the file is damaged: {said}".replace("\n", " "), RESTORE)
    return ok("pages", "sound")


def _write_lock(path: str) -> CheckResult:
    name = Path(path).absolute().as_uri() + "?mode=rw"
    try:
        with closing(sqlite3.connect(name, uri=True, timeout=PATIENCE, isolation_level=None)) as connection:
            connection.execute("begin immediate")
            connection.execute("rollback")
    except sqlite3.Error as problem:
        message = f"nothing can be committed for {PATIENCE:.0f} s: {problem}"
        return error("write lock", message, f"find the program that holds it with `lsof {path}`, and let it finish")
    return ok("write lock", "free")
