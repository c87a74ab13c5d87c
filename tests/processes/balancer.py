"""A load balancer as simple as they come: every request goes to the next node, or to any, whoever sends it and on whatever
connection.

It asks each node four times a second whether it is ready, as load balancers do, leaves out those that are not, and ends what
it had under way with them. A node that refuses the connection is left out at once: its request goes to the next.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

HEAD_END = b"\r\n\r\n"
EVERY = 0.25  # seconds between two questions, and for each answer
PIECE = 1 << 16

Pass = Callable[[bytes], Awaitable[None]]


class HangUp(Exception):
    """One side of a connection is gone."""


class Balancer:
    """`path` is what nodes are asked. `losing` is the share of replies that get lost: their connection is cut instead."""

    def __init__(self, path: str, seed: int = 1, *, at_random: bool = False, keeps: tuple[str, ...] = ()) -> None:
        """`keeps`: the paths of requests that all go to the first node."""
        self._path = path
        self._keeps = tuple(f"POST {path} ".encode() for path in keeps)
        self._at_random = at_random
        self._random = random.Random(seed)
        self._nodes: dict[str, tuple[str, int]] = {}
        self._ready: list[str] = []
        self._next = 0
        self._open: dict[asyncio.StreamWriter, str] = {}  # connections to nodes, and to which
        self._callers: set[asyncio.StreamWriter] = set()
        self.losing = 0.0
        self.lost = 0
        self.served: dict[str, int] = {}  # requests by node

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._checks = asyncio.create_task(self._check())

    async def stop(self) -> None:
        self._checks.cancel()
        self._server.close()
        self.cut()
        await asyncio.gather(self._checks, return_exceptions=True)

    def set_nodes(self, nodes: dict[str, tuple[str, int]]) -> None:
        """The nodes there are, each with its host and port."""
        self._nodes = nodes
        self._ready = [name for name in nodes if name in self._ready]

    def is_ready(self, name: str) -> bool:
        return name in self._ready

    def cut(self) -> None:
        """All connections are lost, of callers and to nodes."""
        for writer in (*self._open, *self._callers):
            writer.transport.abort()

    # -- which node

    async def _check(self) -> None:
        while True:
            found = await asyncio.gather(*(self._says_ready(*place) for place in self._nodes.values()))
            ready = [name for name, yes in zip(list(self._nodes), found, strict=False) if yes]
            for gone in set(self._ready) - set(ready):
                for writer in [writer for writer, name in self._open.items() if name == gone]:
                    writer.transport.abort()
            self._ready = ready
            await asyncio.sleep(EVERY)

    async def _says_ready(self, host: str, port: int) -> bool:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(EVERY * 4):
                reader, writer = await asyncio.open_connection(host, port)
                try:
                    writer.write(f"GET {self._path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n".encode())
                    return b" 200 " in await reader.readuntil(b"\r\n")
                finally:
                    writer.transport.abort()
        return False

    async def _node(self, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for _ in range(len(self._ready)):
            self._next += self._random.randint(1, len(self._ready)) if self._at_random else 1
            name = self._ready[0 if request.startswith(self._keeps) else self._next % len(self._ready)]
            try:
                reader, writer = await asyncio.open_connection(*self._nodes[name])
            except OSError:
                if name in self._ready:
                    self._ready.remove(name)
                if not self._ready:
                    break
                continue
            self._open[writer] = name
            self.served[name] = self.served.get(name, 0) + 1
            return reader, writer
        raise HangUp

    # -- requests and replies

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._callers.add(writer)
        said = b""  # of the next request, already read
        try:
            while True:
                request, said = await _message(reader, said)
                said = await self._exchange(request, reader, writer, said)
        except (OSError, HangUp, asyncio.IncompleteReadError, asyncio.CancelledError, ValueError):
            pass
        finally:
            self._callers.discard(writer)
            writer.transport.abort()

    async def _exchange(
        self, request: bytes, caller: asyncio.StreamReader, back: asyncio.StreamWriter, said: bytes
    ) -> bytes:
        try:
            reader, node = await self._node(request)
        except HangUp:
            back.write(b"HTTP/1.1 503 no node\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
            await back.drain()
            await asyncio.sleep(EVERY)
            return said
        loses = self._random.random() < self.losing

        async def give(data: bytes) -> None:
            if loses:
                self.lost += 1
                raise HangUp
            back.write(data)
            await back.drain()

        hangs_up = asyncio.ensure_future(caller.read(PIECE))
        node.write(request)
        reply = asyncio.ensure_future(_relay(reader, give, no_body=request.startswith(b"HEAD ")))
        try:
            await asyncio.wait([hangs_up, reply], return_when=asyncio.FIRST_COMPLETED)
            if not reply.done() and not hangs_up.result():
                raise HangUp
            await reply
        finally:
            self._open.pop(node, None)
            node.transport.abort()
            reply.cancel()
            more = hangs_up.result() if hangs_up.done() and not hangs_up.cancelled() else b""
            hangs_up.cancel()
            await asyncio.gather(reply, hangs_up, return_exceptions=True)
        return said + more


def _field(head: bytes, name: bytes) -> bytes | None:
    found = head.lower().find(b"\r\n" + name + b":")
    if found < 0:
        return None
    begin = found + len(name) + 3
    return head[begin : head.index(b"\r\n", begin)].strip().lower()


async def _message(reader: asyncio.StreamReader, said: bytes) -> tuple[bytes, bytes]:
    """A whole request, and what was read beyond it."""
    while (end := said.find(HEAD_END)) < 0:
        said += await _some(reader)
    head = said[: end + 4]
    if b"chunked" in (_field(head, b"transfer-encoding") or b""):
        while not said.endswith(b"0\r\n\r\n"):
            said += await _some(reader)
        return said, b""
    size = end + 4 + int(_field(head, b"content-length") or 0)
    while len(said) < size:
        said += await _some(reader)
    return said[:size], said[size:]


async def _some(reader: asyncio.StreamReader) -> bytes:
    if not (data := await reader.read(PIECE)):
        raise HangUp
    return data


async def _relay(reader: asyncio.StreamReader, give: Pass, *, no_body: bool) -> None:
    """One reply, passed on as it comes."""
    head = await reader.readuntil(HEAD_END)
    await give(head)
    if no_body or head[9:12] in (b"204", b"304"):
        return
    length = _field(head, b"content-length")
    if length is not None:
        left = int(length)
        while left:
            data = await reader.read(min(left, PIECE))
            if not data:
                raise HangUp
            left -= len(data)
            await give(data)
    elif b"chunked" in (_field(head, b"transfer-encoding") or b""):
        size = -1
        while size:
            line = await reader.readuntil(b"\r\n")
            size = int(line.partition(b";")[0], 16)
            await give(line + await reader.readexactly(size + 2))
    else:
        while data := await reader.read(PIECE):
            await give(data)
        raise HangUp  # the end of the connection is the end of the reply
