"""The interfaces of workers as the engine uses them, in this process and elsewhere, and the lanes of their tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from backstay.engine.tasks.leases import Queue
from backstay.kernel.event import Recorded
from backstay.kernel.fleet import WorkerIdentity
from backstay.kernel.session import WorkerSession
from backstay.kernel.task import SUSPECT, Task
from backstay.kernel.views.facts import ReachedLimit, Takers
from backstay.protocol.commands import Inquiry

COLD = object()
"""The answer of an executor that has no live code for a run and needs its whole history."""


class TaskHeld(NamedTuple):
    """The answer of an executor whose code cannot finish the task inline. `start` is called when the lease is on disk."""

    start: Callable[[BaseException | None], None]


class Executor(Protocol):
    """A worker in this process."""

    owner: str
    holding: set[str]  # ids of the tasks it is working on

    def serves(self, task: Task) -> bool:
        """Whether this executor runs such tasks at all."""
        ...

    def runs(self, kind: str, type: str, namespace: str, queue: str, compatibility: str | None) -> bool:
        """Whether this executor runs the tasks of such a lane."""
        ...

    def identity(self, type: str) -> WorkerIdentity:
        """Where it runs, and its definition of this workflow type."""
        ...

    def has_room(self, kind: str, type: str) -> bool:
        """Whether it could take one more such task now."""
        ...

    def inline(self, kind: str, type: str) -> bool:
        """Whether it runs such tasks on the engine's own thread, without a lease."""
        ...

    def take(self, task: Task) -> bool:
        """Reserve a slot for a task; False if there is none."""
        ...

    def give_back(self, task: Task) -> None:
        """Free the slot that was reserved for a task which will not be delivered."""
        ...

    def deliver(self, assignment: Any) -> None:
        """Work on a task whose lease is on disk now."""
        ...

    def burst(self) -> AbstractContextManager[None]:
        """Prepare the thread for a series of inline activations, and clean up after it."""
        ...

    def activate(self, assignment: Any, events: list[Recorded], consumed: int) -> Any:
        """Run workflow code inline on these events, which follow the `consumed` ones that live code has seen.

        Returns a message for the engine, `COLD`, or `TaskHeld`.
        """
        ...

    def alive_on(self, namespace: str, queue: str) -> bool:
        """Whether it takes tasks of this queue at all."""
        ...

    def validates(self, type: str, update: str) -> bool:
        """Whether the definition of this workflow type has a validator for this update."""
        ...

    def inquire(self, inquiry: Inquiry, history: list[Recorded], at_rest: bool) -> Awaitable[Any]:
        """Run a query or a validator on committed history. `at_rest`: live code has seen exactly that history."""
        ...

    def closed(self, run_id: str) -> None:
        """A run has closed; its activities that still run may stop."""
        ...

    def withdrawn(self, task_id: str) -> None:
        """The attempt of this task is over; its code may stop."""
        ...

    def forget(self, run: int) -> None:
        """Drop the live code of a run; its next activation replays."""
        ...

    def weight(self, run: int) -> int:
        """Estimated bytes of the live code of a run."""
        ...


class Inquirer(Protocol):
    """Remote workers that answer queries and run validators."""

    def alive_on(self, namespace: str, queue: str) -> bool: ...
    def runs(self, kind: str, type: str, namespace: str, queue: str, compatibility: str | None) -> bool: ...
    def validates(self, type: str, update: str) -> bool: ...
    def inquire(self, inquiry: Inquiry, history: list[Recorded], at_rest: bool) -> Awaitable[Any]: ...
    async def look(self) -> bool:
        """Look for workers of which only another process has heard. Whether there are any."""
        ...


class FleetTakers(Protocol):
    """The live workers in other processes, by what they can take."""

    def takers(self, kind: str, type: str, namespace: str, queue: str, build: str | None) -> Takers: ...
    def definitions(self, type: str, namespace: str, queue: str, build: str | None) -> Iterable[str]:
        """The definitions of the workers that would take a workflow task of this type and build."""
        ...

    def identity(self, namespace: str, worker_id: str, type: str) -> WorkerIdentity | None: ...


class Admission(Protocol):
    """Limits on how many tasks of a queue are leased to remote workers."""

    @property
    def node(self) -> int | None:
        """The number of this process, if it shares limits with others: each lease names it."""
        ...

    def admits(self, queue: Queue) -> bool:
        """Whether a task of this queue may be leased. Called when a task and a worker are there: if it returns False,
        the task stays wanted."""
        ...

    def reached(self, queue: Queue) -> ReachedLimit | None:
        """The limit that holds the tasks of this queue back now, if there is one."""
        ...

    def promised(self, task_id: str, queue: Queue) -> None:
        """A lease of this queue was decided and is not on disk yet."""
        ...

    def settled(self, task_id: str, queue: Queue) -> None:
        """That lease is on disk now, or was rolled back."""
        ...

    def moved(self, leases: Iterable[Task]) -> None:
        """Another process owns the instances of these leases."""
        ...

    def relieved(self, queue: Queue) -> Iterable[Queue]:
        """The queues that may lease more tasks now that a lease of this queue has ended."""
        ...


class SessionGate(Protocol):
    """The remote worker that may run the activities of each session."""

    def admits(self, namespace: str, session: WorkerSession, worker_id: str) -> bool: ...
    def took(self, namespace: str, session: WorkerSession, worker_id: str) -> None:
        """An activity of the session was reserved for this worker."""
        ...

    async def holds(self, namespace: str, session: WorkerSession, worker_id: str) -> bool:
        """Whether the session is this worker's, once that is on disk: another process may have given it to another one."""
        ...


class Lane(NamedTuple):
    """Tasks that the same workers can run."""

    kind: str
    namespace: str
    connection: str | None
    queue: str
    compatibility: str | None
    type: str
    session: WorkerSession | None
    tried: tuple[str, ...] = ()  # definitions whose workers do not get it
    suspect: bool = False  # see `isolation`

    @property
    def place(self) -> Queue:
        return self.kind, self.namespace, self.queue


def lane_of(task: Task) -> Lane:
    routing = task.routing
    return Lane(
        task.kind,
        routing.namespace,
        routing.connection,
        routing.queue,
        routing.compatibility,
        task.type,
        task.session,
        task.tried,
        task.crashes >= SUSPECT,
    )
