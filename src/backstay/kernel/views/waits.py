"""All waits of a run, open ones first: what for, since when, until when, and how they ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from msgspec import Struct

from backstay.kernel.event import Recorded
from backstay.kernel.features.activity import (
    ActivityCancelled,
    ActivityCompleted,
    ActivityFailed,
    ActivityScheduled,
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
from backstay.kernel.values import Micros


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
    parallel_group_path: list[GroupEntry] = []


class Waits:
    """The waits found in history, by step or by the id of their update."""

    def __init__(self) -> None:
        self.found: dict[int | str, WaitView] = {}

    def add(self, entry: Recorded) -> None:
        """Add the next event."""
        rule = _RULES.get(type(entry.event))
        if rule is not None:
            rule(self, entry.event, entry.at)

    def end(self, run: RunEnd) -> None:
        """The close of a run cancels what is open."""
        if not run.is_open:
            for key in list(self.found):
                self.close(key, run.closed_at or 0, run.closed_reason or "closed", "cancelled")

    def open(self, key: int | str, view: WaitView) -> None:
        self.found[key] = view

    def close(self, key: int | str | None, at: Micros, source_status: str, status: str = "resolved") -> None:
        view = self.found.get(key) if key is not None else None
        if view is not None and view.status == "open":
            view.status, view.source_status, view.resolved_at = status, source_status, at


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


def _activity(collected: Waits, event: ActivityScheduled, at: Micros) -> None:
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
            opened_at=at,
            target_name=event.activity_type,
            target_type="activity",
            resume_source_kind="activity_execution",
            resume_source_id=id,
            parallel_group_path=event.parallel_group_path,
        ),
    )


def _timer(collected: Waits, event: TimerScheduled, at: Micros) -> None:
    if event.timer_kind is not None:
        wait = collected.found.get(event.sequence)
        if wait is not None:  # the timer is the timeout of this wait
            wait.deadline_at = event.fire_at
            wait.resume_source_kind, wait.resume_source_id = "timer", event.timer_id
        return
    collected.open(
        event.sequence,
        WaitView(
            wait_id=f"timer:{event.timer_id}",
            kind="timer",
            source_status="pending",
            sequence=event.sequence,
            opened_at=at,
            deadline_at=event.fire_at,
            resume_source_kind="timer",
            resume_source_id=event.timer_id,
            parallel_group_path=event.parallel_group_path,
        ),
    )


def _fired(collected: Waits, event: TimerFired, at: Micros) -> None:
    match event.timer_kind:
        case None:
            collected.close(event.sequence, at, "fired")
        case "signal_timeout":
            collected.close(event.sequence, at, "timed_out")
        case _:
            wait = collected.found.get(event.sequence)
            if wait is not None:
                wait.source_status = "timeout_fired"  # the wait ends when a worker says so


def _timer_cancelled(collected: Waits, event: TimerCancelled, at: Micros) -> None:
    if event.timer_kind is None:
        collected.close(event.sequence, at, "cancelled", "cancelled")


def _condition(collected: Waits, event: ConditionWaitOpened, at: Micros) -> None:
    collected.open(
        event.sequence,
        WaitView(
            wait_id=event.condition_wait_id,
            kind="condition",
            sequence=event.sequence,
            opened_at=at,
            resume_source_kind="external_input",
            external_only=event.timeout_seconds is None,
            timeout_seconds=event.timeout_seconds,
            condition_key=event.condition_key,
        ),
    )


def _signal(collected: Waits, event: SignalWaitOpened, at: Micros) -> None:
    collected.open(
        event.sequence,
        WaitView(
            wait_id=event.signal_wait_id,
            kind="signal",
            sequence=event.sequence,
            opened_at=at,
            target_name=event.signal_name,
            target_type="signal",
            resume_source_kind="signal",
            external_only=event.timeout_seconds is None,
            timeout_seconds=event.timeout_seconds,
        ),
    )


def _applied(collected: Waits, event: SignalApplied, at: Micros) -> None:
    view = None if event.sequence is None else collected.found.get(event.sequence)
    if view is not None:
        view.signal_id, view.command_id = event.signal_id, event.workflow_command_id
        collected.close(event.sequence, at, "applied")


def _update(collected: Waits, event: UpdateAccepted, at: Micros) -> None:
    collected.open(
        event.update_id,
        WaitView(
            wait_id=f"update:{event.update_id}",
            kind="update",
            source_status="accepted",
            opened_at=at,
            target_name=event.update_name,
            target_type="update",
            resume_source_kind="workflow_update",
            resume_source_id=event.update_id,
            command_id=event.workflow_command_id,
        ),
    )


def _updated(collected: Waits, event: UpdateCompleted, at: Micros) -> None:
    collected.close(event.update_id, at, "failed" if event.failure_id is not None else "completed")


def _child(collected: Waits, event: ChildWorkflowScheduled, at: Micros) -> None:
    collected.open(
        event.sequence,
        WaitView(
            wait_id=f"child:{event.child_call_id}",
            kind="child",
            sequence=event.sequence,
            opened_at=at,
            target_name=event.child_workflow_instance_id,
            target_type=event.child_workflow_type,
            resume_source_kind="child_workflow_run",
            resume_source_id=event.child_workflow_run_id,
            child_call_id=event.child_call_id,
            parallel_group_path=event.parallel_group_path,
        ),
    )


def _child_run(collected: Waits, event: ChildRunStarted, at: Micros) -> None:
    view = collected.found.get(event.sequence)
    if view is not None:
        view.resume_source_id = event.child_workflow_run_id


def _child_closed(collected: Waits, event: ChildRunCompleted | ChildUnsuccessful, at: Micros) -> None:
    collected.close(event.sequence, at, event.child_status)


def _ends(source_status: str, status: str = "resolved") -> Callable[[Waits, Any, Micros], None]:
    def rule(collected: Waits, event: Any, at: Micros) -> None:
        collected.close(event.sequence, at, source_status, status)

    return rule


_RULES: dict[type[Any], Callable[[Waits, Any, Micros], None]] = {
    ActivityScheduled: _activity,
    ActivityCompleted: _ends("completed"),
    ActivityFailed: _ends("failed"),
    ActivityTimedOut: _ends("failed"),
    ActivityCancelled: _ends("cancelled", "cancelled"),
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
