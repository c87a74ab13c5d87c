"""The link of a worker to a server. One request is parked as a poll for tasks; others carry reports.

`ServerLink` is the connection: it opens, polls, sends reports, and opens again when it is lost. Tasks that it receives go to
its `host`, and the reports of the host come back to its queue.

Reports that arise while a request is out are sent together in the next one. If a poll or a report request fails, the whole
link is given up: the worker opens another one, lists its tasks, and sends unanswered reports again.

**Why the whole link is given up.** When a request fails, the worker cannot know whether the server has read it, nor
whether tasks were on their way back. Repeating single requests would need a record of replies on the server. Instead
the next link begins with the tasks that the worker works on (`RemoteHost.held_tasks`), and the server releases every
other lease of this worker. Unanswered reports are sent again, in their order and marked `again`, so the server looks in
history before it decides them. That is safe for results, which history knows by task and attempt. It is not safe for
what code did ahead of the server, because the run may have moved since: that part is left out, and the code is dropped
(`Reports.prepare_resend`). Without the mark the server would refuse a result that it has recorded; without the list,
tasks would be lost with their response. A reply with tasks that was on its way while this process was suspended counts
as lost (`standstill.py`). Tests: `tests/remote/test_losses.py`; mutants "what is out is lost with its connection", "a
worker keeps what it does not hold".
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from random import random
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from backstay.kernel.command import Command, command_type
from backstay.kernel.features.start import AdoptDefinition
from backstay.kernel.machine import Machine
from backstay.kernel.message import Refused
from backstay.kernel.task import Block
from backstay.kernel.values import run_of
from backstay.link.http import HttpClient, Lost, NotHttp, Reply
from backstay.protocol.native import worker as wire
from backstay.sdk import errors
from backstay.sdk.remote.report_queue import PendingReport, ReportQueue, payload_size
from backstay.sdk.remote.transport import NOT_NOW, PAUSES, Access, refusal, said_by

if TYPE_CHECKING:
    from backstay.sdk.remote.host import RemoteHost
    from backstay.sdk.remote.server_links import ServerLinks

log = logging.getLogger("backstay.worker")

ANSWER = 60.0  # seconds to wait for the response to a request, beside the time it is parked
ADOPT = command_type(AdoptDefinition)
OUR_COMMANDS = frozenset(command_type(kind) for kind in Machine().commands)
RESEND_AFTER = 0.5  # seconds until a report is sent again that the server could not commit
RELIEVED = 1.0  # seconds without a link after which its reports go by other links
STEADY = 5.0  # seconds that a link must last for the next one to be opened without a longer pause


class Reset(Exception):
    """The link has ended; another one must be opened."""


class Way(NamedTuple):
    """How a server is called. `to`: the node that is meant; None: any that answers. `patience`: see `HttpClient`."""

    access: Access
    to: int | None
    patience: float | None = None

    def client(self) -> HttpClient:
        return self.access.client({} if self.to is None else {wire.TO_HEADER: str(self.to)}, self.patience)


class ServerLink:
    def __init__(self, links: ServerLinks, node: int | None) -> None:
        """`links`: all links of the worker. `node`: the node that it leads to; None: that will be known when it is open."""
        self._links = links
        self.node = node
        self.access = links.access
        self.way: Way | None = None
        self.is_open = False
        self._bounds = links.bounds
        self._http: HttpClient = self.access.client()
        self.id = ""
        self._unsupported: frozenset[str] = frozenset()  # commands of this release that the server does not know
        self._reports = ReportQueue()
        self._renew_at = 0.0  # loop time of the next poll that names the held tasks
        self._pause = PAUSES[0]
        self._leaving = False  # the server has announced that it stops
        self._roll_call = False  # the server wants to know which tasks are held
        self._telling = asyncio.Event()  # there are slots to report
        self.lost = 0  # how many times the link was lost

    @property
    def host(self) -> RemoteHost:
        return self._links.host

    # -- reports

    def send(self, pending: PendingReport) -> None:
        if self._unsupported:
            self._drop_unsupported(pending)
        self._reports.add(pending)

    def _drop_unsupported(self, pending: PendingReport) -> None:
        """Change a report with commands that the server does not know, because it is older than this SDK."""
        report = pending.report
        if isinstance(report, wire.TaskDone) and ADOPT in self._unsupported:
            # The run keeps the definition that it was started with. Versions that the code has taken are steps of history.
            own = [command for command in report.commands if not isinstance(command, AdoptDefinition)]
            report = pending.report = replace(report, commands=own)
        match report:
            case wire.AttemptDone(resumed=wire.Resumed(commands=commands)) if self._unsupported_in(commands):
                self.host.reports.prepare_resend(
                    pending
                )  # the next task runs the code again, and fails with the reason
                pending.again = False
            case wire.TaskDone(commands=commands) if refused := self._unsupported_in(commands):
                message = f"the server at {self.access.url} takes no command {refused!r}: it is older than this SDK"
                block = Block(message=message, type="UnsupportedCommand", reason="unsupported_command")
                pending.report = wire.TaskFailed(report.key, report.task_id, report.attempt, block)
                if pending.run is not None:
                    self.host.sticky.forget(pending.run)
            case _:
                pass

    def _unsupported_in(self, commands: list[Command]) -> str | None:
        types = (command_type(type(command)) for command in commands)
        return next((name for name in types if name in self._unsupported), None)

    @property
    def idle(self) -> bool:
        return self._reports.empty

    def reported_tasks(self) -> set[str]:
        """The tasks whose reports have no answer yet."""
        return self._reports.task_ids()

    def take_reports(self) -> list[PendingReport]:
        """Remove and return all reports: another link sends them."""
        return self._reports.take_all()

    def tell_slots(self) -> None:
        """Say soon how many slots the node has now."""
        self._telling.set()

    async def post(self, path: str, body: bytes, seconds: float) -> Reply:
        return await self._http.post(path, body, seconds)

    def discard(self) -> None:
        self._http.abandon()
        self._http.close()

    # -- life

    async def open(self) -> None:
        """Open a link. Raises `Lost` or `ServerUnreachable` if no server answers, and the error of a server that refuses."""
        self.host.sticky.forget_of(self)  # another server, or the same after a restart, does not know our live code
        *others, last = self._links.ways(self)
        share = self._links.shares[self]
        try:
            for way in others:
                try:
                    await self._open_by(way)
                    return
                except (Lost, Reset, errors.ServerError, errors.RequestRefused) as why:
                    log.debug("node %s does not answer at %s: %s", self.node, way.access.url, why)
            await self._open_by(last)
        finally:
            if not self.is_open:
                share.close()

    async def _open_by(self, way: Way) -> None:
        links, host = self._links, self.host
        self._http.close()
        self._http = way.client()
        self.access = way.access
        mine, orphans, others = links.held(self)
        slots = links.slots_for(self, way)
        opening = links.open_request(slots)
        if links.is_shared:
            opening = replace(opening, total=links.total, elsewhere=others)
        if way.to is not None:
            opening = replace(opening, named_by=links.named_by)
        try:
            reply = await self._http.post(wire.OPEN, wire.encode(replace(opening, holding=[*mine, *orphans])), ANSWER)
        except NotHttp as strange:
            raise errors.ServerUnreachable(self.access.url, str(strange)) from None
        if reply.status != 200:
            raise self._error(reply)
        opened = wire.decode_opened(reply.body)
        if orphans:  # this node may work for their instances by now: the first poll says that they are held
            self._renew_at = 0.0
        self.way = way
        self.id = opened.station
        self.is_open = True
        self._unsupported = OUR_COMMANDS - frozenset(opened.commands)
        self._bounds.set(opened.limits, opened.max_body_bytes)
        host.executor.machine.limits = opened.limits
        if opened.lost:
            host.on_lost(opened.lost)
        links.opened(self, opened)

    async def run(self) -> None:
        """Work until cancelled, on one link after the other."""
        clock = asyncio.get_running_loop().time
        if not self.is_open:
            await self._reopen()
        while True:
            began = clock()
            lanes = [asyncio.create_task(lane) for lane in (self._poll(), self._report(), self._tell())]
            try:
                done, _ = await asyncio.wait(lanes, return_when=asyncio.FIRST_EXCEPTION)
                for lane in done:
                    if not lane.cancelled() and (error := lane.exception()) is not None:
                        raise error
            except (Reset, Lost, NotHttp, errors.ServerError, errors.RequestRefused) as why:
                log.warning("lost the link to %s (%s); running work goes on", self.access.url, why)
            except Exception:
                log.exception("the link to %s failed; running work goes on", self.access.url)
            finally:
                self.is_open = False
                for lane in lanes:
                    lane.cancel()
                await asyncio.gather(*lanes, return_exceptions=True)
                self._requeue()
                self._links.lost_link(self)
            if clock() - began > STEADY:
                self._pause = PAUSES[0]
            self.lost += 1
            await self._reopen()

    def _requeue(self) -> None:
        """Put sent reports back into the queue and mark all as possibly sent before: no one knows which have arrived."""
        self._reports.requeue_sent()
        for pending in self._reports:
            if not pending.again:
                self.host.reports.prepare_resend(pending)

    async def _reopen(self) -> None:
        """Open another link, after a pause that grows until a link has lasted, so that a failing server is not flooded."""
        logged = ""
        clock = asyncio.get_running_loop().time
        began = clock()
        while True:
            if clock() - began > RELIEVED or self._leaving:
                self._links.relieve(self)
            await asyncio.sleep(self._pause * (0.5 + random() / 2))
            self._pause = min(self._pause * 2, PAUSES[1])
            try:
                await self.open()
            except (Lost, Reset, errors.ServerError, errors.RequestRefused) as why:
                if str(why) != logged:
                    logged = str(why)
                    log.warning("cannot open a link to %s: %s; trying again", self.access.url, why)
            except Exception as error:
                if repr(error) != logged:
                    logged = repr(error)
                    log.exception("opening a link to %s failed; trying again", self.access.url)
            else:
                self._leaving = False
                log.info("worker %s has a link to %s", self.host.executor.owner, self.access.url)
                return

    async def drain(self) -> None:
        """Take no more tasks. Running work goes on and is reported."""
        with suppress(Reset, Lost, NotHttp, errors.ServerError, errors.RequestRefused):
            await self._exchange([], 0)  # if this request fails, the next poll says it

    async def close(self, stays: bool = False) -> None:
        """`stays`: another link is closed later and reports that the worker is gone."""
        body = wire.encode(wire.Closing(worker_id=self.host.executor.owner, station=self.id, stays=stays))
        try:
            await self._http.post(wire.CLOSE, body, 5.0)
        except (Lost, NotHttp):
            log.info("worker %s could not close its link to %s", self.host.executor.owner, self.access.url)
        self._http.close()
        await asyncio.sleep(0)  # a socket is closed by the loop's next round

    # -- polls and reports

    async def _poll(self) -> None:
        while True:
            reply = await self._exchange([], wire.PARKED)
            if reply.leaving:
                self._leaving = True
                raise Reset("it is stopping")

    async def _report(self) -> None:
        while True:
            await self._reports.wait()
            await self._exchange(self._reports.next_batch(), 0)

    async def _tell(self) -> None:
        """Send at once what the next poll would send too late: the slots of the node, or the running tasks."""
        while True:
            await self._telling.wait()
            self._telling.clear()
            if self._roll_call or not self._links.shares[self].is_settled:
                await self._exchange([], 0)

    def _held_tasks(self) -> tuple[list[wire.HeldTask], list[wire.HeldTask] | None]:
        """Return the tasks that are held, if it is time to renew their leases, and those that came by other links, if the server
        wants to know."""
        now = asyncio.get_running_loop().time()
        asked, self._roll_call = self._roll_call, False
        if not asked and (now < self._renew_at or not self.host.leases):
            return [], None
        self._renew_at = now + wire.CLAIM
        mine, orphans, others = self._links.held(self)
        return mine + orphans, others if asked else None

    async def _exchange(self, batch: list[PendingReport], wait: float) -> wire.Exchanged:
        body = self._body(batch, wait)
        if body is None:
            return await self._exchange_halves(batch)
        standstills = self._links.standstill.count
        reply = await self._http.post(wire.EXCHANGE, body, ANSWER + wait)
        if reply.status == 413 and len(batch) > 1:
            return await self._exchange_halves(batch)
        if reply.status != 200:
            raise self._error(reply)
        try:
            exchanged = wire.decode_exchanged(reply.body)
        except ValueError as error:
            raise Reset(f"its reply cannot be read: {error}") from None
        if exchanged.deliveries and self._links.standstill.since(standstills):
            # These tasks may be another worker's by now. The next link asks: it names the tasks that this worker holds.
            raise Reset("this process stood still")
        self._on_answers(batch, exchanged.answers)
        self._on_deliveries(exchanged)
        if exchanged.roll_call:
            self._roll_call = True
            self._telling.set()
        if exchanged.slots is not None or exchanged.nodes is not None:
            self._links.heard(self, exchanged)
        return exchanged

    def _body(self, batch: list[PendingReport], wait: float) -> bytes | None:
        """Return the body of a request that is not too large for the server; None if the batch must be divided.

        A single report that is too large is replaced by a shorter one.
        """
        while True:
            size = batch[0].size if len(batch) == 1 else 0
            if not self._bounds.too_large(size):  # a huge report is not even encoded
                share = self._links.shares[self]
                holding, elsewhere = ([], None) if batch else self._held_tasks()
                exchange = wire.Exchange(
                    worker_id=self.host.executor.owner,
                    station=self.id,
                    reports=[pending.report for pending in batch],
                    wait=wait,
                    again=bool(batch) and batch[0].again,
                    draining=self._links.draining,
                    holding=holding,
                    elsewhere=elsewhere,
                    slots=None if share.is_settled else share.given,
                    turn=share.turn,
                )
                body = wire.encode(exchange)
                size = len(body)
                if not batch or not self._bounds.too_large(size):
                    return body
                if len(batch) > 1:
                    return None
            self._reduce(batch[0], size)

    def _reduce(self, pending: PendingReport, size: int) -> None:
        report = pending.report
        pending.report = self._bounds.reduce(report, size)
        pending.size = payload_size(pending.report)
        if pending.report == report:
            raise Reset(f"{type(report).__name__} of {size} bytes is more than it takes")
        if not isinstance(report, wire.AttemptDone) or report.resumed is None:
            what = f"{type(report).__name__} for run {run_of(pending.task_id)}" if pending.task_id else "a report"
            log.error("%s has %d bytes, the server takes %d (max_body_bytes)", what, size, self._bounds.body)
        if pending.run is not None:
            self.host.sticky.forget(pending.run)

    async def _exchange_halves(self, batch: list[PendingReport]) -> wire.Exchanged:
        """Send a batch that is too large for one request in two."""
        middle = len(batch) // 2
        await self._exchange(batch[:middle], 0)
        return await self._exchange(batch[middle:], 0)

    def _on_answers(self, batch: list[PendingReport], answers: list[wire.Answered]) -> None:
        if len(answers) != len(batch):
            raise Reset(f"it answered {len(answers)} of {len(batch)} reports")
        for pending, answer in zip(batch, answers, strict=True):
            self._reports.answered(pending)
            if answer.refused is not None and answer.refused.reason == "storage_unavailable":
                self._reports.postpone(self.host.reports.prepare_resend(pending))
                self.host.later(RESEND_AFTER, partial(self._reports.resend, pending))
                continue
            self.host.on_answered(pending)
            try:
                pending.answered(answer)
            except Exception:  # a bug of ours, which must not affect the other answers
                log.exception("the answer to %s of task %s failed", type(pending.report).__name__, pending.task_id)
                if pending.run is not None:
                    self.host.sticky.forget(pending.run)

    def _on_deliveries(self, exchanged: wire.Exchanged) -> None:
        if exchanged.closed:
            self.host.on_runs_closed(exchanged.closed)
        if exchanged.withdrawn:
            self.host.on_withdrawn(exchanged.withdrawn)
        if exchanged.deliveries:
            self.host.deliver(exchanged.deliveries, self)

    def _error(self, reply: Reply) -> Exception:
        said = said_by(reply)
        if reply.status == 410 or reply.status in NOT_NOW:
            return Reset(str(said.get("message") or f"HTTP {reply.status}"))
        error = refusal(reply, self.access)
        return errors.RequestRefused(error.reason, error.message) if isinstance(error, Refused) else error
