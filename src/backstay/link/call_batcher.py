"""Batches calls: those made in the same turn of the event loop share a request. A single call is sent alone, at once.

While other calls are on their way, a call waits for the end of the loop's turn and is sent with all calls of that turn. So
hundreds of concurrent calls cost few requests, and a caller that makes one call at a time does not wait.
"""

from __future__ import annotations

import asyncio

from msgspec import Raw

from backstay.link.http import HttpClient, Lost, NotHttp, Reply
from backstay.protocol import requests as ask
from backstay.protocol.native import client as calls

ALONE = 4  # a call is sent alone while at most this many are on their way
EXPORT = calls.OF[ask.ExportHistory].name  # its reply is long, and is streamed only if it comes alone
BYTES = 256 << 10  # the most of one call that is batched, and about of one batch


Waiting = tuple[calls.BatchedCall, asyncio.Future[Reply]]


class CallBatcher:
    """`path`, `many`: where a single call and a batch of calls are sent to."""

    def __init__(self, http: HttpClient, seconds: float, *, path: str = calls.PATH, many: str = calls.MANY) -> None:
        self._http = http
        self._path = path
        self._many = many
        self._seconds = seconds  # to wait for a reply
        self._loop: asyncio.AbstractEventLoop | None = None
        self._out = 0
        self._gathered: list[Waiting] = []
        self._leaving: set[asyncio.Task[None]] = set()

    async def post(self, verb: str, body: bytes) -> Reply:
        """Send a call and return the server's answer. Raises `Lost` if none comes."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # Calls that waited on a loop that has ended are gone with it.
            self._loop, self._out, self._gathered = loop, 0, []
        self._out += 1
        try:
            if self._out <= ALONE or len(body) > BYTES or verb == EXPORT:
                return await self._alone(verb, body)
            return await self._gather(loop, calls.BatchedCall(verb, Raw(body)))
        finally:
            self._out -= 1

    async def _alone(self, verb: str, body: bytes) -> Reply:
        return await self._http.post(self._path + verb, body, self._seconds)

    def _gather(self, loop: asyncio.AbstractEventLoop, asked: calls.BatchedCall) -> asyncio.Future[Reply]:
        answer: asyncio.Future[Reply] = loop.create_future()
        if not self._gathered:
            loop.call_soon(self._leave, loop)
        self._gathered.append((asked, answer))
        return answer

    def _leave(self, loop: asyncio.AbstractEventLoop) -> None:
        gathered, self._gathered = self._gathered, []
        batch: list[Waiting] = []
        size = 0
        for waiting in gathered:
            if size > BYTES or len(batch) == calls.TOGETHER:
                self._send(loop, batch)
                batch, size = [], 0
            batch.append(waiting)
            size += len(memoryview(waiting[0].request))
        self._send(loop, batch)

    def _send(self, loop: asyncio.AbstractEventLoop, batch: list[Waiting]) -> None:
        task = loop.create_task(self._sent(batch), name="backstay-calls")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _sent(self, batch: list[Waiting]) -> None:
        answers = [answer for _, answer in batch]

        def line(text: bytes) -> None:
            for said in calls.decode_said(text):
                answer = answers[said.place]
                if not answer.done():
                    answer.set_result(Reply(said.status, bytes(said.body)))

        body = calls.encode(calls.Calls([asked for asked, _ in batch]))
        try:
            whole = await self._http.post(self._many, body, self._seconds, line=line)
        except (Lost, NotHttp) as error:
            _fail(answers, error)
        except asyncio.CancelledError:
            _fail(answers, Lost("the client was closed", sent=True))
            raise
        else:
            await self._said(batch, whole)

    async def _said(self, batch: list[Waiting], whole: Reply) -> None:
        """Handle the end of a reply. If it was not sent line by line, it is the answer to all calls."""
        if whole.status == 413 and len(batch) > 1:
            await asyncio.gather(*(self._sent([waiting]) for waiting in batch))
        elif whole.status == 200:
            _fail([answer for _, answer in batch], Lost("the reply ended before every answer had come", sent=True))
        else:
            for _, answer in batch:
                if not answer.done():
                    answer.set_result(whole)


def _fail(answers: list[asyncio.Future[Reply]], error: Exception) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)
