"""The transport to a server: requests are repeated until they are answered, and never done twice.

A request that changes something carries an id made here. If its reply is lost, it is sent again with the same id, and the
server repeats its first answer. A command without an answer for a while fails. A request that only waits is repeated however
long the server is away, or until the caller's own timeout.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from random import random
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from backstay.kernel.message import Refused
from backstay.link import http
from backstay.link.call_batcher import CallBatcher
from backstay.link.http import LIMIT, HttpClient, Lost, NotHttp, Reply
from backstay.link.replies import damage_in
from backstay.protocol import commands as tell
from backstay.protocol import requests as ask
from backstay.protocol import schedules, streams
from backstay.protocol.native import client as calls
from backstay.sdk import errors
from backstay.ulid import PAIRS

R = TypeVar("R")

log = logging.getLogger("backstay.client")

REPLY_SECONDS = 45.0  # to wait for one reply, when the server itself waits for at most PATIENCE
NOT_NOW = frozenset({408, 429, 502, 503, 504})  # statuses of a server or a proxy that may change soon
PAUSES = (0.02, 1.0)  # seconds between tries: the first pause, and the longest
ELSEWHERE = 0.1  # the longest, if the server says that another one can do it
GRACE = 1.0  # seconds for an answer that is on its way when the caller's timeout expires

_AGAIN = f"{calls.AGAIN_HEADER}: 1\r\n"


class Access(NamedTuple):
    """The address of a server, with the token and the namespace of its client."""

    url: str
    token: str | None
    namespace: str
    most: int = LIMIT  # the most bytes of one reply

    def client(self, more: dict[str, str] | None = None, patience: float | None = None) -> HttpClient:
        """`more`: further headers. `patience`: see `HttpClient`."""
        headers = {"X-Namespace": self.namespace, calls.HEADER: str(calls.VERSION), "Content-Type": "application/json"}
        headers |= more or {}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        return HttpClient(self.url, headers, self.most, patience=patience)


class Patience(NamedTuple):
    """How long a request may be without an answer."""

    endless: bool = False  # a wait, which outlasts any outage of a server that has answered before
    until: float | None = None  # monotonic time at which the caller's own timeout expires

    @property
    def left(self) -> float | None:
        return None if self.until is None else max(self.until - time.monotonic(), 0)

    @property
    def over(self) -> bool:
        return self.left == 0

    def fitted(self, request: Any) -> Any:
        """Return the request with the server's waiting time limited to that of the caller."""
        return request if self.until is None else replace(request, wait_seconds=self.left)


def waiting(seconds: float | None) -> Patience:
    return Patience(True, None if seconds is None else time.monotonic() + seconds)


COMMAND = Patience()


class NoAnswer(Exception):
    """The caller's timeout expired, and the server did not answer at all."""


class HttpTransport:
    def __init__(self, access: Access, *, patience: float = 15.0) -> None:
        self.access = access
        self._http = access.client()
        self._together = CallBatcher(self._http, REPLY_SECONDS)
        self._patience = patience  # seconds without any answer until a call fails
        self._away = False  # a warning was logged that the server does not answer

    def close(self) -> None:
        self._http.close()

    def __str__(self) -> str:
        return self.access.url

    async def call(self, request: ask.Request[R]) -> R:
        return await self._call(request)

    async def _call(self, request: Any) -> Any:
        match request:
            case ask.StartWorkflow():
                return await self._send(_named(request))
            case ask.RunWorkflow(start=start):
                return await self._run(_named(start))
            case ask.AwaitResult():
                return await self._result(request)
            case tell.UpdateWorkflow():
                return await self._update(request)
            case tell.GetUpdate(wait_seconds=seconds):
                return await self._wait_for_update(request, waiting(seconds))
            case streams.ReadStream(wait_seconds=seconds) if seconds:
                return await self._send(request, waiting(None))
            case tell.SignalWithStart(start=start):
                return await self._send(replace(_numbered(request), start=_named(start)))
            case schedules.CreateSchedule(request_id=None) | schedules.ToSchedule(request_id=None):
                return await self._send(_under_an_id(request))  # pyright: ignore[reportUnknownArgumentType]
            case ask.GetHistory(limit=None):
                return await self._history(request)
            case _:
                return await self._send(_numbered(request) if isinstance(request, tell.ToInstance) else request)

    # -- calls that wait

    async def _run(self, start: ask.StartWorkflow) -> ask.Result:
        ended = await self._send(ask.RunWorkflow(start=start))
        if ended.status is not None:
            return ended
        assert start.workflow_id is not None
        return await self._result(ask.AwaitResult(workflow_id=start.workflow_id, namespace=start.namespace))

    async def _result(self, request: ask.AwaitResult) -> ask.Result:
        patience = waiting(request.wait_seconds)
        while True:
            try:
                ended = await self._send(patience.fitted(request), patience)
            except NoAnswer as why:
                raise TimeoutError(
                    f"no answer from {self} ({why}), so it is unknown whether workflow {request.workflow_id!r} has ended;"
                    " wait again with handle.result()"
                ) from None
            if ended.status is not None or patience.over:
                return ended

    async def _update(self, request: tell.UpdateWorkflow) -> tell.UpdateStatus:
        """Send an update: a command until it is accepted, a wait from then on."""
        until = waiting(request.wait_seconds).until
        try:
            status = await self._send(_numbered(request), Patience(until=until))
        except NoAnswer as why:
            raise errors.ServerUnreachable(self.access.url, str(why)) from None
        patience = Patience(True, until)
        if not status.wait_timed_out or status.update_id is None or patience.over:
            return status
        again = tell.GetUpdate(workflow_id=status.workflow_id, update_id=status.update_id, namespace=request.namespace)
        return await self._wait_for_update(again, patience)

    async def _wait_for_update(self, request: tell.GetUpdate, patience: Patience) -> tell.UpdateStatus:
        while True:
            try:
                status = await self._send(patience.fitted(request), patience)
            except NoAnswer as why:
                raise errors.UpdateTimeout(
                    f"update {request.update_id} of workflow {request.workflow_id!r} was accepted and has not ended as far as is"
                    f" known: no answer from {self} ({why}); wait again with handle.submitted(...).result()",
                    request.workflow_id,
                    request.update_id,
                ) from None
            if status.event is not None or patience.over:
                return status

    async def _history(self, request: ask.GetHistory) -> list[Any]:
        found: list[Any] = []
        while True:
            page = await self._send(replace(request, after=found[-1].sequence if found else request.after))
            found += page
            if not calls.page(page):
                return found

    # -- one request, until it is answered

    async def _send(self, request: Any, patience: Patience = COMMAND) -> Any:
        verb = calls.OF.get(request.__class__)
        if verb is None:
            raise errors.RequestRefused(
                "not_over_http", f"{request.__class__.__name__} works with an engine in the same process only"
            )
        reply = await self._answered(verb.name, request, patience)
        return verb.decode_reply(reply.body)

    async def _answered(self, verb: str, request: Any, patience: Patience) -> Reply:
        """Send a request until it is answered. Raises the refusal of the server, or that no answer came."""
        began = time.monotonic()
        pause = PAUSES[0]
        more = ""
        since: float | None = None  # when the time without a useful answer began
        silent = False
        refused: Exception | None = None  # the refusal of a server that cannot do this itself
        while True:
            try:
                if silent and since is not None and not await self._http.reached(self._probing(since, patience)):
                    raise Lost("nothing answers there", sent=False, silent=True)
                again = request if since is None else patience.fitted(request)
                reply = await self._post(verb, calls.encode(again), more, patience)
            except Lost as lost:
                if lost.sent:
                    more = _AGAIN
                silent = lost.silent
                since = since or (max(began, self._http.heard) if silent else time.monotonic())
                why = str(lost)
            except NotHttp as strange:
                raise errors.ServerUnreachable(self.access.url, str(strange)) from None
            else:
                if reply.status == 200:
                    if self._away:
                        self._is_back()
                    return reply
                if reply.status not in NOT_NOW:
                    raise refusal(reply, self.access)
                more = _AGAIN
                silent = False
                since = since or time.monotonic()
                why = _message(reply)
                if _elsewhere(reply):
                    refused = refusal(reply, self.access)
                    pause = min(pause, ELSEWHERE)
                    self._http.leave()
            if patience.over:
                raise NoAnswer(why)
            if not self._left(since):
                self._give_up(patience, why, refused)
            await asyncio.sleep(_within(pause * (0.5 + random() / 2), patience))
            pause = min(pause * 2, PAUSES[1])

    async def _post(self, verb: str, body: bytes, more: str, patience: Patience) -> Reply:
        left = patience.left
        if left is None or left + GRACE > REPLY_SECONDS:
            return await self._try(verb, body, more)
        try:
            async with asyncio.timeout(left + GRACE):
                return await self._try(verb, body, more)
        except TimeoutError:
            raise Lost("nothing answers there", sent=True, silent=True) from None

    async def _try(self, verb: str, body: bytes, more: str) -> Reply:
        if more:
            return await self._http.post(calls.PATH + verb, body, REPLY_SECONDS, more)
        return await self._together.post(verb, body)

    def _left(self, since: float) -> float:
        """Return how many seconds are left until the call fails."""
        return max(since + self._patience - time.monotonic(), 0)

    def _probing(self, since: float, patience: Patience) -> float:
        """Return the seconds in which a silent server must answer a ping."""
        return _within(max(self._left(since), http.SILENT) if patience.endless else self._left(since), patience)

    def _give_up(self, patience: Patience, why: str, refused: Exception | None) -> None:
        """Fail a call that had no answer for too long. A wait goes on if the server has ever answered."""
        if not (patience.endless and self._http.heard):
            raise refused or errors.ServerUnreachable(self.access.url, why)
        if not self._away:
            self._away = True
            log.warning("no answer from %s (%s); callers that wait for it keep waiting", self, why)

    def _is_back(self) -> None:
        self._away = False
        log.info("%s answers again", self)


def _within(seconds: float, patience: Patience) -> float:
    left = patience.left
    return seconds if left is None else min(seconds, left)


def _named(start: ask.StartWorkflow) -> ask.StartWorkflow:
    """Return a start that can be repeated: with a workflow id and a request id."""
    if start.workflow_id is None:
        start = replace(start, workflow_id=fresh_id())
    return start if start.request_id is not None else replace(start, request_id=fresh_id(), fresh=True)


def _numbered(request: Any) -> Any:
    return request if request.request_id is not None else replace(request, request_id=fresh_id(), fresh=True)


def _under_an_id(request: Any) -> Any:
    return replace(request, request_id=fresh_id())


def fresh_id() -> str:
    """Return a new ULID, like those of the engine."""
    number = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10))
    return "".join([PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)])


def refusal(reply: Reply, access: Access) -> Exception:
    """Return the error of a reply that refuses a request."""
    said = said_by(reply)
    reason = str(said.get("reason", ""))
    message = str(said.get("message", ""))
    fields: Any = said.get("fields")
    if isinstance(fields, dict):
        return Refused(reason, message, **{str(name): value for name, value in fields.items()})  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if reply.status == 401:
        return errors.AccessDenied(
            access.url, "wrong or missing token; give the server's with token=... (DW_TOKEN for dw)"
        )
    if reply.status == 403:
        return errors.AccessDenied(access.url, message)
    if reason == "namespace_not_found":
        return errors.RequestRefused(
            reason, f"there is no namespace {access.namespace!r} on {access.url}; create it there, or name another"
        )
    if reason == "unsupported_backstay_protocol" or (
        reply.status == 404 and reason in ("route_not_found", "unknown_verb")
    ):
        return errors.ServerTooOld(access.url, message)
    damage = damage_in(said)
    if damage is not None:
        return damage
    if not reason:
        return errors.ServerUnreachable(access.url, f"the server there (HTTP {reply.status}) is not a Backstay server")
    return errors.RequestRefused(reason, message)


def said_by(reply: Reply) -> dict[str, Any]:
    try:
        return msgspec.json.decode(reply.body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def _elsewhere(reply: Reply) -> bool:
    """Return whether another server can answer instead of this one; a new connection may lead to it."""
    return reply.status == 503 and said_by(reply).get("reason") == "engine_elsewhere"


def _message(reply: Reply) -> str:
    return str(said_by(reply).get("message") or f"it answered with HTTP {reply.status}")
