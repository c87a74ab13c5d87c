"""Forks: a child that outlives its parent would keep the parent's database session open, and with it the engine's lock.

So the child's copies of the sockets are replaced by /dev/null, and nothing is sent to the server. The parent's are untouched.
"""

from __future__ import annotations

import os
from contextlib import suppress
from weakref import WeakSet

from backstay.runtime_hooks import after_fork_in_child
from backstay.store.postgresql.driver import DriverConnection

_open: WeakSet[DriverConnection] = WeakSet()


def opened(connection: DriverConnection) -> None:
    _open.add(connection)


def _forked() -> None:
    if not _open:
        return
    nowhere = os.open(os.devnull, os.O_RDWR)
    for connection in _open:
        with suppress(OSError, AttributeError):
            os.dup2(nowhere, connection._transport.get_extra_info("socket").fileno())  # pyright: ignore
    os.close(nowhere)
    _open.clear()


after_fork_in_child(_forked)
