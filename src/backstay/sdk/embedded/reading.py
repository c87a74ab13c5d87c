"""A database beside whoever runs its engine, as somebody who only reads: no lock is taken, and nothing is decided."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from backstay.codec.payloads import AvroPayloads
from backstay.engine.api import Api
from backstay.engine.engine import Engine
from backstay.engine.recovery import Recovery
from backstay.engine.world import AsyncioWorld
from backstay.kernel.machine import Machine
from backstay.protocol.export import exporter
from backstay.store.address import checked, is_server
from backstay.store.opening import open_store


@asynccontextmanager
async def reading(database: str) -> AsyncGenerator[tuple[Api, Machine]]:
    """An engine that is never started: it answers the reading verbs from disk."""
    if not is_server(checked(database)) and not Path(database.removeprefix("sqlite:")).exists():
        raise FileNotFoundError(f"there is no database {database}")
    machine = Machine()
    store = await open_store(database, machine.kinds, create=False)
    try:
        engine = Engine(AsyncioWorld(asyncio.get_running_loop()), store, machine)
        yield Api(engine, Recovery(engine), AvroPayloads(), exporter()), machine
    finally:
        await store.close()
