"""The summary of a run: its state in one word, its wait with its begin, and whether it needs attention.

It is stored after commits and compared by its stamp, so nothing in it depends on the clock or on connected workers:
such facts are added when it is read (`why.py`). It is made from the state of an instance, never from a history.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from msgspec import Struct

from backstay.kernel.features import pause
from backstay.kernel.features.activity import Activities
from backstay.kernel.features.archive import Archived
from backstay.kernel.features.child import Children
from backstay.kernel.features.condition import Conditions
from backstay.kernel.features.failures import Failures
from backstay.kernel.features.signal import Signals, open_waits
from backstay.kernel.features.start import Identity
from backstay.kernel.features.timer import Timers, TimerScheduled
from backstay.kernel.features.update import Updates
from backstay.kernel.machine import Machine
from backstay.kernel.state import Instance, Run
from backstay.kernel.task import Task
from backstay.kernel.values import Micros, seconds
from backstay.kernel.views.actions import declared
from backstay.kernel.views.liveness import OpenWait, liveness, wait_of

SCHEMA = 3
"""The version of stored views. Rows of another version are made again."""

OPEN_STATES = ("waiting", "sleeping", "working", "retrying", "ready", "blocked", "paused")
CLOSED_STATES = ("completed", "failed", "cancelled", "terminated", "continued")


class RunSummary(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`stamp`: of a current run the last decision of its instance, of an older run the length of its history."""

    run: int
    workflow: int
    namespace: str
    run_id: str
    workflow_id: str
    workflow_type: str
    stamp: int
    status: str
    closed_reason: str | None = None
    is_current_run: bool = True
    state: str  # one of OPEN_STATES or CLOSED_STATES
    attention: str | None = (
        None  # blocked | repair_needed | retrying; causes that depend on clock or fleet are not stored
    )
    liveness_state: str
    wait_kind: str | None = None
    wait_name: str | None = None  # of the activity, signal, update, timer, condition or child
    open_wait_id: str | None = None
    resume_source_kind: str | None = None
    resume_source_id: str | None = None
    since: Micros  # of the state
    until: Micros | None = None  # when it changes by itself: a timer, a timeout, the next attempt
    wait_since: Micros | None = None
    wait_until: Micros | None = None
    queue: str  # of the next task, else of the run
    build: str | None = None  # that the run is pinned to
    next_task_id: str | None = None
    next_task_kind: str | None = None  # workflow | activity
    next_task_type: str | None = None  # the workflow type or activity type that a worker needs
    next_task_connection: str | None = None  # that its worker needs
    next_task_state: str | None = None  # ready | leased | failed
    next_task_at: Micros | None = None
    next_task_owner: str | None = None
    next_task_lease_expires_at: Micros | None = None
    attempt: int = 0  # of the activity or task that it waits for
    attempts: int | None = None  # that it may have
    last_error: str | None = None
    failing: str | None = None  # the type of the activity that failed last, if a run is retrying one
    blocked_reason: str | None = None  # of the contract: history_shape_mismatch and others
    blocked_by: str | None = None  # the worker whose code was blocked
    pause_reason: str | None = None
    step: int | None = None  # the step that it waits for
    steps: int = 0  # how many of its steps are open
    children: int = 0  # of all that it has started, if it waits for one
    open_children: int = 0
    child_type: str | None = None  # of the open ones, if they have one type
    task_problem: bool = False
    can_repair: bool = False
    exception_count: int = 0
    events: int
    bytes: int
    declared_entry_mode: str | None = None
    declared_contract_source: str = "unavailable"
    started_at: Micros
    closed_at: Micros | None = None
    archived_at: Micros | None = None
    # Rows that it was made from besides history: if they differ now, they were changed by hand.
    wake: Micros | None = None
    tasks: int = 0


def summarize(machine: Machine, instance: Instance, *, stamp: int | None = None) -> RunSummary:
    """The summary of the current run of an instance. `stamp`: that of an older run, whose history alone was folded."""
    run = instance.current
    started = run.part(Identity).started
    archived = run.parts.get(Archived)
    common: dict[str, Any] = {
        "run": run.key,
        "workflow": instance.key,
        "namespace": instance.namespace,
        "run_id": run.run_id,
        "workflow_id": instance.workflow_id,
        "workflow_type": run.workflow_type,
        "stamp": instance.last_decision if stamp is None else stamp,
        "is_current_run": stamp is None,
        "status": run.status,
        "closed_reason": run.closed_reason,
        "build": run.routing.compatibility,
        "exception_count": _failures(run),
        "events": run.length,
        "bytes": run.bytes,
        "declared_entry_mode": None if started is None else started.declared_entry_mode,
        "declared_contract_source": declared(started).declared_contract_source,
        "started_at": run.started_at,
        "closed_at": run.closed_at,
        "archived_at": None if archived is None else archived.at,
    }
    if not run.is_open:
        state = "continued" if run.closed_reason == "continued" else run.status
        return RunSummary(
            **common,
            state=state,
            liveness_state="closed",
            since=run.closed_at or run.last_at,
            queue=run.routing.queue,
            last_error=getattr(run.ended_by, "message", None),
        )
    return RunSummary(**common, **_open(machine, instance, run))


def _failures(run: Run) -> int:
    counted = run.part(Failures).count if Failures in run.parts else 0
    return counted + (getattr(run.ended_by, "failure_id", None) is not None)


def _open(machine: Machine, instance: Instance, run: Run) -> dict[str, Any]:
    """The fields of an open run: its activity or wait, and the part that has to act."""
    liveness_state = liveness(machine, instance, 0)
    wait = wait_of(instance)
    about = _subject(instance, run, wait)
    tasks = sorted(instance.tasks.values(), key=lambda task: (task.state != "leased", task.available_at))
    task = tasks[0] if tasks else None
    block = next((t.block for t in tasks if t.block is not None), None)
    failing = [one for one in run.part(Activities).open.values() if one.error is not None]
    state = _state(run, liveness_state, wait, tasks)
    since, until = about.since, about.until
    paused = None
    if state == "paused":
        entry = run.part(pause.Paused).entry
        since = run.last_at if entry is None else entry.at
        paused = None if entry is None else getattr(entry.event, "reason", None)
    elif state == "working" and task is not None:
        since, until = task.leased_at or task.created_at, about.until
    elif state in ("ready", "blocked", "retrying") and task is not None:
        since = task.created_at if state != "ready" else task.available_at
        until = task.available_at if state == "retrying" else None
    lost = liveness_state in ("repair_needed", "activity_running_without_task")
    attention = "repair_needed" if lost else "blocked" if state == "blocked" else "retrying" if failing else None
    if attention is None and block is not None:
        attention = "retrying"
    error = block.message if block is not None else failing[0].error if failing else None
    shown = next((one for one in failing if one.step == about.step), failing[0] if failing else None)
    return {
        "state": state,
        "attention": attention,
        "liveness_state": liveness_state,
        "wait_kind": wait.kind,
        "wait_name": about.name,
        "open_wait_id": wait.id,
        "resume_source_kind": wait.source_kind,
        "resume_source_id": wait.source_id,
        "since": since,
        "until": until,
        "wait_since": about.since,
        "wait_until": about.until,
        "queue": run.routing.queue if task is None else task.routing.queue,
        "next_task_id": None if task is None else task.id,
        "next_task_kind": None if task is None else task.kind,
        "next_task_type": None if task is None else task.type,
        "next_task_connection": None if task is None else task.routing.connection,
        "next_task_state": None if task is None else task.state,
        "next_task_at": None if task is None else task.available_at,
        "next_task_owner": None if task is None else task.owner,
        "next_task_lease_expires_at": None if task is None else task.until,
        "attempt": about.attempt if shown is None else shown.attempt,
        "attempts": about.attempts if shown is None else shown.policy.max_attempts,
        "last_error": error,
        "failing": None if block is not None or shown is None else shown.scheduled.activity_type,
        "blocked_reason": None if block is None else block.reason,
        "blocked_by": None if block is None else block.blocked_by,
        "pause_reason": paused,
        "step": about.step,
        "steps": _steps(run),
        **(_family(run) if wait.kind == "child" else {}),
        "task_problem": lost or any(_is_problem(one) for one in tasks if one.kind == "workflow"),
        "can_repair": lost or any(one.state == "failed" for one in tasks),
        "wake": instance.next_wake,
        "tasks": len(instance.tasks),
    }


def _state(run: Run, liveness_state: str, wait: OpenWait, tasks: list[Task]) -> str:
    if not pause.allows(run):
        return "paused"
    if liveness_state in ("workflow_replay_blocked", "repair_needed"):
        return "blocked"
    if any(task.state == "leased" for task in tasks) or liveness_state == "activity_running_without_task":
        return "working"
    if any(task.state == "ready" and not _is_put_off(task) for task in tasks):
        return "ready"
    if tasks:
        return "retrying"
    return "sleeping" if wait.kind == "timer" else "waiting"


def _is_put_off(task: Task) -> bool:
    """Whether a ready task has to wait for its time: the next attempt of an activity, a retried run."""
    return task.available_at > task.created_at


def _is_problem(task: Task) -> bool:
    return task.state == "failed" or task.repair_count > 0


_VARIES = re.compile(r"\b(?=[0-9A-Za-z-]*\d)[0-9A-Za-z-]{8,}\b|\d+(?:\.\d+)*")
PATTERN = 160  # characters of an error that count


def error_pattern(error: str) -> str:
    """The first line of an error without its ids and numbers, so that errors of many runs can be compared."""
    line = next((line for line in error.splitlines() if line.strip()), "")
    return _VARIES.sub("…", line.strip()[: 2 * PATTERN])[:PATTERN]


class _Subject(NamedTuple):
    """The wait of a run: its name, its step, begin and deadline, and its attempt of how many."""

    name: str | None
    since: Micros
    until: Micros | None = None
    step: int | None = None
    attempt: int = 0
    attempts: int | None = None


def _subject(instance: Instance, run: Run, wait: OpenWait) -> _Subject:
    timers = run.part(Timers).pending
    match wait.kind:
        case "activity":
            for one in run.part(Activities).open.values():
                if one.scheduled.activity_execution_id == wait.source_id:
                    name, tries = one.scheduled.activity_type, one.policy.max_attempts
                    until = one.close_deadline or one.start_deadline or one.total_deadline
                    since = (one.heartbeat_at or one.since) if one.running else one.since
                    return _Subject(name, since, until, one.step, one.attempt, tries)
        case "timer":
            for step, timer in timers.items():
                if timer.timer_id == wait.source_id:
                    return _Subject(None, timer.fire_at - seconds(timer.delay_seconds), timer.fire_at, step)
        case "condition":
            conditions = run.part(Conditions)
            for step, opened in conditions.open.items():
                if opened.condition_wait_id == wait.id:
                    since = conditions.since.get(step, run.last_at)
                    return _Subject(opened.condition_key, since, _timeout(timers, step), step)
        case "signal":
            signals = run.part(Signals)
            for step, one in signals.waits.items():
                if one.signal_wait_id == wait.id:
                    since = signals.since.get(step, run.last_at)
                    return _Subject(one.signal_name, since, _timeout(timers, step), step)
            received = signals.received.get(wait.source_id or "")
            return _Subject(None if received is None else received.event.signal_name, run.last_at)
        case "update":
            accepted = run.part(Updates).pending.get(wait.source_id or "")
            return _Subject(None if accepted is None else accepted.event.update_name, run.last_at)
        case "child":
            for step, child in run.part(Children).open.items():
                if wait.id == f"child:{child.scheduled.child_call_id}":
                    return _Subject(child.scheduled.child_workflow_instance_id, child.since, None, step)
        case _:
            pass
    return _Subject(None, run.last_at)


def _family(run: Run) -> dict[str, Any]:
    children = run.part(Children)
    types = {child.scheduled.child_workflow_type for child in children.open.values()}
    return {
        "children": len(children.steps),
        "open_children": len(children.open),
        "child_type": types.pop() if len(types) == 1 else None,
    }


def _timeout(timers: dict[int, TimerScheduled], step: int) -> Micros | None:
    timer = timers.get(step)
    return None if timer is None else timer.fire_at


def _steps(run: Run) -> int:
    return (
        len(run.part(Activities).open)
        + len(run.part(Timers).pending.keys() - run.part(Conditions).open.keys() - run.part(Signals).waits.keys())
        + len(run.part(Conditions).open)
        + len(open_waits(run))
        + len(run.part(Children).open)
    )
