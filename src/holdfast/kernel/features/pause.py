"""Pause and resume. While a run is paused its tasks are withheld; facts are recorded and deadlines go on."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.kernel.event import NO_CONTEXT, Context, Event, Recorded
from holdfast.kernel.feature import Feature
from holdfast.kernel.features.intake import Commanding, accept, cause, misdirected, reject, repeated
from holdfast.kernel.state import Run
from holdfast.kernel.turn import Turn


class Pause(Commanding, frozen=True, kw_only=True):
    command_type = "pause"

    reason: str | None = None


class Unpause(Commanding, frozen=True, kw_only=True):
    command_type = "unpause"

    reason: str | None = None


class WorkflowPaused(Event, frozen=True, kw_only=True, omit_defaults=True):
    workflow_command_id: str
    reason: str | None = None


class WorkflowUnpaused(Event, frozen=True, kw_only=True, omit_defaults=True):
    workflow_command_id: str
    reason: str | None = None


class Paused:
    __slots__ = ("event", "since")

    def __init__(self) -> None:
        self.event: WorkflowPaused | None = None
        self.since: tuple[int, Context] = (0, NO_CONTEXT)


def allows(run: Run) -> bool:
    """Whether tasks of this run may be handed out."""
    part = run.parts.get(Paused)
    return part is None or part.event is None


def pause(turn: Turn, message: Pause) -> None:
    intent = (message.reason or "").encode()
    if repeated(turn, message, "pause", intent):
        return
    why = misdirected(turn, message)
    if why is not None:
        reject(turn, message, "pause", why, intent=intent)
        return
    paused = not allows(turn.run)
    command = accept(turn, message, "pause", "pause_not_needed" if paused else "paused", intent=intent)
    if not paused:
        turn.record_as(WorkflowPaused(workflow_command_id=command.id, reason=message.reason), cause(command))


def unpause(turn: Turn, message: Unpause) -> None:
    intent = (message.reason or "").encode()
    if repeated(turn, message, "unpause", intent):
        return
    why = misdirected(turn, message)
    if why is not None:
        reject(turn, message, "unpause", why, intent=intent)
        return
    paused = not allows(turn.run)
    command = accept(turn, message, "unpause", "unpaused" if paused else "unpause_not_needed", intent=intent)
    if paused:
        turn.record_as(WorkflowUnpaused(workflow_command_id=command.id, reason=message.reason), cause(command))
        for task_id in turn.flow.tasks:
            turn.touched.setdefault(task_id, True)  # offer what was withheld


def _paused(run: Run, event: WorkflowPaused, entry: Recorded) -> None:
    run.part(Paused).event = event
    run.part(Paused).since = (entry.sequence, entry.context)


def _unpaused(run: Run, event: WorkflowUnpaused, entry: Recorded) -> None:
    run.part(Paused).event = None


def _carry(run: Run) -> Iterable[tuple[int, Event, Context]]:
    part = run.parts.get(Paused)
    if part is not None and part.event is not None:
        yield part.since[0], part.event, part.since[1]


FEATURE = Feature(
    name="pause",
    decide={Pause: pause, Unpause: unpause},
    evolve={WorkflowPaused: _paused, WorkflowUnpaused: _unpaused},
    carry=_carry,
)
