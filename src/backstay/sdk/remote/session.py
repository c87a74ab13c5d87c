"""A worker's talk with its server: one exchange parked for what comes, others for what has been done.

Reports gather while a request is out and leave together. If anything goes wrong with either lane, both are given up: the
worker opens another station, says what it holds, and sends again what was not answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import random
from typing import Any

from backstay.kernel.command import Command, command_type
from backstay.kernel.event import Recorded
from backstay.kernel.machine import Machine
from backstay.kernel.message import Refused
from backstay.kernel.task import Block
from backstay.protocol import exchange as wire
from backstay.protocol.entries import UnknownEvent, unpack
from backstay.sdk import errors
from backstay.sdk.remote.host import RemoteHost
from backstay.sdk.remote.http import HttpClient, Lost, NotHttp, Reply
from backstay.sdk.remote.reports import Pending
from backstay.sdk.remote.transport import PAUSES, Access, refusal, said_by

log = logging.getLogger("backstay.worker")

TOGETHER = 500  # reports in one request
BYTES = 1 << 20  # of payload in one request, unless a single report has more
ANSWER = 60.0  # seconds to wait for the answer to reports
OURS = frozenset(command_type(kind) for kind in Machine().commands)
AGAIN = 0.5  # seconds until a report is sent again that the server could not write


class Reset(Exception):
    """This station is over; open another."""


class Session:
    def __init__(self, access: Access, host: RemoteHost, opening: Callable[[list[wire.Holding]], wire.Opening]) -> None:
        self.access = access
        self.host = host
        self._opening = opening
        self._http: HttpClient = access.client()
        self._station = ""
        self._untaken: frozenset[str] = frozenset()  # commands that this release knows, and the server does not
        self._reports: deque[Pending] = deque()
        self._beats: dict[tuple[str, int, int], Pending] = {}
        self._out: list[Pending] = []
        self._something = asyncio.Event()
        self._polling: asyncio.Task[None] | None = None
        self._draining = False
        self.lost = 0  # how often a station had to be given up

    # -- reports

    def send(self, pending: Pending) -> None:
        report = self._fitted(pending) if self._untaken else pending.report
        if isinstance(report, wire.Beat):
            # Only the newest of an attempt counts; one that has not left yet leaves with what is known now.
            waiting = self._beats.setdefault((report.run_id, report.step, report.attempt), pending)
            if waiting is not pending:
                waiting.report = report
                waiting.answered = _both(waiting.answered, pending.answered)
                return
        self._reports.append(pending)
        self._something.set()

    def _fitted(self, pending: Pending) -> wire.Report:
        """The report without what the server does not take: it is older than this SDK."""
        report = pending.report
        match report:
            case wire.ActivityDone(resumed=wire.Resumed(commands=commands)) if self._refused(commands):
                self.host.doubt(pending)  # the next task runs the code again, and says what is wrong
                pending.again = False
            case wire.TaskDone(commands=commands) if refused := self._refused(commands):
                message = f"the server at {self.access.url} takes no command {refused!r}: it is older than this SDK"
                block = Block(message=message, type="UnsupportedCommand", reason="unsupported_command")
                pending.report = wire.TaskFailed(report.key, report.task_id, report.attempt, block)
                if pending.run is not None:
                    self.host.forget(pending.run)
            case _:
                pass
        return pending.report

    def _refused(self, commands: list[Command]) -> str | None:
        types = (command_type(type(command)) for command in commands)
        return next((name for name in types if name in self._untaken), None)

    @property
    def quiet(self) -> bool:
        return not (self._reports or self._out)

    def _next(self) -> list[Pending]:
        """What goes out together: what may have been sent before goes alone, and first."""
        self._beats.clear()
        batch: list[Pending] = []
        size = 0
        while self._reports and len(batch) < TOGETHER and size < BYTES:
            if batch and self._reports[0].again != batch[0].again:
                break
            pending = self._reports.popleft()
            size += _weight(pending.report)
            batch.append(pending)
        return batch

    # -- life

    async def open(self) -> None:
        """Open a station. Raises what is wrong, also that nobody answers."""
        host = self.host
        host.give_up_live()
        self._http.close()
        self._http = self.access.client()
        holding = [wire.Holding(task_id, attempt) for task_id, attempt in host.leases.items()]
        body = wire.encode(self._opening(holding))
        try:
            reply = await self._http.post(wire.OPEN, body, ANSWER)
        except NotHttp as strange:
            raise errors.ServerUnreachable(self.access.url, str(strange)) from None
        if reply.status != 200:
            raise self._trouble(reply)
        opened = wire.decode_opened(reply.body)
        self._station = opened.station
        self._untaken = OURS - frozenset(opened.commands)
        if opened.lost:
            host.lose(opened.lost)

    async def run(self) -> None:
        """Work until cancelled, on one station after the other."""
        while True:
            lanes = [asyncio.create_task(self._poll()), asyncio.create_task(self._report())]
            self._polling = lanes[0]
            try:
                done, _ = await asyncio.wait(lanes, return_when=asyncio.FIRST_EXCEPTION)
                for lane in done:
                    if not lane.cancelled() and (error := lane.exception()) is not None:
                        raise error
            except (Reset, Lost, NotHttp, errors.ServerError, errors.RequestRefused) as why:
                log.warning("lost %s (%s); what is running goes on", self.access.url, why)
            except Exception:
                log.exception("talking to %s failed; what is running goes on", self.access.url)
            finally:
                for lane in lanes:
                    lane.cancel()
                await asyncio.gather(*lanes, return_exceptions=True)
                self._doubt()
            await self._reopen()

    def _doubt(self) -> None:
        out, self._out = self._out, []
        for pending in reversed(out):
            self._reports.appendleft(self.host.doubt(pending))
        for pending in self._reports:
            if not pending.again:
                self.host.doubt(pending)

    async def _reopen(self) -> None:
        self.lost += 1
        pause = PAUSES[0]
        said = ""
        while True:
            try:
                await self.open()
            except (Lost, Reset, errors.ServerError, errors.RequestRefused) as why:
                if str(why) != said:
                    said = str(why)
                    log.warning("cannot open a station at %s: %s; trying again", self.access.url, why)
            else:
                log.info("at %s again", self.access.url)
                return
            await asyncio.sleep(pause * (0.5 + random() / 2))
            pause = min(pause * 2, PAUSES[1])

    async def drain(self) -> None:
        """Take nothing more. What is running goes on, and is reported."""
        self._draining = True
        if self._polling is not None:
            self._polling.cancel()
        with suppress(Reset, Lost, NotHttp):  # a server that does not hear it sees that nobody listens
            await self._exchange([], 0)

    async def close(self) -> None:
        body = wire.encode(wire.Closing(worker_id=self.host.executor.owner, station=self._station))
        try:
            await self._http.post(wire.CLOSE, body, 5.0)
        except (Lost, NotHttp):
            log.info("could not say goodbye to %s; it notices", self.access.url)
        self._http.close()
        await asyncio.sleep(0)  # a socket is closed by the loop's next round

    # -- lanes

    async def _poll(self) -> None:
        while True:
            if self._draining:
                await asyncio.Event().wait()
            reply = await self._exchange([], wire.PARKED)
            if reply.leaving:
                raise Reset("it is stopping")

    async def _report(self) -> None:
        while True:
            if not self._reports:
                self._something.clear()
                await self._something.wait()
            batch = self._out = self._next()
            await self._exchange(batch, 0)
            self._out = []

    async def _exchange(self, batch: list[Pending], wait: float) -> wire.Exchanged:
        body = wire.encode(
            wire.Exchange(
                worker_id=self.host.executor.owner,
                station=self._station,
                reports=[pending.report for pending in batch],
                wait=wait,
                again=bool(batch) and batch[0].again,
                draining=self._draining,
            )
        )
        reply = await self._http.post(wire.EXCHANGE, body, ANSWER + wait)
        if reply.status == 413 and len(batch) > 1:
            return await self._halves(batch)
        if reply.status != 200:
            raise self._trouble(reply)
        try:
            exchanged = wire.decode_exchanged(reply.body)
        except ValueError as error:
            raise Reset(f"its reply cannot be read: {error}") from None
        self._answered(batch, exchanged.answers)
        self._delivered(exchanged)
        return exchanged

    async def _halves(self, batch: list[Pending]) -> wire.Exchanged:
        """Together they are too large for one request."""
        middle = len(batch) // 2
        await self._exchange(batch[:middle], 0)
        self._out = batch[middle:]
        return await self._exchange(self._out, 0)

    def _answered(self, batch: list[Pending], answers: list[wire.Answered]) -> None:
        for pending, answer in zip(batch, answers, strict=True):
            if answer.refused is not None and answer.refused.reason == "storage_unavailable":
                self.host.later(AGAIN, partial(self.send, self.host.doubt(pending)))
                continue
            if pending.task_id is not None:
                self.host.leases.pop(pending.task_id, None)
            pending.answered(answer)
        self._out = []

    def _delivered(self, exchanged: wire.Exchanged) -> None:
        if exchanged.closed:
            self.host.closed(exchanged.closed)
        if exchanged.deliveries:
            try:
                self.host.deliver(exchanged.deliveries)
            except UnknownEvent as unknown:
                raise Reset(str(unknown)) from None

    def _trouble(self, reply: Reply) -> Exception:
        said = said_by(reply)
        if reply.status in (410, 429, 502, 503, 504):
            return Reset(str(said.get("message") or f"HTTP {reply.status}"))
        error = refusal(reply, self.access)
        return errors.RequestRefused(error.reason, error.message) if isinstance(error, Refused) else error

    async def history(self, task_id: str, attempt: int, after: int) -> list[Recorded]:
        """The rest of a task's history."""
        found: list[Recorded] = []
        while True:
            wanted = wire.HistoryWanted(
                worker_id=self.host.executor.owner, task_id=task_id, attempt=attempt, after=after
            )
            reply = await self._patiently(wire.encode(wanted))
            part = wire.decode_history(reply.body)
            found += unpack(part.events)
            if not part.more:
                return found
            after = found[-1].sequence

    async def _patiently(self, body: bytes) -> Reply:
        """History is only read: it may be asked for until it comes."""
        pause = PAUSES[0]
        while True:
            try:
                reply = await self._http.post(wire.HISTORY, body, ANSWER)
            except (Lost, NotHttp):
                reply = None
            if reply is not None and reply.status == 200:
                return reply
            if reply is not None and reply.status not in (429, 502, 503, 504):
                said: dict[str, Any] = said_by(reply)
                raise Refused(str(said.get("reason", "unreadable")), str(said.get("message", "no history")))
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSES[1])


def _both(
    first: Callable[[wire.Answered], None], second: Callable[[wire.Answered], None]
) -> Callable[[wire.Answered], None]:
    def answered(answer: wire.Answered) -> None:
        first(answer)
        second(answer)

    return answered


def _weight(report: wire.Report) -> int:
    """About how many bytes of payload."""
    match report:
        case wire.ActivityDone(result=bytes(result)):
            return len(result)
        case wire.TaskDone(commands=commands):
            return sum(_command_weight(command) for command in commands)
        case _:
            return 0


def _command_weight(command: Any) -> int:
    return sum(
        len(value)
        for value in (getattr(command, "arguments", None), getattr(command, "result", None))
        if isinstance(value, bytes)
    )
