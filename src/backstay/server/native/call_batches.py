"""Several calls in one request: each begins as if it came alone, and is answered in the streamed reply when it is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Raw

from backstay.kernel.message import Refused
from backstay.protocol.native import client as calls
from backstay.server.access.auth import OPERATOR
from backstay.server.http.errors import HttpError, to_http_error
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.native.client_routes import PendingCall, begin, refusal_body
from backstay.server.server import Server

LINES = "application/x-ndjson"


class CallBatch:
    """The calls of one request, and the answers that have not been sent yet. `verbs`: those that it may have, by name."""

    def __init__(self, verbs: Mapping[str, calls.Verb], begin: Callable[[calls.Verb, Raw], PendingCall]) -> None:
        self._verbs = verbs
        self._begin_one = begin
        self._open: dict[asyncio.Future[Any], PendingCall] = {}
        self._unsent: list[calls.BatchedReply] = []
        self._has_unsent = asyncio.Event()

    def begin(self, batched: list[calls.BatchedCall]) -> None:
        for place, one in enumerate(batched):
            try:
                self._begin(place, one)
            except Exception as error:
                self._refuse(place, one.verb, error)

    def _begin(self, place: int, one: calls.BatchedCall) -> None:
        verb = self._verbs.get(one.verb)
        if verb is None:
            raise HttpError(404, "unknown_verb", f"this server knows no call {one.verb!r}")
        pending = self._begin_one(verb, one.request)
        self._open[pending.answer] = pending
        pending.answer.add_done_callback(partial(self._done, place, one.verb))

    def _done(self, place: int, name: str, answer: asyncio.Future[Any]) -> None:
        pending = self._open.pop(answer)
        pending.end()
        try:
            body = pending.body()
        except Exception as error:
            self._refuse(place, name, error)
        else:
            self._add(calls.BatchedReply(place, Raw(body)))

    def _refuse(self, place: int, name: str, error: Exception) -> None:
        if isinstance(error, Refused):
            self._add(calls.BatchedReply(place, Raw(refusal_body(error)), 409))
        else:
            http_error = to_http_error(error, f"call {name}")
            self._add(calls.BatchedReply(place, Raw(calls.encode(http_error.body())), http_error.status))

    def _add(self, reply: calls.BatchedReply) -> None:
        self._unsent.append(reply)
        self._has_unsent.set()

    async def answers(self) -> AsyncGenerator[bytes]:
        """Send answers as soon as there are any, until every call is answered."""
        try:
            while self._open or self._unsent:
                if not self._unsent:
                    self._has_unsent.clear()
                    await self._has_unsent.wait()
                replies, self._unsent = self._unsent, []
                yield calls.encode(replies) + b"\n"
        finally:
            for pending in list(self._open.values()):
                pending.give_up()


async def many(server: Server, request: HttpRequest) -> HttpResponse:
    """Several calls of a client of the same release; each is answered in a line of its own, or together with others."""
    return answered(request, calls.VERBS, partial(begin, server, request))


def answered(
    request: HttpRequest, verbs: Mapping[str, calls.Verb], begin: Callable[[calls.Verb, Raw], PendingCall]
) -> HttpResponse:
    """Begin all calls of a request. The response has their answers, each as soon as it is there."""
    batch = CallBatch(verbs, begin)
    batch.begin(request.decode(calls.Calls).calls)
    return HttpResponse({}, content_type=LINES, parts=batch.answers())


ROUTES = [Route("POST", calls.MANY, many, "own", OPERATOR, body=calls.Calls, answers=LINES)]
