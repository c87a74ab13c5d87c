"""The verbs of our own clients, each under its name. What the engine answers or refuses goes back as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.kernel.message import Refused
from holdfast.protocol import calls, schedules
from holdfast.protocol import commands as tell
from holdfast.protocol import requests as ask
from holdfast.server.auth import OPERATOR
from holdfast.server.call import Call
from holdfast.server.problems import Problem, undecodable
from holdfast.server.routing import Answer, Route
from holdfast.server.server import Server

_LIST_MAX = 1000


def _route(verb: calls.Verb) -> Route:
    async def answer(server: Server, call: Call) -> Answer:
        try:
            request = verb.asked.decode(call.body or b"{}")
        except msgspec.MsgspecError as error:
            raise undecodable(error) from None
        try:
            reply = await _answered(server, _placed(server, call, request))
        except Refused as refusal:
            body = calls.encode(calls.Refusal(refusal.reason, refusal.message, refusal.fields))
            return Answer({}, 409, raw=body)
        return Answer({}, raw=verb.encode_reply(reply))

    answer.__doc__ = f"{verb.request.__name__}, for clients of the same release."
    return Route("POST", calls.PATH + verb.name, answer, "own", OPERATOR, body=verb.request)


def _placed(server: Server, call: Call, request: Any) -> Any:
    """The request as the caller may make it: in the namespace it was admitted to, and of no other kind of caller."""
    again = "x-holdfast-again" in call.headers
    if issubclass(type(request), tell.ToInstance):
        return replace(request, namespace=call.namespace, fresh=_fresh(request, again), source="python")
    match request:
        case ask.StartWorkflow():
            return _start(server, call, request, again)
        case ask.RunWorkflow(start=start):
            return ask.RunWorkflow(start=_start(server, call, start, again))
        case tell.SignalWithStart(start=start):
            fresh = _fresh(request, again)
            return replace(request, start=_start(server, call, start, again), fresh=fresh)
        case schedules.UpdateSchedule():
            return replace(_typed(request), namespace=call.namespace, source="python")
        case schedules.ToSchedule() | schedules.CreateSchedule():
            asked: Any = request  # pyright: ignore[reportUnknownVariableType]
            return replace(asked, namespace=call.namespace, source="python")
        case schedules.ListSchedules(limit=limit):
            return replace(request, namespace=call.namespace, limit=max(1, min(limit, schedules.PAGE_MAX)))
        case schedules.GetScheduleHistory(limit=limit):
            return replace(request, namespace=call.namespace, limit=max(1, min(limit, schedules.HISTORY_PAGE_MAX)))
        case ask.ListWorkflows(limit=limit):
            return replace(request, namespace=call.namespace, limit=max(1, min(limit, _LIST_MAX)))
        case ask.GetHistory(limit=limit):
            limit = ask.PAGE_MAX if limit is None else max(1, min(limit, ask.PAGE_MAX))
            return replace(request, namespace=call.namespace, limit=limit)
        case _:
            return replace(request, namespace=call.namespace)


def _typed(request: schedules.UpdateSchedule) -> schedules.UpdateSchedule:
    try:
        return request.typed()
    except msgspec.MsgspecError as error:
        raise undecodable(error) from None


def _fresh(request: Any, again: bool) -> bool:
    """Only an id that the caller's transport made for this very try is known to be new."""
    return request.fresh and not again


def _start(server: Server, call: Call, start: ask.StartWorkflow, again: bool) -> ask.StartWorkflow:
    routing = start.routing
    build = routing.compatibility or server.rollouts.promoted(call.namespace, routing.queue)
    definition = start.definition or server.workers.definition(
        call.namespace, routing.queue, start.workflow_type, build
    )
    return replace(
        start,
        namespace=call.namespace,
        routing=replace(routing, namespace=call.namespace, compatibility=build),
        definition=definition,
        fresh=_fresh(start, again),
        source="python",
    )


async def _answered(server: Server, request: Any) -> Any:
    """The answer; a call that waits for something is told after a while that it has not happened yet."""
    match request:
        case ask.RunWorkflow(start=start):
            ended = await patiently(server, server.operations.call(request), calls.PATIENCE)
            return ended or ask.Result(workflow_id=start.workflow_id or "", run_id="", status=None)
        case ask.AwaitResult(workflow_id=workflow_id, wait_seconds=seconds):
            ended = await patiently(server, server.operations.call(replace(request, wait_seconds=None)), _cut(seconds))
            return ended or ask.Result(workflow_id=workflow_id, run_id="", status=None)
        case tell.GetUpdate(wait_seconds=seconds) | tell.UpdateWorkflow(wait_seconds=seconds):
            # What has been accepted is told by the engine, which knows how far it got: no cut from here.
            return await server.operations.call(replace(request, wait_seconds=_cut(seconds)))
        case _:
            return await server.operations.call(request)


def _cut(seconds: float | None) -> float:
    return calls.PATIENCE if seconds is None else min(seconds, calls.PATIENCE)


async def patiently(server: Server, work: Awaitable[Any], seconds: float) -> Any:
    """What comes of it, or None when the time is over or this server drains."""
    if server.parked >= server.settings.max_parked_polls:
        asyncio.ensure_future(work).cancel()
        raise Problem(
            429,
            "long_poll_capacity_exhausted",
            "this server keeps as many calls waiting as it may (max_parked_polls); ask again in a second",
            retryable=True,
            retry_after_seconds=1,
        )
    waiting = asyncio.ensure_future(work)
    given_up = False

    def give_up() -> None:
        nonlocal given_up
        given_up = True
        waiting.cancel()

    alarm = asyncio.get_running_loop().call_later(seconds, give_up)
    server.parked += 1
    server.waiting[waiting] = give_up
    try:
        return await waiting
    except asyncio.CancelledError:
        if given_up:
            return None
        raise
    finally:
        server.parked -= 1
        server.waiting.pop(waiting, None)
        alarm.cancel()


ROUTES = [_route(verb) for verb in calls.VERBS.values()]
