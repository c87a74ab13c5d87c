"""Many calls in one request: each is begun as if it came alone, and answered in the stream of the reply when it is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from msgspec import Raw

from backstay.kernel.message import Refused
from backstay.protocol.native import client as calls
from backstay.server.auth import OPERATOR
from backstay.server.http_errors import HttpError, to_http_error
from backstay.server.http_messages import HttpRequest, HttpResponse
from backstay.server.native.client_routes import PendingCall, begin, refusal_body
from backstay.server.router import Route
from backstay.server.server import Server

LINES = "application/x-ndjson"


class CallBatch:
    """The calls of one request, and the answers that have not left yet."""

    def __init__(self, server: Server, request: HttpRequest) -> None:
        self._server = server
        self._request = request
        self._open: dict[asyncio.Future[Any], PendingCall] = {}
        self._said: list[calls.BatchedReply] = []
        self._news = asyncio.Event()

    def take(self, asked: list[calls.BatchedCall]) -> None:
        for place, one in enumerate(asked):
            try:
                self._begin(place, one)
            except Exception as error:
                self._refuse(place, one.verb, error)

    def _begin(self, place: int, one: calls.BatchedCall) -> None:
        verb = calls.VERBS.get(one.verb)
        if verb is None:
            raise HttpError(404, "unknown_verb", f"this server knows no call {one.verb!r}")
        begun = begin(self._server, self._request, verb, one.request)
        self._open[begun.answer] = begun
        begun.answer.add_done_callback(partial(self._done, place, one.verb))

    def _done(self, place: int, name: str, answer: asyncio.Future[Any]) -> None:
        begun = self._open.pop(answer)
        begun.end()
        try:
            body = begun.body()
        except Exception as error:
            self._refuse(place, name, error)
        else:
            self._say(calls.BatchedReply(place, Raw(body)))

    def _refuse(self, place: int, name: str, error: Exception) -> None:
        if isinstance(error, Refused):
            self._say(calls.BatchedReply(place, Raw(refusal_body(error)), 409))
        else:
            problem = to_http_error(error, f"call {name}")
            self._say(calls.BatchedReply(place, Raw(calls.encode(problem.body())), problem.status))

    def _say(self, said: calls.BatchedReply) -> None:
        self._said.append(said)
        self._news.set()

    async def answers(self) -> AsyncGenerator[bytes]:
        """What there is to say, whenever there is something, until everything is said."""
        try:
            while self._open or self._said:
                if not self._said:
                    self._news.clear()
                    await self._news.wait()
                said, self._said = self._said, []
                yield calls.encode(said) + b"\n"
        finally:
            for begun in list(self._open.values()):
                begun.give_up()


async def many(server: Server, request: HttpRequest) -> HttpResponse:
    """Several calls of a client of the same release; each is answered in a line of its own, or together with others."""
    batch = CallBatch(server, request)
    batch.take(request.decode(calls.Calls).calls)
    return HttpResponse({}, content_type=LINES, parts=batch.answers())


ROUTES = [Route("POST", calls.MANY, many, "own", OPERATOR, body=calls.Calls, answers=LINES)]
