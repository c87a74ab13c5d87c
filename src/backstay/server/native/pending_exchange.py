"""The pending reply to one exchange of a worker's link."""

from __future__ import annotations

from backstay.protocol.native import worker as wire
from backstay.server.http.messages import HttpResponse
from backstay.server.http.parked_requests import Share
from backstay.server.http.pending_reply import PendingReply
from backstay.server.native.worker_link import WorkerLink
from backstay.server.server import Server


class PendingExchange(PendingReply):
    """The reply to an exchange: complete when its reports are on disk, or, without any, when there are tasks."""

    __slots__ = ("_link", "answers", "left")

    def __init__(self, server: Server, share: Share, link: WorkerLink, reports: int, parked: float | None) -> None:
        """`parked`: seconds to wait for tasks; None: it has reports."""
        super().__init__(server, share, server.engine.world.future(), parked, self.give_way)
        self._link = link
        self.answers: list[wire.Answered] = [wire.Answered()] * reports
        self.left = reports
        if parked is not None:
            link.apply_rollouts()
            link.park(self)

    def give_way(self) -> None:
        """End the wait, without tasks."""
        self._link.expire(self)

    def give_up(self) -> None:
        """Called when the worker has hung up. Undelivered tasks wait for its next request; its reports still count."""
        if self._alarm is not None:
            self.answer.cancel()

    def end(self) -> None:
        if self._alarm is not None:
            super().end()
            self._link.unpark(self)

    def reply(self) -> HttpResponse:
        self.end()
        return HttpResponse({}, raw=self.answer.result())
