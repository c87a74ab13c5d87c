"""A small HTTP/1.1 client: keep-alive connections, one request at a time on each, nothing else.

A reply may take as long as the wait in its request. To notice a dead network, a server that has been silent for a while
is pinged on another connection.

Every reply of our server has a length, except one that is sent line by line; a proxy may send chunks. The client is made for
many small requests: a request is one write, a reply usually one read.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, cast
from urllib.parse import urlsplit

from backstay.link.replies import ChunkReader, LineReader
from backstay.sockets import keep_alive

if TYPE_CHECKING:
    from ssl import SSLContext

LIMIT = 256 << 20  # bytes of one reply
PATHS = 100  # whose heads of requests are remembered
HEAD = 64 << 10  # and of its head
IDLE = 100  # connections kept for later
CONNECT = 5.0  # seconds to open a connection
SILENT = 5.0  # seconds of silence after which a server is pinged, and in which it must answer
HEALTH = "/api/health"
_PATH = re.compile(r"/[!-~\x80-\xff]*")  # no spaces or line breaks, after which something else would begin


class Lost(Exception):
    """No reply came. `sent`: the request may have arrived. `silent`: the server sent nothing at all."""

    def __init__(self, why: str, *, sent: bool, silent: bool = False) -> None:
        super().__init__(why)
        self.sent = sent
        self.silent = silent


class NotHttp(Exception):
    """The reply is not HTTP."""


class Reply(NamedTuple):
    status: int
    body: bytes


class Origin(NamedTuple):
    """The address of a server. `base` goes before every path."""

    scheme: str
    host: str
    port: int
    base: str

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.scheme == "https" else 80) else f"{host}:{self.port}"


def origin_of(url: str) -> Origin:
    """Return the parts of a server's address. Raises `ValueError` if it is wrong."""
    parts = urlsplit(url.strip())
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{url!r} is not the address of a server; write it like http://127.0.0.1:8080")
    if not parts.hostname:
        raise ValueError(f"{url!r} names no host; write it like http://127.0.0.1:8080")
    if parts.query or parts.fragment or parts.username:
        # The rest may be a password.
        shown = f"{parts.scheme}://{parts.hostname}"
        raise ValueError(
            f"what is before or after {shown!r} is not part of a server's address; give a token with token=..."
        )
    base = parts.path.rstrip("/").removesuffix("/api")
    return Origin(parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80), base)


class _Connection(asyncio.Protocol):
    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reply: asyncio.Future[Reply] | None = None
        self._line: Callable[[bytes], None] | None = None  # called with each line of a reply in chunks
        self._begin()
        self.usable = True

    def _begin(self) -> None:
        """Be ready for a reply, of which nothing has arrived."""
        self._head = b""  # of a reply, as long as its end is missing
        self._status = 0
        self._pieces: list[bytes] = []  # of its body
        self._size = 0  # of them
        self._length: int | None = None  # of the body; None: it is in chunks, or the head is missing
        self._feed: Callable[[bytes], bool] | None = None  # reads chunks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        keep_alive(transport.get_extra_info("socket"))

    def send(self, request: bytes, line: Callable[[bytes], None] | None = None) -> asyncio.Future[Reply]:
        assert self._transport is not None
        self._reply = self._loop.create_future()
        self._line = line
        self._transport.write(request)
        return self._reply

    def data_received(self, data: bytes) -> None:
        self._client.heard = time.monotonic()
        if self._reply is None:
            self.close()  # no request is under way
            return
        try:
            if self._feed is not None:
                found = self._read_chunks(data)
            elif self._length is not None:
                found = self._read_body(data)
            else:
                found = self._read_head(self._head + data if self._head else data)
        except NotHttp as error:
            self._fail(error)
        except (ValueError, IndexError):
            self._fail(NotHttp("what answered there does not speak HTTP"))
        else:
            if found is not None:
                self._answer(found)

    def _answer(self, found: Reply) -> None:
        self._begin()
        reply, self._reply = self._reply, None
        if reply is not None and not reply.done():
            reply.set_result(found)

    def _read_head(self, received: bytes) -> Reply | None:
        """Return the reply if it is complete, which most are with the first bytes that arrive."""
        end = received.find(b"\r\n\r\n")
        if not received.startswith(b"HTTP/1."[: len(received)]) or (len(received) if end < 0 else end) > HEAD:
            raise ValueError
        if end < 0:
            self._head = received
            return None
        status = self._status = int(received[9:12])
        head = received[:end].lower()
        if b"\r\nconnection: close" in head or received.startswith(b"HTTP/1.0"):
            self.usable = False
        at = head.find(b"\r\ncontent-length:")
        if at >= 0:
            stop = head.find(b"\r\n", at + 2)
            length = self._length = int(head[at + 17 : stop if stop > 0 else end])
            if length < 0:
                raise ValueError
            self._check_size(length)
            return self._read_body(received[end + 4 :])
        if b"\r\ntransfer-encoding: chunked" in head:
            if self._line is not None and status == 200:
                self._feed = LineReader(self._line, self._client.most).feed
            else:
                self._feed = ChunkReader(self._add).feed
            return self._read_chunks(received[end + 4 :])
        return Reply(status, b"")

    def _read_body(self, data: bytes) -> Reply | None:
        assert self._length is not None
        if not self._pieces and len(data) >= self._length:
            return Reply(self._status, data[: self._length])
        self._add(data)
        return None if self._size < self._length else Reply(self._status, b"".join(self._pieces)[: self._length])

    def _read_chunks(self, data: bytes) -> Reply | None:
        assert self._feed is not None
        return Reply(self._status, b"".join(self._pieces)) if self._feed(data) else None

    def _add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._length is None:
            self._check_size(self._size)

    def _check_size(self, size: int) -> None:
        if size > self._client.most:
            raise NotHttp(f"the reply is longer than {self._client.most} bytes")

    def _fail(self, error: Exception) -> None:
        self.usable = False
        reply, self._reply = self._reply, None
        if reply is not None and not reply.done():
            reply.set_exception(error)
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._client.forget(self)
        self._fail(Lost("the connection was closed before the reply", sent=True))

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.close()

    def give_up(self) -> None:
        """Fail the waiting request and close the connection without flushing: the server does not answer."""
        self._fail(Lost("nothing answers there", sent=True, silent=True))
        if self._transport is not None:
            self._transport.abort()


class HttpClient:
    """An HTTP client for one server, on the event loop of its callers."""

    def __init__(
        self,
        url: str,
        headers: dict[str, str],
        most: int = LIMIT,
        *,
        patience: float | None = None,
        sign: Callable[[str, bytes], str] | None = None,
    ) -> None:
        """`most`: the most bytes of one reply. `patience`: seconds to connect, and of silence until the server is pinged.

        `sign`: called with the path and the body of each request when it is sent, for a header line that is valid once."""
        self.origin = origin_of(url)
        self.most = most
        self._patience = patience
        self._sign = sign
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        if not lines.isascii() or lines.count("\n") != len(headers):
            raise ValueError("a token or namespace may hold no line breaks and no characters beyond ASCII")
        self._rest = f" HTTP/1.1\r\nHost: {self.origin.host_header}\r\n{lines}Content-Length: "
        self._heads: dict[str, bytes] = {}  # the head of a request, by path
        self._idle: list[_Connection] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.heard = 0.0  # monotonic time of the last bytes from the server
        self._waiting: dict[_Connection, None] = {}  # connections that wait for a reply
        self._watch: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None

    async def post(
        self, path: str, body: bytes, seconds: float, more: str = "", line: Callable[[bytes], None] | None = None
    ) -> Reply:
        """Send a request and return the reply. `more`: further header lines. Raises `Lost` if no reply comes.

        `line`: called with each line of a reply that is sent line by line; the returned reply is then only its end.
        """
        connection = await self._connected()
        head = self._heads.get(path) or self._head_of(path)
        if self._sign is not None:
            more += self._sign(path, body)
        request = b"%b%d\r\n%b\r\n%b" % (head, len(body), more.encode("latin-1"), body)
        loop = asyncio.get_running_loop()
        alarm = loop.call_later(seconds, connection.give_up)
        self._waiting[connection] = None
        if self._watch is None:
            self._watch = loop.call_later(self._silent, self._look)
        try:
            reply = await connection.send(request, line)
        except BaseException:
            connection.close()
            raise
        finally:
            alarm.cancel()
            self._waiting.pop(connection, None)
        self._keep(connection)
        return reply

    def _head_of(self, path: str) -> bytes:
        if not _PATH.fullmatch(path):
            raise ValueError(f"{path!r} is no path of a URL")
        if len(self._heads) >= PATHS:  # some paths have ids in them
            self._heads.clear()
        parts = self.origin.base.encode(), path.encode("latin-1"), self._rest.encode()
        head = self._heads[path] = b"POST %b%b%b" % parts
        return head

    async def _connected(self) -> _Connection:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # Connections belong to a loop; one that has ended took its own along.
            self._loop, self._idle = loop, []
            self._watch, self._waiting = None, {}
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return await self._connect()

    async def _connect(self) -> _Connection:
        try:
            async with asyncio.timeout(CONNECT if self._patience is None else self._patience):
                _, made = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self), self.origin.host, self.origin.port, ssl=self._tls
                )
        except (OSError, TimeoutError) as error:
            raise Lost(said(error), sent=False) from error
        return made

    @cached_property
    def _tls(self) -> SSLContext | None:
        """Made once: that reads the certificates of the machine."""
        if self.origin.scheme != "https":
            return None
        import ssl

        return ssl.create_default_context()

    # -- pings

    @property
    def _silent(self) -> float:
        return SILENT if self._patience is None else self._patience

    def _look(self) -> None:
        """Ping a server that is silent while requests wait for it."""
        self._watch = None
        if not self._waiting or self._loop is None:
            return
        silent = time.monotonic() - self.heard
        if silent < self._silent:
            self._watch = self._loop.call_later(self._silent - silent, self._look)
        else:
            self._asking = self._loop.create_task(self._ask(list(self._waiting)), name="backstay-ping")

    async def _ask(self, waiting: list[_Connection]) -> None:
        if not await self.ping(self._silent):
            for connection in waiting:
                if connection in self._waiting:
                    connection.give_up()
        if self._watch is None and self._loop is not None:
            self._watch = self._loop.call_later(self._silent, self._look)

    async def ping(self, seconds: float) -> bool:
        """Return whether the server answers on another connection: an idle one, or else a new one."""
        try:
            async with asyncio.timeout(seconds):
                return await self._pinged(await self._connected()) or await self._pinged(await self._connect())
        except (Lost, TimeoutError):
            return False

    async def reached(self, seconds: float) -> bool:
        """Return whether the server answers on a new connection, because the open ones did not help."""
        for connection in list(self._idle):
            connection.give_up()
        return await self.ping(seconds)

    async def _pinged(self, connection: _Connection) -> bool:
        """Return False if the connection was closed, as may happen to one that was idle for long."""
        request = f"GET {self.origin.base}{HEALTH} HTTP/1.1\r\nHost: {self.origin.host_header}\r\n\r\n".encode()
        try:
            await connection.send(request)
        except NotHttp:
            pass  # whatever it is, it speaks
        except Lost:
            return False
        except BaseException:
            connection.give_up()
            raise
        self._keep(connection)
        return True

    def _keep(self, connection: _Connection) -> None:
        if connection.usable and len(self._idle) < IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def forget(self, connection: _Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def leave(self) -> None:
        """Close the idle connections, so that the next request opens a new one."""
        for connection in list(self._idle):
            connection.close()

    def abandon(self) -> None:
        """Fail all requests that wait for a reply."""
        for connection in list(self._waiting):
            connection.give_up()

    def close(self) -> None:
        self.leave()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._asking is not None:
            self._asking.cancel()


def said(error: BaseException) -> str:
    """Return the text of an error without its number."""
    import ssl

    match error:
        case ConnectionRefusedError():
            return "nothing listens there"
        case TimeoutError():
            return "nothing answers there"
        case ssl.SSLError():
            return f"no secure connection ({error.reason or error})"
        case OSError(strerror=str(text)):
            return text
        case _:
            return str(error) or type(error).__name__
