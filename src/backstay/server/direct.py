"""The short way for our own clients and workers: answered from where the bytes are read, in one write.

Their requests come whole, in one read, with the same head every time. Such a request needs no task, no queue of messages
and no second look at its head: what a head says is remembered, for its connection, by its bytes. Who calls, and whether
they may, is asked every time. Everything else goes the ordinary way (`app.py`), which gives the same answers: part of a
request, a head that says more, several requests at once, a caller who does not read.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import httptools
import uvicorn
from uvicorn.server import ServerState

from backstay.server.app import App, check_content_type, check_version, failed
from backstay.server.call import Call
from backstay.server.problems import Problem
from backstay.server.reading import STATUS, Reader
from backstay.server.routing import Answer, Begun, Route

HEADS = 32  # remembered for a connection
HEAD = 4096  # bytes of one that is: ours have a tenth of it
LENGTH = b"\r\nContent-Length: "  # the last header of our own callers, and the only one that changes
# A head that says one of these is for the ordinary way.
_OTHERWISE = {"content-length", "transfer-encoding", "connection", "expect", "upgrade"}
_DONE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


class Head(NamedTuple):
    """What stands before the length of a request."""

    route: Route
    headers: dict[str, str]


class Protocol(Reader):
    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._heads: dict[bytes, Head | None] = {}
        self._begun: Begun | None = None  # what is being answered the short way
        self._last = False  # the connection ends with the next reply

    # -- what comes

    def data_received(self, data: bytes) -> None:
        if self._begun is not None or not self._whole(data):
            super().data_received(data)

    def _waits(self) -> bool:
        return self._begun is not None or super()._waits()

    def _whole(self, data: bytes) -> bool:
        """Take in a request that goes the short way; false if this is none."""
        end = data.find(b"\r\n\r\n")
        at = data.rfind(LENGTH, 0, end)
        if at < 0 or end < 0 or at > HEAD or not self._free():
            return False
        body = data[end + 4 :]
        if data[at + len(LENGTH) : end] != b"%d" % len(body) or len(body) > self._own.server.settings.max_body_bytes:
            return False
        head = self._head(data[:at])
        if head is None:
            return False
        self._unset_keepalive_if_required()
        if self._deadline is not None:
            self._stop_clock()
        call = Call("POST", head.route.path, head.headers, b"", _nothing_more)
        call.body = body
        self._take(head.route, call)
        return True

    def _free(self) -> bool:
        """Whether nothing is on its way here, in either direction."""
        busy = self._reading or self.flow.write_paused or self.transport.is_closing()
        return not busy and (self.cycle is None or self.cycle.response_complete)  # pyright: ignore[reportUnnecessaryComparison]

    def _head(self, text: bytes) -> Head | None:
        try:
            return self._heads[text]
        except KeyError:
            head = _read(self._own, text)
            if len(self._heads) < HEADS:
                self._heads[text] = head
            return head

    # -- what is answered

    def _take(self, route: Route, call: Call) -> None:
        app = self._own
        assert route.begin is not None
        try:
            app.know(route, call, self)
            app.place(route, call)
            taken = route.begin(app.server, call)
        except Exception as error:
            taken = failed(call, error)
        if isinstance(taken, Answer):
            self._reply(route, call, taken)
            return
        self._begun = taken
        taken.answer.add_done_callback(lambda _: self._answered(route, call, taken))

    def _answered(self, route: Route, call: Call, begun: Begun) -> None:
        self._begun = None
        try:
            answer = begun.reply()
        except asyncio.CancelledError:
            self.transport.close()  # nobody is there to hear it
            return
        except Exception as error:
            answer = failed(call, error)
        self._reply(route, call, answer)
        if self._early:
            self._go_on()

    def _reply(self, route: Route, call: Call, answer: Answer) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        content = answer.raw
        if content is not None and answer.status == 200 and not self._last:
            self.transport.write(_DONE % (len(content), content))
        else:
            self._reply_otherwise(route, call, answer)
        if self._last or answer.last:
            return
        self.flow.resume_reading()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _reply_otherwise(self, route: Route, call: Call, answer: Answer) -> None:
        headers, content = self._own.rendered(route, call, answer)
        parts = [STATUS[answer.status]]
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
        parts += (b"connection: close\r\n\r\n" if self._last and not answer.last else b"\r\n", content)
        self.transport.write(b"".join(parts))
        if self._last or answer.last:
            self.transport.close()

    # -- the end

    def connection_lost(self, exc: Exception | None) -> None:
        if self._begun is not None:
            self._begun.give_up()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The server stops. What is being answered is the last of its connection."""
        if self._begun is None:
            super().shutdown()
        else:
            self._last = True


def _read(app: App, text: bytes) -> Head | None:
    """What a head says, if it is one of the short way."""
    found = _Found()
    parser = httptools.HttpRequestParser(found)
    try:
        parser.feed_data(text + b"\r\n\r\n")
        route, _ = app.router.find(parser.get_method().decode(), found.url.decode("ascii"))
        check_content_type(found.headers)
        check_version(route, found.headers)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade, UnicodeDecodeError, Problem):
        return None
    if app.server.signatures is not None:
        return None  # it is the whole request that is signed
    if route.begin is None or parser.get_http_version() != "1.1" or _OTHERWISE & found.headers.keys():
        return None
    return Head(route, found.headers)


class _Found:
    def __init__(self) -> None:
        self.url = b""
        self.headers: dict[str, str] = {}

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")


async def _nothing_more() -> dict[str, Any]:
    raise RuntimeError("the whole of this request has been read")
