"""A network that loses what a test tells it to: a TCP proxy that cuts a connection in the moment a reply comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self


class Lossy:
    """Between a worker and its server. `lose(sign)`: the next reply that holds these bytes is never delivered."""

    def __init__(self, url: str) -> None:
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port = int(port)
        self._signs: list[Callable[[bytes], bool]] = []
        self.lost = 0

    def lose(self, sign: bytes) -> None:
        self._signs.append(lambda reply: sign in reply)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._tasks: set[asyncio.Task[None]] = set()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._host, self._port)
        lanes = [
            asyncio.create_task(self._forward(reader, back, losing=False)),
            asyncio.create_task(self._forward(there, writer, losing=True)),
        ]
        self._tasks.update(lanes)
        try:
            await asyncio.wait(lanes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for lane in lanes:
                lane.cancel()
            for side in (writer, back):
                side.close()
            await asyncio.gather(*lanes, return_exceptions=True)
            self._tasks.difference_update(lanes)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, losing: bool) -> None:
        while data := await reader.read(1 << 20):
            if losing:
                for sign in self._signs:
                    if sign(data):
                        self._signs.remove(sign)
                        self.lost += 1
                        return
            writer.write(data)
            await writer.drain()
