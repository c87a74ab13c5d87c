"""Reports on their way to the server: waiting → out → answered.

A report leaves only with its answer. So what is here is what the worker still has to say, and a lease that is to be spent by
one of these reports is held for a reason.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain

from backstay.protocol.native import worker as wire

TOGETHER = 500  # reports in one request
BYTES = 1 << 20  # of payload in one request, unless a single report has more


class Pending:
    """A report on its way. `run`: of the live code it speaks for. `size`: about how many bytes it has, once it leaves."""

    __slots__ = ("again", "answered", "report", "run", "size", "task_id")

    def __init__(
        self, report: wire.Report, task_id: str | None, run: int | None, answered: Callable[[wire.Answered], None]
    ) -> None:
        self.report = report
        self.task_id = task_id
        self.run = run
        self.answered = answered
        self.again = False
        self.size = 0


class Outgoing:
    def __init__(self) -> None:
        self._waiting: deque[Pending] = deque()
        self._out: deque[Pending] = deque()  # in requests that have no answer yet, oldest first
        self._postponed: dict[Pending, None] = {}  # the server could not write these; they are sent again soon
        self._beats: dict[tuple[str, int, int], Pending] = {}  # those that wait
        self._something = asyncio.Event()

    def __iter__(self) -> Iterator[Pending]:
        return chain(self._out, self._waiting, self._postponed)

    @property
    def quiet(self) -> bool:
        return not (self._waiting or self._out or self._postponed)

    def owed(self) -> set[str]:
        """The tasks whose outcome is here."""
        return {pending.task_id for pending in self if pending.task_id is not None}

    def add(self, pending: Pending) -> None:
        report = pending.report
        if isinstance(report, wire.Heartbeat):
            # Only the newest of an attempt counts: one that has not left yet leaves with what is known now. Whose answer
            # it is does not matter, since it is for the same attempt.
            waiting = self._beats.setdefault(_attempt(report), pending)
            if waiting is not pending:
                waiting.report = report
                return
        self._waiting.append(pending)
        self._something.set()

    async def something(self) -> None:
        """Wait until a report waits."""
        while not self._waiting:
            self._something.clear()
            await self._something.wait()

    def leave(self) -> list[Pending]:
        """What goes out together now: what may have been sent before goes alone, and first."""
        batch: list[Pending] = []
        size = 0
        while self._waiting and len(batch) < TOGETHER and size < BYTES:
            if batch and self._waiting[0].again != batch[0].again:
                break
            pending = self._waiting.popleft()
            report = pending.report
            if isinstance(report, wire.Heartbeat):
                self._beats.pop(_attempt(report), None)
            pending.size = weight(report)
            size += pending.size
            batch.append(pending)
        self._out.extend(batch)
        return batch

    def answered(self, pending: Pending) -> None:
        """The server has dealt with the oldest report that was out."""
        assert self._out[0] is pending, "answers come in the order of the reports"
        self._out.popleft()

    def postpone(self, pending: Pending) -> None:
        """Keep an answered report that is to be sent again."""
        self._postponed[pending] = None

    def again(self, pending: Pending) -> None:
        """Send a postponed report."""
        del self._postponed[pending]
        self.add(pending)

    def lost(self) -> None:
        """No answer will come to what is out: all of it waits again, ahead of what came later."""
        while self._out:
            pending = self._out.pop()
            report = pending.report
            if isinstance(report, wire.Heartbeat) and self._beats.setdefault(_attempt(report), pending) is not pending:
                continue  # a newer one waits
            self._waiting.appendleft(pending)
        if self._waiting:
            self._something.set()


def _attempt(beat: wire.Heartbeat) -> tuple[str, int, int]:
    return beat.run_id, beat.step, beat.attempt


def weight(report: wire.Report) -> int:
    """About how many bytes of payload."""
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
