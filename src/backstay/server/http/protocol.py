"""HTTP/1.1 on one connection: requests are read, answered one after the other, and bounded in size and time.

`HttpProtocol` is an `asyncio.Protocol`. It decides when to parse and to answer. `connection.py` has its bytes, deadlines and
memory; `parser.py` turns bytes into requests; `app.py` checks access to routes.

A request goes through these stages, and every request of the server goes through the same ones:

    head read -> route and credential (`App.admit`) -> body read -> version and namespace (`App.check`) -> handler -> reply

A request is refused at the first stage that it fails, so a caller without a credential costs no body.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Coroutine, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, NamedTuple

from msgspec import Struct

from backstay.protocol.native import node_proofs
from backstay.server.access.hidden_payloads import no_payloads
from backstay.server.access.signatures import NotTaken, RequestSignature
from backstay.server.cluster.links import check_digest
from backstay.server.http.app import App, error_response
from backstay.server.http.connection import UNREAD_BODY, HttpConnection
from backstay.server.http.encoding import (
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
from backstay.server.http.errors import HttpError
from backstay.server.http.messages import ClientDisconnected, HttpRequest, HttpResponse, ParsedRequest
from backstay.server.http.parser import body_too_large
from backstay.server.http.pending_reply import PendingReply
from backstay.server.http.router import Route

log = logging.getLogger("backstay.server")

HEADS = 32  # remembered for a connection
HEAD_BYTES = 4096  # a longer head is not remembered
ALL_HEADS_BYTES = 8 << 10  # of all heads of a connection that are remembered
HEAD_END = b"\r\n\r\n"
LENGTH = b"\r\nContent-Length: "
PROOF_HEADER = node_proofs.HEADER.lower()
PROOF = f"\r\n{node_proofs.HEADER}: ".encode()
PLAIN = re.compile(rb"[0-9a-f.]{1,300}").fullmatch
STATUS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


class KnownHead(NamedTuple):
    """A head that was parsed and checked before on this connection."""

    route: Route
    headers: Mapping[str, str]
    version: str


class HttpProtocol(HttpConnection):
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
    for the digits of `Content-Length`; nodes send a proof as the last line, of digits and dots. A request that arrives whole, in
    one read, and whose head differs from an earlier one of its connection in these only, is not parsed again: the head is looked
    up by its bytes. Only a head that the
    strict parser has accepted, with that one `Content-Length` and without `Transfer-Encoding`, is remembered, and the digits
    must be exactly the number of bytes that follow; every other request goes through the parser. So a remembered head can never
    make the end of a request ambiguous (`test_a_head_that_can_be_read_in_two_ways_is_refused`). The credential is checked
    every time.
    """

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self._heads: dict[bytes, KnownHead] = {}
        self._heads_bytes = 0
        self._route: Route | None = None  # of the current request, once it is admitted
        self._pending: PendingReply | None = None  # the reply, if no coroutine makes it
        self._streaming: asyncio.Task[None] | None = None

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
        if self._held:
            self._app.buffered.set(self, self.account, 0)
        self._app.connections.remove(self)

    # -- receiving

    def data_received(self, data: bytes) -> None:
        if self._input_over:
            if self._ignored is not None:
                self._ignored += len(data)
                if self._ignored > self._settings.max_body_bytes:
                    self.drop()
            return
        if self._current is None and not self._parser.in_message and not self._writing_paused and not self._unread:
            end = data.find(HEAD_END)
            at = data.find(LENGTH, 0, end)
            if 0 < at < end <= HEAD_BYTES:
                stop = data.find(b"\r\n", at + 2, end + 2)
                proof = data.rfind(PROOF, stop, end)
                if proof < 0:
                    text = data[:at] + data[stop:end]
                else:
                    text = data[:at] + data[stop : proof + len(PROOF)]
                    proof = proof + len(PROOF) if PLAIN(data, proof + len(PROOF), end) else 0
                head = self._heads.get(text) if proof else None
                if head is None:
                    self._parser.head_text = text if proof else None
                elif data[at + 18 : stop] == b"%d" % (len(data) - end - 4):
                    self._receive_known(head, data[end + 4 :], data[proof:end] if proof > 0 else None)
                    return
        self._unread.append(memoryview(data))
        self._proceed()
        self._parser.head_text = None

    def _receive_known(self, head: KnownHead, body: bytes, proof: bytes | None) -> None:
        """Answer a request that arrived in one read and whose head has been parsed before. `proof`: of a node."""
        route = head.route
        headers = head.headers if proof is None else {**head.headers, PROOF_HEADER: proof.decode("ascii")}
        self._current = request = HttpRequest(route.method, route.path, headers)
        self._route = route
        request.version = head.version
        request.address = self.address
        try:
            most = route.max_body_bytes or self._settings.max_body_bytes
            if len(body) > most:
                raise body_too_large(most)
            app = self._app
            app.authenticate(route, request, self)
            request.body = body
            if request.digest is not None:
                check_digest(request)
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
        except NotTaken as signed:
            self._running = True
            self._app.run(self._take(request, signed.signature))
        except Exception as error:
            if self._app.may_be_known(request, error):
                self._running = True
                self._app.run(self._look_again(request, error))
            else:
                self._reply(error_response(request, error))
        return True

    async def _take(self, request: ParsedRequest, signature: RequestSignature) -> None:
        """Use the signature of a request, and go on with it."""
        try:
            await self._app.take(request, signature)
        except Exception as error:
            self._reply(error_response(request, error))
        else:
            self._running = False
        self._proceed()

    async def _look_again(self, request: ParsedRequest, refusal: Exception) -> None:
        """Check a request once more from the start, after a look at what other processes have registered."""
        request.confirmed = True
        try:
            await self._app.look(refusal)
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
        self,
        route: Route,
        request: HttpRequest,
        handler: Coroutine[Any, Any, Mapping[str, Any] | Struct | HttpResponse],
    ) -> None:
        try:
            answer = await handler
            if not isinstance(answer, HttpResponse):
                answer = HttpResponse(answer)
            body = answer.body
            rehearsed = request.dry_run or (not isinstance(body, Struct) and body.get("dry_run"))
            if answer.status < 300 and not rehearsed and route.changes and route.plane != "node":
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
        """The reply as it is sent, compressed if the client accepts that. Much is compressed on a thread."""
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
        lingers = request is self._parser.incoming and self._much_to_come(request)
        self._end()
        self._app.count(route, answer.status)
        if self._transport.is_closing():
            return
        content = answer.raw
        close = self._last or answer.last or not request.keep_alive or lingers
        plain = route is not None and route.plane in ("own", "node")
        if content is not None and plain and answer.status == 200 and not close:
            self._transport.write(_OK % (len(content), content))
            return
        status, headers, content = sent or self._encode(route, request, answer)
        content = content or b""
        head = _head(status, headers, close, len(content))
        self._transport.write(head if request.method == "HEAD" else head + content)
        if lingers:
            self._linger()
        elif close:
            self._transport.close()

    def _much_to_come(self, request: HttpRequest) -> bool:
        """Whether the rest of a body is too long to parse it only to keep the connection. Without a length its size is
        unknown."""
        length = request.headers.get("content-length", "0")
        return int(length) - self._parser.body_bytes > UNREAD_BODY

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
        if self._parser.incoming is not None and self._parser.incoming is self._current:
            self._parser.drop_body()
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
        room = len(self._heads) < HEADS and self._heads_bytes + len(text) <= ALL_HEADS_BYTES
        if plain and whole and room and self._app.server.access.signatures is None:
            self._heads[text] = KnownHead(route, request.headers, request.version)
            self._heads_bytes += len(text)


def _head(status: int, headers: Headers, close: bool, length: int | None = None) -> bytes:
    parts = [STATUS[status], SECURITY]
    for name, value in headers:
        parts += (name, b": ", value, b"\r\n")
    if length is not None and status != 304:
        parts.append(b"content-length: %d\r\n" % length)
    parts.append(b"connection: close\r\n\r\n" if close else b"\r\n")
    return b"".join(parts)
