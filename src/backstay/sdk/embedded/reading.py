"""Reading a database while another process may run its engine: no lock is taken, and nothing is decided."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from backstay.codec.payloads import AvroPayloads
from backstay.engine.core.world import AsyncioWorld
from backstay.engine.node import Node
from backstay.engine.requests.api import Api
from backstay.kernel.machine import Machine
from backstay.protocol.export import exporter
from backstay.protocol.run_entries import make_views
from backstay.store.address import checked, is_server
from backstay.store.opening import open_store


@asynccontextmanager
async def reading(database: str) -> AsyncGenerator[tuple[Api, Machine]]:
    """Return a node that is not opened: it answers reads from disk."""
    if not is_server(checked(database)) and not Path(database.removeprefix("sqlite:")).exists():
        raise FileNotFoundError(f"there is no database {database}")
    machine = Machine()
    store = await open_store(database, machine.kinds, create=False)
    try:
        node = Node(AsyncioWorld(asyncio.get_running_loop()), store, machine, AvroPayloads(), exporter(), make_views)
        yield node.api, machine
    finally:
        await store.close()
