"""Positions of commands: in the order of the commits of one instance, and in the order of time over all instances.

There is no counter in the database that every writer would have to ask. A writer mints positions from its own clock:
microseconds, followed by some bits of its own, so that two writers hardly ever mint the same. Within a writer they grow.

Between writers the clock decides nothing. The commands of one instance are in the order of its decisions, and a
decision is only written if its guard matches, that is, on top of the decision that it was made on. That one was
committed before it was read, and it was read before this statement began, so the statement sees all earlier commands of
the instance. It takes the larger one of the minted position and the successor of the newest one (`greatest` in
`write`). So a writer whose clock is an hour late writes its commands right after the others, one by one, and no
position is taken twice. Of several commands of one instance in one batch, both numbers grow, and so does the larger
one.

Only the order over all instances, which the audit shows, is as good as the clocks are.
"""

from __future__ import annotations

from collections.abc import Callable
from secrets import randbits
from time import time_ns

from backstay.kernel.values import KEY_EPOCH, Micros

BITS = 12
"""Of the writer. 51 bits are left for microseconds, until the year 2091."""


def _now() -> Micros:
    return time_ns() // 1000


class Positions:
    def __init__(self, now: Callable[[], Micros] = _now) -> None:
        self._now = now
        self._writer = randbits(BITS)
        self._last = 0

    def mint(self) -> int:
        self._last = max(self._now() - KEY_EPOCH, self._last + 1)
        return self._last << BITS | self._writer
