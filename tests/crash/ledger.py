"""The ledger: what really happened outside, one line for each time an activity or side effect ran.

Appended and synced before the work returns, so it outlives whoever wrote it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_path: str | None = None


class Line(NamedTuple):
    key: str  # the idempotency key: the same for every attempt
    attempt: int
    what: str


def open_at(path: str) -> None:
    """Where this process writes from now on."""
    global _path
    _path = path


def write(key: str, attempt: int, what: str) -> None:
    if _path is None:
        return
    file = os.open(_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{key}\t{attempt}\t{what}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)


def read(path: str | os.PathLike[str]) -> list[Line]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    lines = [line.split("\t") for line in text.splitlines()]
    return [Line(key, int(attempt), what) for key, attempt, what in lines]
