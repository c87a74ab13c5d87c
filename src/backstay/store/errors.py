"""Errors of a database that cannot be used, for callers to catch."""

from __future__ import annotations

from backstay.kernel.errors import BackstayError


class StoreError(BackstayError):
    """The base class for a database that cannot be used.

    Catch it to handle every such problem alike.
    """


class Unavailable(StoreError):
    """The database cannot commit now (disk full, I/O error, locked, unreachable). Nothing was lost.

    Remove the cause that the message names; a running engine resumes by itself. Repeat the request with the same id.
    """


class Deposed(Unavailable):
    """Another process has declared this one dead, and works in its place.

    Nothing that was not confirmed before was written. The engine goes on by itself, as a process that has just begun.
    """


class Forgotten(Deposed):
    """The database has lost commits that it had confirmed: it was restored from a backup, or failed over to a standby without them.

    Commits that were confirmed since then may be gone, and activities may run again. The engine continues with the
    state of the database.
    """


class IncompatibleStore(StoreError):
    """The database was written by a newer version, or belongs to another program.

    Run the newer version, or name another database.
    """


class UnknownDatabase(StoreError, ValueError):
    """The argument names no database of a known kind.

    Use a path, `sqlite:PATH` or `postgresql://...`.
    """


class ForkedEngine(StoreError, RuntimeError):
    """An engine was used after a fork: its lock, threads and connections belong to the parent process.

    Open `Backstay` in the child process.
    """

    def __init__(self, path: str | None = None) -> None:
        what = (
            "this engine was opened before a fork" if path is None else f"{path} was open when this process was forked"
        )
        super().__init__(
            f"{what}; open Backstay only after forking (for example in the web server's post-fork or lifespan hook),"
            " not at import time, or start the child process with spawn"
        )
