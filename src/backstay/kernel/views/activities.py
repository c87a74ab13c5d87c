"""The activities of a run with all attempts, from events alone, without task rows and leases."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from backstay.kernel.call_options import ActivityCallOptions, shown_options
from backstay.kernel.event import Recorded
from backstay.kernel.features.activity import (
    ActivityCancelled,
    ActivityCompleted,
    ActivityFailed,
    ActivityHeartbeatRecorded,
    ActivityRetryScheduled,
    ActivityScheduled,
    ActivityStarted,
    ActivityTimedOut,
    Progress,
)
from backstay.kernel.features.activity.crashes import CRASHED
from backstay.kernel.features.retry_now import ActivityRetryRequested
from backstay.kernel.groups import GroupEntry
from backstay.kernel.retry import RetryPolicy
from backstay.kernel.values import Micros


class AttemptView(Struct, kw_only=True):
    """One attempt. `expired`: it never reported."""

    id: str
    attempt_number: int
    task_id: str | None
    status: str = "running"  # running | completed | failed | timed_out | cancelled | expired
    lease_owner: str | None = None
    started_at: Micros
    leased_at: Micros | None = None
    lease_expires_at: Micros | None = None
    last_heartbeat_at: Micros | None = None
    last_heartbeat_progress: Progress | None = None
    closed_at: Micros | None = None
    message: str | None = None


class ActivityView(Struct, kw_only=True):
    id: str  # of the execution, which is also its idempotency key
    idempotency_key: str
    activity_type: str
    activity_class: str | None
    sequence: int  # its step
    status: str = "pending"  # pending | running | completed | failed | cancelled
    local_activity: bool
    queue: str
    connection: str | None
    arguments: bytes | None
    result: bytes | None = None
    retry_policy: RetryPolicy
    options: dict[str, Any] | UnsetType = UNSET  # those that were given, beside retries and routing
    attempt_count: int = 0
    crash_count: int = 0  # attempts in a row that never reported
    current_attempt_id: str | None = None
    available_at: Micros | None = None  # of the next attempt, during its backoff
    last_heartbeat_at: Micros | None = None
    last_heartbeat_progress: Progress | None = None
    created_at: Micros
    started_at: Micros | None = None
    closed_at: Micros | None = None
    failure_id: str | None = None
    message: str | None = None
    parallel_group_path: list[GroupEntry] = []
    attempts: list[AttemptView] = []

    @property
    def latest(self) -> AttemptView | None:
        return self.attempts[-1] if self.attempts else None

    def end_attempt(self, status: str, at: Micros, message: str | None = None) -> None:
        latest = self.latest
        if latest is not None and latest.closed_at is None:
            latest.status, latest.closed_at, latest.message = status, at, message

    def end(self, status: str, at: Micros) -> None:
        self.status, self.closed_at, self.available_at = status, at, None


def activities(history: Iterable[Recorded]) -> list[ActivityView]:
    """The activities in the order in which they were scheduled."""
    fold = ActivityFold()
    for entry in history:
        fold.add(entry)
    return list(fold.found.values())


class ActivityFold:
    """Activities by their step, as far as events were added. `wanted`: only these steps."""

    def __init__(self, wanted: Container[int] | None = None) -> None:
        self.found: dict[int, ActivityView] = {}
        self._wanted = wanted

    def add(self, entry: Recorded) -> ActivityView | None:
        """Add the next event. Returns the activity that it is about."""
        event: Any = entry.event
        if isinstance(event, ActivityScheduled):
            if self._wanted is None or event.sequence in self._wanted:
                self.found[event.sequence] = _scheduled(event, entry.at)
            return self.found.get(event.sequence)
        if isinstance(event, ActivityRetryRequested):
            view = self.found.get(event.step)
            if view is not None:
                view.available_at = entry.at
            return view
        rule = _RULES.get(type(entry.event))
        view = None if rule is None else self.found.get(event.sequence)
        if rule is not None and view is not None:
            rule(view, event, entry)
        return view


def _scheduled(event: ActivityScheduled, at: Micros) -> ActivityView:
    snapshot = event.activity
    return ActivityView(
        id=event.activity_execution_id,
        idempotency_key=event.activity_execution_id,
        activity_type=event.activity_type,
        activity_class=event.activity_class,
        sequence=event.sequence,
        local_activity=event.local_activity,
        queue=snapshot.routing.queue,
        connection=snapshot.routing.connection,
        arguments=snapshot.arguments,
        retry_policy=snapshot.retry_policy,
        options=shown_options(ActivityCallOptions, snapshot),
        created_at=at,
        parallel_group_path=event.parallel_group_path,
        attempts=[],
    )


def _started(view: ActivityView, event: ActivityStarted, entry: Recorded) -> None:
    view.end_attempt("expired", entry.at)
    context = entry.context
    view.status, view.available_at = "running", None
    view.started_at = view.started_at or entry.at
    view.attempt_count, view.current_attempt_id = event.attempt_number, event.activity_attempt_id
    view.attempts.append(
        AttemptView(
            id=event.activity_attempt_id,
            attempt_number=event.attempt_number,
            task_id=context.task_id,
            lease_owner=context.owner,
            started_at=entry.at,
            leased_at=context.leased_at,
            lease_expires_at=event.lease_expires_at or context.lease_expires_at,
        )
    )


def _heartbeat(view: ActivityView, event: ActivityHeartbeatRecorded, entry: Recorded) -> None:
    latest = view.latest
    for heard in (view, latest) if latest is not None else (view,):
        heard.last_heartbeat_at = event.heartbeat_at
        heard.last_heartbeat_progress = event.progress or heard.last_heartbeat_progress
    if latest is not None:
        latest.lease_expires_at = event.lease_expires_at or latest.lease_expires_at


def _retried(view: ActivityView, event: ActivityRetryScheduled, entry: Recorded) -> None:
    lost = event.retry_task_id == event.retry_of_task_id
    status = "expired" if lost else "timed_out" if event.timeout_kind is not None else "failed"
    view.end_attempt(status, entry.at, event.message)
    view.crash_count = event.crashes
    view.status, view.available_at, view.message = "pending", event.retry_available_at, event.message


def _completed(view: ActivityView, event: ActivityCompleted, entry: Recorded) -> None:
    view.end_attempt("completed", entry.at)
    view.end("completed", entry.at)
    view.result, view.message = event.result, None


def _failed(view: ActivityView, event: ActivityFailed | ActivityTimedOut, entry: Recorded) -> None:
    crashed = isinstance(event, ActivityFailed) and event.exception_type == CRASHED
    status = "timed_out" if isinstance(event, ActivityTimedOut) else "expired" if crashed else "failed"
    view.end_attempt(status, entry.at, event.message)
    if crashed:
        view.crash_count += 1
    view.end("failed", entry.at)
    view.failure_id, view.message = event.failure_id, event.message


def _cancelled(view: ActivityView, event: ActivityCancelled, entry: Recorded) -> None:
    view.end_attempt("cancelled", event.cancelled_at)
    view.end("cancelled", event.cancelled_at)


_RULES: dict[type[Any], Callable[[ActivityView, Any, Recorded], None]] = {
    ActivityStarted: _started,
    ActivityHeartbeatRecorded: _heartbeat,
    ActivityRetryScheduled: _retried,
    ActivityCompleted: _completed,
    ActivityFailed: _failed,
    ActivityTimedOut: _failed,
    ActivityCancelled: _cancelled,
}
