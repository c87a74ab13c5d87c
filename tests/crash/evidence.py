"""What is on disk, read like a coroner does: without an engine, verified, every claim checked against history."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from backstay.codec.values import loads
from backstay.kernel.event import Recorded, StepEvent
from backstay.kernel.features.archive import Archived
from backstay.kernel.features.child import ChildRunCompleted, ChildUnsuccessful
from backstay.kernel.machine import Machine
from backstay.kernel.state import Instance, Run
from backstay.kernel.turn import add_task_deadlines
from backstay.store import Loaded, RunFilter, StoredSend
from backstay.store.sqlite import SqliteStore

from . import ledger

ENDS_STEP = {
    "ActivityCompleted",
    "ActivityFailed",
    "ActivityTimedOut",
    "ActivityCancelled",
    "TimerFired",
    "TimerCancelled",
    "SideEffectRecorded",
    "VersionMarkerRecorded",
    "MemoUpserted",
    "SearchAttributesUpserted",
    "ConditionWaitSatisfied",
    "WorkflowContinuedAsNew",
    "ChildSignalSent",
    "ChildRunCompleted",
    "ChildRunFailed",
    "ChildRunCancelled",
    "ChildRunTerminated",
}
ENDS_RUN = {
    "WorkflowCompleted",
    "WorkflowFailed",
    "WorkflowTimedOut",
    "WorkflowCancelled",
    "WorkflowTerminated",
    "WorkflowContinuedAsNew",
}

MACHINE = Machine()


class Evidence(NamedTuple):
    """One instance on disk: its rows, and the history of each of its runs, oldest first."""

    loaded: Loaded
    histories: list[list[Recorded]]

    @property
    def events(self) -> list[Recorded]:
        return [entry for history in self.histories for entry in history]

    def types(self, run: int = -1) -> list[str]:
        return [entry.type for entry in self.histories[run]]

    @property
    def completed(self) -> set[str]:
        """Idempotency keys of the activities whose result is recorded."""
        return {
            entry.event.activity_execution_id  # type: ignore[attr-defined]
            for entry in self.events
            if entry.type in ("ActivityCompleted", "ActivityFailed")
        }


def gather(path: Path) -> dict[str, Evidence]:
    """Everything in the file, by workflow id. Reading verifies the checksums."""
    store = SqliteStore(str(path), MACHINE.kinds)
    try:
        found: dict[str, Evidence] = {}
        for row in reversed(store.runs(RunFilter(limit=100_000)).value):  # type: ignore[attr-defined]
            if row.workflow_id not in found:
                found[row.workflow_id] = Evidence(store.load(row.workflow).value, [])  # type: ignore[attr-defined]
            found[row.workflow_id].histories.append(store.history(row.key).value)  # type: ignore[attr-defined]
        for evidence in found.values():
            commands = store.commands(evidence.loaded.row.key).value  # type: ignore[attr-defined]
            assert any(c.command_type == "start" for c in commands), "a run without its start command"
        return found
    finally:
        store.close()


def on_their_way(path: Path) -> list[StoredSend]:
    """What was sent and not taken."""
    store = SqliteStore(str(path), MACHINE.kinds)
    try:
        return store.sends(0, 1000).value  # type: ignore[attr-defined]
    finally:
        store.close()


def check_families(found: dict[str, Evidence]) -> None:
    """Every parent has recorded what became of its children, and every child was started by its parent, once."""
    for evidence in found.values():
        for entry in evidence.events:
            event: Any = entry.event
            if entry.type == "ChildWorkflowScheduled":
                began: Any = found[event.child_workflow_instance_id].histories[0][1].event
                assert began.child_call_id == event.child_call_id
            elif isinstance(event, ChildRunCompleted | ChildUnsuccessful):
                child = found[event.child_workflow_instance_id].loaded.run
                assert child is not None
                told = (event.child_workflow_run_id, event.child_status, event.closed_reason, event.child_run_number)
                assert told == (child.run_id, child.status, child.closed_reason, child.number)


def fold(loaded: Loaded) -> Instance:
    """The instance as an engine would see it."""
    row = loaded.row
    flow = Instance(row.key, row.namespace, row.workflow_id)
    flow.exists = True
    flow.last_decision, flow.command_sequence, flow.cursor = row.last_decision, row.command_sequence, row.cursor
    flow.next_wake = row.next_wake
    assert loaded.run is not None
    run = flow.run = Run(loaded.run.key, loaded.run.run_id, loaded.run.number)
    MACHINE.fold(flow, run, loaded.history)
    for task in loaded.tasks:
        flow.tasks[task.id] = task
        add_task_deadlines(run, task)
    return flow


def check_consistent(evidence: Evidence) -> None:
    """At any moment: rows and history are of one commit, and everything that must come next is there to come."""
    loaded = evidence.loaded
    run = loaded.run
    assert run is not None
    assert loaded.row.expects == len(loaded.tasks)
    for history in evidence.histories:
        types = [entry.type for entry in history]
        assert types.count("WorkflowStarted") == 1
        assert sum(type in ENDS_RUN for type in types) <= 1
        assert max(Counter(steps_ended(history)).values(), default=1) == 1, "a step that ended twice"
    for history in evidence.histories[:-1]:
        assert end_of(history) in ("WorkflowContinuedAsNew", "WorkflowFailed"), (
            "only what continued or failed has a next run"
        )
    assert (run.closed_reason is not None) == (end_of(evidence.histories[-1]) is not None), (
        "the summary is not its history's"
    )
    flow = fold(loaded)
    summary = (run.status, run.closed_reason, run.closed_at, run.archived_at)
    folded = flow.current
    archived = folded.part(Archived).at if Archived in folded.parts else None
    assert summary == (folded.status, folded.closed_reason, folded.closed_at, archived), (
        "the summary is not its history's"
    )
    assert run.length <= len(loaded.history), "the summary is ahead of history"
    expected = MACHINE.expect(flow)
    assert set(expected.tasks) == {task.id for task in loaded.tasks}
    if expected.next_wake is None:
        assert loaded.row.next_wake is None or loaded.tasks, "a wake for nothing"
    else:
        assert loaded.row.next_wake is not None, "a deadline without a wake"
        assert loaded.row.next_wake <= expected.next_wake, "a wake that is late"


def check_closed(evidence: Evidence, lines: list[ledger.Line], status: str = "completed") -> None:
    """At the end: every step ended once, nothing is left to do, and whatever is recorded did happen."""
    check_consistent(evidence)
    loaded = evidence.loaded
    assert loaded.run is not None
    assert loaded.run.status == status
    assert loaded.row.unanswered == 0
    assert loaded.tasks == []
    assert loaded.row.next_wake is None
    assert MACHINE.expect(fold(loaded)) == ({}, None)
    for history in evidence.histories:
        steps = {entry.event.sequence for entry in history if isinstance(entry.event, StepEvent)}
        calls = {entry.event.sequence for entry in history if entry.type == "ChildWorkflowScheduled"}  # type: ignore[attr-defined]
        assert steps - set(steps_ended(history)) <= calls, "a step without an end"
        assert end_of(history) is not None
    attempts = {(line.key, line.attempt) for line in lines}
    for entry in evidence.events:
        if entry.type == "ActivityCompleted" and not entry.event.local_activity:  # type: ignore[attr-defined]
            event = entry.event
            assert (event.activity_execution_id, event.attempt_number) in attempts  # type: ignore[attr-defined]


def end_of(history: list[Recorded]) -> str | None:
    """The event that closed the run; answers of children may stand behind it."""
    return next((entry.type for entry in history if entry.type in ENDS_RUN), None)


def steps_ended(history: list[Recorded]) -> list[int]:
    """The step number of every event that ends a step."""
    return [entry.event.sequence for entry in history if entry.type in ENDS_STEP]  # type: ignore[attr-defined]


def first_argument(arguments: bytes) -> str:
    """The first argument of a recorded call."""
    given = loads(arguments, Any)
    return str((given["args"] if isinstance(given, dict) else given)[0])
