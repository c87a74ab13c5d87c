"""The mapping from requests and reports of workers to messages of the kernel.

Workers speak in two shapes: the requests of the worker API (`requests.py`; routes of the published protocol and the embedded
engine make them) and the reports of Backstay's own protocol (`native/worker.py`). Every outcome of a task or an attempt is
mapped here and nowhere else.
"""

from __future__ import annotations

from typing import overload

from backstay.kernel.command import Command
from backstay.kernel.features.activity import CompleteActivity, FailActivity, HeartbeatActivity
from backstay.kernel.features.workflow_task import CompleteWorkflowTask, FailWorkflowTask, HeartbeatWorkflowTask
from backstay.kernel.message import Message, Refused
from backstay.kernel.task import Lease
from backstay.kernel.values import attempt_id, workflow_task_id
from backstay.protocol import requests as ask
from backstay.protocol.native import worker as wire

TaskVerb = (
    ask.CompleteTask
    | ask.FailTask
    | ask.HeartbeatTask
    | ask.CompleteActivityTask
    | ask.FailActivityTask
    | ask.HeartbeatActivityTask
)
"""The requests that the kernel decides."""

TaskReport = wire.TaskDone | wire.TaskFailed | wire.AttemptDone | wire.AttemptFailed | wire.Heartbeat
"""The reports that the kernel decides."""


@overload
def message_of(verb: ask.CompleteTask) -> CompleteWorkflowTask: ...
@overload
def message_of(verb: ask.FailTask) -> FailWorkflowTask: ...
@overload
def message_of(verb: ask.HeartbeatTask) -> HeartbeatWorkflowTask: ...
@overload
def message_of(verb: ask.CompleteActivityTask) -> CompleteActivity: ...
@overload
def message_of(verb: ask.FailActivityTask) -> FailActivity: ...
@overload
def message_of(verb: ask.HeartbeatActivityTask) -> HeartbeatActivity: ...
def message_of(verb: TaskVerb) -> Message:
    """The message of a request. Its reply names the tasks that it creates. Raises Refused for a malformed attempt id."""
    owner = verb.lease_owner
    match verb:
        case ask.CompleteTask():
            return CompleteWorkflowTask(
                task_id=verb.task_id,
                owner=verb.lease_owner,
                attempt=verb.workflow_task_attempt,
                commands=verb.commands,
                handled_failures=verb.handled_failures,
                numbered=verb.numbered,
                seen_until=verb.met,
                report=True,
            )
        case ask.FailTask():
            return FailWorkflowTask(
                task_id=verb.task_id,
                owner=verb.lease_owner,
                attempt=verb.workflow_task_attempt,
                block=verb.failure,
                report=True,
            )
        case ask.HeartbeatTask():
            return HeartbeatWorkflowTask(
                task_id=verb.task_id, owner=verb.lease_owner, attempt=verb.workflow_task_attempt
            )
        case ask.CompleteActivityTask():
            run_id, step, attempt = attempt_of(verb.activity_attempt_id)
            return CompleteActivity(
                step=step, attempt=attempt, owner=owner, run_id=run_id, result=verb.result, report=True
            )
        case ask.FailActivityTask():
            run_id, step, attempt = attempt_of(verb.activity_attempt_id)
            return FailActivity(
                step=step,
                attempt=attempt,
                owner=owner,
                run_id=run_id,
                failure=verb.failure,
                gave_up=verb.gave_up,
                report=True,
            )
        case ask.HeartbeatActivityTask():
            run_id, step, attempt = attempt_of(verb.activity_attempt_id)
            return HeartbeatActivity(step=step, attempt=attempt, owner=owner, run_id=run_id, progress=verb.progress)


@overload
def message_of_report(report: wire.TaskDone, owner: str, commands: list[Command]) -> CompleteWorkflowTask: ...
@overload
def message_of_report(report: TaskReport, owner: str, commands: list[Command]) -> Message: ...
def message_of_report(report: TaskReport, owner: str, commands: list[Command]) -> Message:
    """The message of a report of the worker `owner`. `commands`: those of a completion, as this server understands them."""
    match report:
        case wire.TaskDone():
            return CompleteWorkflowTask(
                task_id=report.task_id,
                owner=owner,
                attempt=report.attempt,
                commands=commands,
                handled_failures=report.handled,
                seen_until=report.met,
                breach=report.breach,
            )
        case wire.AttemptDone():
            return CompleteActivity(
                step=report.step,
                attempt=report.attempt,
                owner=owner,
                run_id=report.run_id,
                result=report.result,
                breach=report.breach,
            )
        case wire.AttemptFailed():
            return FailActivity(
                step=report.step,
                attempt=report.attempt,
                owner=owner,
                run_id=report.run_id,
                failure=report.failure,
                gave_up=report.gave_up,
            )
        case wire.Heartbeat():
            return HeartbeatActivity(
                step=report.step,
                attempt=report.attempt,
                owner=owner,
                run_id=report.run_id,
                progress=report.progress,
            )
        case wire.TaskFailed():
            return FailWorkflowTask(task_id=report.task_id, owner=owner, attempt=report.attempt, block=report.block)


def message_of_resumed(
    report: wire.AttemptDone, resumed: wire.Resumed, owner: str, commands: list[Command]
) -> CompleteWorkflowTask:
    """The message of an eager resume: it claims and completes the task that the result is about to cause, and is refused
    unless history has exactly that result in that place."""
    seen = resumed.after + 1
    return CompleteWorkflowTask(
        task_id=workflow_task_id(report.run_id, seen),
        owner=owner,
        attempt=1,
        commands=commands,
        handled_failures=resumed.handled,
        seen_until=resumed.met,
        lease=Lease(owner=owner),
        seen=seen,
        result_of=attempt_id(report.run_id, report.step, report.attempt),
    )


def attempt_of(id: str) -> tuple[str, int, int]:
    """Run id, step and number of an attempt, from its id."""
    run_id, _, rest = id.partition("-")
    step, _, attempt = rest.partition("-")
    if not (step.isdigit() and attempt.isdigit()):
        raise Refused("attempt_not_found", f"{id!r} is not an attempt id", field="activity_attempt_id")
    return run_id, int(step), int(attempt)
