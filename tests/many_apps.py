"""Several embedded apps on one PostgreSQL, where each call goes to any of them. Otherwise the same as one."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Sequence
from typing import Any, Self, TypeVar

from backstay import AsyncBackstay, Backstay
from backstay.protocol.requests import Request
from backstay.sdk.client.sync import Client
from backstay.sdk.client.transport import Transport
from backstay.sdk.embedded.thread import EngineThread

from .many_nodes import Chosen
from .sdk.kit import eventually

R = TypeVar("R")


class AnyOf:
    """The transport to any of them."""

    def __init__(self, transports: Sequence[Transport]) -> None:
        self._transports = transports
        self._random = random.Random(1)

    def call(self, request: Request[R]) -> Awaitable[R]:
        return self._random.choice(self._transports).call(request)


class AsyncApps(AsyncBackstay):
    def __init__(self, path: Any, register: Any = (), **options: Any) -> None:
        self._others: list[AsyncBackstay] = []
        super().__init__(path, register, **options)
        self._others = [AsyncBackstay(path, register, **options) for _ in range(Chosen.shape.nodes - 1)]
        self._transport = AnyOf([self._engine_room, *(app._engine_room for app in self._others)])

    def register(self, *things: Any) -> None:
        super().register(*things)
        for app in self._others:
            app.register(*things)

    async def _open(self) -> Self:
        await super()._open()
        for app in self._others:
            await app.open()
        apps = [self, *self._others]
        await eventually(lambda: all(0 < sum(app.engine.owned) < 256 for app in apps), "the apps shared the instances")
        return self

    async def _close(self) -> None:
        for app in self._others:
            await app.close()
        await super()._close()


class Apps(Backstay):
    def __init__(self, path: Any, register: Any = (), **options: Any) -> None:
        self._app = AsyncApps(path, register, **options)
        self._engine_thread = EngineThread()
        Client.__init__(self, self._app, self._engine_thread)
