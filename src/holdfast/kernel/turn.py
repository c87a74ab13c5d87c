"""One message being decided. A turn folds each event as it is recorded, so that the next command sees it.

Folding while deciding keeps features simple (record a fact and read the state that follows from it). The price is the
rule of the shell: a turn that is not committed takes the state down with it, and the state is folded again.
Features therefore check everything they can refuse before they record anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.kernel.decision import CommandRecord, RunRow
from holdfast.kernel.event import NO_CONTEXT, Context, Event, Recorded, record
from holdfast.kernel.message import Refused
from holdfast.kernel.task import Lease, Task
from holdfast.kernel.values import Ids, Micros, command_id

if TYPE_CHECKING:
    from holdfast.kernel.machine import Machine
    from holdfast.kernel.state import Run, Workflow


def watch(run: Run, task: Task) -> None:
    """Put the deadlines of a task row on the agenda; unlike a run's own they are not in its history."""
    if task.until is not None:
        run.remind(task.until, "lease", task.id)
    if task.repair_available_at is not None:
        run.remind(task.repair_available_at, "repair", task.id)


class Turn:
    __slots__ = (
        "closed",
        "commands",
        "context",
        "events",
        "flow",
        "ids",
        "indexed",
        "machine",
        "now",
        "offer",
        "reply",
        "runs_started",
        "touched",
    )

    def __init__(
        self, machine: Machine, flow: Workflow, now: Micros, ids: Ids, offer: Callable[[Task], Lease | None]
    ) -> None:
        self.machine = machine
        self.flow = flow
        self.ids = ids
        self.offer = offer
        # Time never runs backwards inside an instance, whatever the machine's clock does.
        self.now: Micros = now if flow.run is None or now >= flow.run.last_at else flow.run.last_at
        self.context: Context = NO_CONTEXT
        self.events: list[Recorded] = []
        self.touched: dict[str, bool] = {}  # task id -> a row existed before this turn
        self.commands: list[CommandRecord] = []
        self.reply: Any = None
        self.indexed: dict[int, RunRow] = {}
        self.runs_started: set[int] = set()
        self.closed: list[str] = []

    @property
    def run(self) -> Run:
        return self.flow.current

    def record(self, event: Event) -> Recorded:
        """Append a fact to the current run and fold it."""
        run = self.flow.run
        if run is None:
            raise LookupError("no run to record on")
        entry = record(run.key, run.length + 1, self.now, event, self.context, run.checksum)
        self.machine.evolve(self.flow, run, entry)
        self.events.append(entry)
        return entry

    def put(self, task: Task) -> Task:
        tasks = self.flow.tasks
        self.touched.setdefault(task.id, task.id in tasks)
        tasks[task.id] = task
        watch(self.run, task)
        return task

    def drop(self, task_id: str) -> None:
        tasks = self.flow.tasks
        if task_id in tasks:
            self.touched.setdefault(task_id, True)
            del tasks[task_id]

    def hold(self, task_id: str, owner: str, attempt: int) -> Task:
        """The leased task that this call speaks for, or a refusal."""
        task = self.flow.tasks.get(task_id)
        if task is None:
            raise Refused("task_not_found", f"task {task_id} does not exist or is already closed", task_id=task_id)
        if task.state != "leased":
            raise Refused("task_not_leased", f"task {task_id} is not leased", task_id=task_id, task_status=task.state)
        if task.owner != owner:
            raise Refused(
                "lease_owner_mismatch", f"task {task_id} is leased to another worker", lease_owner=task.owner
            )
        if task.attempt != attempt:
            raise Refused(
                "workflow_task_attempt_mismatch" if task.kind == "workflow" else "stale_attempt",
                f"task {task_id} is on attempt {task.attempt}, not {attempt}",
                current_attempt=task.attempt,
            )
        if task.until is not None and task.until <= self.now:
            raise Refused(
                "lease_expired",
                f"the lease of task {task_id} has expired; it is delivered again",
                lease_owner=task.owner,
                lease_expires_at=task.until,
                task_status="lease_expired",
            )
        return task

    def release(self, task: Task) -> Task:
        """Give a lease back: the same task is offered again, with its next attempt."""
        return self.put(
            replace(task, state="ready", owner=None, leased_at=None, until=None, call=None, seen=None, block=None)
        )

    def command(
        self,
        command_type: str,
        *,
        outcome: str | None,
        source: str,
        status: str = "accepted",
        rejection_reason: str | None = None,
        request_id: str | None = None,
        context: dict[str, Any] | None = None,
        payload: bytes | None = None,
    ) -> CommandRecord:
        """Record a command of the current run in the audit trail, with the run's next command sequence."""
        run = self.run
        self.flow.command_sequence += 1
        sequence = self.flow.command_sequence
        entry = CommandRecord(
            id=command_id(run.run_id, sequence),
            run=run.key,
            sequence=sequence,
            command_type=command_type,
            status=status,
            outcome=outcome,
            at=self.now,
            source=source,
            request_id=request_id,
            rejection_reason=rejection_reason,
            context=context or {},
            payload=payload,
        )
        self.commands.append(entry)
        return entry

    def index(self) -> None:
        """Rewrite the index row of the current run in this commit."""
        row = self.machine.index(self.flow)
        self.indexed[row.key] = row
