"""Connections: how many there may be, and who has to go when there are too many.

Anonymous → signed in, once a request of its showed a credential. Anonymous connections have a part of the room only, each
address a part of that; when theirs is full, the oldest of them is closed for the new one. So whoever opens connections
without a credential takes room from others like them, never from those who are signed in.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections.abc import Iterator
from typing import Protocol

from backstay.server.settings import Settings

log = logging.getLogger("backstay.server")

RESERVED = 128  # descriptors for the database, for listening, for whatever a process opens besides
QUIET = 60.0  # seconds between two lines about the same


class Line(Protocol):
    """A connection, as far as it is counted."""

    @property
    def address(self) -> str: ...
    def drop(self) -> None:
        """Close at once."""
        ...

    def shutdown(self) -> None:
        """Close as soon as what is being answered has been answered."""
        ...


class Connections:
    def __init__(self, most: int, anonymous: int, per_address: int) -> None:
        self._most = most
        self._most_anonymous = anonymous
        self._most_per_address = per_address
        self._anonymous: dict[Line, None] = {}  # the oldest first
        self._addresses: dict[str, dict[Line, None]] = {}
        self._known: dict[Line, None] = {}
        self._emptied: asyncio.Future[None] | None = None
        self._closed = 0
        self._told = 0.0

    def __len__(self) -> int:
        return len(self._anonymous) + len(self._known)

    def __iter__(self) -> Iterator[Line]:
        return iter([*self._anonymous, *self._known])

    async def none_left(self) -> None:
        """Returns when all of them have been closed."""
        while len(self):
            self._emptied = asyncio.get_running_loop().create_future()
            await self._emptied

    def enter(self, line: Line) -> None:
        """Somebody has connected: there is room, or room is made, or it goes again."""
        here = self._addresses.setdefault(line.address, {})
        self._anonymous[line] = here[line] = None
        if len(here) > self._most_per_address:
            self._close(next(iter(here)))
        elif len(self._anonymous) > self._most_anonymous or len(self) > self._most:
            self._close(next(iter(self._anonymous)))

    def signed_in(self, line: Line) -> None:
        if line in self._anonymous:
            self._forget(line)
            self._known[line] = None

    def leave(self, line: Line) -> None:
        self._known.pop(line, None)
        if line in self._anonymous:
            self._forget(line)
        if self._emptied is not None and not self._emptied.done() and not len(self):
            self._emptied.set_result(None)

    def _forget(self, line: Line) -> None:
        del self._anonymous[line]
        here = self._addresses[line.address]
        del here[line]
        if not here:
            del self._addresses[line.address]

    def _close(self, line: Line) -> None:
        self._forget(line)
        line.drop()
        self._closed += 1
        now = time.monotonic()
        if self._told == 0.0 or now - self._told > QUIET:
            log.warning(
                "%d connections were closed to make room for others: %d are open, %d of them of nobody who is signed in"
                " (max_connections, max_anonymous_connections, max_anonymous_connections_per_address)",
                self._closed,
                len(self),
                len(self._anonymous),
            )
            self._told, self._closed = now, 0


def room(settings: Settings) -> Connections:
    """As many as the settings allow, and as the process may have descriptors for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = settings.max_connections
    if soft != resource.RLIM_INFINITY:
        most = max(2, min(most, soft - RESERVED))
    anonymous = min(settings.max_anonymous_connections, most // 2)
    return Connections(most, anonymous, min(settings.max_anonymous_connections_per_address, anonymous))


def make_room(settings: Settings) -> None:
    """Have as many descriptors as the settings ask for, if the system lets this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.max_connections + RESERVED
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
