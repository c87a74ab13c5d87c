"""The transport of a test: a call that waits for its answer lets time pass. If it will never be answered, it says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from backstay.protocol import commands as tell
from backstay.protocol import requests as ask
from backstay.protocol.streams import ReadStream
from backstay.sdk.author.attempt import current_attempt
from backstay.testing.timekeeper import Timekeeper, TimeWait

R = TypeVar("R")


class Stuck(AssertionError):
    """Something will never happen in a test: all waits, or the same goes on and on. The message says what waits for what."""


class WaitingTransport:
    """`time`: the timekeeper, while the app is open. `note`: called before lists are read. `on_thread`: whether the attempts of
    an activity type run on threads."""

    def __init__(
        self,
        engine: Callable[[ask.Request[Any]], Awaitable[Any]],
        note: Callable[[], None],
        explain: Callable[[str, str], Awaitable[str]],
        on_thread: Callable[[str], bool],
    ) -> None:
        self._engine = engine
        self._note = note
        self._explain = explain
        self._on_thread = on_thread
        self.time: Timekeeper | None = None

    async def call(self, request: ask.Request[R]) -> R:
        if self.time is None:
            return await self._engine(request)  # which says that it is not open
        if isinstance(request, ask.ListWorkflows):
            self._note()
        task = asyncio.current_task()
        assert task is not None
        # A reader of a stream asks again and again by itself, so its jumps are counted over all of its calls.
        anew = not isinstance(request, ReadStream)
        attempt = current_attempt()
        inside = None if attempt is None else (attempt.attempt_id, self._on_thread(attempt.type))
        with self.time.waiting(TimeWait(task, None, attempt=inside), anew=anew) as wait:
            try:
                return await self._engine(request)
            except asyncio.CancelledError:
                if wait.gave_up is None:
                    raise
                task.uncancel()
        raise Stuck(await self._explain(wait.gave_up, subject(request)))

    def __str__(self) -> str:
        return "an engine on the time of a test"


def subject(request: ask.Request[Any]) -> str:
    """What a call waits for, in words."""
    match request:
        case ask.RunWorkflow(start=start):
            return f"the end of {start.workflow_id!r}"
        case ask.AwaitResult(workflow_id=id):
            return f"the end of {id!r}"
        case tell.UpdateWorkflow(workflow_id=id, update_name=name):
            return f"update {name!r} of {id!r}"
        case tell.GetUpdate(workflow_id=id):
            return f"an update of {id!r}"
        case ReadStream(workflow_id=id, stream_name=name):
            return f"items of stream {name!r} of {id!r}"
        case _:
            return f"the answer to {type(request).__name__}"
