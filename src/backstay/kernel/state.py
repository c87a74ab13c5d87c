"""State: what a workflow instance is right now, folded from its history plus its own row and task rows.

`Run` is fold(history) and nothing else, so it can be thrown away at any time. Each feature keeps its own *part* of a
run and is the only one to touch it. `Workflow` adds what lives beside history: the guard, counters, cursor and tasks.
"""

from __future__ import annotations

from heapq import heappush
from typing import Any, Protocol, TypeVar

from backstay.kernel.event import Context, Event
from backstay.kernel.task import Resume, Task
from backstay.kernel.values import Kind, Micros, Routing, kind_at

P = TypeVar("P")

Moment = tuple[Micros, str, int | str]
"""A deadline on an agenda: when, which kind, of what."""

OPEN = ("pending", "waiting")


class Parts(dict[type[Any], Any]):
    """The features' own state of a run, each made on first use."""

    __slots__ = ()

    def __missing__(self, kind: type[P]) -> P:
        part = self[kind] = kind()
        return part


class PartOf(Protocol):
    def __call__(self, kind: type[P], /) -> P: ...


class Run:
    """One execution. Only folds write here."""

    __slots__ = (
        "agenda",
        "apart",
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
        "not_before",
        "number",
        "part",
        "parts",
        "rearmed",
        "routing",
        "run_id",
        "started_at",
        "status",
        "step",
        "waking",
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
        self.heartbeats = 0  # events of its history that only say that an attempt goes on
        self.bytes = 0
        self.checksum = 0
        self.last_at: Micros = 0
        self.not_before: Micros = 0  # a retry waits until then with its first task
        self.step = 0  # the highest step number recorded
        self.grouped = False  # some of its steps belong to groups
        self.waking: list[tuple[int, Resume]] = []  # waking events, oldest first; the cursor eats them
        self.apart: list[tuple[int, Resume]] = []  # events that get a task of their own, ahead of the waking ones
        self.agenda: list[Moment] = []  # heap of (at, kind, id); entries may be stale
        self.rearmed: dict[Moment, Micros] = {}  # deadlines that are due at another time than was set
        self.parts = Parts()
        self.part: PartOf = self.parts.__getitem__  # asked for many times a step, so without a call of Python

    @property
    def open(self) -> bool:
        return self.closed_reason is None

    def remind(self, at: Micros, kind: str, id: int | str) -> None:
        """Put a deadline on the agenda. The feature must still vouch for it when it comes up."""
        heappush(self.agenda, (at, kind, id))


class Workflow:
    """An instance: durable identity, its current run, and the rows beside history."""

    __slots__ = (
        "amiss",
        "busy",
        "command_sequence",
        "cursor",
        "exists",
        "held",
        "key",
        "last",
        "missing",
        "namespace",
        "next_wake",
        "reserved_at",
        "run",
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
        self.last = 0  # the last decision applied: the guard
        self.command_sequence = 0
        self.cursor = 0  # history sequence up to which a closed ordinary workflow task has seen the run
        self.next_wake: Micros | None = None
        self.run: Run | None = None
        self.tasks: dict[str, Task] = {}
        self.busy: str | None = None  # the leased workflow task: code is in the middle of it
        # Accepted while code was in the middle of a task; they become history right behind what that task decides.
        self.held: list[tuple[Event, Context]] = []
        self.missing = 0  # task rows that its own row counts and nobody found; below zero: that it does not count
        self.amiss = False  # its rows on disk say another count of tasks, or another end, than it has

    def keep(self, task: Task) -> None:
        """Take a task row in, new or changed."""
        self.tasks[task.id] = task
        if task.kind == "workflow":
            if task.state == "leased":
                self.busy = task.id
            elif self.busy == task.id:
                self.busy = None

    @property
    def name(self) -> tuple[str, str]:
        """By which everybody knows it, before it has a key as well."""
        return self.namespace, self.workflow_id

    @property
    def kind(self) -> Kind:
        return kind_at(self.namespace)

    @property
    def current(self) -> Run:
        """The current run of a started instance."""
        if self.run is None:
            raise LookupError(f"workflow {self.workflow_id!r} is reserved but not started")
        return self.run
