"""Which workflow task a run must have, under which id, and which part of history its code sees."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from backstay.kernel.event import Event, Recorded
from backstay.kernel.features import pause, standalone
from backstay.kernel.features.activity.records import ActivityCancelled
from backstay.kernel.features.start import STANDALONE, Identity, WorkflowStarted
from backstay.kernel.features.timer import TimerFired
from backstay.kernel.state import Run, Workflow
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
        # Only a leased task has seen anything, whatever its row says.
        last_sequence=task.seen if task.seen is not None and task.state == "leased" else sees(run, task),
        cursor=flow.cursor,
    )


def shown_to(assignment: WorkflowAssignment, events: list[Recorded]) -> list[Recorded]:
    """The part of a history that a task is shown: what it may see, and what code decided that had seen no more."""
    upto = assignment.last_sequence
    if not events or (events[-1].sequence <= upto and events[0].run == assignment.run_key):
        return events
    return [entry for entry in events if entry.run == assignment.run_key and place_of(entry) <= upto]


def place_of(entry: Recorded) -> int:
    """The history sequence after which replay applies an event: what code decided comes right after what it had seen."""
    after = entry.context.decided_after
    return entry.sequence if after is None or met_later(entry.event) else after


MET_LATER = frozenset({TimerFired, ActivityCancelled})
"""The kinds of event of which that may be true."""


def met_later(event: Event) -> bool:
    """Whether code sees an event only in its next task, though it is recorded with what this one decided.

    A timer of no delay fires in the commit of the task that asked for it; so does the end of an activity that was
    cancelled, if its code waits for that.
    """
    kind = type(event)
    return kind is TimerFired or (kind is ActivityCancelled and event.awaited)  # type: ignore[attr-defined]


def sees(run: Run, task: Task) -> int:
    """The last history sequence that a task sees if it is claimed now."""
    return run.length if task.upto is None else task.upto


def ensure(turn: Turn) -> None:
    """See that the workflow task exists that the run needs. There is one at a time, and a leased one goes first.

    An ordinary task gets no row yet (`turn.due`): if its code runs before the turn is sealed, the row would be deleted by
    the same commit that writes it. The engine knows whether its code runs here, and otherwise calls `create_task`. Tests:
    `test_code_that_ran_before_the_commit_leaves_no_task`, `test_a_task_whose_code_did_not_run_gets_a_row`.
    """
    flow = turn.flow
    run = turn.run
    waking = run.waking
    if waking and waking[0][0] <= flow.cursor:
        # Most often the task that moved the cursor had seen all of them.
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
            turn.drop(workflow_task_id(run.run_id, waking[0][0]))  # it is made again after this one
    elif turn.due is not None or (flow.tasks and workflow_task_id(run.run_id, waking[0][0]) in flow.tasks):
        return
    task = _task(flow, run)
    if task.upto is None and run.not_before <= turn.now and pause.allows(run):
        turn.due = task
    else:
        turn.put(task)


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
    """The id of the one workflow task that the run needs, leased or not. A row with another id serves nothing."""
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
