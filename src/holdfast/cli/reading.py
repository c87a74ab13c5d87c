"""Reading a database beside whoever runs its engine. A Reader never takes the engine's lock and decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import Self, TypeVar

from holdfast.cli.options import existing
from holdfast.cli.problems import told
from holdfast.codec.payloads import AvroPayloads
from holdfast.engine.engine import Engine
from holdfast.engine.operations import Operations
from holdfast.engine.recovery import Recovery
from holdfast.engine.world import AsyncioWorld
from holdfast.kernel.machine import Machine
from holdfast.protocol.requests import Request
from holdfast.store.opening import open_store

R = TypeVar("R")


class Reader:
    def __init__(self, path: str, *, create: bool = False) -> None:
        self.path = path if create else existing(path)
        self._create = create

    def __enter__(self) -> Self:
        machine = Machine()
        self._loop = asyncio.new_event_loop()
        try:
            with told():  # a file is opened here and now, a server when its answer is waited for
                opening = open_store(self.path, machine.kinds, create=self._create)
            self.store = self.get(opening)
        except BaseException:
            self._loop.close()
            raise
        # An engine that is never started: it answers the reading verbs from disk.
        self.world = AsyncioWorld(self._loop)
        engine = Engine(self.world, self.store, machine)
        self._operations = Operations(engine, Recovery(engine), AvroPayloads())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.get(self.store.close())
        self._loop.close()

    def ask(self, request: Request[R]) -> R:
        with told():
            return self._loop.run_until_complete(self._operations.call(request))

    def get(self, answer: Awaitable[R]) -> R:
        """What a verb of the store answers."""

        async def waited() -> R:
            return await answer

        with told():
            return self._loop.run_until_complete(waited())

    def changed(self) -> bool:
        """Whether anything was committed since this was last asked."""
        return self.get(self.store.changed())
