"""Forks: a child inherits the open files of its parent and must not use them.

An OS lock is shared with the child: one that outlives its parent would keep the next engine out, so the child lets go.
SQLite keeps its own locks once per process; the child inherits that record but not the locks, so a new connection there
would believe itself protected: when the parent closes, it removes the write-ahead log under the child, and what the child
commits from then on is lost. So a file that was open at a fork cannot be opened again in the child.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import IO

from backstay.runtime_hooks import after_fork_in_child
from backstay.store.errors import ForkedEngine

File = tuple[int, int]  # device and inode

locks: set[IO[str]] = set()
_open: list[File] = []
_inherited: set[File] = set()


def _forked() -> None:
    for lock in locks:
        lock.close()
    locks.clear()
    _inherited.update(_open)
    _open.clear()


after_fork_in_child(_forked)


def refuse_inherited(path: str) -> None:
    try:
        file = _identity(path)
    except OSError:
        return  # it does not exist or cannot be read; opening it reports that
    if file in _inherited:
        raise ForkedEngine(path)


def opened(path: str) -> None:
    if path != ":memory:":
        _open.append(_identity(path))


def closed(path: str) -> None:
    with suppress(OSError, ValueError):  # moved or replaced meanwhile; keeping it in the list does no harm
        _open.remove(_identity(path))


def _identity(path: str) -> File:
    status = os.stat(path)
    return status.st_dev, status.st_ino
