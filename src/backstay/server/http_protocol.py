"""HTTP/1.1 on one connection: requests are read, answered one after the other, and bounded in size and time.

`HttpProtocol` is an `asyncio.Protocol`. It decides when to read, to parse, to answer and to hang up. `http_parser.py` turns
bytes into requests; `app.py` decides who may call which route.

A request goes through these stages, and every request of the server goes through the same ones:

    head read -> route and credential (`App.admit`) -> body read -> version and namespace (`App.check`) -> handler -> reply

A request is refused at the first stage that it fails, so a caller without a credential costs no body.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, NamedTuple, cast

from backstay.server.app import App, error_response
from backstay.server.deadline import MovingDeadline
from backstay.server.encoding import (
    AT_ONCE,
    COMPRESSED_ABOVE,
    GZIP,
    SECURITY,
    Encoded,
    Headers,
    compress,
    compresses,
    compressor,
)
from backstay.server.hidden_payloads import no_payloads
from backstay.server.http_errors import HttpError
from backstay.server.http_messages import ClientDisconnected, HttpRequest, HttpResponse, ParsedRequest
from backstay.server.http_parser import RequestParser, body_too_large
from backstay.server.pending_reply import PendingReply
from backstay.server.router import Route
from backstay.sockets import keep_alive

log = logging.getLogger("backstay.server")

PIECE = 4096
"""Bytes that are parsed at a time. The parser cannot stop between two pipelined requests, so this bounds how many requests
are parsed before the first of them is answered."""

HEADS = 32  # remembered for a connection
HEAD_BYTES = 4096  # a longer head is not remembered
HEAD_END = b"\r\n\r\n"
LENGTH = b"\r\nContent-Length: "
STATUS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


class KnownHead(NamedTuple):
    """A head that was parsed and checked before on this connection."""

    route: Route
    headers: Mapping[str, str]
    version: str


class HttpProtocol(asyncio.Protocol):
    """One connection of the server.

    **One request at a time.** A client may send its next requests before it has the reply to the first (pipelining). Replies
    have to leave in the order of the requests, so only one request is answered at a time. Meanwhile bytes that arrive are
    kept unparsed (`_unread`) and reading from the socket stops: a client cannot make the server hold more than one read and
    one piece of parsed requests, however much it sends. `test_a_client_that_does_not_read_is_not_read` floods a server to
    show it. The same holds for a client that sends but never reads: above the transport's high-water mark no further
    request is taken up until the client has read some of its replies (`pause_writing`).

    **Disconnects.** Reading goes on while a request is answered, if nothing has been pipelined, because that is how a closed
    connection is noticed: `connection_lost` gives up a pending reply, cancels the sending of a streamed one and wakes a
    handler that waits in `HttpRequest.until_disconnected`. A handler that is working is not cancelled, since its work may be half done; its
    reply is dropped. Without this a worker that died while it polled would get a task that is never run.

    **Heads that were seen before.** Our own clients and workers, and most others, send the same head with every request but
    for the digits of `Content-Length`. A request that arrives whole, in one read, and whose head differs from an earlier one
    of its connection in those digits only, is not parsed again: the head is looked up by its bytes. Only a head that the
    strict parser has accepted, with that one `Content-Length` and without `Transfer-Encoding`, is remembered, and the digits
    must be exactly the number of bytes that follow; every other request goes through the parser. So a remembered head can never
    make the end of a request ambiguous (`test_a_head_that_can_be_read_in_two_ways_is_refused`). The credential is checked
    every time.

    **Deadlines.** A connection waits for its client in three ways: for a head (`head_seconds`), a body (`body_seconds`) or
    the next request (`idle_seconds`). There is one timer for all of them (`MovingDeadline`), so a busy connection sets a timer
    every `idle_seconds` instead of twice per request.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._settings = app.server.settings
        self._loop = asyncio.get_running_loop()
        self._transport = cast("asyncio.Transport", None)  # from connection_made on
        self._parser = RequestParser(self._settings)
        self._heads: dict[bytes, KnownHead] = {}
        self.address = ""
        self.authenticated = False  # a request of this connection has shown a credential
        # -- what has been received
        self._unread: deque[memoryview] = deque()  # not parsed yet
        self._reading_paused = False
        self._input_over = False  # bytes that arrive from now on are ignored
        self._refusal: HttpError | None = None  # of bytes that cannot be parsed
        # -- what is answered
        self._queue = self._parser.requests  # pipelined after the current one
        self._current: HttpRequest | None = None
        self._route: Route | None = None  # of the current request, once it is admitted
        self._running = False  # a handler has the current request
        self._pending: PendingReply | None = None  # the reply, if no coroutine makes it
        self._streaming: asyncio.Task[None] | None = None
        self._last = False  # the connection ends with the next reply
        self._writing_paused = False
        self._writable: asyncio.Future[None] | None = None
        # Which part of a request the deadline is for: a head, body, request or nothing. "first" is the first head of the
        # connection, whose time begins when it is opened; "" is one whose deadline is still to be set.
        self._waits_for = "first"
        self._deadline = MovingDeadline(self._loop, self._too_slow)

    # -- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        keep_alive(transport.get_extra_info("socket"))
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if peer else ""
        self._deadline.set(self._settings.head_seconds)
        self._app.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._input_over = True
        self._unread.clear()
        self._queue.clear()
        self._heads.clear()
        self._deadline.close()
        if self._pending is not None:
            self._pending.give_up()
        if self._streaming is not None:
            self._streaming.cancel()
        if self._current is not None:
            self._current.disconnect()
        self._parser.close()
        self._app.connections.remove(self)

    def drop(self) -> None:
        """Close at once, even in the middle of a reply."""
        self._transport.abort()

    def shutdown(self) -> None:
        """Close because the server stops: at once if idle, otherwise with the reply to the current request."""
        if self._current is None:
            self._transport.close()
        else:
            self._last = True

    def mark_authenticated(self) -> None:
        if not self.authenticated:
            self.authenticated = True
            self._app.connections.mark_authenticated(self)

    # -- back-pressure

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._proceed()

    # -- receiving

    def data_received(self, data: bytes) -> None:
        if self._input_over:
            return
        if self._current is None and not self._parser.in_message and not self._writing_paused and not self._unread:
            end = data.find(HEAD_END)
            at = data.find(LENGTH, 0, end)
            if 0 < at < end <= HEAD_BYTES:
                stop = data.find(b"\r\n", at + 2, end + 2)
                text = data[:at] + data[stop:end]
                head = self._heads.get(text)
                if head is None:
                    self._parser.head_text = text
                elif data[at + 18 : stop] == b"%d" % (len(data) - end - 4):
                    self._receive_known(head, data[end + 4 :])
                    return
        self._unread.append(memoryview(data))
        self._proceed()
        self._parser.head_text = None

    def _receive_known(self, head: KnownHead, body: bytes) -> None:
        """Answer a request that arrived in one read and whose head has been parsed before."""
        route = head.route
        self._current = request = HttpRequest(route.method, route.path, head.headers)
        self._route = route
        request.version = head.version
        request.address = self.address
        try:
            if len(body) > self._settings.max_body_bytes:
                raise body_too_large(self._settings.max_body_bytes)
            app = self._app
            app.authenticate(route, request, self)
            request.body = body
            app.resolve_namespace(route, request)
            self._begin(route, request)
        except Exception as error:
            self._reply(error_response(request, error))
        if not self._running:
            self._rest()

    def _proceed(self) -> None:
        """Parse and answer until a handler, the client or the socket has to be waited for."""
        while not self._transport.is_closing():
            if self._current is None:
                if self._writing_paused:
                    break
                if self._queue:
                    self._current = self._queue.popleft()
                elif self._refusal is not None and self._parser.incoming is None:
                    self._refuse(self._refusal)
                    return
            if isinstance(self._current, ParsedRequest) and not self._running and self._advance(self._current):
                continue
            if self._running or not self._unread:
                break
            self._parse()
        self._rest()

    def _rest(self) -> None:
        """Wait: read on, unless requests are left to answer, and set the deadline of what the client has to send."""
        if self._transport.is_closing():
            return
        pause = bool(self._unread or self._queue or (self._writing_paused and self._current is None))
        if pause is not self._reading_paused:
            self._reading_paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
        if self._running or pause:
            waits_for = "nothing"  # of the client
        elif self._parser.in_message:
            waits_for = "head" if self._parser.in_head else "body"
        else:
            waits_for = "request"
        if waits_for == self._waits_for or (self._waits_for == "first" and waits_for != "nothing"):
            return
        self._waits_for = waits_for
        if waits_for == "request":
            self._deadline.set(self._settings.idle_seconds)
        elif waits_for == "nothing":
            self._deadline.at = None
        else:
            self._deadline.set(self._settings.head_seconds if waits_for == "head" else self._settings.body_seconds)

    def _parse(self) -> None:
        """Parse the next piece of what has been received."""
        parser = self._parser
        data = self._unread.popleft()
        if len(data) > PIECE:
            self._unread.appendleft(data[PIECE:])
        refusal = parser.feed(data[:PIECE])
        if parser.advanced:
            parser.advanced = False
            self._waits_for = ""
        if self._current is None and self._queue:
            self._current = self._queue.popleft()
        if parser.ended:
            self._input_over = True
            self._unread.clear()
        if refusal is not None:
            self._break_off(refusal)

    def _break_off(self, refusal: HttpError) -> None:
        """Ignore the rest of what is received, since it cannot be parsed. Requests before it are answered first."""
        self._input_over = True
        self._unread.clear()
        self._refusal = refusal
        broken = self._parser.abandon()
        if broken is None:
            return
        broken.keep_alive = False
        if broken in self._queue:
            self._queue.remove(broken)
        elif broken is not self._current:
            self._transport.close()  # it has been answered
        elif self._running:
            self._refusal = None  # the connection ends with its reply
        else:
            self._reply(error_response(broken, refusal))

    # -- answering

    def _advance(self, request: ParsedRequest) -> bool:
        """Check and begin the current request as far as it has been received. False: it needs more of its body."""
        app = self._app
        try:
            route = self._route
            if route is None:
                request.address = self.address
                route, request.params = app.router.find(request.method, request.target.partition("?")[0])
                self._route = route
                app.admit(route, request, self)
            if route.reads_body and not self._has_body(route, request):
                return False
            app.check(route, request, self)
            if request.head_text is not None:
                self._remember(request.head_text, route, request)
            self._begin(route, request)
        except Exception as error:
            if self._app.may_be_known(request, error):
                self._running = True
                self._app.run(self._look_again(request, error))
            else:
                self._reply(error_response(request, error))
        return True

    async def _look_again(self, request: ParsedRequest, refusal: Exception) -> None:
        """Check a request once more from the start, after a look at what other processes have registered."""
        request.confirmed = True
        try:
            await self._app.server.registries.confirm()
        except Exception:  # the database does not answer
            self._reply(error_response(request, refusal))
        else:
            self._running = False
            self._route = None
        self._proceed()

    def _has_body(self, route: Route, request: ParsedRequest) -> bool:
        """Whether the whole body has been received. One that is too large is refused as soon as that is known."""
        most = route.max_body_bytes or self._settings.max_body_bytes
        received = len(request.body) if request.complete else self._parser.body_bytes
        if request.too_large or max(received, int(request.headers.get("content-length", "0"))) > most:
            raise body_too_large(most)
        if request.expects_continue and not request.complete and not self._parser.body_bytes:
            request.expects_continue = False
            self._transport.write(_CONTINUE)
        return request.complete

    def _begin(self, route: Route, request: HttpRequest) -> None:
        """Hand an admitted request to its handler."""
        reply = self._app.handle(route, request)
        if isinstance(reply, HttpResponse):
            self._reply(reply)
            return
        self._running = True
        if isinstance(reply, PendingReply):
            self._pending = reply
            reply.answer.add_done_callback(self._answered)
        else:
            self._app.run(self._handle(route, request, reply))

    def _answered(self, _: asyncio.Future[Any]) -> None:
        pending, request = self._pending, self._current
        assert pending is not None
        assert request is not None
        try:
            answer = pending.reply()
        except asyncio.CancelledError:
            self._transport.close()  # the reply was given up: its client has hung up
            return
        except Exception as error:
            answer = error_response(request, error)
        self._reply(answer)
        if self._unread or self._queue or self._refusal is not None:
            self._proceed()
        else:
            self._rest()

    async def _handle(
        self, route: Route, request: HttpRequest, handler: Coroutine[Any, Any, Mapping[str, Any] | HttpResponse]
    ) -> None:
        try:
            answer = await handler
            if not isinstance(answer, HttpResponse):
                answer = HttpResponse(answer)
            is_done = answer.status < 300 and not (request.dry_run or answer.body.get("dry_run"))
            if is_done and route.changes and route.plane != "node":
                await self._app.record(route, request, answer)
        except ClientDisconnected:
            self._transport.close()
            return
        except Exception as error:
            answer = error_response(request, error)
        if not request.caller.payloads and not route.payload_free and (answer.raw, answer.parts) != (None, None):
            if answer.parts is not None:
                await answer.parts.aclose()
            answer = error_response(request, no_payloads())
        if answer.parts is not None:
            await self._stream(route, request, answer)
        else:
            self._reply(answer, await self._compressed(route, request, answer))
        self._proceed()

    async def _compressed(self, route: Route, request: HttpRequest, answer: HttpResponse) -> Encoded:
        """The reply as it is sent, compressed if the client asks for that. Much is compressed on a thread."""
        sent = self._encode(route, request, answer)
        content = sent.content or b""
        if len(content) <= COMPRESSED_ABOVE or not compresses(request, answer.content_type):
            return sent
        if len(content) <= AT_ONCE:
            packed = compress(content)
        else:
            packed = await self._loop.run_in_executor(None, compress, content)
        return Encoded(sent.status, [*sent.headers, GZIP], packed)

    def _encode(self, route: Route | None, request: HttpRequest, answer: HttpResponse) -> Encoded:
        try:
            return self._app.encode(route, request, answer)
        except Exception as error:  # a handler's answer that cannot be encoded
            return self._app.encode(route, request, error_response(request, error))

    # -- sending

    def _reply(self, answer: HttpResponse, sent: Encoded | None = None) -> None:
        """Send the reply to the current request, and be done with it. `sent`: the reply as it is sent, if that is known."""
        request, route = self._current, self._route
        assert request is not None
        self._end()
        self._app.count(route, answer.status)
        if self._transport.is_closing():
            return
        content = answer.raw
        close = self._last or answer.last or not request.keep_alive
        plain = route is not None and route.plane in ("own", "node")
        if content is not None and plain and answer.status == 200 and not close:
            self._transport.write(_OK % (len(content), content))
            return
        status, headers, content = sent or self._encode(route, request, answer)
        content = content or b""
        head = _head(status, headers, close, len(content))
        self._transport.write(head if request.method == "HEAD" else head + content)
        if close:
            self._transport.close()

    async def _stream(self, route: Route, request: HttpRequest, answer: HttpResponse) -> None:
        """Send a reply part by part, as fast as the client reads. It is given up when the connection is lost."""
        assert answer.parts is not None
        headers = self._app.encode(route, request, answer).headers
        packed = compressor() if compresses(request, answer.content_type) else None
        if packed is not None:
            headers.append(GZIP)
        close = self._last or answer.last or not request.keep_alive
        if not request.http_1_0:  # HTTP/1.0 knows no chunks: the end of the connection is the end of the body
            headers.append((b"transfer-encoding", b"chunked"))
        self._app.count(route, answer.status)
        self._streaming = asyncio.current_task()
        async with aclosing(answer.parts):
            if self._transport.is_closing():
                return
            self._transport.write(_head(answer.status, headers, close))
            try:
                async for part in answer.parts:
                    self._send_part(request, part if packed is None else packed.compress(part))
                    if self._writing_paused:
                        self._writable = self._loop.create_future()
                        await self._writable
            except asyncio.CancelledError:
                self._transport.abort()  # its caller does not read, or has hung up
                raise
            except Exception as error:
                log.error("%s %r failed after its reply had begun", request.method, request.path, exc_info=error)
                close = True  # without its last chunk the client knows that the reply is not whole
            else:
                if packed is not None:
                    self._send_part(request, packed.flush())
                if not request.http_1_0:
                    self._transport.write(b"0\r\n\r\n")
        close = close or self._last
        self._end()
        if close:
            self._transport.close()

    def _send_part(self, request: HttpRequest, part: bytes) -> None:
        if part:
            self._transport.write(part if request.http_1_0 else b"%x\r\n%b\r\n" % (len(part), part))

    def _end(self) -> None:
        """Forget the current request, which has been answered. Any rest of its body is read and dropped."""
        self._current = self._route = self._pending = self._streaming = None
        self._running = False
        self._waits_for = ""

    def _refuse(self, error: HttpError) -> None:
        """Answer bytes that are not a request, and close the connection."""
        sent = self._app.encode(None, HttpRequest("", "", {}), HttpResponse(error.body(), error.status))
        content = sent.content or b""
        self._transport.write(_head(error.status, sent.headers, True, len(content)) + content)
        self._transport.close()

    # -- heads that were seen before

    def _remember(self, text: bytes, route: Route, request: ParsedRequest) -> None:
        """Remember the head of a request that has been admitted and checked."""
        plain = request.target == route.path and route.needs_credential  # paths with ids in them do not come back
        whole = request.complete and request.headers.get("content-length") == str(len(request.body))
        if plain and whole and len(self._heads) < HEADS and self._app.server.signatures is None:
            self._heads[text] = KnownHead(route, request.headers, request.version)

    def _too_slow(self) -> None:
        """Refuse or close: the client has not sent in time the head, body or request that the deadline was for."""
        if self._running:
            return
        request = self._current
        if self._parser.in_head:
            seconds = self._settings.head_seconds
            self._refuse(HttpError(408, "head_timeout", f"the head of the request did not arrive within {seconds:g} s"))
        elif request is not None:
            seconds = self._settings.body_seconds
            message = f"the body did not arrive within {seconds:g} seconds"
            self._reply(error_response(request, HttpError(408, "body_timeout", message)))
            self._rest()
        else:
            self._transport.close()


def _head(status: int, headers: Headers, close: bool, length: int | None = None) -> bytes:
    parts = [STATUS[status], SECURITY]
    for name, value in headers:
        parts += (name, b": ", value, b"\r\n")
    if length is not None and status != 304:
        parts.append(b"content-length: %d\r\n" % length)
    parts.append(b"connection: close\r\n\r\n" if close else b"\r\n")
    return b"".join(parts)
