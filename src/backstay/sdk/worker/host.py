"""What a worker's parts need of the engine they live in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from backstay.kernel.event import Recorded
from backstay.kernel.features.activity import HeartbeatActivity
from backstay.kernel.features.workflow_task import WorkflowAssignment
from backstay.kernel.message import Message
from backstay.kernel.task import Task


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class HeartbeatAnswer(Protocol):
    """The answer to a heartbeat. An attempt that cannot continue was cancelled, or is not the current one any more."""

    @property
    def can_continue(self) -> bool: ...
    @property
    def cancel_requested(self) -> bool: ...


Reply = Callable[[object, BaseException | None], None]
"""Told what became of a report. What it was answered is nobody's business here, so nobody may look into it."""


class Host(Protocol):
    cold: object

    def hold(self, start: Callable[[BaseException | None], None]) -> object: ...
    def report(self, key: int, message: Message, reply: Reply | None) -> None: ...
    def heartbeat(self, key: int, message: HeartbeatActivity, heard: Callable[[HeartbeatAnswer], None]) -> None:
        """Say that an attempt is alive. `heard`: told the answer, if there is one."""
        ...

    def on_slot_free(self) -> None: ...
    def events(
        self, after: int, assignment: WorkflowAssignment, then: Callable[[list[Recorded] | Exception], None]
    ) -> None:
        """Get the events after `after` that this task may see: at once, or when they were read."""
        ...

    def release_hold(self, key: int, /) -> None: ...
    def on_given_up(self, task: Task, /) -> None:
        """The code of this task ends half-way and reports nothing: the task is to be offered again."""
        ...

    def thread(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None: ...
    def workflow_thread(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None: ...
    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]: ...
    def post(self, call: Callable[[], None]) -> None: ...
    def later(self, seconds: float, call: Callable[[], None]) -> TimerHandle: ...
