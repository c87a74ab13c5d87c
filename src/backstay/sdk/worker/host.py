"""The host of an executor: the interface that it needs of the engine, or of the link to a server."""

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
"""Called with the answer to a report, or with the error that refused it. The worker does not read the answer."""


class Host(Protocol):
    cold: object

    def hold(self, start: Callable[[BaseException | None], None]) -> object: ...
    def report(self, key: int, message: Message, reply: Reply | None) -> None: ...
    def heartbeat(self, key: int, message: HeartbeatActivity, heard: Callable[[HeartbeatAnswer], None]) -> None:
        """Send a heartbeat of an attempt. `heard` is called with the answer, if one comes."""
        ...

    def on_slot_free(self) -> None: ...
    def events(
        self, after: int, assignment: WorkflowAssignment, then: Callable[[list[Recorded] | Exception], None]
    ) -> None:
        """Call `then` with the events after `after` that this task may see, at once or when they were read."""
        ...

    def release_hold(self, key: int, /) -> None: ...
    def on_given_up(self, task: Task, /) -> None:
        """Offer a task again whose code ended half-way without a report."""
        ...

    def thread(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None: ...
    def here(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run a short call on this thread, in the next turn of its loop."""
        ...

    def workflow_thread(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None: ...
    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]: ...
    def post(self, call: Callable[[], None]) -> None: ...
    def later(self, seconds: float, call: Callable[[], None]) -> TimerHandle: ...
