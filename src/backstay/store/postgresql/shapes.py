"""The statement `write` in the shapes that batches need: cut into its parts, and joined without those that have no rows.

A part without rows writes nothing, but the server sets it up and takes it down with every batch. For a batch of one, that is
a quarter of its work. The server prepares each shape once. Few occur; when there are too many, the whole statement is taken,
which fits every batch.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MOST = 16  # shapes that are kept, besides the whole

_PART = re.compile(r"^(?:with|\),) (\w+) as \($\n", re.MULTILINE)
_LINE = re.compile(r"^(.*) -- with ([\w, ]+)$\n", re.MULTILINE)
_PARAMETER = re.compile(r"\$(\d+)")

TABLES = (
    "fresh",
    "moved",
    "opened",
    "changed",
    "appended",
    "put",
    "dropped",
    "recorded",
    "taken",
    "sent",
)
"""The parts that take rows, in the order of their parameters. The bit of a table in a mask is its position here."""

ALL = (1 << len(TABLES)) - 1

_FOLLOWING = {"received": "taken"}


class WriteShape(NamedTuple):
    statement: str
    tables: int  # mask: the tables whose rows it takes


class Shapes:
    """The shapes of one handle. `telling`: a batch leaves notices."""

    def __init__(self, whole: str, most: int = MOST) -> None:
        _, *parts = _PART.split(whole)
        last, self._answer = parts[-1].split("\n)\n")
        self._parts = dict(zip(parts[::2], [*parts[1:-2:2], f"{last}\n"], strict=True))
        self._most = most
        self._kept: dict[tuple[int, bool], WriteShape] = {}
        self._whole = {telling: WriteShape(self._join(ALL, telling), ALL) for telling in (False, True)}

    def fitting(self, tables: int, telling: bool) -> WriteShape:
        """The statement for a batch that has rows for these tables."""
        shape = self._kept.get((tables, telling))
        if shape is None:
            if len(self._kept) >= self._most:
                return self._whole[telling]
            shape = self._kept[tables, telling] = WriteShape(self._join(tables, telling), tables)
        return shape

    def _join(self, tables: int, telling: bool) -> str:
        left_out = {table for bit, table in enumerate(TABLES) if not tables >> bit & 1}
        if not telling:
            left_out.add("noticed")
        left_out |= {part for part, leader in _FOLLOWING.items() if leader in left_out}
        joined = "), ".join(f"{name} as (\n{body}" for name, body in self._parts.items() if name not in left_out)

        def line(match: re.Match[str]) -> str:
            return "" if left_out.intersection(match[2].split(", ")) else f"{match[1]}\n"

        return _numbered_anew(_LINE.sub(line, f"with {joined})\n{self._answer}"))


def _numbered_anew(statement: str) -> str:
    """The parameters that are left, in their order and without gaps."""
    left = sorted({int(number) for number in _PARAMETER.findall(statement)})
    numbers = {before: now for now, before in enumerate(left, 1)}
    return _PARAMETER.sub(lambda match: f"${numbers[int(match[1])]}", statement)
