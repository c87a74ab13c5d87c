"""Sockets of both ends, client and server: a machine at the other end that vanishes without a word is noticed."""

from __future__ import annotations

import socket
from contextlib import suppress

DEAD = 10  # seconds until the system gives up a connection whose other end does not even acknowledge


def keep_alive(made: socket.socket) -> None:
    """Let the system notice that the other end is gone, also while nothing is sent."""
    with suppress(OSError, AttributeError):  # not everywhere, and not on every kind of socket
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, DEAD // 2)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD * 1000)
