"""State: the present of a workflow instance, folded from its history, its own row and its task rows.

`Run` is the fold of a history and nothing else, so it can be discarded at any time and folded again. Each feature keeps
its own *part* of a run, which no other feature writes. `Instance` adds the state that is stored beside history: the
guard, counters, the cursor and the tasks.
"""

from __future__ import annotations

from heapq import heappush
from typing import Any, Protocol, TypeVar

from backstay.kernel.event import Context, Event
from backstay.kernel.task import Resume, Task
from backstay.kernel.values import PARTITIONS, Ids, InstanceKind, Micros, Routing, instance_kind

P = TypeVar("P")

Moment = tuple[Micros, str, int | str]
"""A deadline on an agenda: its time, its kind, and the id of its subject."""

OPEN = ("pending", "waiting")


class Parts(dict[type[Any], Any]):
    """The features' own state of a run, each made on first use."""

    __slots__ = ()

    def __missing__(self, kind: type[P]) -> P:
        part = self[kind] = kind()
        return part


class PartOf(Protocol):
    """The type of `Run.part`: the part of a run that is of this class."""

    def __call__(self, kind: type[P], /) -> P: ...


class Run:
    """One execution. Only folds write here."""

    __slots__ = (
        "agenda",
        "bytes",
        "checksum",
        "closed_at",
        "closed_reason",
        "compatibility",
        "ended_by",
        "grouped",
        "heartbeats",
        "key",
        "last_at",
        "length",
        "moved_deadlines",
        "not_before",
        "number",
        "own_task_events",
        "part",
        "parts",
        "routing",
        "run_id",
        "started_at",
        "status",
        "step",
        "wake_events",
        "workflow_type",
    )

    def __init__(self, key: int, run_id: str, number: int) -> None:
        self.key = key
        self.run_id = run_id
        self.number = number
        self.status = "pending"
        self.closed_reason: str | None = None
        self.workflow_type = ""
        self.routing = Routing()
        self.started_at: Micros = 0
        self.closed_at: Micros | None = None
        self.ended_by: Event | None = None  # its terminal event
        self.length = 0  # the last history sequence
        self.heartbeats = 0  # how many events of its history are heartbeats
        self.bytes = 0
        self.checksum = 0
        self.last_at: Micros = 0
        self.not_before: Micros = 0  # a retry waits until then with its first task
        self.step = 0  # the highest step number recorded
        self.grouped = False  # some of its steps belong to groups
        # Events that wake its code, oldest first. Those up to the cursor are dropped.
        self.wake_events: list[tuple[int, Resume]] = []
        # Events with a workflow task of their own, which comes before the ordinary one.
        self.own_task_events: list[tuple[int, Resume]] = []
        self.agenda: list[Moment] = []  # heap of (at, kind, id); entries may be stale
        self.moved_deadlines: dict[Moment, Micros] = {}  # deadlines that were moved to another time, in memory only
        self.parts = Parts()
        self.part: PartOf = self.parts.__getitem__  # bound once: it is called many times a step

    @property
    def is_open(self) -> bool:
        return self.closed_reason is None

    def add_deadline(self, at: Micros, kind: str, id: int | str) -> None:
        """Put a deadline on the agenda. It counts if its feature still confirms it when its time comes."""
        heappush(self.agenda, (at, kind, id))


class Instance:
    """An instance: durable identity, its current run, and the rows beside history."""

    __slots__ = (
        "attempts",
        "buffered_events",
        "command_sequence",
        "cursor",
        "earlier_commands",
        "exists",
        "key",
        "last_decision",
        "loaded_from",
        "missing_tasks",
        "namespace",
        "needs_reconcile",
        "next_wake",
        "reserved_at",
        "run",
        "running_task",
        "tasks",
        "workflow_id",
        "workflow_type",
    )

    def __init__(self, key: int, namespace: str, workflow_id: str) -> None:
        self.key = key
        self.namespace = namespace
        self.workflow_id = workflow_id
        self.workflow_type = ""
        self.exists = False
        self.reserved_at: Micros | None = None
        self.last_decision = 0  # the last decision applied: the guard
        self.loaded_from = 0  # the last decision when its rows were read; 0: it was created here
        self.command_sequence = 0
        # The last command sequence of runs before the current one, by key, as far as it was given since the rows were read.
        self.earlier_commands: dict[int, int] | None = None
        self.cursor = 0  # history sequence up to which a closed ordinary workflow task has seen the run
        self.attempts = (
            0  # how often the ordinary workflow task after the cursor was leased, whether or not it has a row
        )
        self.next_wake: Micros | None = None
        self.run: Run | None = None
        self.tasks: dict[str, Task] = {}
        self.running_task: str | None = None  # the leased workflow task, whose code is running
        # Events that were accepted while code was in the middle of a task. They are recorded after its decisions.
        self.buffered_events: list[tuple[Event, Context]] = []
        # How many task rows were not found that its own row counts. Below zero: rows that it does not count.
        self.missing_tasks = 0
        self.needs_reconcile = False  # the rows on disk differ from it, in the number of tasks or in where history ends

    @property
    def partition(self) -> int:
        """The partition at the end of its keys and those of its runs and sends."""
        return self.key % PARTITIONS

    def next_run(self, ids: Ids, run_id: str | None = None) -> Run:
        number = 1 if self.run is None else self.run.number + 1
        return Run(ids.key(self.partition), run_id or ids.run_id(self.partition), number)

    def keep_task(self, task: Task) -> None:
        """Keep a task row, new or changed."""
        self.tasks[task.id] = task
        if task.kind == "workflow":
            if task.attempt > self.attempts and task.history_limit is None:
                self.attempts = task.attempt
            if task.state == "leased":
                self.running_task = task.id
            elif self.running_task == task.id:
                self.running_task = None

    @property
    def name(self) -> tuple[str, str]:
        """Namespace and workflow id, by which it is known before it has a key."""
        return self.namespace, self.workflow_id

    @property
    def kind(self) -> InstanceKind:
        return instance_kind(self.namespace)

    @property
    def current(self) -> Run:
        """The current run of a started instance."""
        if self.run is None:
            raise LookupError(f"workflow {self.workflow_id!r} is reserved but not started")
        return self.run
