"""Limits of open connections, and which one is closed when there are too many.

A connection is anonymous until one of its requests has shown a credential. Anonymous connections have a part of all connections
for themselves, and each address may use only a part of that. At a limit the oldest anonymous connection is closed for the new
one. A client that opens connections without a credential therefore displaces its like, and never an authenticated client.

Authenticated connections have the rest. When it is used up, the account (`accounts.py`) that has the most connections loses its
oldest idle one. So one token never keeps another one out, and a probe of the server's health always gets in: its connection is
anonymous.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections.abc import Iterator
from typing import Protocol

from backstay.server.access.accounts import network
from backstay.server.settings import Settings

log = logging.getLogger("backstay.server")

RESERVED = 128  # file descriptors for the database, the listening sockets and other files
QUIET = 60.0  # seconds between two log lines about closed connections


class ClosableConnection(Protocol):
    """A connection that can be counted and closed."""

    @property
    def address(self) -> str: ...
    @property
    def account(self) -> str: ...
    @property
    def idle(self) -> bool: ...
    def drop(self) -> None:
        """Close at once."""
        ...

    def shutdown(self) -> None:
        """Close as soon as the current request has been answered."""
        ...


class OpenConnections:
    """The open connections of a server, anonymous and authenticated ones."""

    def __init__(self, most: int, anonymous: int, per_address: int) -> None:
        self._most_authenticated = most - anonymous
        self._most_anonymous = anonymous
        self._most_per_address = per_address
        self._anonymous: dict[ClosableConnection, None] = {}  # the oldest first
        self._addresses: dict[str, dict[ClosableConnection, None]] = {}
        self._authenticated: dict[str, dict[ClosableConnection, None]] = {}  # by account, the oldest first
        self._authenticated_count = 0
        self._emptied: asyncio.Future[None] | None = None
        self._closed = 0
        self._logged_at = 0.0

    def __len__(self) -> int:
        return len(self._anonymous) + self._authenticated_count

    def __iter__(self) -> Iterator[ClosableConnection]:
        known = (connection for ours in self._authenticated.values() for connection in ours)
        return iter([*self._anonymous, *known])

    async def none_left(self) -> None:
        """Wait until all connections have been closed."""
        while len(self):
            self._emptied = asyncio.get_running_loop().create_future()
            await self._emptied

    def add(self, connection: ClosableConnection) -> None:
        """Count a new connection, and close the oldest anonymous one if a limit is exceeded."""
        here = self._addresses.setdefault(network(connection.address), {})
        self._anonymous[connection] = here[connection] = None
        if len(here) > self._most_per_address:
            self._close(next(iter(here)))
        elif len(self._anonymous) > self._most_anonymous:
            self._close(next(iter(self._anonymous)))

    def mark_authenticated(self, connection: ClosableConnection) -> None:
        """Count a connection for its account from now on, and close one of the largest account if there are too many."""
        if connection not in self._anonymous:
            return
        self._remove_anonymous(connection)
        self._authenticated.setdefault(connection.account, {})[connection] = None
        self._authenticated_count += 1
        if self._authenticated_count > self._most_authenticated:
            largest = max(self._authenticated.values(), key=len)
            oldest = next(iter(largest))
            self._close(next((one for one in largest if one.idle), oldest))

    def remove(self, connection: ClosableConnection) -> None:
        if connection in self._anonymous:
            self._remove_anonymous(connection)
        elif connection in self._authenticated.get(connection.account, ()):
            self._remove_authenticated(connection)
        if self._emptied is not None and not self._emptied.done() and not len(self):
            self._emptied.set_result(None)

    def _remove_anonymous(self, connection: ClosableConnection) -> None:
        del self._anonymous[connection]
        place = network(connection.address)
        here = self._addresses[place]
        del here[connection]
        if not here:
            del self._addresses[place]

    def _remove_authenticated(self, connection: ClosableConnection) -> None:
        ours = self._authenticated[connection.account]
        del ours[connection]
        self._authenticated_count -= 1
        if not ours:
            del self._authenticated[connection.account]

    def _close(self, connection: ClosableConnection) -> None:
        self.remove(connection)
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
    """Raise the limit of file descriptors as the settings need, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.max_connections + RESERVED
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
