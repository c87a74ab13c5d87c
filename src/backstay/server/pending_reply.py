"""Pending replies: calls of our own clients and workers that were begun and are answered later.

A reply is pending until a commit, a task or whatever else the call waits for has come. One that waits for something that
may never come is *parked*: it counts against `max_parked_polls`, and an alarm ends the wait. Polls of the published protocol
count against the same number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from backstay.server.http_errors import HttpError
from backstay.server.http_messages import HttpResponse

if TYPE_CHECKING:
    from backstay.server.server import Server


class PendingReply:
    """The reply to a call that has no answer yet. `answer` is done when there is something to reply.

    What is replied, and what it means that nobody waits any more, is the business of its subclasses.
    """

    __slots__ = ("_alarm", "_server", "answer")

    def __init__(
        self, server: Server, answer: asyncio.Future[Any], parked: float | None, expired: Callable[[], None]
    ) -> None:
        """`parked`: seconds until `expired` is called, unless it has ended by then; None: it is not parked."""
        self.answer = answer
        self._server = server
        self._alarm: asyncio.TimerHandle | None = None
        if parked is not None:
            server.parked += 1
            self._alarm = asyncio.get_running_loop().call_later(parked, expired)

    def end(self) -> None:
        """It has its answer, or nobody waits for it any more."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
            self._server.parked -= 1

    def give_up(self) -> None:
        """Nobody waits for the answer any more."""
        raise NotImplementedError

    def reply(self) -> HttpResponse:
        """What to reply, once there is something. Ends it."""
        raise NotImplementedError


def too_many_parked(advice: str, **fields: Any) -> HttpError:
    """The refusal to park one more call: the server holds as many as it may."""
    return HttpError(429, "long_poll_capacity_exhausted", advice, **fields, retryable=True, retry_after_seconds=1)
