"""Workflow tasks: due exactly while a waking event stands behind the cursor; at most one per run.

The task's id derives from the first such event, so losing the row costs nothing. Completing it applies its commands in
order, all or none, and moves the cursor to what the code had seen. A failed task never fails the run: it stays, `failed`,
until its backoff ends or, when replay is blocked, until another definition is deployed or an operator repairs it.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from holdfast.kernel.command import Command, StepCommand, TerminalCommand
from holdfast.kernel.event import Recorded
from holdfast.kernel.feature import Deadline, Feature
from holdfast.kernel.features import close, deadline, failures, lease, pause, standalone
from holdfast.kernel.features.start import STANDALONE, Identity, WorkflowStarted
from holdfast.kernel.features.timer import TimerFired
from holdfast.kernel.limits import Breach, over_count
from holdfast.kernel.message import Message, Refused
from holdfast.kernel.state import Run, Workflow
from holdfast.kernel.task import Block, Lease, Task
from holdfast.kernel.turn import Turn
from holdfast.kernel.values import LEASE, SECOND, Micros, update_task_id, workflow_task_id

WAITING_FOR_HISTORY = "WorkflowTaskWaitingForHistory"
BACKOFF = 3 * SECOND  # doubled with every failure
LONGEST = 600 * SECOND  # that anybody may set as its end


class CompleteWorkflowTask(Message, frozen=True, kw_only=True):
    """The outcome of running workflow code. `lease` set: claim the ready task and complete it in one decision.

    `numbered`: the worker says in full which step and wait it means; otherwise that is inferred.
    """

    task_id: str
    owner: str
    attempt: int
    commands: list[Command]
    handled_failures: list[str] = []
    lease: Lease | None = None
    numbered: bool = True
    met: int | None = None  # code that has ended got no further in what its task had seen
    seen: int | None = None  # with `lease`: what the code had seen when it ran ahead; refused if that is not all


class FailWorkflowTask(Message, frozen=True, kw_only=True):
    """The code could not be run, or diverged from history. Never the end of the run."""

    task_id: str
    owner: str
    attempt: int
    block: Block
    lease: Lease | None = None


class HeartbeatWorkflowTask(Message, frozen=True, kw_only=True):
    """Renew the lease, or only ask whether it still holds."""

    task_id: str
    owner: str
    attempt: int
    renew: bool = True


class TaskOutcome(Struct, frozen=True, kw_only=True):
    """The reply to complete, fail and heartbeat."""

    task_id: str
    workflow_task_attempt: int
    outcome: str
    run_id: str
    run_status: str
    recorded: bool = True
    reason: str | None = None
    lease_expires_at: Micros | None = None
    seen: int | None = None


class WorkflowAssignment(Struct, frozen=True, kw_only=True, gc=False):
    """A workflow task as its worker gets it. History comes beside it."""

    task: Task
    namespace: str
    workflow_id: str
    run_id: str
    run_key: int
    run_number: int
    run_status: str
    workflow_type: str
    started: WorkflowStarted
    last_sequence: int
    cursor: int  # up to here an earlier task has already run this code


def assign(flow: Workflow, task: Task) -> WorkflowAssignment:
    run = flow.run
    assert run is not None, "an instance with a task has a run"
    started = run.part(Identity).started
    assert started is not None, "a run with a task has started"
    return WorkflowAssignment(
        task=task,
        namespace=flow.namespace,
        workflow_id=flow.workflow_id,
        run_id=run.run_id,
        run_key=run.key,
        run_number=run.number,
        run_status=run.status,
        workflow_type=run.workflow_type,
        started=started,
        # What a row that is not leased says it has seen is nobody's.
        last_sequence=task.seen if task.seen is not None and task.state == "leased" else sees(run, task),
        cursor=flow.cursor,
    )


def shown_to(assignment: WorkflowAssignment, events: list[Recorded]) -> list[Recorded]:
    """The part of a history that belongs to a task: what it may see, and what code decided that had seen no more."""
    upto = assignment.last_sequence
    if not events or (events[-1].sequence <= upto and events[0].run == assignment.run_key):
        return events
    return [entry for entry in events if entry.run == assignment.run_key and place_of(entry) <= upto]


def place_of(entry: Recorded) -> int:
    """Where replay applies an event: what code decided belongs right behind what it had seen.

    A timer of no delay fires in the commit of the task that asked for it; its code sees that only in its next task.
    """
    after = entry.context.decided_after
    return entry.sequence if after is None or type(entry.event) is TimerFired else after


def sees(run: Run, task: Task) -> int:
    """How far into history a task that is claimed now may look."""
    return run.length if task.upto is None else task.upto


def ensure(turn: Turn) -> None:
    """See that the workflow task that is due exists. There is one at a time, a leased one goes first.

    If its code runs before the turn is sealed, the task is due and not born: it would be gone again with the same commit.
    """
    flow = turn.flow
    run = turn.run
    waking = run.waking
    if waking and waking[0][0] <= flow.cursor:
        # Most often all of them are behind it.
        waking[:] = () if waking[-1][0] <= flow.cursor else [entry for entry in waking if entry[0] > flow.cursor]
    if flow.busy is not None or not (waking or run.apart):
        return
    if run.workflow_type == STANDALONE and standalone.applies(run):
        standalone.go_on(turn)
        return
    if run.apart:
        turn.due = None
        if update_task_id(run.run_id, run.apart[0][0]) in flow.tasks:
            return
        if waking:
            turn.drop(workflow_task_id(run.run_id, waking[0][0]))  # it comes again, behind the one apart
    elif turn.due is not None or (flow.tasks and workflow_task_id(run.run_id, waking[0][0]) in flow.tasks):
        return
    task = _task(flow, run)
    if task.upto is None and run.not_before <= turn.now and pause.allows(run):
        turn.runner = turn.here(run)
        if turn.runner is not None:
            turn.due = task
            return
    turn.put(task)


def _handled(turn: Turn, task: Task, message: CompleteWorkflowTask) -> list[str]:
    """Failures that the code has handled. Who does not say so has handled what its task was shown, if it goes on."""
    commands = message.commands
    if task.upto is not None or not commands or isinstance(commands[-1], close.FailWorkflow):
        return message.handled_failures
    return failures.shown(turn.run, task.seen or 0)


def complete(turn: Turn, message: CompleteWorkflowTask) -> None:
    task = _held(turn, message)
    commands = message.commands
    if not message.numbered and task.upto is None:
        commands = turn.machine.infer(turn, task, commands)
    # Code may have ended ahead of the update its task is for; then that is what there is to say.
    apart = task.upto is not None and not _ends(commands)
    check(turn, commands, apart=apart)
    run = turn.run
    status = run.status
    if run.agenda and deadline.overrun(turn):  # its deadlines are on it, if it has any
        turn.reply = TaskOutcome(
            task_id=task.id,
            workflow_task_attempt=task.attempt,
            outcome="rejected",
            run_id=run.run_id,
            run_status=run.status,
            recorded=False,
            reason="run_timed_out",
        )
        return
    turn.context = lease.context(task)
    if not apart:
        met = task if message.met is None else replace(task, seen=min(message.met, task.seen or 0))
        turn.machine.before_commands(turn, met)
    for failure_id in message.handled_failures if message.numbered else _handled(turn, task, message):
        failures.handled(turn, failure_id)
    breach = turn.machine.breach(turn, commands)
    if breach is not None:
        close.fail_by_limit(turn, breach)
    else:
        _apply(turn, commands)
    if turn.flow.run is run:  # otherwise continued: the new run starts with a cursor of its own
        _close(turn, task)
        if run.status != status:
            turn.index()
    turn.reply = TaskOutcome(
        task_id=task.id,
        workflow_task_attempt=task.attempt,
        outcome="completed",
        run_id=run.run_id,
        run_status=run.status,
    )


def fail(turn: Turn, message: FailWorkflowTask) -> None:
    task = _held(turn, message)
    block = message.block
    if block.type == WAITING_FOR_HISTORY and task.upto is None:  # a task apart has all the history it is for
        turn.context = lease.context(task)
        turn.machine.before_commands(turn, task)
        turn.machine.acknowledged(turn, task)
        _close(turn, task)
    else:
        backoff = min(_pause(task.repair_count), turn.machine.failure_backoff)
        turn.due = None
        turn.put(
            replace(
                task,
                state="failed",
                owner=None,
                leased_at=None,
                until=None,
                call=None,
                seen=None,
                block=block,
                repair_count=task.repair_count + 1,
                repair_available_at=None if block.replay_blocked else turn.now + backoff,
            )
        )
    run = turn.run
    turn.reply = TaskOutcome(
        task_id=task.id,
        workflow_task_attempt=task.attempt,
        outcome="failed",
        run_id=run.run_id,
        run_status=run.status,
        reason=block.reason,
    )


def heartbeat(turn: Turn, message: HeartbeatWorkflowTask) -> None:
    run = turn.flow.run
    if run is None or run.closed_reason is not None:
        raise _closed(run, message.task_id)
    task = turn.hold(message.task_id, message.owner, message.attempt)
    _refuse_other(task)
    if task.until is not None and message.renew:
        task = turn.put(replace(task, until=turn.now + LEASE))
    turn.reply = TaskOutcome(
        task_id=task.id,
        workflow_task_attempt=task.attempt,
        outcome="renewed",
        run_id=turn.run.run_id,
        run_status=turn.run.status,
        lease_expires_at=task.until,
        seen=task.seen,
    )


def check(turn: Turn, commands: list[Command], *, apart: bool) -> None:
    """Refuse the whole completion for any wrong command of it, before one of them is applied."""
    rules = turn.machine.commands
    if apart and sum(command.apart and command.answers for command in commands) != 1:
        raise Refused("invalid_commands", "this task is for one update: complete it or fail it", field="commands")
    turn.asked = commands
    step = turn.run.step
    for position, command in enumerate(commands):
        rule = rules.get(type(command))
        if rule is None:
            raise Refused(
                "invalid_commands", f"unknown command {type(command).__name__}", field=f"commands[{position}]"
            )
        if command.apart != apart:
            what = "belongs to a task of its own" if command.apart else "has no place in the task of an update"
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
        bool(commands) and isinstance(commands[-1], TerminalCommand) and not any(command.apart for command in commands)
    )


def _apply(turn: Turn, commands: list[Command]) -> None:
    run = turn.run
    rules = turn.machine.commands
    for command in commands:
        if isinstance(command, StepCommand) and command.sequence is not None and command.sequence <= run.step:
            continue  # recorded by an earlier completion whose reply was lost
        rules[type(command)].apply(turn, command)


def _held(turn: Turn, message: CompleteWorkflowTask | FailWorkflowTask) -> Task:
    run = turn.flow.run
    if run is None or run.closed_reason is not None:
        raise _closed(run, message.task_id)
    if message.lease is not None:
        # Claimed and spent in one decision: the lease is never a row, only the context of what it causes.
        task = turn.due
        if task is None or task.id != message.task_id:
            task = _claimable(turn, message.task_id)
        seen = sees(run, task)
        if isinstance(message, CompleteWorkflowTask) and message.seen is not None and message.seen != seen:
            raise Refused("eager_refused", f"something else reached the run of task {message.task_id} first")
        return replace(
            task,
            state="leased",
            attempt=task.attempt + 1,
            owner=message.lease.owner,
            leased_at=turn.now,
            seen=seen,
        )
    task = turn.hold(message.task_id, message.owner, message.attempt)
    _refuse_other(task)
    return task


def _claimable(turn: Turn, task_id: str) -> Task:
    """A task that was born before its code runs."""
    task = turn.flow.tasks.get(task_id)
    if task is None:
        raise Refused("task_not_found", f"task {task_id} does not exist or is already closed")
    if task.state != "ready":
        raise Refused("task_not_claimable", f"task {task_id} is {task.state}", task_status=task.state)
    _refuse_other(task)
    if not serves(turn.flow, task):
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
    """A task is done. If it was an ordinary one, everything it had seen is behind the cursor now."""
    turn.due = None
    turn.drop(task.id)
    assert task.seen is not None, "a leased workflow task knows what it has seen"
    if task.upto is None:
        turn.flow.cursor = task.seen


def limits(turn: Turn, commands: list[Command]) -> Breach | None:
    bounds = turn.machine.limits
    count = len(commands)
    if count <= bounds.command_batch_size and turn.run.length + count <= bounds.history_length:
        return None
    return over_count("command_batch_size", count, bounds.command_batch_size) or over_count(
        "history_length", turn.run.length + count, bounds.history_length
    )


def _task(flow: Workflow, run: Run) -> Task:
    apart = run.apart
    sequence, resume = apart[0] if apart else run.waking[0]
    at = run.last_at
    return Task(
        id=update_task_id(run.run_id, sequence) if apart else workflow_task_id(run.run_id, sequence),
        workflow=flow.key,
        run=run.key,
        kind="workflow",
        type=run.workflow_type,
        routing=run.routing,
        available_at=at if at > run.not_before else run.not_before,
        created_at=at,
        resume=resume,
        upto=sequence if apart else None,
    )


def due_id(flow: Workflow) -> str | None:
    """The one workflow task that history has use for, leased or not. A row of another name is nobody's."""
    run = flow.current
    if run.apart:
        return update_task_id(run.run_id, run.apart[0][0])
    for sequence, _ in run.waking:
        if sequence > flow.cursor:
            return workflow_task_id(run.run_id, sequence)
    return None


def serves(flow: Workflow, task: Task) -> bool:
    return task.id == due_id(flow)


def expect(flow: Workflow) -> Iterable[Task]:
    run = flow.current
    if flow.busy is not None and flow.busy == due_id(flow):
        yield flow.tasks[flow.busy]
    elif run.apart or run.waking:
        yield _task(flow, run)


def _repair_armed(flow: Workflow, task_id: str) -> Micros | None:
    task = flow.tasks.get(task_id)
    return None if task is None else task.repair_available_at


def _pause(failures: int) -> Micros:
    return min(BACKOFF << min(failures, 10), LONGEST)


def _repair_length(flow: Workflow, task_id: str) -> Micros:
    return _pause(flow.tasks[task_id].repair_count - 1)


def _revive(turn: Turn, task_id: str) -> None:
    revive(turn, turn.flow.tasks[task_id])


def revive(turn: Turn, task: Task) -> None:
    """Offer a failed task again."""
    turn.put(replace(task, state="ready", block=None, repair_available_at=None, available_at=turn.now))


FEATURE = Feature(
    name="workflow_task",
    decide={CompleteWorkflowTask: complete, FailWorkflowTask: fail, HeartbeatWorkflowTask: heartbeat},
    deadlines={"repair": Deadline(_repair_armed, _revive, _repair_length)},
    assign={"workflow": assign},
    serves={"workflow": serves},
    expect=expect,
)
