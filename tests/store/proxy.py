"""A wire that can be cut in the middle of a commit: between a store and its server, doing on order what networks do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, urlsplit

SOCKET = ".s.PGSQL.5432"
FLUSH = b"H\x00\x00\x00\x04"
READY = b"Z\x00\x00\x00\x05"  # the beginning of the message that ends every answer

Fault = Literal["lose the request", "lose the answer", "deliver it late"]


class Proxy:
    """`fault` is done once, to the next request of anybody; `open` False lets nobody in."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._late: tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.fault: Fault | None = None
        self.open = True

    async def link(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self.open:
                answers, server = await asyncio.open_unix_connection(self._server)
                await self._serve(client, back, answers, server)
        except OSError:
            pass
        finally:
            self._tasks.discard(task)
            back.transport.abort()

    async def _serve(
        self,
        client: asyncio.StreamReader,
        back: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        server: asyncio.StreamWriter,
    ) -> None:
        async def home() -> None:
            with suppress(OSError):
                while data := await answers.read(1 << 16):
                    back.write(data)
            back.transport.abort()

        returning = asyncio.ensure_future(home())
        try:
            while request := await client.read(1 << 20):
                # Of a statement that is only prepared, nothing is heard until it is run.
                fault, self.fault = (None, self.fault) if request.endswith(FLUSH) else (self.fault, None)
                if fault is None:
                    server.write(request)
                    continue
                returning.cancel()
                await asyncio.wait([returning])
                if fault == "deliver it late":
                    self._late = (answers, server, request)
                    return
                if fault == "lose the answer":
                    server.write(request)
                    await answers.readuntil(READY)
                break
        finally:
            returning.cancel()
            if self._late is None or self._late[1] is not server:
                server.transport.abort()

    async def deliver(self) -> bytes:
        """What had been held up reaches the server after all; what that says to it."""
        assert self._late is not None
        answers, server, request = self._late
        server.write(request)
        said = await answers.readuntil(READY)
        server.transport.abort()
        return said

    async def close(self) -> None:
        if self._late is not None:
            self._late[1].transport.abort()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


@asynccontextmanager
async def proxied(url: str, place: Path) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy before the server of this URL, and the URL that goes through it."""
    host = parse_qs(urlsplit(url).query)["host"][0]
    proxy = Proxy(f"{host}/{SOCKET}")
    listening = await asyncio.start_unix_server(proxy.link, place / SOCKET)
    try:
        yield proxy, url.replace(host, str(place))
    finally:
        listening.close()
        await proxy.close()
