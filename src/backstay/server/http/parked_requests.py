"""Requests that wait: polls for tasks, and calls for a result, an update, an event. Their number is bounded, and shared fairly.

Each counts for its namespace and for the account (`accounts.py`) that sent it. When there are as many as there may be, the share
that has the most gives up its oldest for a request of a smaller one; a request of the largest share is refused.
"""

from __future__ import annotations

from collections.abc import Callable

Share = tuple[str, str]
"""A namespace, and an account that waits for something in it."""


class ParkedRequests:
    """`most`: how many may wait at once."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._shares: dict[Share, dict[object, Callable[[], None]]] = {}  # the oldest first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def full(self) -> bool:
        return self._count >= self.most

    def admits(self, share: Share) -> bool:
        """Whether one more of this share may wait. If all places are taken, the oldest of the largest share is ended."""
        if not self.full:
            return True
        mine = len(self._shares.get(share, ()))
        largest = max(self._shares, key=lambda one: len(self._shares[one]), default=share)
        if mine + 1 >= len(self._shares.get(largest, ())):
            return False
        waiting, give_way = next(iter(self._shares[largest].items()))
        self.leave(largest, waiting)
        give_way()
        return True

    def enter(self, share: Share, waiting: object, give_way: Callable[[], None]) -> None:
        """Count a request that waits from now on. `give_way` ends its wait with an answer that lets its caller ask again."""
        self._shares.setdefault(share, {})[waiting] = give_way
        self._count += 1

    def leave(self, share: Share, waiting: object) -> None:
        """A request waits no more. One that has given way has left before."""
        waiters = self._shares.get(share)
        if waiters is not None and waiters.pop(waiting, None) is not None:
            self._count -= 1
            if not waiters:
                del self._shares[share]
