"""The workflow task that a run must have, its id, and the part of history that its code sees."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from backstay.kernel.event import Event, Recorded
from backstay.kernel.features import pause, standalone
from backstay.kernel.features.activity.records import ActivityCancelled
from backstay.kernel.features.start import STANDALONE, Identity, WorkflowStarted
from backstay.kernel.features.timer import TimerFired
from backstay.kernel.state import Instance, Run
from backstay.kernel.task import Task
from backstay.kernel.turn import Turn
from backstay.kernel.values import update_task_id, workflow_task_id


class WorkflowAssignment(Struct, frozen=True, kw_only=True, gc=False):
    """A workflow task as its worker gets it, beside the history."""

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
    cursor: int  # the history sequence up to which earlier tasks have run this code


def assign(instance: Instance, task: Task) -> WorkflowAssignment:
    run = instance.run
    assert run is not None, "an instance with a task has a run"
    started = run.part(Identity).started
    assert started is not None, "a run with a task has started"
    return WorkflowAssignment(
        task=task,
        namespace=instance.namespace,
        workflow_id=instance.workflow_id,
        run_id=run.run_id,
        run_key=run.key,
        run_number=run.number,
        run_status=run.status,
        workflow_type=run.workflow_type,
        started=started,
        # Only a leased task has seen anything, whatever its row says.
        last_sequence=task.seen if task.seen is not None and task.state == "leased" else history_end(run, task),
        cursor=instance.cursor,
    )


def events_shown(assignment: WorkflowAssignment, events: list[Recorded]) -> list[Recorded]:
    """The part of a history that a task is shown: up to its last sequence, and what code decided that had seen no
    more."""
    last_sequence = assignment.last_sequence
    if not events or (events[-1].sequence <= last_sequence and events[0].run == assignment.run_key):
        return events
    return [entry for entry in events if entry.run == assignment.run_key and replay_position(entry) <= last_sequence]


def replay_position(entry: Recorded) -> int:
    """The history sequence after which replay applies an event. The commands of code come right after the events that
    it had seen."""
    after = entry.context.decided_after
    return entry.sequence if after is None or seen_by_next_task(entry.event) else after


SEEN_BY_NEXT_TASK = frozenset({TimerFired, ActivityCancelled})
"""The types of event for which `seen_by_next_task` may be true."""


def seen_by_next_task(event: Event) -> bool:
    """Whether code sees an event only in its next task, though it is recorded with the decision of this one.

    A timer without delay fires in the commit of the task that started it. An activity that the code has cancelled and
    waits for ends in the commit of that task, too.
    """
    kind = type(event)
    return kind is TimerFired or (kind is ActivityCancelled and event.awaited)  # type: ignore[attr-defined]


def history_end(run: Run, task: Task) -> int:
    """The last history sequence that a task sees if it is claimed now."""
    return run.length if task.history_limit is None else task.history_limit


def ensure_task(turn: Turn) -> None:
    """Create the workflow task that the run needs, unless it exists. There is one at a time, and a leased one goes
    first.

    An ordinary task gets no row yet (`turn.due_task`): if its code runs before the turn is sealed, the row would be
    deleted by the same commit that writes it. The engine knows whether its code runs here, and otherwise calls
    `create_task`. Tests: `test_code_that_ran_before_the_commit_leaves_no_task`,
    `test_a_task_whose_code_did_not_run_gets_a_row`.
    """
    instance = turn.instance
    run = turn.run
    waking = run.wake_events
    if waking and waking[0][0] <= instance.cursor:
        # Most often the task that moved the cursor had seen all of them.
        waking[:] = (
            () if waking[-1][0] <= instance.cursor else [entry for entry in waking if entry[0] > instance.cursor]
        )
    if instance.running_task is not None or not (waking or run.own_task_events):
        return
    if run.workflow_type == STANDALONE and standalone.applies(run):
        standalone.go_on(turn)
        return
    if run.own_task_events:
        turn.due_task = None
        if update_task_id(run.run_id, run.own_task_events[0][0]) in instance.tasks:
            return
        if waking:
            turn.drop_task(workflow_task_id(run.run_id, waking[0][0]))  # it is created again after this one
    elif turn.due_task is not None or (instance.tasks and workflow_task_id(run.run_id, waking[0][0]) in instance.tasks):
        return
    task = _task(instance, run)
    if task.history_limit is None and run.not_before <= turn.now and pause.allows(run):
        turn.due_task = task
    else:
        turn.put_task(task)


def _task(instance: Instance, run: Run) -> Task:
    own_task_events = run.own_task_events
    sequence, resume = own_task_events[0] if own_task_events else run.wake_events[0]
    at = run.last_at
    return Task(
        id=update_task_id(run.run_id, sequence) if own_task_events else workflow_task_id(run.run_id, sequence),
        workflow=instance.key,
        run=run.key,
        kind="workflow",
        type=run.workflow_type,
        routing=run.routing,
        available_at=at if at > run.not_before else run.not_before,
        created_at=at,
        resume=resume,
        history_limit=sequence if own_task_events else None,
        attempt=0
        if own_task_events
        else instance.attempts,  # its row may have been lost, or dropped for that of an update
    )


def due_task_id(instance: Instance) -> str | None:
    """The id of the one workflow task that the run needs, leased or not. A row with another id serves nothing."""
    run = instance.current
    if run.own_task_events:
        return update_task_id(run.run_id, run.own_task_events[0][0])
    for sequence, _ in run.wake_events:
        if sequence > instance.cursor:
            return workflow_task_id(run.run_id, sequence)
    return None


def serves(instance: Instance, task: Task) -> bool:
    return task.id == due_task_id(instance)


def expect(instance: Instance) -> Iterable[Task]:
    run = instance.current
    if instance.running_task is not None and instance.running_task == due_task_id(instance):
        yield instance.tasks[instance.running_task]
    elif run.own_task_events or run.wake_events:
        yield _task(instance, run)
