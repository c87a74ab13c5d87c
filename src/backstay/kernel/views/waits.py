"""All waits of a run, open ones first: subject, begin, deadline, the task that ends them, and their outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from backstay.kernel.agenda import wake_is_late
from backstay.kernel.event import Recorded
from backstay.kernel.features.activity import (
    ActivityCancelled,
    ActivityCompleted,
    ActivityFailed,
    ActivityRetryScheduled,
    ActivityScheduled,
    ActivityStarted,
    ActivityTimedOut,
)
from backstay.kernel.features.child import (
    ChildRunCompleted,
    ChildRunStarted,
    ChildUnsuccessful,
    ChildWorkflowScheduled,
)
from backstay.kernel.features.condition import (
    ConditionWaitCancelled,
    ConditionWaitOpened,
    ConditionWaitSatisfied,
    ConditionWaitTimedOut,
)
from backstay.kernel.features.signal import SignalApplied, SignalWaitCancelled, SignalWaitOpened
from backstay.kernel.features.timer import TimerCancelled, TimerFired, TimerScheduled
from backstay.kernel.features.update import UpdateAccepted, UpdateCompleted
from backstay.kernel.groups import GroupEntry
from backstay.kernel.task import Task
from backstay.kernel.values import Micros, activity_task_id, run_of


class WaitView(Struct, kw_only=True, omit_defaults=True):
    wait_id: str
    kind: str  # activity | timer | condition | signal | update | child
    status: str = "open"  # open | resolved | cancelled
    source_status: str = "waiting"
    sequence: int | None = None
    opened_at: Micros
    deadline_at: Micros | None = None
    resolved_at: Micros | None = None
    target_name: str | None = None
    target_type: str | None = None
    resume_source_kind: str | None = None
    resume_source_id: str | None = None
    external_only: bool = False
    timeout_seconds: float | None = None
    condition_key: str | None = None
    signal_id: str | None = None
    child_call_id: str | None = None
    command_id: str | None = None
    # The task that ends the wait, or that was the last to serve it. `task_backed`: it is open now.
    task_backed: bool = False
    task_id: str | None = None
    task_type: str | None = None  # workflow | activity | timer
    task_status: str | None = None  # ready | leased | failed | completed | cancelled | missing
    parallel_group_path: list[GroupEntry] = []


class Waits:
    """The waits found in history, by step or by the id of their update."""

    def __init__(self) -> None:
        self.found: dict[int | str, WaitView] = {}

    def add(self, entry: Recorded) -> None:
        """Add the next event."""
        rule = _RULES.get(type(entry.event))
        if rule is not None:
            rule(self, entry.event, entry)

    def end(self, run: RunEnd) -> None:
        """The close of a run cancels open waits."""
        if not run.is_open:
            for key in list(self.found):
                self.close(key, run.closed_at or 0, run.closed_reason or "closed", "cancelled")
            for view in self.found.values():
                if view.task_status in ("ready", "leased"):
                    view.task_status = "cancelled"

    def open(self, key: int | str, view: WaitView) -> None:
        self.found[key] = view

    def close(self, key: int | str | None, at: Micros, source_status: str, status: str = "resolved") -> None:
        view = self.found.get(key) if key is not None else None
        if view is not None and view.status == "open":
            view.status, view.source_status, view.resolved_at = status, source_status, at

    def serve(self, key: int | str | None, task_id: str | None, kind: str, status: str) -> None:
        """Note the task that serves a wait, as far as history shows."""
        view = self.found.get(key) if key is not None else None
        if view is not None and task_id is not None:
            view.task_id, view.task_type, view.task_status = task_id, kind, status


class RunEnd(Protocol):
    """Whether and how a run has closed."""

    @property
    def is_open(self) -> bool: ...
    @property
    def closed_at(self) -> Micros | None: ...
    @property
    def closed_reason(self) -> str | None: ...


def waits(history: Iterable[Recorded], run: RunEnd) -> list[WaitView]:
    """All waits of a run, from its events alone. The close of a run cancels the open ones."""
    collected = Waits()
    for entry in history:
        collected.add(entry)
    collected.end(run)
    return sorted(collected.found.values(), key=wait_order)


def wait_order(view: WaitView) -> tuple[int, Micros, str]:
    """The order of waits in a list: open ones first."""
    return _ORDER[view.status], view.opened_at, view.wait_id


_ORDER = {"open": 0, "resolved": 1, "cancelled": 2}


def back(views: Sequence[WaitView], tasks: Iterable[Task], wake: Micros | None) -> None:
    """Say of each wait of an open run whether an open task backs it. `wake`: the next wake of the instance, which is the row
    of its timers. A task that history has as open and that has no row is missing."""
    by_id = {task.id: task for task in tasks}
    by_wait = {task.resume.open_wait_id: task for task in by_id.values() if task.kind == "workflow"}
    updates = [view for view in views if view.kind == "update" and view.status == "open"]
    if updates and not by_wait:  # one at a time has a task, the first
        updates[0].task_type, updates[0].task_status = "workflow", "missing"
    for view in views:
        # A workflow task delivers the end of an activity or a timer; the wait is over by then.
        own = view.kind in ("activity", "timer")
        task = by_id.get(view.task_id or "") or (None if own else by_wait.get(view.wait_id))
        if task is not None:
            view.task_backed, view.task_id, view.task_type, view.task_status = True, task.id, task.kind, task.state
        elif view.task_type == "timer" and view.task_status == "ready":
            view.task_backed = view.deadline_at is not None and not wake_is_late(wake, view.deadline_at)
            view.task_status = "ready" if view.task_backed else "missing"
        elif view.task_status == "ready" and _may_be_held_back(view):
            view.task_id = view.task_type = view.task_status = None
        elif view.task_status in ("ready", "leased"):
            view.task_status = "missing"


def _may_be_held_back(view: WaitView) -> bool:
    """Whether a group with a limit may hold the activity back, so that it has no task yet."""
    return any(entry.parallel_group_limit or entry.parallel_group_window for entry in view.parallel_group_path)


def newest_waits(views: Sequence[WaitView], limit: int) -> list[WaitView]:
    """The first open waits, and as many of the others as there is room for, the newest ones."""
    still_open = [view for view in views if view.status == "open"][:limit]
    others = [view for view in views if view.status != "open"]
    return (
        still_open + sorted(others, key=lambda view: view.opened_at)[max(0, len(others) - (limit - len(still_open))) :]
    )


def _activity(collected: Waits, event: ActivityScheduled, entry: Recorded) -> None:
    if event.local_activity:
        return  # it ran inside a task, so there was no wait
    id = event.activity_execution_id
    collected.open(
        event.sequence,
        WaitView(
            wait_id=f"activity:{id}",
            kind="activity",
            source_status="pending",
            sequence=event.sequence,
            opened_at=entry.at,
            target_name=event.activity_type,
            target_type="activity",
            resume_source_kind="activity_execution",
            resume_source_id=id,
            task_id=activity_task_id(run_of(id), event.sequence, 1),
            task_type="activity",
            task_status="ready",
            parallel_group_path=event.parallel_group_path,
        ),
    )


def _activity_started(collected: Waits, event: ActivityStarted, entry: Recorded) -> None:
    collected.serve(event.sequence, entry.context.task_id, "activity", "leased")


def _activity_retried(collected: Waits, event: ActivityRetryScheduled, entry: Recorded) -> None:
    collected.serve(event.sequence, event.retry_task_id, "activity", "ready")


def _activity_ended(source_status: str, status: str = "resolved") -> Callable[[Waits, Any, Recorded], None]:
    def rule(collected: Waits, event: Any, entry: Recorded) -> None:
        view = collected.found.get(event.sequence)
        if view is not None:
            view.task_status = "completed" if status == "resolved" and view.task_status == "leased" else "cancelled"
        collected.close(event.sequence, entry.at, source_status, status)

    return rule


def _timer(collected: Waits, event: TimerScheduled, entry: Recorded) -> None:
    if event.timer_kind is not None:
        wait = collected.found.get(event.sequence)
        if wait is not None:  # the timer is the timeout of this wait
            wait.deadline_at = event.fire_at
            wait.resume_source_kind, wait.resume_source_id = "timer", event.timer_id
            collected.serve(event.sequence, event.timer_id, "timer", "ready")
        return
    collected.open(
        event.sequence,
        WaitView(
            wait_id=f"timer:{event.timer_id}",
            kind="timer",
            source_status="pending",
            sequence=event.sequence,
            opened_at=entry.at,
            deadline_at=event.fire_at,
            resume_source_kind="timer",
            resume_source_id=event.timer_id,
            task_id=event.timer_id,
            task_type="timer",
            task_status="ready",
            parallel_group_path=event.parallel_group_path,
        ),
    )


def _fired(collected: Waits, event: TimerFired, entry: Recorded) -> None:
    collected.serve(event.sequence, event.timer_id, "timer", "completed")
    match event.timer_kind:
        case None:
            collected.close(event.sequence, entry.at, "fired")
        case "signal_timeout":
            collected.close(event.sequence, entry.at, "timed_out")
        case _:
            wait = collected.found.get(event.sequence)
            if wait is not None:
                wait.source_status = "timeout_fired"  # the wait ends when a worker says so


def _timer_cancelled(collected: Waits, event: TimerCancelled, entry: Recorded) -> None:
    view = collected.found.get(event.sequence)
    if view is not None and view.task_id == event.timer_id:
        view.task_status = "cancelled"
    if event.timer_kind is None:
        collected.close(event.sequence, entry.at, "cancelled", "cancelled")


def _condition(collected: Waits, event: ConditionWaitOpened, entry: Recorded) -> None:
    collected.open(
        event.sequence,
        WaitView(
            wait_id=event.condition_wait_id,
            kind="condition",
            sequence=event.sequence,
            opened_at=entry.at,
            resume_source_kind="external_input",
            external_only=event.timeout_seconds is None,
            timeout_seconds=event.timeout_seconds,
            condition_key=event.condition_key,
            parallel_group_path=event.parallel_group_path,
        ),
    )


def _signal(collected: Waits, event: SignalWaitOpened, entry: Recorded) -> None:
    collected.open(
        event.sequence,
        WaitView(
            wait_id=event.signal_wait_id,
            kind="signal",
            sequence=event.sequence,
            opened_at=entry.at,
            target_name=event.signal_name,
            target_type="signal",
            resume_source_kind="signal",
            external_only=event.timeout_seconds is None,
            timeout_seconds=event.timeout_seconds,
        ),
    )


def _applied(collected: Waits, event: SignalApplied, entry: Recorded) -> None:
    view = None if event.sequence is None else collected.found.get(event.sequence)
    if view is not None:
        view.signal_id, view.command_id = event.signal_id, event.workflow_command_id
        collected.close(event.sequence, entry.at, "applied")
        collected.serve(event.sequence, entry.context.task_id, "workflow", "completed")


def _update(collected: Waits, event: UpdateAccepted, entry: Recorded) -> None:
    collected.open(
        event.update_id,
        WaitView(
            wait_id=f"update:{event.update_id}",
            kind="update",
            source_status="accepted",
            opened_at=entry.at,
            target_name=event.update_name,
            target_type="update",
            resume_source_kind="workflow_update",
            resume_source_id=event.update_id,
            command_id=event.workflow_command_id,
        ),
    )


def _updated(collected: Waits, event: UpdateCompleted, entry: Recorded) -> None:
    collected.close(event.update_id, entry.at, "failed" if event.failure_id is not None else "completed")
    collected.serve(event.update_id, entry.context.task_id, "workflow", "completed")


def _child(collected: Waits, event: ChildWorkflowScheduled, entry: Recorded) -> None:
    collected.open(
        event.sequence,
        WaitView(
            wait_id=f"child:{event.child_call_id}",
            kind="child",
            sequence=event.sequence,
            opened_at=entry.at,
            target_name=event.child_workflow_instance_id,
            target_type=event.child_workflow_type,
            resume_source_kind="child_workflow_run",
            resume_source_id=event.child_workflow_run_id,
            child_call_id=event.child_call_id,
            parallel_group_path=event.parallel_group_path,
        ),
    )


def _child_run(collected: Waits, event: ChildRunStarted, entry: Recorded) -> None:
    view = collected.found.get(event.sequence)
    if view is not None:
        view.resume_source_id = event.child_workflow_run_id


def _child_closed(collected: Waits, event: ChildRunCompleted | ChildUnsuccessful, entry: Recorded) -> None:
    collected.close(event.sequence, entry.at, event.child_status)


def _ends(source_status: str, status: str = "resolved") -> Callable[[Waits, Any, Recorded], None]:
    def rule(collected: Waits, event: Any, entry: Recorded) -> None:
        collected.close(event.sequence, entry.at, source_status, status)
        collected.serve(event.sequence, entry.context.task_id, "workflow", "completed")

    return rule


_RULES: dict[type[Any], Callable[[Waits, Any, Recorded], None]] = {
    ActivityScheduled: _activity,
    ActivityStarted: _activity_started,
    ActivityRetryScheduled: _activity_retried,
    ActivityCompleted: _activity_ended("completed"),
    ActivityFailed: _activity_ended("failed"),
    ActivityTimedOut: _activity_ended("failed"),
    ActivityCancelled: _activity_ended("cancelled", "cancelled"),
    TimerScheduled: _timer,
    TimerFired: _fired,
    TimerCancelled: _timer_cancelled,
    ConditionWaitOpened: _condition,
    ConditionWaitSatisfied: _ends("satisfied"),
    ConditionWaitTimedOut: _ends("timed_out"),
    ConditionWaitCancelled: _ends("cancelled", "cancelled"),
    SignalWaitOpened: _signal,
    SignalWaitCancelled: _ends("cancelled", "cancelled"),
    SignalApplied: _applied,
    UpdateAccepted: _update,
    UpdateCompleted: _updated,
    ChildWorkflowScheduled: _child,
    ChildRunStarted: _child_run,
    ChildRunCompleted: _child_closed,
    **dict.fromkeys(ChildUnsuccessful.__subclasses__(), _child_closed),
}
