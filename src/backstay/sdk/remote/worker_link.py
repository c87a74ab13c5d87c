"""The link of a worker to its server: one exchange parked for tasks, others for reports.

Reports gather while a request is out and leave together. If anything goes wrong with either lane, both are given up: the
worker opens another link, says what it holds, and sends again what was not answered.

**Why everything is given up at once.** When a request fails, the worker cannot know whether the server has read it, nor
whether tasks were on their way back. Repeating single requests would need a record of replies on the server. Instead the
next link begins with what the worker works on (`RemoteHost.claims`), and the server releases every other lease it has here.
Reports without an answer are sent again, in their order and marked `again`, so the server looks in history before it decides
them. That is safe for outcomes, which history knows by task and attempt. It is not safe for what code did ahead of the
server, since nobody knows where its run stands by now: that part is left out, and the code dropped (`Reports.doubt`). Without
the mark an outcome would be refused that is already recorded; without the list tasks would be lost with their reply. Tests:
`tests/remote/test_losses.py`; mutants "what is out is lost with its connection", "a worker keeps what it does not hold".
"""

from __future__ import annotations

import asyncio
import logging
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
from backstay.kernel.values import run_of
from backstay.protocol.native import worker as wire
from backstay.protocol.native.events import unpack
from backstay.sdk import errors
from backstay.sdk.remote.bounds import Bounds
from backstay.sdk.remote.host import RemoteHost
from backstay.sdk.remote.http import HttpClient, Lost, NotHttp, Reply
from backstay.sdk.remote.outgoing import Outgoing, Pending, weight
from backstay.sdk.remote.tasks import FetchHistory
from backstay.sdk.remote.transport import NOT_NOW, PAUSES, Access, refusal, said_by

log = logging.getLogger("backstay.worker")

ANSWER = 60.0  # seconds to wait for the answer to reports
OURS = frozenset(command_type(kind) for kind in Machine().commands)
AGAIN = 0.5  # seconds until a report is sent again that the server could not write
STEADY = 5.0  # seconds that a station must last until the next one may be opened as quickly as the first


class Reset(Exception):
    """This link is over; open another."""


class ServerLink:
    def __init__(
        self,
        access: Access,
        host: Callable[[Callable[[Pending], None], FetchHistory], RemoteHost],
        opening: Callable[[list[wire.HeldTask]], wire.OpenLink],
        bounds: Bounds,
    ) -> None:
        """`host`: makes what the link's tasks are for, from how it sends reports and reads on in a history.

        `bounds`: set to what the server says of itself, whenever a link is opened.
        """
        self.access = access
        self.host = host(self.send, self.history)
        self._bounds = bounds
        self._opening = opening
        self._http: HttpClient = access.client()
        self._station = ""
        self._untaken: frozenset[str] = frozenset()  # commands that this release knows, and the server does not
        self._outgoing = Outgoing()
        self._claim_at = 0.0  # when to say the next time what is held
        self._pause = PAUSES[0]
        self._draining = False
        self.lost = 0  # how often a station had to be given up

    # -- reports

    def send(self, pending: Pending) -> None:
        if self._untaken:
            self._fitted(pending)
        self._outgoing.add(pending)

    def _fitted(self, pending: Pending) -> None:
        """Leave out of a report what the server does not take: it is older than this SDK."""
        report = pending.report
        match report:
            case wire.AttemptDone(resumed=wire.Resumed(commands=commands)) if self._refused(commands):
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

    def _refused(self, commands: list[Command]) -> str | None:
        types = (command_type(type(command)) for command in commands)
        return next((name for name in types if name in self._untaken), None)

    @property
    def quiet(self) -> bool:
        return self._outgoing.quiet

    # -- life

    async def open(self) -> None:
        """Open a station. Raises what is wrong, also that nobody answers."""
        host = self.host
        host.give_up_live()
        self._http.close()
        self._http = self.access.client()
        body = wire.encode(self._opening(host.claims(self._outgoing.owed())))
        try:
            reply = await self._http.post(wire.OPEN, body, ANSWER)
        except NotHttp as strange:
            raise errors.ServerUnreachable(self.access.url, str(strange)) from None
        if reply.status != 200:
            raise self._trouble(reply)
        opened = wire.decode_opened(reply.body)
        self._station = opened.station
        self._untaken = OURS - frozenset(opened.commands)
        self._bounds.set(opened.limits, opened.max_body_bytes)
        host.executor.machine.limits = opened.limits
        if opened.lost:
            host.lose(opened.lost)

    async def run(self) -> None:
        """Work until cancelled, on one station after the other."""
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            lanes = [asyncio.create_task(self._poll()), asyncio.create_task(self._report())]
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
            if clock() - began > STEADY:
                self._pause = PAUSES[0]
            await self._reopen()

    def _doubt(self) -> None:
        """What is out may have arrived, or not; and code that is reported about stands nobody knows where."""
        self._outgoing.lost()
        for pending in self._outgoing:
            if not pending.again:
                self.host.doubt(pending)

    async def _reopen(self) -> None:
        """Open another station, after a pause that grows until one has lasted: whatever is wrong, nobody is hammered."""
        self.lost += 1
        said = ""
        while True:
            await asyncio.sleep(self._pause * (0.5 + random() / 2))
            self._pause = min(self._pause * 2, PAUSES[1])
            try:
                await self.open()
            except (Lost, Reset, errors.ServerError, errors.RequestRefused) as why:
                if str(why) != said:
                    said = str(why)
                    log.warning("cannot open a link to %s: %s; trying again", self.access.url, why)
            except Exception as error:
                if repr(error) != said:
                    said = repr(error)
                    log.exception("opening a link to %s failed; trying again", self.access.url)
            else:
                log.info("worker %s reconnected to %s", self.host.executor.owner, self.access.url)
                return

    async def drain(self) -> None:
        """Take nothing more. What is running goes on, and is reported."""
        self._draining = True
        with suppress(Reset, Lost, NotHttp, errors.ServerError, errors.RequestRefused):
            await self._exchange([], 0)  # whoever does not hear it is told with the next poll

    async def close(self) -> None:
        body = wire.encode(wire.Closing(worker_id=self.host.executor.owner, station=self._station))
        try:
            await self._http.post(wire.CLOSE, body, 5.0)
        except (Lost, NotHttp):
            log.info("worker %s could not close its link to %s", self.host.executor.owner, self.access.url)
        self._http.close()
        await asyncio.sleep(0)  # a socket is closed by the loop's next round

    # -- lanes

    async def _poll(self) -> None:
        while True:
            reply = await self._exchange([], wire.PARKED)
            if reply.leaving:
                raise Reset("it is stopping")

    async def _report(self) -> None:
        while True:
            await self._outgoing.something()
            await self._exchange(self._outgoing.leave(), 0)

    def _claims(self) -> list[wire.HeldTask]:
        """What is held, if it is time to say so."""
        now = asyncio.get_running_loop().time()
        if now < self._claim_at or not self.host.leases:
            return []
        self._claim_at = now + wire.CLAIM
        return self.host.claims(self._outgoing.owed())

    async def _exchange(self, batch: list[Pending], wait: float) -> wire.Exchanged:
        body = self._body(batch, wait)
        if body is None:
            return await self._halves(batch)
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

    def _body(self, batch: list[Pending], wait: float) -> bytes | None:
        """A request that the server takes; None if several reports are too much together. One that is too much alone says so."""
        while True:
            size = batch[0].size if len(batch) == 1 else 0
            if not self._bounds.passed(size):  # what is huge is not even encoded
                exchange = wire.Exchange(
                    worker_id=self.host.executor.owner,
                    station=self._station,
                    reports=[pending.report for pending in batch],
                    wait=wait,
                    again=bool(batch) and batch[0].again,
                    draining=self._draining,
                    holding=[] if batch else self._claims(),
                )
                body = wire.encode(exchange)
                size = len(body)
                if not batch or not self._bounds.passed(size):
                    return body
                if len(batch) > 1:
                    return None
            self._reduce(batch[0], size)

    def _reduce(self, pending: Pending, size: int) -> None:
        report = pending.report
        pending.report = self._bounds.reduced(report, size)
        pending.size = weight(pending.report)
        if pending.report == report:
            raise Reset(f"{type(report).__name__} of {size} bytes is more than it takes")
        if not isinstance(report, wire.AttemptDone) or report.resumed is None:
            what = f"{type(report).__name__} for run {run_of(pending.task_id)}" if pending.task_id else "a report"
            log.error("%s has %d bytes, the server takes %d (max_body_bytes)", what, size, self._bounds.body)
        if pending.run is not None:
            self.host.forget(pending.run)

    async def _halves(self, batch: list[Pending]) -> wire.Exchanged:
        """Together they are too large for one request."""
        middle = len(batch) // 2
        await self._exchange(batch[:middle], 0)
        return await self._exchange(batch[middle:], 0)

    def _answered(self, batch: list[Pending], answers: list[wire.Answered]) -> None:
        if len(answers) != len(batch):
            raise Reset(f"it answered {len(answers)} of {len(batch)} reports")
        for pending, answer in zip(batch, answers, strict=True):
            self._outgoing.answered(pending)
            if answer.refused is not None and answer.refused.reason == "storage_unavailable":
                self._outgoing.postpone(self.host.doubt(pending))
                self.host.later(AGAIN, partial(self._outgoing.again, pending))
                continue
            self.host.spent(pending)
            try:
                pending.answered(answer)
            except Exception:  # a bug of ours: whatever it is about, the others have nothing to do with it
                log.exception("the answer to %s could not be used", type(pending.report).__name__)
                if pending.run is not None:
                    self.host.forget(pending.run)

    def _delivered(self, exchanged: wire.Exchanged) -> None:
        if exchanged.closed:
            self.host.closed(exchanged.closed)
        if exchanged.withdrawn:
            self.host.withdrawn(exchanged.withdrawn)
        if exchanged.deliveries:
            self.host.deliver(exchanged.deliveries)

    def _trouble(self, reply: Reply) -> Exception:
        said = said_by(reply)
        if reply.status == 410 or reply.status in NOT_NOW:
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
            if reply is not None and reply.status not in NOT_NOW:
                said: dict[str, Any] = said_by(reply)
                raise Refused(str(said.get("reason", "unreadable")), str(said.get("message", "no history")))
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSES[1])
