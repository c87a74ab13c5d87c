"""A schedule: where the process of a trial is killed, and what happens in another order than by default.

As text it is what `--backstay-crash=` takes: `5` (killed at point 5), `5.2` (and its successor at its point 2), `5f` (killed at
point 5, and what modules and objects have remembered is forgotten), `o3-1` (at the third choice of an order the second comes
first), `s0` (the first signal arrives after the next one), and several of these with a `+` between them.
"""

from __future__ import annotations

import re

from msgspec import Struct

_KILLS = re.compile(r"(\d+(?:\.\d+)*)(f?)")
_ORDER = re.compile(r"o(\d+)-(\d+)")
_LATE = re.compile(r"s(\d+)")


class CrashSchedule(Struct, frozen=True):
    """`kills`: at which point each life of the process ends. `orders`: which of several that could come next comes next, by the
    number of the choice. `late`: the number of a signal that arrives after the next one. `forgets`: a kill takes what was
    remembered outside the store."""

    kills: tuple[int, ...] = ()
    orders: tuple[tuple[int, int], ...] = ()
    late: int | None = None
    forgets: bool = False

    def __str__(self) -> str:
        parts = [f"o{choice}-{option}" for choice, option in self.orders]
        if self.late is not None:
            parts.append(f"s{self.late}")
        if self.kills:
            parts.append(".".join(map(str, self.kills)) + "f" * self.forgets)
        return "+".join(parts) or "0"


def parse(text: str) -> CrashSchedule:
    """Return the schedule of a text. Raises `ValueError`."""
    kills: tuple[int, ...] = ()
    orders: list[tuple[int, int]] = []
    late: int | None = None
    forgets = False
    for part in text.split("+"):
        if found := _KILLS.fullmatch(part):
            kills = tuple(int(point) for point in found[1].split(".") if point != "0")
            forgets = bool(found[2])
        elif found := _ORDER.fullmatch(part):
            orders.append((int(found[1]), int(found[2])))
        elif found := _LATE.fullmatch(part):
            late = int(found[1])
        else:
            raise ValueError(
                f"{text!r} is no schedule of a crash exploration; write it as its report does, such as 5 or o3-1+5.2"
            )
    return CrashSchedule(kills, tuple(orders), late, forgets)
