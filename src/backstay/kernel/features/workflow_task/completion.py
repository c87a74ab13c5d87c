"""The reports on a workflow task: complete applies all of its commands or none, fail keeps the task, heartbeat renews
it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from backstay.kernel.command import Command, StepCommand, TerminalCommand
from backstay.kernel.failure import Handled
from backstay.kernel.features import close, deadline, failures
from backstay.kernel.features.workflow_task.backoff import set_aside
from backstay.kernel.features.workflow_task.expected import history_end, serves
from backstay.kernel.features.workflow_task.messages import (
    CRASHED,
    DEADLINE_EXCEEDED,
    WAITING_FOR_HISTORY,
    CompleteWorkflowTask,
    FailWorkflowTask,
    HeartbeatWorkflowTask,
    TaskReply,
)
from backstay.kernel.limits import Breach, over_count
from backstay.kernel.message import Refused
from backstay.kernel.state import Run
from backstay.kernel.task import Task
from backstay.kernel.turn import Turn, context_of
from backstay.kernel.values import LEASE


def _handled_failures(turn: Turn, task: Task, message: CompleteWorkflowTask) -> Sequence[Handled]:
    """The failures that the code has handled. If its worker does not name them: all that the task has seen, if the code
    went on."""
    commands = message.commands
    if task.history_limit is not None or not commands or isinstance(commands[-1], close.FailWorkflow):
        return message.handled_failures
    return failures.unhandled_until(turn.run, task.seen or 0)


def complete(turn: Turn, message: CompleteWorkflowTask) -> None:
    task = _require_lease(turn, message)
    commands = message.commands
    leading: Sequence[Command] = ()
    if commands and commands[0].leads:
        leading = [command for command in commands if command.leads]
        check_leading(turn, leading)
        commands = [command for command in commands if not command.leads]
    if not message.numbered and task.history_limit is None:
        commands = turn.features.infer(turn, task, commands)
    # The code may have ended the run before it handled the update that its task is for.
    own_task = task.history_limit is not None and not _ends(commands)
    check(turn, commands, own_task=own_task)
    run = turn.run
    status = run.status
    if message.report:
        turn.created_tasks = []
    if run.agenda and deadline.overrun(turn):  # a run without an agenda has no deadline
        turn.reply = TaskReply(
            task_id=task.id,
            workflow_task_attempt=task.attempt,
            outcome="rejected",
            run_id=run.run_id,
            run_status=run.status,
            recorded=False,
            reason="run_timed_out",
        )
        return
    turn.context = context_of(task)
    if leading:
        _apply(turn, leading)
    if not own_task:
        seen_task = task if message.seen_until is None else replace(task, seen=min(message.seen_until, task.seen or 0))
        turn.features.before_commands(turn, seen_task)
    for failure_id in message.handled_failures if message.numbered else _handled_failures(turn, task, message):
        failures.record_handled(turn, failure_id)
    breach = message.breach or turn.features.breach(turn, commands)
    if breach is not None:
        close.fail_by_limit(turn, breach)
    else:
        _apply(turn, commands)
    if turn.instance.run is run:  # otherwise the code continued as new, and the new run has a cursor of its own
        _close(turn, task)
        if run.status != status:
            turn.index()
    turn.reply = TaskReply(
        task_id=task.id,
        workflow_task_attempt=task.attempt,
        outcome="completed",
        run_id=run.run_id,
        run_status=run.status,
        created_task_ids=[] if turn.created_tasks is None else turn.created_tasks,
    )


def fail(turn: Turn, message: FailWorkflowTask) -> None:
    block = message.block
    task = _task_of_hung_code(turn, message) if block.reason == DEADLINE_EXCEEDED else _require_lease(turn, message)
    if message.report:
        turn.created_tasks = []
    if block.type == WAITING_FOR_HISTORY and task.history_limit is None:  # an update's task lacks no history
        turn.context = context_of(task)
        turn.features.before_commands(turn, task)
        turn.features.acknowledged(turn, task)
        _close(turn, task)
    elif message.keep:
        turn.put_task(replace(task, block=block))
    else:
        set_aside(turn, replace(task, owner=message.owner), block)
    run = turn.run
    turn.reply = TaskReply(
        task_id=task.id,
        workflow_task_attempt=task.attempt,
        outcome="failed",
        run_id=run.run_id,
        run_status=run.status,
        reason=block.reason,
        next_task_id=task.id if task.id in turn.instance.tasks else None,
        created_task_ids=[] if turn.created_tasks is None else turn.created_tasks,
    )


def heartbeat(turn: Turn, message: HeartbeatWorkflowTask) -> None:
    run = turn.instance.run
    if run is None or run.closed_reason is not None:
        raise _closed(run, message.task_id)
    task = turn.require_lease(message.task_id, message.owner, message.attempt)
    _refuse_other(task)
    if task.until is not None and message.renew:
        task = turn.put_task(replace(task, until=turn.now + LEASE))
    turn.reply = TaskReply(
        task_id=task.id,
        workflow_task_attempt=task.attempt,
        outcome="renewed",
        run_id=turn.run.run_id,
        run_status=turn.run.status,
        lease_expires_at=task.until,
        seen=task.seen,
        for_update=task.history_limit is not None,
    )


def check_leading(turn: Turn, commands: Sequence[Command]) -> None:
    for command in commands:
        turn.features.commands[type(command)].check(turn, command)


def check(turn: Turn, commands: list[Command], *, own_task: bool) -> None:
    """Refuse the whole completion if one of its commands is wrong, before any of them is applied."""
    rules = turn.features.commands
    if own_task and sum(command.own_task and command.answers for command in commands) != 1:
        raise Refused("invalid_commands", "this task is for one update: complete it or fail it", field="commands")
    turn.pending_commands = commands
    step = turn.run.step
    for position, command in enumerate(commands):
        rule = rules.get(type(command))
        if rule is None:
            raise Refused(
                "invalid_commands", f"unknown command {type(command).__name__}", field=f"commands[{position}]"
            )
        if command.own_task != own_task:
            what = "belongs to a task of its own" if command.own_task else "has no place in the task of an update"
            raise Refused("invalid_commands", f"command {position} {what}", field=f"commands[{position}]")
        if isinstance(command, StepCommand):
            if command.sequence is not None and command.sequence > step + 1:
                raise Refused(
                    "invalid_commands",
                    f"command {position} is step {command.sequence}, but the next step of this run is {step + 1}",
                    field=f"commands[{position}].sequence",
                )
            if command.sequence is None or command.sequence > step:
                step += 1
        elif isinstance(command, TerminalCommand) and position != len(commands) - 1:
            raise Refused(
                "invalid_commands",
                "a terminal command must be the only one and the last",
                field=f"commands[{position}]",
            )
        try:
            rule.check(turn, command)
        except Refused as refusal:
            refusal.fields["command"] = position
            raise


def _ends(commands: list[Command]) -> bool:
    return (
        bool(commands)
        and isinstance(commands[-1], TerminalCommand)
        and not any(command.own_task for command in commands)
    )


def _apply(turn: Turn, commands: Sequence[Command]) -> None:
    run = turn.run
    rules = turn.features.commands
    for command in commands:
        if isinstance(command, StepCommand) and command.sequence is not None and command.sequence <= run.step:
            continue  # recorded by an earlier completion whose reply was lost
        rules[type(command)].apply(turn, command)


def _task_of_hung_code(turn: Turn, message: FailWorkflowTask) -> Task:
    """The task of a worker whose code hung. The worker sent no heartbeats, so another worker may hold the lease and
    hang, too.

    The report is about the code and not about one attempt, so it counts as long as the same task is open.
    """
    try:
        return _require_lease(turn, message)
    except Refused:
        task = turn.instance.tasks.get(message.task_id)
        if task is None or task.kind != "workflow" or message.lease is not None:
            raise
        if task.state == "failed" and (task.block is None or task.block.reason != CRASHED):
            raise  # it has failed for another reason; this report explains only workers that never reported
        return task


def _require_lease(turn: Turn, message: CompleteWorkflowTask | FailWorkflowTask) -> Task:
    run = turn.instance.run
    if run is None or run.closed_reason is not None:
        raise _closed(run, message.task_id)
    if message.lease is not None:
        # Claimed and completed in one decision: the lease is never written to a row, only to the context of the events.
        task = turn.due_task
        if task is None or task.id != message.task_id:
            task = _claimable(turn, message.task_id)
        seen = history_end(run, task)
        if (
            isinstance(message, CompleteWorkflowTask)
            and message.seen is not None
            and not _saw_only_the_result(task, message, seen)
        ):
            raise Refused("eager_refused", f"the code of task {message.task_id} used results that are not in history")
        return replace(
            task,
            state="leased",
            attempt=task.attempt + 1,
            owner=message.lease.owner,
            leased_at=turn.now,
            seen=seen,
        )
    task = turn.require_lease(message.task_id, message.owner, message.attempt)
    _refuse_other(task)
    return task


def _saw_only_the_result(task: Task, message: CompleteWorkflowTask, seen: int) -> bool:
    """Whether code that resumed eagerly, before its result was recorded, saw what history has: that result and nothing
    after it.

    A result may be recorded as a failure (it exceeds a limit) or not at all (it came too late), and another event may
    stand in its place.
    """
    resume = task.resume
    woken = (resume.workflow_sequence, resume.workflow_event_type, resume.activity_attempt_id)
    return message.seen == seen and woken == (seen, "ActivityCompleted", message.result_of)


def _claimable(turn: Turn, task_id: str) -> Task:
    """The ready task with this id, whose code has just run."""
    task = turn.instance.tasks.get(task_id)
    if task is None:
        raise Refused("task_not_found", f"task {task_id} does not exist or is already closed")
    if task.state != "ready":
        raise Refused("task_not_claimable", f"task {task_id} is {task.state}", task_status=task.state)
    _refuse_other(task)
    if not serves(turn.instance, task):
        raise Refused("task_not_found", f"nothing waits for task {task_id}", task_id=task_id)
    return task


def _refuse_other(task: Task) -> None:
    if task.kind != "workflow":
        raise Refused("task_not_workflow", f"task {task.id} is not a workflow task", task_id=task.id)


def _closed(run: Run | None, task_id: str) -> Refused:
    status = "not started" if run is None else run.status
    return Refused(
        "run_closed",
        f"the run of task {task_id} is {status}",
        can_continue=False,
        cancel_requested=status in ("cancelled", "terminated"),
        stop_reason=f"run_{status}",
        run_status=status,
        run_closed_reason=None if run is None else run.closed_reason,
        run_closed_at=None if run is None else run.closed_at,
    )


def _close(turn: Turn, task: Task) -> None:
    """End a task. If it was an ordinary one, the cursor moves to the last event it had seen."""
    turn.due_task = None
    turn.drop_task(task.id)
    assert task.seen is not None, "a leased workflow task knows what it has seen"
    if task.history_limit is None:
        turn.instance.cursor = task.seen
        turn.instance.attempts = 0


def limits(turn: Turn, commands: list[Command]) -> Breach | None:
    bounds = turn.features.limits
    count = len(commands)
    length = turn.run.length + count
    if count <= bounds.command_batch_size and length <= bounds.history_length:
        return None
    # Heartbeats do not count: they come from activities, not from the code of the workflow.
    return over_count("command_batch_size", _in_one_go(commands), bounds.command_batch_size) or over_count(
        "history_length", length - turn.run.heartbeats, bounds.history_length
    )


def _in_one_go(commands: list[Command]) -> int:
    """The most steps that code took without waiting. A wait that ends at once counts as waiting: many signals may be
    there."""
    most = steps = 0
    for command in commands:
        if command.ends_wait:
            steps = 0
        elif isinstance(command, StepCommand):
            steps += 1
            most = max(most, steps)
    return most
