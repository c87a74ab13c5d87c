"""Taking over the prefix of another run's history as the beginning of a new run.

The events keep their times, because code reads them, and get the ids of the new run, because ids name their run. What is
open among them begins again: its times count from now.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from backstay.kernel.event import Context, Event
from backstay.kernel.features.activity.records import ActivityCompleted, ActivityScheduled
from backstay.kernel.features.child.records import Children, ChildRunCompleted, ChildWorkflowScheduled, identity
from backstay.kernel.features.fork.prefix import Prefix, step_of
from backstay.kernel.features.side_effect import SideEffectRecorded
from backstay.kernel.features.signal import Signals
from backstay.kernel.features.start import (
    RecordedDefinition,
    StartAccepted,
    StartRejected,
    WorkflowDefinitionAdopted,
    WorkflowStarted,
)
from backstay.kernel.features.start.definition import declare
from backstay.kernel.features.timer import TimerScheduled
from backstay.kernel.groups import Groups
from backstay.kernel.state import Run
from backstay.kernel.turn import Turn
from backstay.kernel.values import Micros, Routing, attempt_id, is_update_task, run_of, seconds


class Inheritance(Struct, frozen=True, kw_only=True):
    """What changes on the way: `replaced` are results by step; `started` are fields of `WorkflowStarted`; `definition`
    is that of the code that goes on, if it is known, and `routing` finds that code. `command_id`: of the start."""

    command_id: str
    from_run_id: str
    prefix: Prefix
    replaced: Mapping[int, bytes | None]
    started: Mapping[str, Any]
    definition: RecordedDefinition | None
    routing: Routing


def last_command(run_id: str, prefix: Prefix) -> int:
    """The highest number of a command of this run that a prefix names. The new run does not give it again."""
    named = (
        id
        for entry in prefix.entries
        for id in (entry.context.command_id, getattr(entry.event, "workflow_command_id", None))
    )
    return max((int(id.rpartition("-c")[2]) for id in named if id is not None and run_of(id) == run_id), default=0)


def inherit(turn: Turn, run: Run, what: Inheritance) -> None:
    """Begin a run, which is the current one of this turn, with the events of a prefix."""
    names = _Renamed(what.from_run_id, run.run_id)
    cursor = 0
    last_at = run.last_at
    for entry in what.prefix.entries:
        names.lengths[entry.sequence] = run.length + 1
        event: Event = names.of(entry.event)
        context: Context = names.of(entry.context)
        after = context.decided_after
        if after is not None:
            after = names.length(after)
            if context.task_id is not None and not is_update_task(context.task_id):
                cursor = max(cursor, after)
            context = replace(context, decided_after=after)
        step = step_of(event)
        match event:
            case StartAccepted() | StartRejected():
                event = replace(event, workflow_instance_id=turn.instance.workflow_id)
                if run.length == 0:
                    event = replace(event, workflow_command_id=what.command_id)
            case WorkflowStarted():
                event = _started(turn, event, what)
            case WorkflowDefinitionAdopted() if what.definition is not None:
                names.lengths[entry.sequence] = run.length
                continue
            case SideEffectRecorded(sequence=number) if number in what.replaced:
                event = replace(event, result=what.replaced[number] or b"")
            case TimerScheduled() if step in what.prefix.open:
                event = replace(event, fire_at=turn.now + seconds(event.delay_seconds))
            case _:
                pass
        if step in what.prefix.open:
            context = replace(context, clock_skew=entry.at - turn.now)  # its times count from now
        turn.inherit(event, entry.at, context)
        if step is not None and step in what.replaced and not isinstance(event, SideEffectRecorded):
            turn.inherit(_replaced(run, event, what.replaced[step], turn.now), entry.at, context)
    run.last_at = max(run.last_at, last_at)  # what the run records itself stands after the run that it continues
    if run.grouped:
        run.part(Groups).clear_effects()
    # The point may stand among the signals that a task has applied: the code has not handled those after it.
    waiting = (signal.sequence - 1 for signal in run.part(Signals).received.values() if signal.handler)
    turn.instance.cursor = min([cursor, *waiting])
    for task in turn.features.expect(turn.instance).tasks.values():
        if task.kind == "activity":
            turn.put_task(task)


def _started(turn: Turn, event: WorkflowStarted, what: Inheritance) -> WorkflowStarted:
    def deadline(timeout: float | None) -> Micros | None:
        return None if timeout is None else turn.now + seconds(timeout)

    fields: dict[str, Any] = {
        "workflow_command_id": what.command_id,
        "workflow_instance_id": turn.instance.workflow_id,
        "execution_deadline_at": deadline(event.execution_timeout_seconds),
        "run_deadline_at": deadline(event.run_timeout_seconds),
        "first_task_at": None,
        "open_children": [],
        "routing": what.routing,
        "seed": event.seed or what.from_run_id,
    }
    declared = {} if what.definition is None else declare(what.definition)
    return replace(event, **fields | declared | dict(what.started))


def _replaced(run: Run, event: Event, result: bytes | None, now: Micros) -> Event:
    """The end of a step whose result was given."""
    if isinstance(event, ActivityScheduled):
        return ActivityCompleted(
            sequence=event.sequence,
            activity_execution_id=event.activity_execution_id,
            activity_type=event.activity_type,
            activity_class=event.activity_class,
            local_activity=event.local_activity,
            parallel_group_path=event.parallel_group_path,
            activity_attempt_id=attempt_id(run.run_id, event.sequence, 1),
            attempt_number=1,
            result=result,
        )
    assert isinstance(event, ChildWorkflowScheduled)
    child = run.part(Children).open[event.sequence]
    return ChildRunCompleted(
        **identity(child),
        child_workflow_run_id=child.run_id,
        child_run_number=child.run_number,
        child_status="completed",
        closed_reason="completed",
        closed_at=now,
        output=result,
    )


class _Renamed:
    """The ids of one run as those of another. `lengths`: the place of each event that was taken over."""

    def __init__(self, old: str, new: str) -> None:
        self._old = old
        self._new = new
        self.lengths: dict[int, int] = {0: 0}

    def length(self, sequence: int) -> int:
        """How many events of the new history stand for those up to an event of the old one."""
        while sequence not in self.lengths:
            sequence -= 1
        return self.lengths[sequence]

    def of(self, value: Any) -> Any:
        """An event, or a part of one, with the new ids. Payloads and what authors have put into it stay."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Struct):
            changes = {
                name: new
                for name in value.__struct_fields__
                if (new := self.of(old := getattr(value, name))) is not old and new != old
            }
            return replace(value, **changes) if changes else value
        if isinstance(value, list):
            return [self.of(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
        return value

    def _text(self, text: str) -> str:
        if not text.startswith(self._old) or text[len(self._old) : len(self._old) + 1] not in ("", "-"):
            return text
        rest = text[len(self._old) :]
        placed = _PLACED.fullmatch(rest)
        if placed is not None:
            rest = f"{placed[1]}{self.length(int(placed[2]))}"
        return self._new + rest


_PLACED = re.compile(r"(-[fewv]|-u[0-9]+\.)([0-9]{1,18})")
"""Ids that say a place in history: of failures, events and workflow tasks, and of updates, where they were accepted."""
