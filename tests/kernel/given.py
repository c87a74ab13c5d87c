"""Given a workflow, when a message arrives, then a decision: the harness of all kernel tests.

A `Flow` is one instance with a clock that stands still unless a test moves it, ids that count, and *stored* rows: what
a store would hold after applying every decision. Each decision is applied under the store's own rules (the guard, which
rows existed before), so every test also proves those. `refold` builds the instance anew from the stored rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from backstay.kernel.command import Command
from backstay.kernel.decision import CommandRecord, Decision, InstanceRow, RunRow
from backstay.kernel.event import Event, Recorded, pack_buffered, restore, unpack_buffered
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
from backstay.kernel.features.archive import Archived
from backstay.kernel.features.cancel import CancelState
from backstay.kernel.features.child import Child, Children
from backstay.kernel.features.condition import Conditions
from backstay.kernel.features.deadline import Due
from backstay.kernel.features.failures import Failures
from backstay.kernel.features.lease import Claim
from backstay.kernel.features.memo import Memo
from backstay.kernel.features.pause import Paused
from backstay.kernel.features.schedule import of as schedule_of
from backstay.kernel.features.search import SearchAttributes
from backstay.kernel.features.signal import DeliverSignal, Signals
from backstay.kernel.features.start import Identity, RecordedDefinition, Start
from backstay.kernel.features.timer import Timers
from backstay.kernel.features.update import Update, Updates
from backstay.kernel.features.version import Versions
from backstay.kernel.features.workflow_task import CompleteWorkflowTask, FailWorkflowTask
from backstay.kernel.groups import Group, Groups
from backstay.kernel.limits import Limits
from backstay.kernel.machine import NOTHING_DEPLOYED, Machine
from backstay.kernel.message import Message, Refused
from backstay.kernel.rows import instance_row
from backstay.kernel.state import Instance, Run
from backstay.kernel.task import Block, Lease, Task
from backstay.kernel.turn import Turn, add_task_deadlines
from backstay.kernel.values import LEASE, SECOND, Micros
from backstay.kernel.views.timeline import tell
from backstay.kernel.words import Story

from .telling import PLAIN

T0: Micros = 1_800_000_000 * SECOND
"""Where the clock of every test begins; `at` counts seconds from here."""

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


class Ids:
    """Identity that counts, so that two runs of a test agree on every id."""

    def __init__(self) -> None:
        self.keys = 0
        self.ulids = 0

    def key(self) -> int:
        self.keys += 1
        return self.keys

    def serial(self) -> int:
        return self.key()

    def ulid(self) -> str:
        self.ulids += 1
        return f"RUN{self.ulids}"


Offering = Callable[[Task], Lease | None]
"""Who takes a ready task, as the engine's matching would say it."""


def nobody(task: Task) -> None:
    """No worker takes it."""


class Decided(Decision):
    """A decision, and what a test also looks at: the ready tasks that nobody took, and whether anything is written."""

    unassigned: list[Task] = []
    idle: bool = False


def decide(
    machine: Machine,
    state: Instance,
    message: Message,
    now: Micros,
    ids: Any,
    offer: Offering = nobody,
    deployed: Mapping[str, str | None] = NOTHING_DEPLOYED,
) -> Decided:
    """One message in a turn of its own, as the engine makes it: decide, match, seal."""
    turn = machine.begin(state, ids, deployed)
    machine.decide(turn, message, now)
    unassigned = match(machine, turn, offer)
    idle = machine.idle(turn)
    sealed = Decision(instance_row(state, 0, False), turn.after, reply=turn.reply) if idle else machine.seal(turn)
    return Decided(**vars_of(sealed, Decision.__struct_fields__), unassigned=unassigned, idle=idle)


def match(machine: Machine, turn: Turn, offer: Offering = nobody) -> list[Task]:
    """Offer what a message made ready, as the engine does; the tasks that nobody took."""
    machine.create_task(turn)
    unassigned: list[Task] = []
    while turn.ready:
        ready, turn.ready = turn.ready, {}
        for task in ready.values():
            lease = offer(task)
            if lease is None:
                unassigned.append(task)
            else:
                machine.grant(turn, task, lease)
    return unassigned


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
        self.state = Instance(self.ids.key(), namespace, workflow_id)
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

    @property
    def now(self) -> Micros:
        return self._now

    @now.setter
    def now(self, now: Micros) -> None:
        self._now = now
        self.latest = max(self.latest, now)

    # -- messages

    def when(self, message: Message, at: float | None = None, offer: Offering = nobody) -> Decided:
        """Decide a message, `at` seconds after the beginning, and store what was decided."""
        if at is not None:
            self.now = instant(at)
        decision = decide(self.machine, self.state, message, self.now, self.ids, offer, self.deployed)
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
            setattr(decision, field, list(getattr(decision, field)))  # tuple or list is the kernel's own business
        self.decisions.append(decision)
        if not decision.idle:
            self._store(decision)
        return decision

    def refused(self, message: Message, at: float | None = None) -> Refused:
        """The refusal of a message; nothing of the instance may have changed by it."""
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

    # -- what tests say most often

    def start(self, workflow_type: str = "order", *, at: float | None = None, **options: Any) -> Decided:
        return self.when(started(self.state.workflow_id, workflow_type, **options), at)

    def due(self, at: float, *, deaf: tuple[float, float] = (0, 0)) -> Decided:
        """`deaf`: until when no worker could be heard, and until when those are waited for."""
        since, until = (instant(second) if second else 0 for second in deaf)
        return self.when(Due(since=since, until=until), at)

    def claim(self, task_id: str, owner: str = WORKER, at: float | None = None, until: Micros | None = LEASE) -> Task:
        """Lease a task to a worker over the wire, or with `until` None to one inside the engine."""
        if at is not None:
            self.now = instant(at)
        lease = Lease(owner=owner, until=None if until is None else self.now + until)
        return self.when(Claim(task_id=task_id, lease=lease)).reply

    def complete(
        self,
        *commands: Command,
        at: float | None = None,
        owner: str = WORKER,
        handled: Iterable[str] = (),
        numbered: bool = True,
    ) -> Decided:
        """Complete the workflow task with these commands; a ready one is claimed first."""
        return self.when(self.completion(*commands, owner=owner, at=at, handled=handled, numbered=numbered))

    def completion(
        self,
        *commands: Command,
        owner: str = WORKER,
        at: float | None = None,
        handled: Iterable[str] = (),
        numbered: bool = True,
    ) -> CompleteWorkflowTask:
        """The completion of the workflow task, which is claimed first if it is ready."""
        task = self._held(owner, at)
        return CompleteWorkflowTask(
            task_id=task.id,
            owner=owner,
            attempt=task.attempt,
            commands=list(commands),
            handled_failures=list(handled),
            numbered=numbered,
        )

    def lease(self, owner: str = WORKER, at: float | None = None) -> Task:
        """Claim the workflow task: from here on code is in the middle of it."""
        return self.claim(self.workflow_task.id, owner, at)

    def signal(self, name: str = "go", at: float | None = None, **more: Any) -> Decided:
        return self.when(DeliverSignal(name=name, **more), at)

    def update(self, name: str = "add", at: float | None = None, **more: Any) -> Decided:
        return self.when(Update(name=name, **more), at)

    def again(self, message: Any, at: float | None = None) -> Decided:
        """Send a command once more, as the shell does: with the record of the first one that had its request id."""
        return self.when(self.retried(message), at)

    def retried(self, message: Any) -> Any:
        """A command with the record of its first attempt, which the shell looks up by the request id."""
        kinds, request_id = message.idempotency_key() or ((), None)
        found = [c for c in self.commands if c.command_type in kinds and c.request_id == request_id]
        return replace(message, retained=found[0] if found else None)

    def break_task(self, block: Block, at: float | None = None, owner: str = WORKER) -> Decided:
        """Fail the workflow task."""
        task = self._held(owner, at)
        return self.when(FailWorkflowTask(task_id=task.id, owner=owner, attempt=task.attempt, block=block))

    def _held(self, owner: str, at: float | None) -> Task:
        if at is not None:
            self.now = instant(at)
        task = self.workflow_task
        return task if task.state == "leased" else self.claim(task.id, owner)

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
        """Who speaks: the current attempt, unless the test names another one."""
        execution = self.run.part(Activities).open.get(step)
        found = {"attempt": 1, "owner": WORKER} if execution is None else vars_of(execution, ("attempt", "owner"))
        return {"step": step, "run_id": self.run.run_id, **found, **named}

    # -- what a test looks at

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

    def lose(self, *task_ids: str) -> None:
        """Rows vanish behind the engine's back, and the engine comes up again."""
        for task_id in task_ids:
            del self.rows[task_id]
        self.reopen()

    def reopen(self) -> None:
        """The engine comes up again on the stored rows."""
        self.state = refold(self)


def given(
    *commands: Command, machine: Machine = MACHINE, limits: Limits | None = None, at: float = 0, **options: Any
) -> Flow:
    """A started workflow whose first task asked for these commands; without any, that task is ready."""
    flow = Flow(machine if limits is None else Machine(limits=limits))
    flow.start(at=at, **options)
    if commands:
        flow.complete(*commands)
    return flow


def running(policy: RetryPolicy | None = None, *, until: Micros | None = LEASE, **options: Any) -> Flow:
    """A workflow that waits for the activity of step 1, which a worker has just begun."""
    flow = given(ScheduleActivity(activity_type="charge", retry_policy=policy), **options)
    flow.begin(1, until=until)
    return flow


def started(workflow_id: str = "order-1", workflow_type: str = "order", **options: Any) -> Start:
    return Start(namespace="default", workflow_id=workflow_id, workflow_type=workflow_type, **options)


def to(owner: str, until: Micros | None = None) -> Offering:
    """Everything that comes out ready is taken by this worker at once."""
    return lambda task: Lease(owner=owner, until=until)


def names(entries: Iterable[Recorded]) -> list[str]:
    return [entry.type for entry in entries]


def only(decision: Decision, kind: type[Event]) -> Any:
    """The one event of this kind that was decided."""
    (event,) = (entry.event for entry in decision.events if isinstance(entry.event, kind))
    return event


def vars_of(thing: object, fields: Iterable[str]) -> dict[str, Any]:
    return {field: getattr(thing, field) for field in fields}


def refold(flow: Flow) -> Instance:
    """The instance as an engine that has just come up folds it: from the stored bytes and rows, nothing else."""
    row = flow.row
    assert row is not None
    state = Instance(row.key, row.namespace, row.workflow_id)
    state.workflow_type = row.workflow_type
    state.exists = True
    state.last_decision = row.last_decision
    state.command_sequence = row.command_sequence
    state.cursor = row.cursor
    state.next_wake = row.next_wake
    state.reserved_at = row.reserved_at
    if row.run is not None:
        index = flow.runs[row.run]
        run = state.run = Run(index.key, index.run_id, index.number)
        flow.machine.fold(state, run, reread(flow.machine, flow.histories[row.run]))
        for task in flow.rows.values():
            state.keep_task(task)
            add_task_deadlines(run, task)
    state.buffered_events = unpack_buffered(flow.machine.kinds, pack_buffered(row.buffered_events))
    return state


def reread(machine: Machine, history: Iterable[Recorded]) -> list[Recorded]:
    """A history read back from its stored bytes, its checksums verified."""
    found: list[Recorded] = []
    previous = (0, 0)
    for entry in history:
        stored = (entry.sequence, entry.type, entry.at, entry.body, entry.context_body, entry.checksum)
        found.append(restore(machine.kinds, entry.run, stored, previous))
        previous = (entry.sequence, entry.checksum)
    return found


def snapshot(flow: Flow, state: Instance | None = None) -> dict[str, Any]:
    """Everything that an instance is, as plain data.

    Left out is what lives in memory only and may differ after a restart: unrecorded heartbeats, and that a retry whose
    backoff is over was offered already (a restart offers it once more).
    """
    state = state or flow.state
    run = state.run
    found: dict[str, Any] = {
        "exists": state.exists,
        "last": state.last_decision,
        "type": state.workflow_type,
        "reserved_at": state.reserved_at,
        "command_sequence": state.command_sequence,
        "cursor": state.cursor,
        "held": list(state.buffered_events),
        "busy": state.running_task,
        "next_wake": state.next_wake,
        "tasks": msgspec.to_builtins(state.tasks),
    }
    if run is None:
        return found
    fields = ("key", "run_id", "number", "status", "closed_reason", "workflow_type", "routing", "started_at")
    more = ("closed_at", "length", "bytes", "checksum", "last_at", "step")
    agenda = sorted(entry for entry in set(run.agenda) if _counts(flow, state, entry))
    found |= vars_of(run, fields + more)
    found |= {
        "waking": [entry for entry in run.wake_events if entry[0] > state.cursor],
        "apart": list(run.own_task_events),
        "agenda": agenda,
        "activities": {step: _plain(execution) for step, execution in run.part(Activities).open.items()},
        "timers": (dict(run.part(Timers).pending), copy(run.part(Timers).fired)),
        "signals": (dict(run.part(Signals).received), dict(run.part(Signals).waits)),
        "conditions": dict(run.part(Conditions).open),
        "updates": dict(run.part(Updates).pending),
        "cancellation": run.part(CancelState).requested,
        "paused": run.part(Paused).entry,
        "archived": vars_of(run.part(Archived), Archived.__slots__),
        "versions": dict(run.part(Versions).markers),
        "memo": dict(run.part(Memo).values),
        "search_attributes": dict(run.part(SearchAttributes).values),
        "failures": dict(run.part(Failures).raised),
        "identity": vars_of(run.part(Identity), Identity.__slots__),
        "children": {step: vars_of(child, Child.__slots__) for step, child in run.part(Children).open.items()},
        "groups": _groups(run.part(Groups)),
        "schedule": msgspec.to_builtins(schedule_of(run)),
    }
    return found


def _counts(flow: Flow, state: Instance, entry: tuple[Micros, str, int | str]) -> bool:
    at, kind, id = entry
    if kind == "heartbeat" or (kind in ("retry", "first_task") and at <= flow.latest):
        return False
    return flow.machine.agenda.deadlines[kind].armed(state, id) == at


def _groups(groups: Groups) -> dict[str, Any]:
    found = {id: vars_of(group, Group.__slots__) for id, group in groups.groups.items()}
    return {"groups": found, "paths": dict(groups.paths), "freed": list(groups.freed)}


def _plain(execution: Execution) -> dict[str, Any]:
    return vars_of(execution, (field for field in Execution.__slots__ if field != "heard_at"))
