"""Events and state of activities. Scheduled → Started* → Completed | Failed | TimedOut | Cancelled, with retries
between.

An activity is open exactly while in `Activities.open`. History says which attempt is current and who owns it, so a
result counts even if the task row is lost. The retry policy is the one of the scheduling.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from backstay.kernel import groups
from backstay.kernel.call_options import ActivityCallOptions
from backstay.kernel.event import Recorded, StepEvent, clock
from backstay.kernel.failure import Failure
from backstay.kernel.features.failures import Failures, UnhandledFailure, remember
from backstay.kernel.groups import GroupEntry
from backstay.kernel.retry import RetryPolicy
from backstay.kernel.state import Run
from backstay.kernel.values import CODEC, Micros, Routing, activity_task_id, seconds


class Progress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The progress that an activity reports with a heartbeat."""

    message: str | None = None
    current: float | None = None
    total: float | None = None
    unit: str | None = None
    details: dict[str, Any] | None = None


def progress_text(progress: Progress) -> str | None:
    """Progress in a few words, for people."""
    parts: list[str] = []
    if progress.current is not None:
        of = "" if progress.total is None else f" of {progress.total:g}"
        parts.append(f"{progress.current:g}{of}" + (f" {progress.unit}" if progress.unit else ""))
    if progress.message:
        parts.append(progress.message[:100])
    if progress.details:
        parts.append(repr(progress.details)[:100])
    return ", ".join(parts) or None


class _Scheduled(Struct, frozen=True, kw_only=True, omit_defaults=True):
    retry_policy: RetryPolicy
    routing: Routing
    arguments: bytes | None = None
    payload_codec: str = CODEC


class ActivitySnapshot(_Scheduled, ActivityCallOptions, frozen=True, kw_only=True, omit_defaults=True):
    """The activity as it was scheduled."""


class _ActivityEvent(StepEvent, frozen=True, kw_only=True, omit_defaults=True):
    activity_execution_id: str
    activity_type: str
    activity_class: str | None = None
    execution_mode: str | None = None
    local_activity: bool = False
    parallel_group_path: list[GroupEntry] = []


class ActivityScheduled(_ActivityEvent, frozen=True, kw_only=True, omit_defaults=True):
    activity: ActivitySnapshot


class ActivityStarted(_ActivityEvent, frozen=True, kw_only=True, omit_defaults=True):
    activity_attempt_id: str
    attempt_number: int
    lease_expires_at: Micros | None = None


class ActivityHeartbeatRecorded(_ActivityEvent, frozen=True, kw_only=True, omit_defaults=True):
    activity_attempt_id: str
    attempt_number: int
    heartbeat_at: Micros
    lease_expires_at: Micros | None = None
    progress: Progress | None = None


class ActivityRetryScheduled(_ActivityEvent, frozen=True, kw_only=True, omit_defaults=True):
    activity_attempt_id: str | None = None
    retry_task_id: str
    retry_of_task_id: str
    retry_available_at: Micros
    retry_backoff_seconds: float
    retry_after_attempt_id: str | None = None
    retry_after_attempt: int
    retry_reason: str
    message: str
    max_attempts: int | None = None
    timeout_kind: str | None = None
    exception_type: str | None = None
    exception_class: str | None = None
    code: int | str | None = None
    exception: Failure | None = None
    crashes: int = 0  # how many in a row by now


class ActivityCompleted(_ActivityEvent, frozen=True, kw_only=True, omit_defaults=True):
    activity_attempt_id: str
    attempt_number: int
    result: bytes | None = None
    payload_codec: str = CODEC


class ActivityFailed(_ActivityEvent, frozen=True, kw_only=True, omit_defaults=True):
    activity_attempt_id: str
    attempt_number: int
    failure_id: str
    message: str
    failure_category: str = "activity"
    non_retryable: bool = False
    exception_type: str | None = None
    exception_class: str | None = None
    code: int | str | None = None
    exception: Failure | None = None
    structural_limit_kind: str | None = None
    structural_limit_value: int | None = None
    structural_limit_configured: int | None = None


class ActivityTimedOut(_ActivityEvent, frozen=True, kw_only=True, omit_defaults=True):
    failure_id: str
    timeout_kind: str
    message: str
    attempt_number: int
    activity_attempt_id: str | None = None
    failure_category: str = "timeout"
    exception_class: str | None = None
    schedule_deadline_at: Micros | None = None
    close_deadline_at: Micros | None = None
    schedule_to_close_deadline_at: Micros | None = None
    heartbeat_deadline_at: Micros | None = None


class ActivityCancelled(_ActivityEvent, frozen=True, kw_only=True, omit_defaults=True):
    cancelled_at: Micros
    activity_attempt_id: str | None = None
    attempt_number: int | None = None
    workflow_command_id: str | None = None
    awaited: bool = False  # the code that cancelled it waits for its end


Terminal = ActivityCompleted | ActivityFailed | ActivityTimedOut | ActivityCancelled


class Execution:
    """One open activity. `heard_at` is in memory only: heartbeats are recorded sparsely."""

    __slots__ = (
        "attempt",
        "attempt_id",
        "close_deadline",
        "crashes",
        "error",
        "heard_at",
        "heartbeat_at",
        "lease_until",
        "owner",
        "policy",
        "progress",
        "reached",
        "retry",
        "retry_at",
        "running",
        "scheduled",
        "since",
        "start_deadline",
        "step",
        "task_id",
        "total_deadline",
    )

    def __init__(self, run: Run, scheduled: ActivityScheduled, at: Micros) -> None:
        self.scheduled = scheduled
        self.step = scheduled.sequence
        self.policy = policy = scheduled.activity.retry_policy
        self.task_id = activity_task_id(run.run_id, scheduled.sequence, 1)  # of the current task
        self.since = at  # when that task was made
        self.retry_at = at
        self.start_deadline = after(at, policy.schedule_to_start_timeout)
        self.total_deadline = after(at, policy.schedule_to_close_timeout)
        self.retry = 1  # the current task of this execution
        self.attempt = 0  # the latest attempt number
        self.attempt_id = ""
        self.running = False
        self.owner: str | None = None
        self.lease_until: Micros | None = None
        self.progress: Progress | None = None
        self.crashes = 0  # attempts in a row that never reported
        self.reached: Progress | None = None  # the farthest progress of attempts that crashed
        self.error: str | None = None  # of the last attempt that failed
        self.heartbeat_at: Micros | None = None
        self.heard_at: Micros | None = None
        self.close_deadline: Micros | None = None

    def dispatched(self, run: Run, at: Micros) -> None:
        """The group no longer holds it back: its schedule-to-start timeout counts from now."""
        self.since = self.retry_at = at
        self.start_deadline = after(at, self.policy.schedule_to_start_timeout)
        if self.start_deadline is not None:
            run.add_deadline(self.start_deadline, "schedule_to_start", self.step)


class Activities:
    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open: dict[int, Execution] = {}


def after(at: Micros, timeout: float | None) -> Micros | None:
    return None if timeout is None else at + seconds(timeout)


def scheduled(run: Run, event: ActivityScheduled, entry: Recorded) -> None:
    execution = run.part(Activities).open[event.sequence] = Execution(run, event, clock(entry))
    if event.parallel_group_path:
        groups.join(run, event.sequence, event.parallel_group_path, execution)
        if groups.held_back(run, event.sequence):
            execution.start_deadline = None
    if execution.start_deadline is not None:
        run.add_deadline(execution.start_deadline, "schedule_to_start", event.sequence)
    if execution.total_deadline is not None:
        run.add_deadline(execution.total_deadline, "schedule_to_close", event.sequence)


def started(run: Run, event: ActivityStarted, entry: Recorded) -> None:
    execution = run.part(Activities).open[event.sequence]
    execution.attempt = event.attempt_number
    execution.attempt_id = event.activity_attempt_id
    execution.running = True
    execution.owner = entry.context.owner
    execution.lease_until = event.lease_expires_at
    execution.heartbeat_at = execution.heard_at = at = clock(entry)
    execution.start_deadline = execution.close_deadline = None
    policy = execution.policy
    if policy.start_to_close_timeout is not None:
        execution.close_deadline = at + seconds(policy.start_to_close_timeout)
        run.add_deadline(execution.close_deadline, "start_to_close", event.sequence)
    if policy.heartbeat_timeout is not None:
        run.add_deadline(at + seconds(policy.heartbeat_timeout), "heartbeat", event.sequence)


def heartbeat_recorded(run: Run, event: ActivityHeartbeatRecorded, entry: Recorded) -> None:
    execution = run.part(Activities).open[event.sequence]
    run.heartbeats += 1
    if event.progress is not None:
        execution.progress = event.progress
        if execution.crashes and _farther(event.progress, execution.reached):
            execution.crashes = 0
    execution.heartbeat_at = execution.heard_at = event.heartbeat_at
    execution.lease_until = event.lease_expires_at
    deadline = after(event.heartbeat_at, execution.policy.heartbeat_timeout)
    if deadline is not None:
        run.add_deadline(deadline, "heartbeat", event.sequence)


def retry_scheduled(run: Run, event: ActivityRetryScheduled, entry: Recorded) -> None:
    execution = run.part(Activities).open[event.sequence]
    execution.running = False
    execution.owner = None
    execution.lease_until = None
    execution.close_deadline = None
    if event.retry_task_id != event.retry_of_task_id:
        execution.retry += 1
        execution.task_id = event.retry_task_id
    elif execution.progress is not None and _farther(execution.progress, execution.reached):
        execution.reached = execution.progress
    execution.crashes = event.crashes
    execution.error = event.message
    run.part(Failures).count += 1
    execution.since = clock(entry)
    execution.retry_at = event.retry_available_at
    execution.start_deadline = after(event.retry_available_at, execution.policy.schedule_to_start_timeout)
    if execution.start_deadline is not None:
        run.add_deadline(execution.start_deadline, "schedule_to_start", event.sequence)
    if event.retry_available_at > execution.since and not event.local_activity:
        run.add_deadline(event.retry_available_at, "retry", event.sequence)


def _farther(progress: Progress, before: Progress | None) -> bool:
    """Whether an attempt got farther than those before it. Without numbers, any other progress counts."""
    if before is None:
        return True
    if progress.current is not None and before.current is not None:
        return progress.current > before.current
    return progress != before


def closed(run: Run, event: Terminal, entry: Recorded) -> None:
    run.part(Activities).open.pop(event.sequence, None)
    if event.parallel_group_path:
        groups.leave(
            run,
            event.sequence,
            event.parallel_group_path,
            isinstance(event, ActivityCompleted),
            clock(entry),
            cancelled=isinstance(event, ActivityCancelled),
        )
    if isinstance(event, ActivityFailed | ActivityTimedOut):
        remember(
            run,
            UnhandledFailure(
                failure_id=event.failure_id,
                sequence=event.sequence,
                failure_category=event.failure_category,
                source_kind="activity_execution",
                source_id=event.activity_execution_id,
                propagation_kind="timeout" if isinstance(event, ActivityTimedOut) else "activity",
                message=event.message,
                exception_type=event.exception_type if isinstance(event, ActivityFailed) else None,
                exception_class=event.exception_class,
                recorded=entry.sequence,
            ),
        )
