"""A turn: the messages of one instance that are decided together, and their effects so far.

Messages are decided one after another in the same turn, until it is sealed and becomes one decision. A turn folds each
event as it is recorded, so that the next command sees it. That keeps features simple: they record a fact and read the
state that follows from it. The price is a rule for the engine: if a turn is not committed, its state is discarded with
it and folded again from history. Features therefore check everything they can refuse before they record anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import replace

from backstay.kernel.command import Command, StepCommand
from backstay.kernel.decision import CommandRecord, RunRow
from backstay.kernel.event import NO_CONTEXT, Context, Event, Recorded, encode, encode_context, record
from backstay.kernel.fleet import LiveFleet
from backstay.kernel.groups import Groups
from backstay.kernel.message import EarlierRun, Refused
from backstay.kernel.send import OutboxMessage, Send
from backstay.kernel.task import Lease, Task
from backstay.kernel.values import Ids, Micros, command_id

if TYPE_CHECKING:
    from backstay.kernel.state import Instance, Run
    from backstay.kernel.tables import FeatureTables

T = TypeVar("T")


def add_task_deadlines(run: Run, task: Task) -> None:
    """Put the deadlines of a task row on the agenda. Unlike a run's own deadlines they are not in its history."""
    if task.until is not None:
        run.add_deadline(task.until, "lease", task.id)
    if task.repair_available_at is not None:
        run.add_deadline(task.repair_available_at, "repair", task.id)


def appended(entries: Sequence[T], entry: T) -> list[T]:
    """The entries with one more: the same list, or a new one if there was none."""
    if isinstance(entries, list):
        entries.append(entry)
        return entries
    return [entry]


def context_of(task: Task) -> Context:
    """The context of events that are caused by work on a leased task."""
    return Context(
        decided_after=task.seen,
        task_id=task.id,
        attempt=task.attempt,
        owner=task.owner,
        leased_at=task.leased_at,
        lease_expires_at=task.until,
    )


_Steps = tuple[Sequence[Command], dict[int, Command]]
_NO_STEPS: Final[_Steps] = ((), {})


class Turn:
    """The state, the time and the effects of the messages that are decided together."""

    # Slots, not fields of a struct: they are written many times a step, and only to slots does Python write directly.
    __slots__ = (
        "after",
        "changed_tasks",
        "closed",
        "commands",
        "context",
        "created_tasks",
        "due_task",
        "encoded",
        "encoding",
        "events",
        "features",
        "fleet",
        "granted",
        "ids",
        "indexed",
        "instance",
        "notifications",
        "now",
        "pending_commands",
        "ready",
        "reindex",
        "reply",
        "run",
        "runs_started",
        "sends",
        "steps",
        "taken_sends",
        "to_offer",
        "withdrawn",
    )

    def __init__(self, machine: FeatureTables, instance: Instance, ids: Ids, fleet: LiveFleet) -> None:
        self.features = machine
        self.instance = instance
        # The current run. An instance that was only reserved has none, and no feature reads it then.
        self.run: Run = instance.run  # type: ignore[assignment]
        self.now: Micros = 0
        self.ids = ids
        self.fleet = fleet
        self.after = instance.last_decision  # the decision that this turn is based on
        self.context = NO_CONTEXT  # the cause of the events that are recorded next
        self.encoded = NO_CONTEXT  # the last context that was encoded, and its bytes
        self.encoding = b""
        self.events: list[Recorded] = []
        self.changed_tasks: dict[str, bool] = {}  # task id -> a row existed before this turn
        self.to_offer: list[str] = []  # tasks to look at: those of them that are ready are offered
        self.ready: dict[str, Task] = {}  # tasks that the caller may grant to a worker, by id
        self.due_task: Task | None = None  # a workflow task without a row: its code may run before the turn is sealed
        self.reply: Any = None
        self.created_tasks: list[str] | None = None  # tasks that the message has made, if its reply is to name them
        self.reindex = False
        self.granted: list[Task] = []  # tasks that were leased in this turn
        # Most turns have none of these, and an empty tuple that all share costs nothing; the first entry makes a list.
        self.commands: Sequence[CommandRecord] = ()
        self.notifications: Sequence[tuple[str, Any]] = ()
        self.withdrawn: Sequence[str] = ()
        self.sends: Sequence[Send] = ()
        self.taken_sends: Sequence[int] = ()
        self.pending_commands: Sequence[Command] = ()  # the commands of the completion that is being checked
        self.steps: _Steps = _NO_STEPS  # the steps that these take, filled when one is first looked up
        self.indexed: Sequence[tuple[bool, RunRow]] = ()
        self.runs_started: Sequence[int] = ()
        self.closed: Sequence[str] = ()

    def record(self, event: Event) -> Recorded:
        """Append an event to the current run and fold it."""
        run = self.run
        if run.grouped and type(event) in self.features.grouped_kinds:
            path = run.part(Groups).paths.get(event.sequence)  # type: ignore[attr-defined]
            if path:
                event = replace(event, parallel_group_path=path)  # every event of a leaf says where it belongs
        context = self.context
        if context is NO_CONTEXT:
            body = b""
        elif context is self.encoded:
            body = self.encoding
        else:
            self.encoded = context
            body = self.encoding = encode(context)
        at = self.now
        if at < run.last_at:
            # The clock was set back. Times in history never decrease; deadlines go by the clock, so the context keeps the
            # difference. Without that a timer would take longer by as much. Test: `tests/kernel/test_clock.py`.
            context = replace(context, clock_skew=run.last_at - at)
            body = encode_context(context)
            at = run.last_at
        entry = record(run.key, run.length + 1, at, event, context, body, run.checksum)
        self.features.evolve(self.instance, run, entry)
        self.events.append(entry)
        if run.grouped:
            groups = run.part(Groups)
            if groups.won is not None:
                self.features.resolve(self, entry)
            if groups.freed:
                self.features.dispatch_freed(self, groups)
        return entry

    def inherit(self, event: Event, at: Micros, context: Context) -> None:
        """Append an event of another run's history, with its time. Nothing follows from it: that took place there."""
        run = self.run
        entry = record(run.key, run.length + 1, at, event, context, encode_context(context), run.checksum)
        self.features.evolve(self.instance, run, entry)
        self.events.append(entry)

    def command_at_step(self, step: int) -> Command | None:
        """The command that takes this step, of the completion being checked; the run has not reached it yet."""
        indexed_commands, steps = self.steps
        if indexed_commands is not self.pending_commands:
            # A table, because a completion may have thousands of commands that are all looked up.
            steps = {}
            self.steps = self.pending_commands, steps
            reached = self.run.step
            for command in self.pending_commands:
                if isinstance(command, StepCommand) and (command.sequence is None or command.sequence > reached):
                    reached += 1
                    steps[reached] = command
        return steps.get(step)

    def task(self, id: str) -> Task | None:
        """A task of this instance, with or without a row."""
        found = self.instance.tasks.get(id)
        return self.due_task if found is None and self.due_task is not None and self.due_task.id == id else found

    def put_task(self, task: Task) -> Task:
        """Write the row of a task, new or changed. If the task is ready, it is offered once the message is decided."""
        instance = self.instance
        existed = task.id in instance.tasks
        self.changed_tasks.setdefault(task.id, existed)
        if self.created_tasks is not None and not existed:
            self.created_tasks.append(task.id)
        if task.created_at > self.now:  # the clock was set back since: keep the pause, counted from now
            pause = task.available_at - task.created_at
            task = replace(task, created_at=self.now, available_at=self.now + pause)
        instance.keep_task(task)
        if task.state == "ready":
            self.to_offer.append(task.id)
        if task.until is not None or task.repair_available_at is not None:
            add_task_deadlines(self.run, task)
        return task

    def drop_task(self, task_id: str) -> None:
        """Delete the row of a task."""
        instance = self.instance
        if task_id in instance.tasks:
            self.changed_tasks.setdefault(task_id, True)
            del instance.tasks[task_id]
            if self.created_tasks is not None and task_id in self.created_tasks:
                self.created_tasks.remove(task_id)
            if instance.running_task == task_id:
                instance.running_task = next(
                    (t.id for t in instance.tasks.values() if t.kind == "workflow" and t.state == "leased"), None
                )

    def withdraw_task(self, task_id: str) -> None:
        """Delete the task of an attempt that is over. Its worker learns of it after the commit."""
        self.drop_task(task_id)
        self.withdrawn = appended(self.withdrawn, task_id)

    def require_lease(self, task_id: str, owner: str, attempt: int) -> Task:
        """The task that a worker reports on, if it holds the lease of this attempt; otherwise the report is refused."""
        task = self.instance.tasks.get(task_id)
        if task is None:
            raise Refused("task_not_found", f"task {task_id} does not exist or is already closed", task_id=task_id)
        if task.state != "leased":
            raise Refused("task_not_leased", f"task {task_id} is not leased", task_id=task_id, task_status=task.state)
        if task.owner != owner:
            raise Refused("lease_owner_mismatch", f"task {task_id} is leased to another worker", lease_owner=task.owner)
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

    def create_task(self) -> None:
        """Give the due workflow task a row: a message is about it, or its code does not run before the turn is
        sealed."""
        if self.due_task is not None:
            task, self.due_task = self.due_task, None
            self.put_task(task)

    def grant(self, task: Task, lease: Lease) -> Task:
        """Lease a ready task that the state expects, and record what that means for its run."""
        leased = self.put_task(
            replace(
                task,
                state="leased",
                attempt=task.attempt + 1,
                owner=lease.owner,
                leased_at=self.now,
                until=lease.until,
                call=lease.call,
                node=lease.node,
                seen=(self.run.length if task.history_limit is None else task.history_limit)
                if task.kind == "workflow"
                else None,
            )
        )
        self.granted.append(leased)
        claimed = self.features.tasks[task.kind].claimed
        if claimed is not None:  # nothing is recorded when a workflow task is claimed
            self.context = context_of(leased)
            claimed(self, leased)
            self.context = NO_CONTEXT
        return leased

    def release_lease(self, task: Task) -> Task:
        """End the lease of a task: the same task is offered again, as its next attempt."""
        return self.put_task(
            replace(
                task,
                state="ready",
                owner=None,
                leased_at=None,
                until=None,
                call=None,
                node=None,
                seen=None,
                block=None,
            )
        )

    def command(
        self,
        command_type: str,
        *,
        outcome: str | None,
        source: str,
        status: str = "accepted",
        of: EarlierRun | None = None,
        **more: Any,
    ) -> CommandRecord:
        """Record a command in the audit trail, with the next command sequence of the current run, or of an earlier one.

        Without a run it has no number, and belongs to the instance alone.
        """
        instance = self.instance
        run = instance.run
        if of is not None:
            if instance.earlier_commands is None:
                instance.earlier_commands = {}
            sequence = instance.earlier_commands[of.key] = of.commands + 1
            key, id = of.key, command_id(of.run_id, sequence)
        elif run is None:
            key, id, sequence = None, self.ids.ulid(), None
        else:
            instance.command_sequence += 1
            sequence = instance.command_sequence
            key, id = run.key, command_id(run.run_id, sequence)
        entry = CommandRecord(
            id=id,
            run=key,
            sequence=sequence,
            command_type=command_type,
            status=status,
            outcome=outcome,
            at=self.now,
            source=source,
            **more,
        )
        self.commands = appended(self.commands, entry)
        return entry

    def record_or_buffer(self, event: Event, context: Context) -> None:
        """Record an event from outside, or buffer it until the workflow task ends that code is in the middle of.

        So everything that the code decides without having seen the event stands before it in history.
        """
        if self.instance.buffered_events or self.instance.running_task is not None:
            self.instance.buffered_events.append((event, context))
        else:
            self.record_with_context(event, context)

    def record_with_context(self, event: Event, context: Context) -> Recorded:
        """Record one event with a context of its own."""
        before, self.context = self.context, context
        entry = self.record(event)
        self.context = before
        return entry

    def send(self, namespace: str, workflow_id: str, message: OutboxMessage) -> None:
        """Put a message to another instance into the outbox. The engine delivers it after the commit."""
        send = Send(self.ids.key(self.instance.partition), self.instance.key, namespace, workflow_id, message)
        self.sends = appended(self.sends, send)

    def notify(self, topic: str, value: Any) -> None:
        """Notify the waiters of this topic, after the commit."""
        self.notifications = appended(self.notifications, (topic, value))

    def new_run(self, run_id: str | None = None) -> Run:
        """The next run of the instance, which `begin_run` makes its current one."""
        return self.instance.next_run(self.ids, run_id)

    def begin_run(self, run: Run) -> None:
        """Make a new run the current one of this instance."""
        if self.reindex:
            self.index_now()
        if self.instance.run is not None:
            run.last_at = self.run.last_at
        self.instance.run = self.run = run
        self.due_task = None
        self.instance.command_sequence = 0
        self.instance.cursor = self.instance.attempts = 0
        self.runs_started = (*self.runs_started, run.key)
        self.reindex = True

    def index(self) -> None:
        """Write the index row of the current run with this decision, as it is when the turn is sealed."""
        self.reindex = True

    def index_now(self) -> None:
        """Write the index row of the current run as it is now."""
        self.reindex = False
        row = self.features.index(self.instance, self.run)
        self.indexed = (*self.indexed, (row.key in self.runs_started, row))
