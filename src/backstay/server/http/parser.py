"""Parsing of HTTP/1.1 requests: bytes of one connection become requests, within the limits of the settings.

`RequestParser` holds httptools (llhttp, the parser of Node.js, in its strict mode) and takes its callbacks. It reads nothing,
answers nothing and knows no time: `http_protocol.py` feeds it and takes the requests.
"""

from __future__ import annotations

import logging
from collections import deque

import httptools

from backstay.server.http.errors import HttpError
from backstay.server.http.messages import ParsedRequest
from backstay.server.settings import Settings

log = logging.getLogger("backstay.server")

CHUNK = 8
"""Bytes of chunk headers allowed for each byte of a chunked body: a chunk of one byte takes six."""

ONCE = frozenset({"host", "authorization", "x-namespace"})
"""Headers that may be sent once: of two, a proxy and this server could use different ones."""


class RequestParser:
    """The requests of one connection, in the order in which they were sent.

    A request is in `requests` from the end of its head on, and its `body` is set when all of it has been parsed. Until then
    it is also `incoming`. A body without a waiting request is parsed and dropped (`drop_body`).
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._http = httptools.HttpRequestParser(self)
        self.requests: deque[ParsedRequest] = deque()
        self.incoming: ParsedRequest | None = None
        self.advanced = False  # a head or a request has been parsed to its end; the reader of this sets it back
        self.ended = False  # the last request of the connection has been parsed
        self.in_message = False
        self.in_head = False
        self.head_text: bytes | None = None  # of the next head, without its length, if it may be remembered
        self.body_bytes = 0  # of the message that is being parsed
        self.dropped_bytes = 0  # of its body, since it was answered
        self._message_bytes = 0  # of all of it
        self._url = b""
        self._headers: dict[str, str] = {}
        self._head_bytes = 0  # of headers and trailers
        self._head_lines = 0
        self._body: bytes | bytearray = b""  # most bodies come in one piece
        self._dropping = False
        self._refusal: HttpError | None = None  # why a callback has stopped the parser

    def feed(self, piece: memoryview) -> HttpError | None:
        """Parse the next bytes. Returns why neither they nor anything after them can be used, if so."""
        self._message_bytes += len(piece)
        try:
            self._http.feed_data(piece)
        except httptools.HttpParserUpgrade:
            return None  # answered in HTTP/1.1, after which the connection ends
        except httptools.HttpParserError as error:
            return None if self.ended else self._refusal or _malformed(error)
        if self._message_bytes - self.body_bytes > self._settings.max_head_bytes + CHUNK * self.body_bytes:
            return head_too_large(self._settings)
        return None

    @property
    def held_bytes(self) -> int:
        """How much of the body of the incoming request is in memory."""
        return len(self._body)

    def drop_body(self) -> None:
        """Keep no more of the body of the incoming request: it has been answered."""
        self._body = b""
        self._dropping = True

    def abandon(self) -> ParsedRequest | None:
        """Stop in the middle of a request. Returns the request, if its head has been parsed."""
        request, self.incoming = self.incoming, None
        self.in_message = self.in_head = False
        self._body = b""
        return request

    def close(self) -> None:
        """Drop the parser: it and its callbacks hold each other, and would wait for the garbage collector."""
        del self._http

    # -- callbacks of httptools

    def on_message_begin(self) -> None:
        if self.ended:
            raise head_too_large(self._settings)  # stops the parser; bytes after the last request are ignored
        self.in_message = self.in_head = True
        self._url = b""
        self._headers = {}
        self._head_bytes = self._head_lines = self._message_bytes = self.body_bytes = self.dropped_bytes = 0
        self._body = b""
        self._dropping = False

    def on_url(self, url: bytes) -> None:
        limit = self._settings.max_url_bytes
        self._url += url
        if len(self._url) > limit:
            self._refusal = HttpError(414, "url_too_long", f"a URL has at most {limit} bytes", configured_limit=limit)
            raise self._refusal

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        self._head_lines += 1
        if self._head_bytes > self._settings.max_head_bytes or self._head_lines > self._settings.max_headers:
            self._refusal = head_too_large(self._settings)
            raise self._refusal
        if self.in_head:  # trailers are dropped: a proxy that checks heads has not seen them
            said = name.decode("latin-1").lower()
            if said in ONCE and said in self._headers:
                self._refusal = HttpError(400, "repeated_header", f"a request has one header {said}, not two")
                raise self._refusal
            self._headers[said] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        http, headers = self._http, self._headers
        try:
            request = ParsedRequest(http.get_method().decode("ascii"), self._url, headers)
        except HttpError as error:
            self._refusal = error
            raise
        request.http_1_0 = http.get_http_version() == "1.0"
        request.keep_alive = not request.http_1_0 and http.should_keep_alive()
        request.expects_continue = not request.http_1_0 and headers.get("expect", "").lower() == "100-continue"
        if http.should_upgrade():
            request.keep_alive = False
            if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
                # llhttp takes the body for bytes of the other protocol.
                self._refusal = HttpError(400, "malformed_request", "a request with a body cannot ask for an upgrade")
                raise self._refusal
        if request.keep_alive and "transfer-encoding" not in headers:
            request.head_text = self.head_text
        self.head_text = None
        self.in_head = False
        self.advanced = True
        self.incoming = request
        self.requests.append(request)

    def on_body(self, body: bytes) -> None:
        request = self.incoming
        assert request is not None
        self.body_bytes += len(body)
        if self._dropping:
            self.dropped_bytes += len(body)
        elif self.body_bytes > self._settings.max_body_bytes:
            request.too_large = True
            self._body = b""
        elif not self._body:
            self._body = body
        else:  # one growing buffer: a list of the pieces of a client that sends two bytes at a time takes thirty times as much
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += body

    def on_message_complete(self) -> None:
        request = self.incoming
        assert request is not None
        request.body = bytes(self._body)
        request.complete = True
        self._body = b""
        self.incoming = None
        self.in_message = False
        self.advanced = True
        if not request.keep_alive:
            self.ended = True


def head_too_large(settings: Settings) -> HttpError:
    limit = settings.max_head_bytes
    message = f"the head of a request has at most {limit} bytes and {settings.max_headers} headers"
    return HttpError(431, "head_too_large", message, configured_limit=limit)


def body_too_large(limit: int) -> HttpError:
    return HttpError(
        413,
        "payload_too_large",
        f"the body is larger than {limit} bytes (max_body_bytes); store the large value elsewhere and pass a reference,"
        " or raise the setting",
        field="body",
        configured_limit=limit,
    )


def too_much_at_once(settings: Settings) -> HttpError:
    limit = settings.max_buffered_bytes_per_caller
    return HttpError(
        429,
        "too_much_at_once",
        f"incomplete requests and unread replies of this caller hold more than {limit} bytes (max_buffered_bytes_per_caller);"
        " send fewer large requests at once, and read replies as they come",
        configured_limit=limit,
        retryable=True,
        retry_after_seconds=1,
    )


def _malformed(error: httptools.HttpParserError) -> HttpError:
    if isinstance(error, httptools.HttpParserCallbackError):
        log.error("a request could not be parsed because of a bug in the server", exc_info=error.__context__)
    return HttpError(400, "malformed_request", "this is not a request of HTTP/1.1")
