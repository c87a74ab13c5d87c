"""How much of requests and replies a server holds in memory for each caller, and which connection is closed when that is too much.

The count covers data that the server holds for an unfinished client: incomplete bodies, pipelined requests, and unread
replies. A request that comes in one piece, and whose reply is read, is never counted.

Callers are grouped by their *account* (`accounts.py`). Above the limit of an account, or of all, the account that holds
the most loses its largest connection: a client that sends or reads slowly never takes the memory of another one. The
other nodes of the database are no callers, and not limited.
"""

from __future__ import annotations

from typing import Protocol

from backstay.server.access.accounts import NODES
from backstay.server.settings import Settings


class BufferingConnection(Protocol):
    """A connection whose bytes can be counted."""

    def make_room(self) -> None:
        """Close, since it holds too much."""
        ...


class BufferedBytes:
    """The bytes that all connections of a server hold, by account."""

    def __init__(self, most: int, per_account: int) -> None:
        self._most = most
        self._per_account = per_account
        self._held: dict[str, dict[BufferingConnection, int]] = {}
        self._totals: dict[str, int] = {}
        self.total = 0

    def of(self, account: str) -> int:
        return self._totals.get(account, 0)

    def set(self, connection: BufferingConnection, account: str, count: int) -> None:
        """A connection holds so many bytes for this account."""
        if account == NODES:
            return
        self._count(connection, account, count)
        while (over := self._over(account)) is not None:
            held = self._held[over]
            largest = max(held, key=held.__getitem__)
            self._count(largest, over, 0)
            largest.make_room()

    def _over(self, account: str) -> str | None:
        """The account that has to make room, if one has to. `account`: the one that holds more than before."""
        if self.of(account) > self._per_account:
            return account
        return max(self._totals, key=self._totals.__getitem__) if self.total > self._most else None

    def _count(self, connection: BufferingConnection, account: str, count: int) -> None:
        held = self._held.setdefault(account, {})
        self._add(account, count - held.get(connection, 0))
        if count:
            held[connection] = count
        else:
            held.pop(connection, None)
            if not held:
                del self._held[account]

    def _add(self, account: str, more: int) -> None:
        self.total += more
        total = self._totals.get(account, 0) + more
        if total:
            self._totals[account] = total
        else:
            self._totals.pop(account, None)


def limited_bytes(settings: Settings) -> BufferedBytes:
    """Nothing yet, with the limits of the settings. One body of the largest size fits in any case."""
    least = 2 * settings.max_body_bytes
    most = max(settings.max_buffered_bytes, least)
    return BufferedBytes(most, min(max(settings.max_buffered_bytes_per_caller, least), most))
