"""The state of a run at an event in its past: its activity, its open steps, and the tasks that it must have had.

History alone is folded, up to that event. Task rows of the past are gone; those that history demands stand for them.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from backstay.kernel.decision import RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.features.memo import Memo
from backstay.kernel.features.search import SearchAttributes
from backstay.kernel.groups import Groups
from backstay.kernel.machine import Machine
from backstay.kernel.state import Instance, Run
from backstay.kernel.task import Task
from backstay.kernel.values import Micros
from backstay.kernel.views.activities import ActivityFold, ActivityView
from backstay.kernel.views.summary import RunSummary, summarize
from backstay.kernel.views.waits import Waits, WaitView, wait_order


class StateAt(Struct, frozen=True, kw_only=True):
    """A run right after an event. `seen`: the last event that its code had seen then."""

    sequence: int
    at: Micros
    event_type: str
    seen: int
    step: int  # the highest step then
    summary: RunSummary
    waits: list[WaitView]  # those that were open
    activities: list[ActivityView]  # those that were open
    tasks: list[Task]  # that had to exist
    next_wake: Micros | None
    memo: dict[str, bytes]
    search_attributes: dict[str, Any]


class Past:
    """Folds a history up to an event."""

    def __init__(self, machine: Machine, row: RunRow) -> None:
        self._machine = machine
        self._instance = Instance(row.workflow, row.namespace, row.workflow_id)
        self._instance.workflow_type = row.workflow_type
        self._instance.exists = True
        self._run = self._instance.run = Run(row.key, row.run_id, row.number)
        self._activities = ActivityFold()
        self._waits = Waits()
        self._last: Recorded | None = None

    def add(self, entry: Recorded) -> None:
        """Add the next event."""
        self._machine.evolve(self._instance, self._run, entry)
        view = self._activities.add(entry)
        if view is not None and view.closed_at is not None:
            del self._activities.found[view.sequence]
        self._waits.add(entry)
        seen = entry.context.decided_after
        if seen is not None and seen > self._instance.cursor:
            self._instance.cursor = seen
        self._last = entry

    def state(self) -> StateAt | None:
        """The state after the last event that was added; None if there was none."""
        last, instance, run = self._last, self._instance, self._run
        if last is None:
            return None
        if run.grouped:
            run.part(Groups).clear_effects()
        run.wake_events = [event for event in run.wake_events if event[0] > instance.cursor]
        self._waits.end(run)
        expected = self._machine.expect(instance)
        for task in expected.tasks.values():
            instance.keep_task(task)
        instance.next_wake = expected.next_wake
        waiting = [view for view in self._waits.found.values() if view.status == "open"]
        return StateAt(
            sequence=last.sequence,
            at=last.at,
            event_type=last.type,
            seen=instance.cursor,
            step=run.step,
            summary=summarize(self._machine, instance),
            waits=sorted(waiting, key=wait_order),
            activities=list(self._activities.found.values()) if run.is_open else [],
            tasks=list(expected.tasks.values()),
            next_wake=expected.next_wake,
            memo=run.part(Memo).values,
            search_attributes=run.part(SearchAttributes).values,
        )
