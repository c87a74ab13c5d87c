"""Parsing of replies: bodies without a length, in chunks and in lines in chunks, and errors.

A body is read once, however it arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from backstay.kernel.event import HistoryDamaged

SIZE_LINE = 1024  # the most bytes of the line before a chunk, which has its length


def damage_in(said: Mapping[str, Any]) -> HistoryDamaged | None:
    """The damage of a history in a reply, if it has one."""
    if said.get("reason") != "history_damaged":
        return None
    whose = {"workflow_id": said.get("workflow_id"), "run_id": said.get("run_id")}
    return HistoryDamaged(0, int(said.get("sequence", 0)), str(said.get("damage", "")), **whose)


class ChunkReader:
    """`take` is called with the contents of the chunks, piece by piece."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._line = b""  # the beginning of a line before a chunk
        self._left = 0  # bytes that are to come of a chunk and of the line break after it
        self._is_last = False

    def feed(self, data: bytes) -> bool:
        """Take more of the body; returns True at its end. Raises `ValueError` if it is not in chunks."""
        data, self._line = self._line + data, b""
        at = 0
        while at < len(data):
            if self._left:
                if self._left > 2 and not self._is_last:
                    self._take(data[at : at + self._left - 2])
                read = min(self._left, len(data) - at)
                at += read
                self._left -= read
                if self._is_last and not self._left:
                    return True
                continue
            end = data.find(b"\r\n", at)
            if (len(data) if end < 0 else end) - at > SIZE_LINE:
                raise ValueError("the size of a chunk is no number")
            if end < 0:
                self._line = data[at:]
                return False
            size = int(data[at:end].partition(b";")[0], 16)
            if size < 0:
                raise ValueError("a chunk has no size below 0")
            self._left = size + 2
            self._is_last = size == 0
            at = end + 2
        return False


class LineReader:
    """Splits a body in chunks into lines and passes them on. `most`: the most bytes of one line."""

    def __init__(self, line: Callable[[bytes], None], most: int) -> None:
        self._line = line
        self._most = most
        self._begun: list[bytes] = []  # pieces of a line whose end has not arrived
        self._size = 0  # of them
        self.feed = ChunkReader(self._split).feed

    def _split(self, text: bytes) -> None:
        first, *others = text.split(b"\n")
        self._begun.append(first)
        self._size += len(first)
        if self._size > self._most:
            raise ValueError("a line is too long")
        if others:
            self._line(b"".join(self._begun))
            for line in others[:-1]:
                self._line(line)
            self._begun, self._size = [others[-1]], len(others[-1])
