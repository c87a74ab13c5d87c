"""Limits of open connections, and which one is closed when there are too many.

A connection is anonymous until one of its requests has shown a credential. Anonymous connections may use only a part of all
connections, and each address only a part of those. At a limit the oldest anonymous connection is closed for the new one. A
client that opens connections without a credential therefore displaces its like, and never an authenticated client.
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

RESERVED = 128  # file descriptors for the database, the listening sockets and other files
QUIET = 60.0  # seconds between two log lines about closed connections


class ClosableConnection(Protocol):
    """A connection that can be counted and closed."""

    @property
    def address(self) -> str: ...
    def drop(self) -> None:
        """Close at once."""
        ...

    def shutdown(self) -> None:
        """Close as soon as the current request has been answered."""
        ...


class OpenConnections:
    """The open connections of a server, anonymous and authenticated ones."""

    def __init__(self, most: int, anonymous: int, per_address: int) -> None:
        self._most = most
        self._most_anonymous = anonymous
        self._most_per_address = per_address
        self._anonymous: dict[ClosableConnection, None] = {}  # the oldest first
        self._addresses: dict[str, dict[ClosableConnection, None]] = {}
        self._authenticated: dict[ClosableConnection, None] = {}
        self._emptied: asyncio.Future[None] | None = None
        self._closed = 0
        self._logged_at = 0.0

    def __len__(self) -> int:
        return len(self._anonymous) + len(self._authenticated)

    def __iter__(self) -> Iterator[ClosableConnection]:
        return iter([*self._anonymous, *self._authenticated])

    async def none_left(self) -> None:
        """Wait until all connections have been closed."""
        while len(self):
            self._emptied = asyncio.get_running_loop().create_future()
            await self._emptied

    def add(self, connection: ClosableConnection) -> None:
        """Count a new connection, and close the oldest anonymous one if a limit is exceeded."""
        here = self._addresses.setdefault(connection.address, {})
        self._anonymous[connection] = here[connection] = None
        if len(here) > self._most_per_address:
            self._close(next(iter(here)))
        elif len(self._anonymous) > self._most_anonymous or len(self) > self._most:
            self._close(next(iter(self._anonymous)))

    def mark_authenticated(self, connection: ClosableConnection) -> None:
        if connection in self._anonymous:
            self._remove_anonymous(connection)
            self._authenticated[connection] = None

    def remove(self, connection: ClosableConnection) -> None:
        self._authenticated.pop(connection, None)
        if connection in self._anonymous:
            self._remove_anonymous(connection)
        if self._emptied is not None and not self._emptied.done() and not len(self):
            self._emptied.set_result(None)

    def _remove_anonymous(self, connection: ClosableConnection) -> None:
        del self._anonymous[connection]
        here = self._addresses[connection.address]
        del here[connection]
        if not here:
            del self._addresses[connection.address]

    def _close(self, connection: ClosableConnection) -> None:
        self._remove_anonymous(connection)
        connection.drop()
        self._closed += 1
        now = time.monotonic()
        if self._logged_at == 0.0 or now - self._logged_at > QUIET:
            log.warning(
                "%d connections were closed to make room for others: %d are open, %d of them without a credential"
                " (max_connections, max_anonymous_connections, max_anonymous_connections_per_address)",
                self._closed,
                len(self),
                len(self._anonymous),
            )
            self._logged_at, self._closed = now, 0


def limited_connections(settings: Settings) -> OpenConnections:
    """No connections yet, with the limits of the settings and of the process's file descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = settings.max_connections
    if soft != resource.RLIM_INFINITY:
        most = max(2, min(most, soft - RESERVED))
    anonymous = min(settings.max_anonymous_connections, most // 2)
    return OpenConnections(most, anonymous, min(settings.max_anonymous_connections_per_address, anonymous))


def raise_descriptor_limit(settings: Settings) -> None:
    """Raise the limit of file descriptors to what the settings need, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.max_connections + RESERVED
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
