"""The routes of our own clients, one a verb. Replies and refusals of the engine are sent unchanged."""

from __future__ import annotations

import asyncio
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from backstay.engine.reading.exports import WrittenRun
from backstay.kernel.message import Refused
from backstay.protocol import commands as tell
from backstay.protocol import requests as ask
from backstay.protocol import run_lists, schedules, streams
from backstay.protocol.native import client as calls
from backstay.protocol.native.nodes import AwaitEvents
from backstay.server.access.auth import OPERATOR
from backstay.server.access.origin import origin
from backstay.server.http.errors import HttpError, Stopping, too_many_parked, undecodable
from backstay.server.http.messages import HttpRequest, HttpResponse, decode_body
from backstay.server.http.parked_requests import Share
from backstay.server.http.pending_reply import PendingReply
from backstay.server.http.router import Route
from backstay.server.published.control.run_lists import budget_of, query_in, view_of
from backstay.server.server import Server

_LIST_MAX = 1000


class PendingCall(PendingReply):
    """The reply to a client's call. A call that waits ends after a while with "not yet", and with an error when the server
    stops."""

    __slots__ = ("_given_up", "_gives_way", "_not_yet", "_sent_away", "_verb", "_waits")

    def __init__(
        self,
        server: Server,
        share: Share,
        verb: calls.Verb,
        answer: asyncio.Future[Any],
        waits: bool,
        not_yet: Any,
        seconds: float,
    ) -> None:
        """`waits`: whether the call may wait for a worker or an event. `seconds`: for how long it is parked. `not_yet`: the reply
        after that; None: the engine itself ends the wait."""
        super().__init__(server, share, answer, seconds if _is_parked(not_yet, seconds) else None, self.give_up)
        self._verb = verb
        self._not_yet = not_yet
        self._given_up = self._sent_away = self._gives_way = False
        self._waits = waits
        if waits:
            server.waiting[answer] = self._send_away

    def give_up(self) -> None:
        if self._not_yet is not None and not self.answer.done():
            self._given_up = True
            self.answer.cancel()

    def give_way(self) -> None:
        """Refuse the call, which its client repeats. Its request id makes sure that it is done once."""
        if not self.answer.done():
            self._gives_way = True
            self.answer.cancel()

    def _send_away(self) -> None:
        """End the wait; the client repeats the call at another server. Its request id makes sure that it is done once."""
        if not self.answer.done():
            self._sent_away = True
            self.answer.cancel()

    def end(self) -> None:
        if self._waits:
            self._server.waiting.pop(self.answer, None)
        super().end()

    def reply(self) -> HttpResponse:
        """The reply to a call that came alone."""
        self.end()
        try:
            return HttpResponse({}, raw=self.body())
        except Refused as refusal:
            return refused(refusal)

    def body(self) -> bytes:
        """The encoded answer; raises the error if the call has failed."""
        if self._sent_away:
            raise Stopping
        if self._gives_way:
            raise _too_many()
        return self._verb.encode_reply(self._not_yet if self._given_up else self.answer.result())


Call = Callable[[Any], Awaitable[Any]]


def begin(server: Server, request: HttpRequest, verb: calls.Verb, body: bytes | msgspec.Raw) -> PendingCall:
    """Submit a call to the engine."""
    engine_request = _in_namespace(server, request, decode_body(verb.decode_request, body or b"{}"))
    return submit(server, request.share, verb, engine_request, server.api.call)


def submit(server: Server, share: Share, verb: calls.Verb, engine_request: Any, call: Call) -> PendingCall:
    """Make a request of the engine with `call`. No caller waits for its answer for longer than `PATIENCE`."""
    seconds = calls.PATIENCE
    not_yet: ask.Result | None = None
    waits = True
    match engine_request:
        case ask.RunWorkflow(start=start):
            not_yet = ask.Result(workflow_id=start.workflow_id or "", run_id="", status=None)
        case ask.AwaitResult(wait_seconds=0):
            seconds = 0  # the engine answers at once, and refuses what there is not
        case ask.AwaitResult(workflow_id=workflow_id):
            seconds = _cut(engine_request.wait_seconds)
            not_yet = ask.Result(workflow_id=workflow_id, run_id="", status=None)
            engine_request = replace(engine_request, wait_seconds=None)
        case tell.GetUpdate() | tell.UpdateWorkflow() | streams.ReadStream() | AwaitEvents():
            # The engine ends these waits itself, since it knows how far the update, the stream or the run has got.
            seconds = _cut(engine_request.wait_seconds)
            engine_request = replace(engine_request, wait_seconds=seconds)
        case _:
            seconds = 0
            waits = isinstance(engine_request, tell.QueryWorkflow)
    if waits and server.draining:
        raise Stopping
    if _is_parked(not_yet, seconds) and not server.parked.admits(share):
        raise _too_many()
    answer: asyncio.Future[Any] = asyncio.ensure_future(call(engine_request))
    return PendingCall(server, share, verb, answer, waits, not_yet, seconds)


def _too_many() -> HttpError:
    return too_many_parked("this server has no room for another waiting call (max_parked_polls); retry in a second")


def _is_parked(not_yet: ask.Result | None, seconds: float) -> bool:
    return not_yet is not None or seconds > 0


def refusal_body(refusal: Refused) -> bytes:
    return calls.encode(calls.Refusal(refusal.reason, refusal.message, refusal.fields))


def refused(refusal: Refused) -> HttpResponse:
    return HttpResponse({}, 409, raw=refusal_body(refusal))


def _route(verb: calls.Verb) -> Route:
    def answer(server: Server, request: HttpRequest) -> PendingCall | HttpResponse:
        try:
            return begin(server, request, verb, request.body)
        except Refused as refusal:
            return refused(refusal)

    answer.__doc__ = f"{verb.request.__name__}, for clients of the same release."
    return Route("POST", calls.PATH + verb.name, answer, "own", OPERATOR, body=verb.request)


def _in_namespace(server: Server, request: HttpRequest, engine_request: Any) -> Any:
    """The request in the namespace that the caller was admitted to, marked as one of a Python client."""
    again = "x-backstay-again" in request.headers
    if issubclass(type(engine_request), tell.ToInstance):
        return replace(
            engine_request,
            namespace=request.namespace,
            fresh=_fresh(engine_request, again),
            source="python",
            context=origin(request),
        )
    match engine_request:
        case ask.StartWorkflow():
            return _start(server, request, engine_request, again)
        case ask.RunWorkflow(start=start):
            return ask.RunWorkflow(start=_start(server, request, start, again))
        case tell.SignalWithStart(start=start):
            fresh = _fresh(engine_request, again)
            return replace(engine_request, start=_start(server, request, start, again), fresh=fresh)
        case schedules.UpdateSchedule():
            typed = _typed(engine_request)
            return replace(typed, namespace=request.namespace, source="python", context=origin(request))
        case schedules.ToSchedule() | schedules.CreateSchedule():
            placed: Any = engine_request  # pyright: ignore[reportUnknownVariableType]
            return replace(placed, namespace=request.namespace, source="python", context=origin(request))
        case schedules.ListSchedules(limit=limit):
            return replace(engine_request, namespace=request.namespace, limit=max(1, min(limit, schedules.PAGE_MAX)))
        case schedules.GetScheduleHistory(limit=limit):
            return replace(
                engine_request, namespace=request.namespace, limit=max(1, min(limit, schedules.HISTORY_PAGE_MAX))
            )
        case run_lists.SearchRuns() | run_lists.CountRuns():
            return _searching(server, request.namespace, engine_request)
        case ask.ListWorkflows(limit=limit):
            return replace(engine_request, namespace=request.namespace, limit=max(1, min(limit, _LIST_MAX)))
        case ask.GetHistory(limit=limit):
            limit = ask.PAGE_MAX if limit is None else max(1, min(limit, ask.PAGE_MAX))
            return replace(engine_request, namespace=request.namespace, limit=limit)
        case _:
            return replace(engine_request, namespace=request.namespace)


def _searching(
    server: Server, namespace: str, asked: run_lists.SearchRuns | run_lists.CountRuns
) -> run_lists.SearchRuns | run_lists.CountRuns:
    """The same in this namespace, together with the saved view that it names."""
    query = replace(asked.query, namespace=namespace, budget=budget_of(server))
    view = view_of(server, namespace, asked.view)
    if view is not None:
        query = query.over(query_in(server, namespace, view.bucket, view.asks))
    if isinstance(asked, run_lists.CountRuns):
        return replace(asked, query=query, namespace=namespace)
    return replace(asked, query=query, namespace=namespace, limit=max(1, min(asked.limit, run_lists.PAGE_MAX)))


def _typed(request: schedules.UpdateSchedule) -> schedules.UpdateSchedule:
    try:
        return request.typed()
    except msgspec.MsgspecError as error:
        raise undecodable(error) from None


def _fresh(request: Any, again: bool) -> bool:
    """Whether the request id is known to be new: the client has made it for this call and has not sent it before."""
    return request.fresh and not again


def _start(server: Server, request: HttpRequest, start: ask.StartWorkflow, again: bool) -> ask.StartWorkflow:
    routing = start.routing
    build = routing.compatibility or server.rollouts.promoted(request.namespace, routing.queue)
    # Live workers will run it, so their definition counts; the caller may have other code.
    live = server.workers.definition(request.namespace, routing.queue, start.workflow_type, build)
    definition = live or start.definition
    return replace(
        start,
        namespace=request.namespace,
        routing=replace(routing, namespace=request.namespace, compatibility=build),
        definition=definition,
        fresh=_fresh(start, again),
        source="python",
        context=origin(request),
    )


def _cut(seconds: float | None) -> float:
    return calls.PATIENCE if seconds is None else min(seconds, calls.PATIENCE)


async def export(server: Server, request: HttpRequest) -> HttpResponse:
    """ExportHistory, for clients of the same release. The text is sent while it is read from disk."""
    asked: Any = _in_namespace(server, request, decode_body(EXPORT.decode_request, request.body or b"{}"))
    try:
        made = await server.api.exports.of(asked.namespace, asked.workflow_id, asked.run_id)
    except Refused as refusal:
        return refused(refusal)
    return HttpResponse({}, parts=_as_string(made))


async def _as_string(made: WrittenRun) -> AsyncGenerator[bytes]:
    """An export as one JSON string, piece by piece."""
    decoder = getincrementaldecoder("utf-8")()
    try:
        yield b'"'
        for piece in made.file.pieces():
            yield calls.encode(decoder.decode(piece))[1:-1]
        yield b'"'
    finally:
        made.close()


EXPORT = calls.OF[ask.ExportHistory]
ROUTES = [
    *(_route(verb) for verb in calls.VERBS.values() if verb is not EXPORT),
    Route("POST", calls.PATH + EXPORT.name, export, "own", OPERATOR, body=EXPORT.request),
]
