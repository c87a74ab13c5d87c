"""Files that hold what runs know: for their owner only, from the moment they exist, whatever the umask says.

A file that is created first and protected later can be opened by another user in between.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import IO

MODE = 0o600

_creating = threading.Lock()


def create_private(path: str) -> None:
    """Create an empty file, unless there is one.

    One thread at a time: when a process closes a file, it loses all its locks on that file, those of SQLite on other threads
    included. So no thread may open a database that another thread has not closed here yet.
    """
    with _creating:
        try:
            made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
        except FileExistsError:
            return
        os.close(made)


def write_private(path: Path) -> IO[bytes]:
    """Open a new file for writing. One of that name, left by a process that was killed, is removed."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE), "wb")


def open_beside(path: str, other: str) -> IO[str]:
    """Open a file for reading and appending; a new one gets the permissions of `other`, to which it belongs."""
    mode = os.stat(other).st_mode & 0o666
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, mode), "a+", encoding="utf-8")
