"""How requests are read from a connection: none too large, none too slow, and one after the other.

A head has so many bytes and headers, and so many seconds from its first byte. A connection on which no request comes is
closed. What comes before the last request is answered waits as it came, and nothing more is read. All of it is counted where
requests come in pieces; one that comes whole goes the short way (`direct.py`) and pays for none of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from http import HTTPStatus
from typing import Any

import httptools
import msgspec
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from backstay.server.app import App
from backstay.server.problems import Problem
from backstay.sockets import keep_alive

PIECE = 4096
"""Bytes that are parsed at a time: as many requests as fit in are understood before the first of them is answered."""

STATUS = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}

CHUNK = 8
"""Bytes around each byte of a body, at most: a chunk of one byte takes six."""


class Flow(FlowControl):
    """`held`: nothing more is read, whoever asks for it."""

    held = False

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()


class Reader(HttpToolsProtocol):
    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        app = config.app
        assert isinstance(app, App)
        self._own = app
        self.known = False  # a request of this connection has shown a credential
        self._reading = False  # in the middle of a request
        self._in_head = False
        self._said = 0  # bytes of headers and trailers so far
        self._lines = 0
        self._raw = 0  # bytes of the request so far, and how many of them are its body
        self._bodied = 0
        self._refusal: Problem | None = None
        self._early: deque[memoryview] = deque()  # came before the last request was answered
        self._deadline: asyncio.TimerHandle | None = None

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        keep_alive(transport.get_extra_info("socket"))
        self.flow = self._flow = Flow(transport)
        self._deadline = self.loop.call_later(self._own.server.settings.head_seconds, self._too_slow)
        self._own.connections.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_clock()
        self._unset_keepalive_if_required()
        self._early.clear()
        self._own.connections.leave(self)
        self.scope = None  # type: ignore[assignment] # it knows this connection

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    def drop(self) -> None:
        self.transport.abort()

    def signed_in(self) -> None:
        if not self.known:
            self.known = True
            self._own.connections.signed_in(self)

    # -- what comes

    def data_received(self, data: bytes) -> None:
        if self._waits():
            self._hold()
            self._early.append(memoryview(data))
        else:
            self._feed(memoryview(data))

    def _waits(self) -> bool:
        """Whether a request has been read that is not answered yet."""
        cycle = self.cycle
        return not self._reading and cycle is not None and not cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]

    def _feed(self, data: memoryview) -> None:
        self._unset_keepalive_if_required()
        at = 0
        while at < len(data):
            piece = data[at : at + PIECE]
            at += PIECE
            self._raw += len(piece)
            try:
                self.parser.feed_data(piece)  # pyright: ignore[reportOptionalMemberAccess]
            except httptools.HttpParserUpgrade:
                pass  # nothing is spoken here but HTTP/1.1: it is answered in that
            except httptools.HttpParserError:
                self._refuse(self._refusal or Problem(400, "malformed_request", "this is not a request of HTTP/1.1"))
                return
            if self._raw - self._bodied > self._most + CHUNK * self._bodied:
                self._refuse(self._too_large())
                return
            if at < len(data) and self._waits():
                self._early.appendleft(data[at:])
                break
        if self._early or self.pipeline:
            self._hold()
        self._set_clock()

    def _hold(self) -> None:
        self._flow.held = True
        self.flow.pause_reading()

    def _go_on(self) -> None:
        """A request is answered: what came meanwhile is read now."""
        while self._early and not self._waits() and not self.transport.is_closing():
            self._feed(self._early.popleft())
        if not self._early and not self.pipeline and not self.transport.is_closing():
            self._flow.held = False
            self.flow.resume_reading()

    # -- what the parser finds

    @property
    def _most(self) -> int:
        return self._own.server.settings.max_head_bytes

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._reading = self._in_head = True
        self._said = self._lines = self._raw = self._bodied = 0
        self.scope["backstay.connection"] = self  # type: ignore[typeddict-unknown-key]

    def on_url(self, url: bytes) -> None:
        limit = self._own.server.settings.max_url_bytes
        if len(self.url) + len(url) > limit:
            self._refusal = Problem(414, "url_too_long", f"a URL has at most {limit} bytes", configured_limit=limit)
            raise self._refusal
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._said += len(name) + len(value) + 4
        self._lines += 1
        if self._said > self._most or self._lines > self._own.server.settings.max_headers:
            self._refusal = self._too_large()
            raise self._refusal
        if self._in_head:
            super().on_header(name, value)  # what stands behind a body says nothing about it any more

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_clock()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._bodied += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._reading = False
        self._stop_clock()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._early or self._flow.held:
            self._go_on()
        self._set_clock()

    # -- what takes too long, or too much

    def _set_clock(self) -> None:
        """Something always ends a wait for the caller: for the rest of a head, of a body that nobody reads, for the next request."""
        if self.transport.is_closing() or self._flow.held or self._waits():
            return
        settings = self._own.server.settings
        if self._in_head:
            self._start_clock(settings.head_seconds)
        elif self._reading:
            if self.cycle.response_complete:
                self._start_clock(settings.body_seconds)
        elif self.timeout_keep_alive_task is None and self._deadline is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _start_clock(self, seconds: float) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(seconds, self._too_slow)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if self._in_head:
            seconds = self._own.server.settings.head_seconds
            self._refuse(Problem(408, "head_timeout", f"the head of the request did not arrive within {seconds:g} s"))
        else:
            self.transport.close()

    def _too_large(self) -> Problem:
        settings = self._own.server.settings
        said = f"the head of a request has at most {settings.max_head_bytes} bytes and {settings.max_headers} headers"
        return Problem(431, "head_too_large", said, configured_limit=settings.max_head_bytes)

    def _refuse(self, problem: Problem) -> None:
        """Say no and hang up: what follows cannot be understood any more."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
            content = msgspec.json.encode(problem.body())
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(content)
            self.transport.write(STATUS[problem.status] + head + content)
        self.transport.close()
