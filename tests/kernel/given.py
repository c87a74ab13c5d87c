"""Given a workflow, when a message arrives, then a decision: the harness of all kernel tests.

A `Flow` is one instance with a clock that only a test moves, ids that count, and the rows that a store would hold after
every decision. Each decision is applied under the rules of a store (the guard, which rows existed before), so every test
also checks those. `deciding` decides one message as the engine does; `stored` folds the instance again from its rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from backstay.kernel.command import Command
from backstay.kernel.decision import CommandRecord, Decision, InstanceRow, RunRow
from backstay.kernel.event import Event, Recorded
from backstay.kernel.failure import Failure
from backstay.kernel.features.activity import (
    Activities,
    CompleteActivity,
    FailActivity,
    HeartbeatActivity,
    Progress,
    RetryPolicy,
    ScheduleActivity,
)
from backstay.kernel.features.activity.records import Execution
from backstay.kernel.features.deadline import Due
from backstay.kernel.features.instance_commands import InstanceCommand
from backstay.kernel.features.lease import Claim
from backstay.kernel.features.signal import DeliverSignal
from backstay.kernel.features.start import RecordedDefinition, Start
from backstay.kernel.features.update import Update
from backstay.kernel.features.workflow_task import CompleteWorkflowTask, FailWorkflowTask
from backstay.kernel.fleet import LiveFleet
from backstay.kernel.limits import Limits
from backstay.kernel.machine import Machine
from backstay.kernel.message import EarlierRun, Message, Refused
from backstay.kernel.state import Instance, Run
from backstay.kernel.task import Block, Lease, Task
from backstay.kernel.values import LEASE, SECOND, Micros
from backstay.kernel.views.timeline import tell
from backstay.kernel.words import Story

from .deciding import Decided, Deployed, Ids, Offering, decide, nobody, vars_of
from .stored import refold, reread, snapshot
from .telling import PLAIN

T0: Micros = 1_800_000_000 * SECOND
"""The time at which every test begins; `at` counts seconds from here."""

WORKER = "worker-1"
MACHINE = Machine()


def parameter(name: str, type: str | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "required": True, "type": type, "allows_null": False, **more}


TALKING = RecordedDefinition(
    signals=["go", "stop", "note"],
    signal_contracts=[
        {"name": "go", "mode": "wait", "parameters": []},
        {"name": "stop", "mode": "wait", "parameters": []},
        {"name": "note", "mode": "handler", "parameters": [parameter("text", "string", required=False)]},
    ],
    updates=["add"],
    update_contracts=[{"name": "add", "parameters": [parameter("amount", "int", required=False)]}],
)
"""A workflow that waits for `go` and `stop`, handles `note`, and takes the update `add`."""


def instant(at: float) -> Micros:
    return T0 + round(at * SECOND)


class Flow:
    """One workflow instance under test."""

    def __init__(
        self,
        machine: Machine = MACHINE,
        workflow_id: str = "order-1",
        ids: Ids | None = None,
        namespace: str = "default",
    ) -> None:
        self.machine = machine
        self.ids = ids or Ids()
        self.state = Instance(self.ids.key(0), namespace, workflow_id)
        self.latest: Micros = T0
        self.now = T0
        self.decisions: list[Decided] = []
        self.row: InstanceRow | None = None
        self.rows: dict[str, Task] = {}
        self.runs: dict[int, RunRow] = {}
        self.histories: dict[int, list[Recorded]] = {}
        self.stories: dict[int, Story] = {}
        self.commands: list[CommandRecord] = []
        self.deployed: dict[str, str | None] = {}
        self.fleet: LiveFleet | None = None  # instead of one that has what is deployed

    @property
    def now(self) -> Micros:
        return self._now

    @now.setter
    def now(self, now: Micros) -> None:
        self._now = now
        self.latest = max(self.latest, now)

    # -- any message

    def when(self, message: Message, at: float | None = None, offer: Offering = nobody) -> Decided:
        """Decide a message, `at` seconds after the beginning, and store the decision."""
        if at is not None:
            self.now = instant(at)
        if isinstance(message, InstanceCommand) and message.earlier is None and message.run_id is not None:
            key = next(key for key, row in self.runs.items() if row.run_id == message.run_id)
            message = replace(message, earlier=self.earlier(key))
        decision = decide(
            self.machine, self.state, message, self.now, self.ids, offer, self.fleet or Deployed(self.deployed)
        )
        for field in (
            "events",
            "tasks",
            "runs",
            "commands",
            "leased",
            "closed",
            "sends",
            "taken_sends",
            "notifications",
        ):
            setattr(
                decision, field, list(getattr(decision, field))
            )  # tests compare lists; the kernel leaves an empty tuple
        self.decisions.append(decision)
        if not decision.idle:
            self._store(decision)
        return decision

    def refused(self, message: Message, at: float | None = None) -> Refused:
        """The refusal of a message, which must not change the instance."""
        if at is not None:
            self.now = instant(at)
        before = snapshot(self)
        with pytest.raises(Refused) as caught:
            self.when(message)
        assert snapshot(self) == before
        return caught.value

    def _store(self, decision: Decision) -> None:
        assert decision.after == (0 if self.row is None else self.row.last_decision), "the guard names another decision"
        self.row = decision.instance
        for entry in decision.events:
            self.histories.setdefault(entry.run, []).append(entry)
            assert tell(self.stories.setdefault(entry.run, Story(PLAIN)), entry).text, "every event has words"
        for change in decision.tasks:
            assert change.stored == (change.task_id in self.rows), f"{change.task_id}: `stored` does not match the rows"
            if change.task is None:
                self.rows.pop(change.task_id, None)
            else:
                self.rows[change.task_id] = change.task
        assert decision.instance.expects == len(self.rows) + self.state.missing_tasks
        for new, row in decision.runs:
            assert new == (row.key not in self.runs)
            self.runs[row.key] = row
        self.commands += decision.commands

    # -- the instance

    def start(self, workflow_type: str = "order", *, at: float | None = None, **options: Any) -> Decided:
        return self.when(started(self.state.workflow_id, workflow_type, **options), at)

    def due(self, at: float, *, unreachable: tuple[float, float] = (0, 0)) -> Decided:
        """The wake of the instance. `unreachable`: until when no worker could reach the engine, and until when it waits for them."""
        since, until = (instant(second) if second else 0 for second in unreachable)
        return self.when(Due(since=since, until=until), at)

    def signal(self, name: str = "go", at: float | None = None, **more: Any) -> Decided:
        return self.when(DeliverSignal(name=name, **more), at)

    def update(self, name: str = "add", at: float | None = None, **more: Any) -> Decided:
        return self.when(Update(name=name, **more), at)

    def earlier(self, key: int) -> EarlierRun | None:
        """A run before the current one, as the shell hands it in."""
        if key == self.run.key:
            return None
        row = self.runs[key]
        return EarlierRun(
            key=key,
            run_id=row.run_id,
            number=row.number,
            commands=max((c.sequence or 0 for c in self.commands if c.run == key), default=0),
            loaded_from=self.state.loaded_from,
            history=reread(self.machine, self.histories[key]),
        )

    def again(self, message: Any, at: float | None = None) -> Decided:
        """Retry a command as the shell does: with the record of its first attempt."""
        return self.when(self.retried(message), at)

    def retried(self, message: Any) -> Any:
        """A command with the record of its first attempt, which the shell looks up by the request id."""
        kinds, request_id = message.idempotency_key() or ((), None)
        found = [c for c in self.commands if c.command_type in kinds and c.request_id == request_id]
        return replace(message, retained=found[0] if found else None)

    # -- its workflow task

    def claim(self, task_id: str, owner: str = WORKER, at: float | None = None, until: Micros | None = LEASE) -> Task:
        """Lease a task to a worker over the wire, or with `until` None to one inside the engine."""
        if at is not None:
            self.now = instant(at)
        lease = Lease(owner=owner, until=None if until is None else self.now + until)
        return self.when(Claim(task_id=task_id, lease=lease)).reply

    def lease(self, owner: str = WORKER, at: float | None = None) -> Task:
        """Claim the workflow task: its code is running from here on."""
        return self.claim(self.workflow_task.id, owner, at)

    def complete(
        self,
        *commands: Command,
        at: float | None = None,
        owner: str = WORKER,
        handled: Iterable[str] = (),
        numbered: bool = True,
    ) -> Decided:
        """Complete the workflow task with these commands; a ready task is claimed first."""
        return self.when(self.completion(*commands, owner=owner, at=at, handled=handled, numbered=numbered))

    def completion(
        self,
        *commands: Command,
        owner: str = WORKER,
        at: float | None = None,
        handled: Iterable[str] = (),
        numbered: bool = True,
    ) -> CompleteWorkflowTask:
        """The message that completes the workflow task; a ready task is claimed first."""
        task = self._leased_task(owner, at)
        return CompleteWorkflowTask(
            task_id=task.id,
            owner=owner,
            attempt=task.attempt,
            commands=list(commands),
            handled_failures=list(handled),
            numbered=numbered,
        )

    def break_task(self, block: Block, at: float | None = None, owner: str = WORKER) -> Decided:
        """Fail the workflow task."""
        task = self._leased_task(owner, at)
        return self.when(FailWorkflowTask(task_id=task.id, owner=owner, attempt=task.attempt, block=block))

    def _leased_task(self, owner: str, at: float | None) -> Task:
        if at is not None:
            self.now = instant(at)
        task = self.workflow_task
        return task if task.state == "leased" else self.claim(task.id, owner)

    # -- its activities

    def begin(self, step: int, owner: str = WORKER, at: float | None = None, until: Micros | None = LEASE) -> Task:
        """Claim the activity of a step."""
        return self.claim(self.activity_task(step).id, owner, at, until)

    def finish(self, step: int, result: bytes | None = b"ok", at: float | None = None, **named: Any) -> Decided:
        return self.when(self.finished(step, result, **named), at)

    def finished(self, step: int, result: bytes | None = b"ok", **named: Any) -> CompleteActivity:
        return CompleteActivity(**self._attempt(step, named), result=result)

    def fail(self, step: int, failure: Failure | str = "boom", at: float | None = None, **named: Any) -> Decided:
        return self.when(self.failed(step, failure, **named), at)

    def failed(self, step: int, failure: Failure | str = "boom", **named: Any) -> FailActivity:
        raised = Failure(message=failure) if isinstance(failure, str) else failure
        return FailActivity(**self._attempt(step, named), failure=raised)

    def beat(self, step: int, at: float | None = None, progress: Progress | None = None, **named: Any) -> Decided:
        return self.when(HeartbeatActivity(**self._attempt(step, named), progress=progress), at)

    def _attempt(self, step: int, named: dict[str, Any]) -> dict[str, Any]:
        """The fields of a report: those of the current attempt, unless the test passes others."""
        execution = self.run.part(Activities).open.get(step)
        found = {"attempt": 1, "owner": WORKER} if execution is None else vars_of(execution, ("attempt", "owner"))
        return {"step": step, "run_id": self.run.run_id, **found, **named}

    # -- a restart of the engine

    def lose(self, *task_ids: str) -> None:
        """Delete task rows, and start the engine again."""
        for task_id in task_ids:
            del self.rows[task_id]
        self.reopen()

    def reopen(self) -> None:
        """Start the engine again on the stored rows."""
        self.state = refold(self)

    # -- its state

    @property
    def run(self) -> Run:
        return self.state.current

    @property
    def history(self) -> list[Recorded]:
        """The current run's stored events."""
        return self.histories[self.run.key]

    @property
    def tasks(self) -> dict[str, Task]:
        return self.state.tasks

    @property
    def workflow_task(self) -> Task:
        (task,) = (task for task in self.tasks.values() if task.kind == "workflow")
        return task

    def activity_task(self, step: int) -> Task:
        (task,) = (task for task in self.tasks.values() if task.kind == "activity" and task.step == step)
        return task

    def execution(self, step: int) -> Execution:
        return self.run.part(Activities).open[step]


def given(
    *commands: Command, machine: Machine = MACHINE, limits: Limits | None = None, at: float = 0, **options: Any
) -> Flow:
    """A started workflow whose first task has completed with these commands; without commands the task is ready."""
    flow = Flow(machine if limits is None else Machine(limits=limits))
    flow.start(at=at, **options)
    if commands:
        flow.complete(*commands)
    return flow


def running(policy: RetryPolicy | None = None, *, until: Micros | None = LEASE, **options: Any) -> Flow:
    """A workflow that waits for the activity of step 1, which a worker has just claimed."""
    flow = given(ScheduleActivity(activity_type="charge", retry_policy=policy), **options)
    flow.begin(1, until=until)
    return flow


def started(workflow_id: str = "order-1", workflow_type: str = "order", **options: Any) -> Start:
    return Start(namespace="default", workflow_id=workflow_id, workflow_type=workflow_type, **options)


def names(entries: Iterable[Recorded]) -> list[str]:
    return [entry.type for entry in entries]


def only(decision: Decision, kind: type[Event]) -> Any:
    """The only event of this kind in a decision."""
    (event,) = (entry.event for entry in decision.events if isinstance(entry.event, kind))
    return event
