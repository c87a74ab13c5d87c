"""Scheduling activities, and the tasks that must exist for the open ones."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET, Struct, UnsetType

from backstay.kernel import groups, session
from backstay.kernel.call_options import (
    NO_ACTIVITY_OPTIONS,
    ActivityCallOptions,
    activity_option_names,
    activity_option_values,
    check_options,
)
from backstay.kernel.command import Command, StepCommand
from backstay.kernel.features.activity.records import (
    Activities,
    ActivityScheduled,
    ActivitySnapshot,
    Execution,
)
from backstay.kernel.features.start import Identity
from backstay.kernel.groups import GroupEntry
from backstay.kernel.limits import Breach, over_count
from backstay.kernel.message import Refused
from backstay.kernel.names import KNOWN, check_name
from backstay.kernel.retry import RetryPolicy
from backstay.kernel.state import Instance, Run
from backstay.kernel.task import SUSPECT, Task
from backstay.kernel.turn import Turn
from backstay.kernel.values import Micros, Routing, execution_id, reroute

_ONCE = RetryPolicy(max_attempts=1)
_TIMEOUTS = ("start_to_close_timeout", "schedule_to_start_timeout", "schedule_to_close_timeout", "heartbeat_timeout")
_NO_TIMEOUTS = (None, None, None, None)


class _ActivityCommand(StepCommand, frozen=True, kw_only=True, omit_defaults=True):
    activity_type: str
    arguments: bytes | None = None
    activity_class: str | None = None
    queue: str | None = None
    connection: str | None = None
    retry_policy: RetryPolicy | None = None


class ScheduleActivity(
    _ActivityCommand, ActivityCallOptions, frozen=True, kw_only=True, omit_defaults=True, tag="schedule_activity"
):
    parallel_group_path: list[GroupEntry] = []


class CancelActivity(Command, frozen=True, kw_only=True, omit_defaults=True, tag="cancel_activity"):
    """The code no longer waits for this activity. It is no error if the activity has ended already.

    `awaited`: the code waits for the end of the activity, by the cancellation or otherwise.
    """

    step: int
    awaited: bool = False


def check(turn: Turn, command: ScheduleActivity) -> None:
    if command.parallel_group_path:
        groups.check(command.parallel_group_path)
    if not command.activity_type:
        raise Refused("invalid_commands", "schedule_activity needs an activity_type", field="activity_type")
    if command.activity_type not in KNOWN or command.queue not in KNOWN or command.connection not in KNOWN:
        for field in ("activity_type", "queue", "connection"):
            check_name(getattr(command, field) or None, field)
    if activity_option_values(command) != NO_ACTIVITY_OPTIONS:
        check_options(command)
        session.check(command.worker_session)
    policy = command.retry_policy
    if policy is not None:
        check_policy(policy)


def check_policy(policy: RetryPolicy) -> None:
    if policy.max_attempts is not None and policy.max_attempts < 1:
        raise Refused(
            "invalid_commands", "retry_policy.max_attempts must be 1 or more", field="retry_policy.max_attempts"
        )
    if policy.max_crashes < 0:
        raise Refused(
            "invalid_commands", "retry_policy.max_crashes must not be negative", field="retry_policy.max_crashes"
        )
    pauses = policy.backoff_seconds
    if pauses and not (min(pauses) >= 0 and sum(pauses) < 1e10):  # also false for NaN
        raise Refused(
            "invalid_commands",
            "retry_policy.backoff_seconds must not be negative, and below 10^10 together",
            field="retry_policy.backoff_seconds",
        )
    timeouts = (
        policy.start_to_close_timeout,
        policy.schedule_to_start_timeout,
        policy.schedule_to_close_timeout,
        policy.heartbeat_timeout,
    )
    if timeouts == _NO_TIMEOUTS:
        return
    limits: dict[str, float | None] = dict(zip(_TIMEOUTS, timeouts, strict=True))
    for name, value in limits.items():
        # A timeout below the resolution of the clock would pass at once, at every retry.
        if value is not None and not 1e-6 <= value < 1e10:
            raise Refused(
                "invalid_commands", f"{name} must be a microsecond or more and below 10^10 s, not {value}", field=name
            )
    for inner, outer in (
        ("heartbeat_timeout", "start_to_close_timeout"),
        ("start_to_close_timeout", "schedule_to_close_timeout"),
    ):
        a, b = limits[inner], limits[outer]
        if a is not None and b is not None and a > b:
            raise Refused("invalid_commands", f"{inner} ({a} s) must not exceed {outer} ({b} s)", field=inner)


def apply(turn: Turn, command: ScheduleActivity) -> None:
    run = turn.run
    step = run.step + 1
    turn.record(
        ActivityScheduled(
            sequence=step,
            activity_execution_id=execution_id(run.run_id, step),
            activity_type=command.activity_type,
            activity_class=command.activity_class,
            activity=ActivitySnapshot(
                retry_policy=command.retry_policy or _ONCE,
                routing=_routing(run, command),
                arguments=command.arguments,
                **dict(zip(activity_option_names, activity_option_values(command), strict=True)),
            ),
            parallel_group_path=command.parallel_group_path,
        )
    )
    if not (command.parallel_group_path and groups.held_back(run, step)):
        turn.put_task(task_of(turn.instance, run, run.part(Activities).open[step]))


def _routing(run: Run, command: ScheduleActivity) -> Routing:
    """The routing of the activity: its own queue and connection first, then those of its session, then those of the
    run."""
    worker_session = command.worker_session
    if worker_session is None:
        if command.queue is None and command.connection is None:
            return run.routing
        return reroute(run.routing, queue=command.queue, connection=command.connection)
    return reroute(
        run.routing,
        queue=command.queue or worker_session.queue,
        connection=command.connection or worker_session.connection,
    )


def dispatch(turn: Turn, step: int) -> bool:
    """Create the task of an activity that a bounded group had held back."""
    execution = turn.run.part(Activities).open.get(step)
    if execution is not None:
        turn.put_task(task_of(turn.instance, turn.run, execution))
    return execution is not None


def task_of(instance: Instance, run: Run, execution: Execution) -> Task:
    """The task that must exist for an open activity: ready unless an attempt is running."""
    scheduled = execution.scheduled
    return Task(
        id=execution.task_id,
        workflow=instance.key,
        run=run.key,
        kind="activity",
        type=scheduled.activity_type,
        routing=scheduled.activity.routing,
        available_at=execution.retry_at,
        created_at=execution.since,
        step=execution.step,
        session=scheduled.activity.worker_session,
        attempt=execution.attempt,
        state="leased" if execution.running else "ready",
        owner=execution.owner,
        until=execution.lease_until,
        crashes=_suspicion(execution) if execution.crashes else 0,
    )


def _suspicion(execution: Execution) -> int:
    """The crashes of an activity. One that the next crash ends is a suspect already, so that only its own crash does."""
    bound = execution.policy.max_crashes
    return max(execution.crashes, SUSPECT) if execution.crashes >= bound else execution.crashes


class ActivityAssignment(Struct, frozen=True, kw_only=True, gc=False):
    """An activity task as its worker gets it."""

    task: Task
    namespace: str
    workflow_id: str
    run_id: str
    step: int
    activity_execution_id: str
    activity_attempt_id: str
    attempt_number: int
    activity_type: str
    arguments: bytes | None
    retry_policy: RetryPolicy
    close_deadline_at: Micros | None = None
    schedule_to_close_deadline_at: Micros | None = None
    traceparent: str | UnsetType = UNSET  # left out if there is none: most have none


def assign(instance: Instance, task: Task) -> ActivityAssignment:
    run = instance.run
    assert run is not None, "an instance with a task has a run"
    assert task.step is not None, "an activity task names its step"
    execution = run.part(Activities).open[task.step]
    scheduled = execution.scheduled
    started = run.part(Identity).started
    return ActivityAssignment(
        task=task,
        namespace=instance.namespace,
        workflow_id=instance.workflow_id,
        run_id=run.run_id,
        step=task.step,
        activity_execution_id=scheduled.activity_execution_id,
        activity_attempt_id=execution.attempt_id,
        attempt_number=task.attempt,
        activity_type=scheduled.activity_type,
        arguments=scheduled.activity.arguments,
        retry_policy=scheduled.activity.retry_policy,
        close_deadline_at=execution.close_deadline,
        schedule_to_close_deadline_at=execution.total_deadline,
        traceparent=UNSET if started is None else started.traceparent or UNSET,
    )


def expect(instance: Instance) -> Iterable[Task]:
    run = instance.current
    for step, execution in run.part(Activities).open.items():
        if not groups.held_back(run, step):
            yield task_of(instance, run, execution)


def serves(instance: Instance, task: Task) -> bool:
    """Whether the row has the id of the current task of its step, and is not ready while an attempt is running."""
    execution = instance.run.part(Activities).open.get(task.step or 0) if instance.run is not None else None
    if execution is None or execution.task_id != task.id:
        return False
    return not (execution.running and task.state == "ready")


def limits(turn: Turn, commands: list[Command]) -> Breach | None:
    added = largest = 0
    for command in commands:
        if isinstance(command, ScheduleActivity):
            added += 1
            if command.arguments is not None and len(command.arguments) > largest:
                largest = len(command.arguments)
    if not added:
        return None
    bounds = turn.features.limits
    pending = len(turn.run.part(Activities).open) + added
    if pending <= bounds.pending_activity_count and largest <= bounds.payload_size:
        return None
    return over_count("pending_activity_count", pending, bounds.pending_activity_count) or over_count(
        "payload_size", largest, bounds.payload_size
    )
