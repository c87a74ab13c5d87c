"""The queue of reports to the server. A report is waiting, then sent, and leaves the queue with its answer.

So the queue has everything that the server may not know yet. A lease that one of these reports ends is held until its answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain

from backstay.protocol.native import worker as wire

BATCH_REPORTS = 500  # reports in one request
BATCH_BYTES = 1 << 20  # of payload in one request; a larger report is sent alone


class PendingReport:
    """A report without an answer.

    `task_id`: the task whose lease it ends. `run`: the run whose live code it reports on. `again`: it may have been sent
    before. `size`: about how many bytes it has, set when it is sent. `link`: the one that it is sent by.
    """

    __slots__ = ("again", "answered", "link", "report", "run", "size", "task_id")

    def __init__(
        self, report: wire.Report, task_id: str | None, run: int | None, answered: Callable[[wire.Answered], None]
    ) -> None:
        self.report = report
        self.task_id = task_id
        self.run = run
        self.answered = answered
        self.again = False
        self.size = 0
        self.link: object = None


class ReportQueue:
    def __init__(self) -> None:
        self._waiting: deque[PendingReport] = deque()
        self._sent: deque[PendingReport] = deque()  # in requests that have no answer yet, oldest first
        self._postponed: dict[PendingReport, None] = {}  # the server could not commit these; they are sent again soon
        self._heartbeats: dict[tuple[str, int, int], PendingReport] = {}  # waiting, by attempt
        self._nonempty = asyncio.Event()

    def __iter__(self) -> Iterator[PendingReport]:
        return chain(self._sent, self._waiting, self._postponed)

    @property
    def empty(self) -> bool:
        return not (self._waiting or self._sent or self._postponed)

    def task_ids(self) -> set[str]:
        """Return the tasks whose leases these reports end."""
        return {pending.task_id for pending in self if pending.task_id is not None}

    def add(self, pending: PendingReport) -> None:
        report = pending.report
        if isinstance(report, wire.Heartbeat):
            # Only the newest heartbeat of an attempt counts, so it replaces one that waits. The answer is for the same
            # attempt, so the callback of the older one serves.
            waiting = self._heartbeats.setdefault(_attempt_key(report), pending)
            if waiting is not pending:
                waiting.report = report
                return
        self._waiting.append(pending)
        self._nonempty.set()

    async def wait(self) -> None:
        """Wait until there is a report to send."""
        while not self._waiting:
            self._nonempty.clear()
            await self._nonempty.wait()

    def next_batch(self) -> list[PendingReport]:
        """Move the reports of the next request from waiting to sent. Those that may have been sent before form their own."""
        batch: list[PendingReport] = []
        size = 0
        while self._waiting and len(batch) < BATCH_REPORTS and size < BATCH_BYTES:
            if batch and self._waiting[0].again != batch[0].again:
                break
            pending = self._waiting.popleft()
            report = pending.report
            if isinstance(report, wire.Heartbeat):
                self._heartbeats.pop(_attempt_key(report), None)
            pending.size = payload_size(report)
            size += pending.size
            batch.append(pending)
        self._sent.extend(batch)
        return batch

    def answered(self, pending: PendingReport) -> None:
        """Remove the oldest sent report: the server has answered it."""
        assert self._sent[0] is pending, "answers come in the order of the reports"
        self._sent.popleft()

    def postpone(self, pending: PendingReport) -> None:
        """Keep a report that the server could not commit, to be sent again."""
        self._postponed[pending] = None

    def resend(self, pending: PendingReport) -> None:
        """Send a postponed report again, unless another link has it by now."""
        if pending in self._postponed:
            del self._postponed[pending]
            self.add(pending)

    def take_all(self) -> list[PendingReport]:
        """Remove and return all reports: another link sends them."""
        found = list(self)
        for one in (self._sent, self._waiting, self._postponed, self._heartbeats):
            one.clear()
        return found

    def requeue_sent(self) -> None:
        """Put all sent reports back, before those that wait: the link is lost, and no answer will come."""
        while self._sent:
            pending = self._sent.pop()
            report = pending.report
            if (
                isinstance(report, wire.Heartbeat)
                and self._heartbeats.setdefault(_attempt_key(report), pending) is not pending
            ):
                continue  # a newer heartbeat waits
            self._waiting.appendleft(pending)
        if self._waiting:
            self._nonempty.set()


def _attempt_key(beat: wire.Heartbeat) -> tuple[str, int, int]:
    return beat.run_id, beat.step, beat.attempt


def payload_size(report: wire.Report) -> int:
    """Return about how many bytes of payload a report has."""
    if isinstance(report, wire.AttemptDone):
        return 0 if report.result is None else len(report.result)
    size = 0
    if isinstance(report, wire.TaskDone):
        for command in report.commands:
            arguments, result = getattr(command, "arguments", None), getattr(command, "result", None)
            if isinstance(arguments, bytes):
                size += len(arguments)
            if isinstance(result, bytes):
                size += len(result)
    return size
