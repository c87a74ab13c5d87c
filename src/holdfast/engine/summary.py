"""What a run is doing and why it is (not) moving, in the contract's words. Derived from state, never stored."""

from __future__ import annotations

from holdfast.kernel.decision import CommandRecord
from holdfast.kernel.features.activity import Activities
from holdfast.kernel.features.failures import Failures
from holdfast.kernel.features.memo import Memo
from holdfast.kernel.features.start import Identity
from holdfast.kernel.features.timer import Timers
from holdfast.kernel.machine import Machine
from holdfast.kernel.state import Run, Workflow
from holdfast.kernel.task import Task
from holdfast.kernel.values import Micros
from holdfast.protocol.requests import Description, TaskView


def describe(machine: Machine, flow: Workflow, commands: list[CommandRecord], now: Micros) -> Description:
    run = flow.run
    if run is None:
        return Description(
            workflow_id=flow.workflow_id,
            namespace=flow.namespace,
            workflow_type=flow.workflow_type,
            status="reserved",
            run=None,
            liveness_state="reserved",
        )
    started = run.part(Identity).started
    wait = _wait(run, flow) if run.open else (None, None, None, None)
    return Description(
        workflow_id=flow.workflow_id,
        namespace=flow.namespace,
        workflow_type=run.workflow_type,
        status=run.status,
        run=machine.index(flow),
        memo=run.part(Memo).values,
        fingerprint=None if started is None else started.workflow_definition_fingerprint,
        execution_deadline_at=None if started is None else started.execution_deadline_at,
        run_deadline_at=None if started is None else started.run_deadline_at,
        wait_kind=wait[0],
        open_wait_id=wait[1],
        resume_source_kind=wait[2],
        resume_source_id=wait[3],
        liveness_state=liveness(machine, flow, now),
        next_wake=flow.next_wake,
        tasks=[TaskView(task=task, transport_state=transport_state(task, now)) for task in flow.tasks.values()],
        commands=commands,
        exception_count=len(run.part(Failures).raised),
    )


def _wait(run: Run, flow: Workflow) -> tuple[str | None, str | None, str | None, str | None]:
    """(wait_kind, open_wait_id, resume_source_kind, resume_source_id): activity before timer before workflow task."""
    for execution in run.part(Activities).open.values():
        id = execution.scheduled.activity_execution_id
        return "activity", f"activity:{id}", "activity_execution", id
    for timer in run.part(Timers).pending.values():
        return "timer", f"timer:{timer.timer_id}", "timer", timer.timer_id
    for task in flow.tasks.values():
        if task.kind == "workflow":
            return "workflow-task", f"workflow-task:{task.id}", "workflow_task", task.id
    return None, None, None, None


def liveness(machine: Machine, flow: Workflow, now: Micros) -> str:
    run = flow.current
    if not run.open:
        return "closed"
    for task in flow.tasks.values():
        if task.block is not None and task.block.replay_blocked:
            return "workflow_replay_blocked"
    expected = machine.expect(flow)
    for id, wanted in expected.tasks.items():
        if id not in flow.tasks:
            return "activity_running_without_task" if wanted.state == "leased" else "repair_needed"
    for task in sorted(flow.tasks.values(), key=lambda t: (t.state != "leased", t.available_at)):
        if task.until is not None and task.until <= now:
            return "repair_needed"
        return f"{task.kind}_task_{'leased' if task.state == 'leased' else 'ready'}"
    return "timer_scheduled" if run.part(Timers).pending else "repair_needed"


def transport_state(task: Task, now: Micros) -> str:
    if task.state == "failed":
        if task.block is not None and task.block.replay_blocked:
            return "replay_blocked"
        return "repair_backoff"
    if task.state == "leased":
        return "lease_expired" if task.until is not None and task.until <= now else "leased"
    return "scheduled" if task.available_at > now else "ready"
