"""The liveness of a run: its wait, and the reason why it does or does not continue, in the terms of the contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from backstay.kernel.agenda import wake_is_late
from backstay.kernel.event import Event
from backstay.kernel.features import pause
from backstay.kernel.features.activity import Activities
from backstay.kernel.features.child import Children
from backstay.kernel.features.condition import Conditions
from backstay.kernel.features.signal import SignalReceived, Signals, open_waits
from backstay.kernel.features.timer import Timers
from backstay.kernel.features.update import UpdateAccepted, Updates
from backstay.kernel.machine import Machine
from backstay.kernel.state import Instance, Run
from backstay.kernel.task import Task
from backstay.kernel.values import Micros, timer_id


class OpenWait(NamedTuple):
    """The wait of a run, and the source that will resume it."""

    kind: str | None
    id: str | None
    source_kind: str | None
    source_id: str | None


NOTHING = OpenWait(None, None, None, None)


def wait_of(instance: Instance) -> OpenWait:
    """The most informative wait of an open run: an accepted update first, then activities, then other waits."""
    run = instance.current
    for update in (*run.part(Updates).pending, *_buffered(instance, UpdateAccepted, "update_id")):
        return OpenWait("update", f"update:{update}", "workflow_update", update)
    for execution in run.part(Activities).open.values():
        id = execution.scheduled.activity_execution_id
        return OpenWait("activity", f"activity:{id}", "activity_execution", id)
    received = [
        entry.event.signal_id for entry in run.part(Signals).received.values() if entry.sequence > instance.cursor
    ]
    if not instance.tasks:
        for signal in (*received, *_buffered(instance, SignalReceived, "signal_id")):
            return OpenWait("signal", f"signal-application:{signal}", "workflow_signal", signal)
    timers = run.part(Timers).pending
    for timer in timers.values():
        if timer.timer_kind is None:
            return OpenWait("timer", f"timer:{timer.timer_id}", "timer", timer.timer_id)
    for condition in reversed(run.part(Conditions).open.values()):
        return _with_timeout("condition", condition.condition_wait_id, "external_input", run, condition.sequence)
    for wait in open_waits(run):
        return _with_timeout("signal", wait.signal_wait_id, "signal", run, wait.sequence)
    for child in run.part(Children).open.values():
        call = child.scheduled.child_call_id
        return OpenWait("child", f"child:{call}", "child_workflow_run", child.run_id)
    for task in instance.tasks.values():
        if task.kind == "workflow":
            return OpenWait("workflow-task", f"workflow-task:{task.id}", "workflow_task", task.id)
    return NOTHING


def _with_timeout(kind: str, id: str, source: str, run: Run, step: int) -> OpenWait:
    """The open wait of a step. If it has a timeout, its timer resumes it."""
    timers = run.part(Timers)
    timed = step in timers.pending or step in timers.fired
    return OpenWait(kind, id, "timer", timer_id(run.run_id, step)) if timed else OpenWait(kind, id, source, None)


def _buffered(instance: Instance, kind: type[Event], field: str) -> list[str]:
    return [getattr(event, field) for event, _ in instance.buffered_events if isinstance(event, kind)]


def liveness(
    machine: Machine, instance: Instance, now: Micros, is_stranded: Callable[[Task], bool] | None = None
) -> str:
    """The liveness state of a run. `is_stranded`: whether no live worker could take a task, by its queue, type and build."""
    run = instance.current
    if not run.is_open:
        return "closed"
    if not pause.allows(run):
        return "paused"
    for task in instance.tasks.values():
        if task.is_blocked:
            return "workflow_replay_blocked"
    expected = machine.expect(instance)
    for id, wanted in expected.tasks.items():
        if id not in instance.tasks:
            return "activity_running_without_task" if wanted.state == "leased" else "repair_needed"
    if wake_is_late(instance.next_wake, expected.next_wake):
        return "repair_needed"
    tasks = sorted(instance.tasks.values(), key=lambda t: (t.state != "leased", t.available_at))
    if is_stranded is not None:
        for task in tasks:
            if task.state == "ready" and task.is_due(now) and is_stranded(task):
                return f"{task.kind}_task_waiting_for_compatible_worker"
    if any(task.until is not None and task.until <= now for task in tasks):
        return "repair_needed"
    activities = [task for task in tasks if task.kind == "activity"]
    if not activities:
        wait = wait_of(instance).kind
        if wait in ("condition", "signal", "child") and not (run.own_task_events or run.wake_events):
            return f"waiting_for_{wait}"
        if wait in ("condition", "child") and tasks:  # the task is for something else, the wait goes on
            return f"waiting_for_{wait}"
    for task in activities or tasks:
        return f"{task.kind}_task_{'leased' if task.state == 'leased' else 'ready'}"
    return "timer_scheduled" if run.part(Timers).pending else "repair_needed"


def missing(machine: Machine, instance: Instance) -> list[Task]:
    """The tasks that history expects and that have no row, as a repair would restore them.

    Running activities are left out: their workers go on without a row.
    """
    run = instance.run
    if run is None or not run.is_open:
        return []
    expected = machine.expect(instance).tasks
    return [task for id, task in expected.items() if id not in instance.tasks and task.state != "leased"]


def transport_state(task: Task, now: Micros, paused: bool = False) -> str:
    if paused and task.state == "ready":
        return "paused"
    if task.state == "failed":
        return "replay_blocked" if task.is_blocked else "repair_backoff"
    if task.state == "leased":
        return "lease_expired" if task.until is not None and task.until <= now else "leased"
    return "ready" if task.is_due(now) else "scheduled"
