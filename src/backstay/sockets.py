"""Socket options of clients and servers, so that a peer that vanishes without closing its connection is noticed."""

from __future__ import annotations

import socket
from contextlib import suppress

DEAD = 10  # seconds until the system drops a connection whose peer acknowledges nothing


def keep_alive(connection: socket.socket) -> None:
    """Let the system notice that the peer is gone, also while nothing is sent."""
    with suppress(OSError, AttributeError):  # some systems and some kinds of sockets lack an option
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, DEAD // 2)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD * 1000)
