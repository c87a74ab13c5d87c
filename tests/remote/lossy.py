"""A network that loses what a test tells it to: a TCP proxy that cuts connections, or swallows what is sent on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self


class Lossy:
    """Between a worker and its server.

    `lose(sign)`: the next reply that holds these bytes is never delivered, and its connection is cut. `swallow(sign)`: the
    next request that holds them is never delivered, and its sender hears nothing more. `silence(sign)`: the request is
    delivered, and its sender hears nothing more. `cut()`: all connections are lost. `hole`: while it is set, everything that
    is sent vanishes, and so do new connections. `close_hole()`: it ends, and connections with a gap are lost: TCP delivers
    everything up to some byte, and nothing after it.
    """

    hole = False

    def __init__(self, url: str) -> None:
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port = int(port)
        self._signs: list[Callable[[bytes], bool]] = []
        self._swallowed: list[tuple[bytes, bool]] = []  # and whether the request arrives
        self._mute: set[asyncio.StreamWriter] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self._torn: set[asyncio.StreamWriter] = set()  # something of them has vanished
        self.lost = 0

    def lose(self, sign: bytes) -> None:
        self._signs.append(lambda reply: sign in reply)

    def swallow(self, sign: bytes) -> None:
        self._swallowed.append((sign, False))

    def silence(self, sign: bytes) -> None:
        self._swallowed.append((sign, True))

    def cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    def close_hole(self) -> None:
        self.hole = False
        for writer in list(self._torn):
            writer.transport.abort()

    async def target(self) -> tuple[str, int]:
        """Where a new connection is led."""
        return self._host, self._port

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
        try:
            there, back = await asyncio.open_connection(*await self.target())
        except OSError:
            writer.close()
            return
        lanes = [
            asyncio.create_task(self._requests(reader, back, writer)),
            asyncio.create_task(self._replies(there, writer)),
        ]
        self._tasks.update(lanes)
        self._open.add(writer)
        try:
            await asyncio.wait(lanes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for lane in lanes:
                lane.cancel()
            for side in (writer, back):
                side.close()
            await asyncio.gather(*lanes, return_exceptions=True)
            self._tasks.difference_update(lanes)
            self._open.discard(writer)
            self._mute.discard(writer)
            self._torn.discard(writer)

    async def _requests(
        self, reader: asyncio.StreamReader, back: asyncio.StreamWriter, asking: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(1 << 20):
            if self.hole:
                self._torn.add(asking)
                continue
            found = next((fate for fate in self._swallowed if fate[0] in data), None)
            if found is not None:
                self._swallowed.remove(found)
                self._mute.add(asking)
                self.lost += 1
                if not found[1]:
                    continue
            back.write(data)
            await back.drain()

    async def _replies(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await there.read(1 << 20):
            if self.hole:
                self._torn.add(writer)
            if self.hole or writer in self._mute:
                continue
            for sign in self._signs:
                if sign(data):
                    self._signs.remove(sign)
                    self.lost += 1
                    return
            writer.write(data)
            await writer.drain()
