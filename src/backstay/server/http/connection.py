"""One connection of the server: its input, its deadline for the client, and the bytes that it holds.

`HttpConnection` is the half of an HTTP connection that knows bytes, time and memory. `protocol.py` is the half that answers requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

from backstay.server.access.accounts import stranger
from backstay.server.http.app import App, error_response
from backstay.server.http.deadline import MovingDeadline
from backstay.server.http.errors import HttpError
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.parser import RequestParser, too_much_at_once
from backstay.sockets import keep_alive

PIECE = 4096
"""Bytes that are parsed at a time. The parser cannot stop between two pipelined requests, so this bounds how many requests
are parsed before the first of them is answered."""

UNREAD_BODY = 64 << 10  # bytes of a body that are parsed after its request was answered, to keep the connection
COUNTED = 16 << 10  # bytes of a body that are counted while its request is answered


class HttpConnection(asyncio.Protocol):
    """The bytes, the time and the memory of one connection.

    **Deadlines.** A connection waits for its client in four ways: for a head (`head_seconds`), a body (`body_seconds`), the
    next request (`idle_seconds`), or until it reads on (`idle_seconds` without a byte). There is one timer for all of them
    (`MovingDeadline`), so a busy connection sets a timer every `idle_seconds` instead of twice per request.

    **Memory.** Bytes that the server holds for a client count for its account (`buffered_bytes.py`); the body of an
    answered request is dropped. If much of it is still to come, the connection *lingers*: the reply is the last one,
    bytes are ignored for a while unparsed, and then it is closed. To close at once would reset the connection, and a
    client that is busy sending would never see the reply.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._settings = app.server.settings
        self._loop = asyncio.get_running_loop()
        self._transport = cast("asyncio.Transport", None)  # from connection_made on
        self._parser = RequestParser(self._settings)
        self.address = ""
        self.account = ""  # whose connection it is
        self.authenticated = False  # a request of this connection has shown a credential
        self._held = 0  # bytes that are counted for the account
        # -- input
        self._unread: deque[memoryview] = deque()  # not parsed yet
        self._reading_paused = False
        self._input_over = False  # bytes that arrive from now on are ignored
        self._ignored: int | None = None  # how many, if the connection lingers
        self._refusal: HttpError | None = None  # of bytes that cannot be parsed
        # -- replies
        self._queue = self._parser.requests  # pipelined after the current one
        self._current: HttpRequest | None = None
        self._running = False  # a handler has the current request
        self._last = False  # the connection ends with the next reply
        self._writing_paused = False
        self._writable: asyncio.Future[None] | None = None
        self._unsent = 0  # bytes that the client had not read when that was looked at last
        # Which part of a request the deadline is for: a head, body, request or nothing. "first" is the first head of the
        # connection, whose time begins when it is opened; "" is one whose deadline is still to be set.
        self._waits_for = "first"
        self._deadline = MovingDeadline(self._loop, self._too_slow)

    # -- what answers requests

    def _proceed(self) -> None:
        """Parse and answer until a handler, the client or the socket has to be waited for."""
        raise NotImplementedError

    def _reply(self, answer: HttpResponse) -> None:
        """Send the reply to the current request, and be done with it."""
        raise NotImplementedError

    def _refuse(self, error: HttpError) -> None:
        """Answer bytes that are not a request, and close the connection."""
        raise NotImplementedError

    # -- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        keep_alive(transport.get_extra_info("socket"))
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if peer else ""
        self.account = stranger(self.address)
        self._deadline.set(self._settings.head_seconds)
        self._app.connections.add(self)

    def drop(self) -> None:
        """Close at once, even in the middle of a reply."""
        self._transport.abort()

    @property
    def idle(self) -> bool:
        """Whether it waits for the next request of its client."""
        return self._current is None

    def make_room(self) -> None:
        """Close because the account holds too much. A request whose body is still coming is refused."""
        request = self._current
        if request is not None and not self._running and self._parser.incoming is request:
            self._reply(error_response(request, too_much_at_once(self._settings)))
        else:
            self.drop()

    def shutdown(self) -> None:
        """Close because the server stops: at once if idle, otherwise with the reply to the current request."""
        if self._current is None:
            self._transport.close()
        else:
            self._last = True

    def mark_authenticated(self, account: str) -> None:
        if not self.authenticated:
            self.authenticated = True
            if self._held:
                self._app.buffered.set(self, self.account, 0)
                self._held = 0
            self.account = account
            self._app.connections.mark_authenticated(self)

    # -- back-pressure

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._unsent = self._transport.get_write_buffer_size()
        self._waits_for = "reader"
        self._deadline.set(self._settings.idle_seconds)
        self._weigh()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._waits_for = ""
        self._deadline.at = None
        if self._held:
            self._weigh()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._proceed()

    # -- receiving

    def _rest(self) -> None:
        """Wait: continue to read, unless requests are left to answer, and set the deadline for the next input."""
        if self._transport.is_closing() or self._ignored is not None:
            return
        pause = bool(self._unread or self._queue or (self._writing_paused and self._current is None))
        if pause is not self._reading_paused:
            self._reading_paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
        current = self._current
        if self._held or pause or self._parser.in_message or (current is not None and len(current.body) > COUNTED):
            self._weigh()
            if self._transport.is_closing() or self._ignored is not None:
                return
        if self._writing_paused:
            waits_for = "reader"
        elif self._running or pause:
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
        """Parse the next piece of the input."""
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
        if parser.dropped_bytes > UNREAD_BODY:
            self._linger()
            return
        if refusal is not None:
            self._break_off(refusal)

    def _break_off(self, refusal: HttpError) -> None:
        """Ignore the rest of the input, since it cannot be parsed. Requests before it are answered first."""
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

    def _weigh(self) -> None:
        """Count the bytes that the server holds for the client."""
        held = self._parser.held_bytes
        for piece in self._unread:
            held += len(cast("bytes", piece.obj))  # all of it is kept while a part is
        if self._current is not None:
            held += len(self._current.body)
        if self._writing_paused:
            held += self._transport.get_write_buffer_size()
        if held != self._held:
            self._held = held
            self._app.buffered.set(self, self.account, held)

    def _linger(self) -> None:
        """Ignore the rest of an answered request, for as long as a body may take."""
        self._input_over = True
        self._ignored = 0
        self._unread.clear()
        self._parser.abandon()
        if self._reading_paused:
            self._reading_paused = False
            self._transport.resume_reading()
        if self._held:
            self._weigh()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._waits_for = "end"
        self._deadline.set(self._settings.body_seconds)

    def _too_slow(self) -> None:
        """Refuse or close: the client has not sent in time the head, body or request that the deadline was for, or reads
        nothing."""
        if self._writing_paused:
            unsent, self._unsent = self._unsent, self._transport.get_write_buffer_size()
            if self._unsent < unsent:
                self._deadline.set(self._settings.idle_seconds)
            else:
                self.drop()
            return
        if self._ignored is not None:
            self._transport.close()
            return
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
