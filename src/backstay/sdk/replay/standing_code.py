"""Workflow code as it stood after an event: a replay of the history up to there, for reading only.

No activity runs and nothing is written. `ask` runs a piece of code beside it, which may make no durable calls.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from backstay.kernel.machine import Machine
from backstay.protocol.commands import Inquiry
from backstay.protocol.recorded_run import RecordedRun
from backstay.sdk.author.workflow_definition import WorkflowDefinition
from backstay.sdk.replay.code_place import is_machinery
from backstay.sdk.replay.inbound import run_handler
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.queries import replayed
from backstay.sdk.replay.workflow_greenlet import Readonly
from backstay.sdk.worker.registry import Registry

T = TypeVar("T")


class StandingCode:
    """The code of a run after its first `event` events. `close` drops it."""

    def __init__(
        self, machine: Machine, registry: Registry, definition: WorkflowDefinition, run: RecordedRun, event: int
    ) -> None:
        asked = Inquiry(
            kind="query",
            namespace=run.namespace,
            workflow_id=run.workflow_id,
            run_id=run.run_id,
            run_key=run.key,
            run_number=run.run_number,
            workflow_type=run.workflow_type,
            cursor=run.history[event - 1].sequence,  # all of it is repetition: logs stay silent
            name="",
            arguments=None,
            at=run.history[0].at,
        )
        self._live_run = replayed(machine, registry, definition, asked, run.history[:event], whole=True)

    @property
    def problem(self) -> str | None:
        """Why the code does not fit the history up to here; None if it fits."""
        block = self._live_run.block
        return None if block is None else block.message

    def frames(self) -> list[FrameType]:
        """The frames of the author's code, the outermost first. None are left of code that has ended or not begun."""
        return _frames(self._live_run)

    def ask(self, call: Callable[[], T], by: str) -> T:
        """Call something that may look at the code, and makes no durable calls. Raises what it raises."""
        outcome = run_handler(self._live_run, Readonly(by, replayed=False), call)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def close(self) -> None:
        self._live_run.abandon()


def _frames(live_run: LiveRun) -> list[FrameType]:
    if live_run.parked is not None:
        return _called(live_run.parked.gr_frame)
    if live_run.closing is not None:
        return []
    if live_run.main_task is not None:
        return _awaited(live_run.main_task.get_coro())
    return [] if live_run.main is None else _called(live_run.main.gr_frame)


def _called(frame: FrameType | None) -> list[FrameType]:
    found: list[FrameType] = []
    while frame is not None:
        if not is_machinery(frame):
            found.insert(0, frame)
        frame = frame.f_back
    return found


def _awaited(coroutine: Any) -> list[FrameType]:
    found: list[FrameType] = []
    while coroutine is not None:
        frame: FrameType | None = getattr(coroutine, "cr_frame", None)
        if frame is not None and not is_machinery(frame):
            found.append(frame)
        coroutine = getattr(coroutine, "cr_await", None)
    return found
