"""Pending replies: requests of our own clients and workers that have begun and are answered later.

A reply is pending until the commit, the task or the event that its request waits for. If that may never happen, the reply is
*parked*: it counts against `max_parked_polls` (`parked_requests.py`), and an alarm ends the wait. Polls of the published
protocol count against the same number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from backstay.server.http.messages import HttpResponse

if TYPE_CHECKING:
    from backstay.server.http.parked_requests import Share
    from backstay.server.server import Server


class PendingReply:
    """The reply to a request that has no answer yet. `answer` is done when the reply can be sent.

    Subclasses make the reply, and handle a caller that gives up.
    """

    __slots__ = ("_alarm", "_server", "_share", "answer")

    def __init__(
        self,
        server: Server,
        share: Share,
        answer: asyncio.Future[Any],
        parked: float | None,
        expired: Callable[[], None],
    ) -> None:
        """`parked`: seconds after which `expired` is called, unless `end` was called before; None: it is not parked."""
        self.answer = answer
        self._server = server
        self._share = share
        self._alarm: asyncio.TimerHandle | None = None
        if parked is not None:
            server.parked.enter(share, self, self.give_way)
            self._alarm = asyncio.get_running_loop().call_later(parked, expired)

    def end(self) -> None:
        """Stop the alarm and the count: the reply has its answer, or its caller has given up."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
            self._server.parked.leave(self._share, self)

    def give_way(self) -> None:
        """Called when the place of this reply is needed for another one. Answer with a status after which the caller
        retries."""
        raise NotImplementedError

    def give_up(self) -> None:
        """Called when the caller has hung up."""
        raise NotImplementedError

    def reply(self) -> HttpResponse:
        """Make the reply and end. Called once `answer` is done."""
        raise NotImplementedError
