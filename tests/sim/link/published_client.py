"""The client of the published package on the simulated wire: everything of it is real except the sockets below httpx.

A request is one write, as with our own client. A connection is kept for the next request now and then only, so that the
requests of one worker wander from server to server behind a name that leads to any of them.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, cast

import httpx
from durable_workflow import Client

from .process import ProcessLoop
from .servers import HOST, PORT, TOKEN, URL

if TYPE_CHECKING:
    from .simulation import LinkSimulation

KEPT = 0.3
"""How often a connection is kept for the next request."""


class Witness(Protocol):
    """Who is told of each request and of what became of it."""

    def asks(self, path: str, body: bytes) -> Any: ...

    def answered(self, asked: Any, status: int, body: bytes) -> None: ...

    def unanswered(self, asked: Any, why: str) -> None: ...


class WireClient(Client):
    """One that is not quite the published class: so its worker asks for queries on the loop that it has, and on no thread."""

    def __init__(self, sim: LinkSimulation, loop: ProcessLoop, name: str, witness: Witness | None = None) -> None:
        super().__init__(URL, token=TOKEN)
        self._http = httpx.AsyncClient(
            base_url=self.base_url,
            timeout=self.timeout,
            transport=_Wire(loop, Random(f"{sim.seed}:{name}:wire"), witness),
            headers={"Accept-Encoding": "identity"},
            trust_env=False,
        )


class _Wire(httpx.AsyncBaseTransport):
    def __init__(self, loop: ProcessLoop, dice: Random, witness: Witness | None) -> None:
        self._loop = loop
        self._dice = dice
        self._witness = witness
        self._kept: list[_Connection] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        path = request.url.raw_path
        lines = [b"%b: %b\r\n" % header for header in request.headers.raw]
        data = b"%b %b HTTP/1.1\r\n%b\r\n%b" % (request.method.encode(), path, b"".join(lines), body)
        waits = request.extensions["timeout"]
        witness = self._witness
        asked = None if witness is None else witness.asks(path.decode(), body)
        try:
            status, headers, found = await self._ask(data, waits)
        except httpx.TransportError as error:
            if witness is not None:
                witness.unanswered(asked, type(error).__name__)
            raise
        except asyncio.CancelledError:
            if witness is not None:
                witness.unanswered(asked, "given up")
            raise
        if witness is not None:
            witness.answered(asked, status, found)
        return httpx.Response(status, headers=headers, content=found)

    async def _ask(self, data: bytes, waits: dict[str, float | None]) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = await self._connected(waits["connect"])
        try:
            async with asyncio.timeout(waits["read"]):
                found = await connection.ask(data)
        except TimeoutError:
            raise httpx.ReadTimeout("nothing answers") from None
        finally:
            if connection.usable and not connection.busy and self._dice.random() < KEPT:
                self._kept.append(connection)
            else:
                connection.close()
        return found

    async def _connected(self, seconds: float | None) -> _Connection:
        while self._kept:
            connection = self._kept.pop()
            if connection.usable:
                return connection
        try:
            async with asyncio.timeout(seconds):
                _, protocol = await self._loop.create_connection(_Connection, HOST, PORT)
        except TimeoutError:
            raise httpx.ConnectTimeout("nobody opens") from None
        except OSError as error:
            raise httpx.ConnectError(str(error)) from None
        assert isinstance(protocol, _Connection)
        return protocol

    async def aclose(self) -> None:
        for connection in self._kept:
            connection.close()
        self._kept.clear()


class _Connection(asyncio.Protocol):
    """A connection that carries one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reply: asyncio.Future[tuple[int, list[tuple[str, str]], bytes]] | None = None
        self._arrived = b""
        self.usable = True

    @property
    def busy(self) -> bool:
        return self._reply is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def ask(self, data: bytes) -> asyncio.Future[tuple[int, list[tuple[str, str]], bytes]]:
        reply = self._reply = asyncio.get_running_loop().create_future()
        if self._transport is None:
            self._fail(httpx.RemoteProtocolError("the server closed the connection"))
        else:
            self._transport.write(data)
        return reply

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        head, end, rest = self._arrived.partition(b"\r\n\r\n")
        if not end:
            return
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        said = {name.lower(): value for name, value in headers}
        if len(rest) < int(said["content-length"]):
            return
        self._arrived = b""
        self.usable = self.usable and said.get("connection") != "close"
        reply, self._reply = self._reply, None
        if reply is not None and not reply.done():
            reply.set_result((int(status.split()[1]), headers, rest))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        error = httpx.ReadError if exc is not None else httpx.RemoteProtocolError
        self._fail(error("the connection is gone"))

    def _fail(self, error: Exception) -> None:
        self.usable = False
        reply, self._reply = self._reply, None
        if reply is not None and not reply.done():
            reply.set_exception(error)

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.close()
