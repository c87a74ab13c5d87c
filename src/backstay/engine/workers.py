"""What the engine asks of workers, inside this process and elsewhere, and the lanes that say which tasks they can run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from backstay.engine.leases import Queue
from backstay.kernel.event import Recorded
from backstay.kernel.session import WorkerSession
from backstay.kernel.task import Task
from backstay.protocol.commands import Inquiry

COLD = object()
"""Answer of an executor that has no live code for a run and needs its whole history."""


class TaskHeld(NamedTuple):
    """Answer of an executor whose code cannot finish the task inline. `start` is called once the lease is durable."""

    start: Callable[[BaseException | None], None]


class Executor(Protocol):
    """A worker in this process."""

    owner: str
    holding: set[str]  # ids of the tasks it is working on

    def serves(self, task: Task) -> bool:
        """Whether this executor runs such tasks at all."""
        ...

    def runs(self, kind: str, type: str, namespace: str, queue: str, compatibility: str | None) -> bool:
        """The same, by lane."""
        ...

    def has_room(self, kind: str, type: str) -> bool:
        """Whether it could take one more such task from a lane right now."""
        ...

    def inline(self, kind: str, type: str) -> bool:
        """Whether it runs these on the engine's own thread, without a lease of its own."""
        ...

    def take(self, task: Task) -> bool:
        """Reserve room for one task, if there is any."""
        ...

    def give_back(self, task: Task) -> None:
        """The room reserved for this task is free again; it never came."""
        ...

    def deliver(self, assignment: Any) -> None:
        """Work on a task whose lease is durable now."""
        ...

    def burst(self) -> AbstractContextManager[None]:
        """Prepare the thread for a series of inline activations, and clean up behind it."""
        ...

    def activate(self, assignment: Any, events: list[Recorded], consumed: int) -> Any:
        """Run workflow code inline on these events, the next ones behind the `consumed` that live code has met.

        The answer is a message for the engine, `COLD`, or `Held`.
        """
        ...

    def alive_on(self, namespace: str, queue: str) -> bool:
        """Whether it takes tasks of this queue at all."""
        ...

    def validates(self, type: str, update: str) -> bool:
        """Whether the definition of this workflow type has a validator for this update."""
        ...

    def inquire(self, inquiry: Inquiry, history: list[Recorded], at_rest: bool) -> Awaitable[Any]:
        """Ask workflow code a question about committed history. `at_rest`: live code stands exactly there."""
        ...

    def closed(self, run_id: str) -> None:
        """The run has closed; work that still goes on for it may stop."""
        ...

    def withdrawn(self, task_id: str) -> None:
        """The attempt that it makes for this task is over; it may stop."""
        ...

    def forget(self, run: int) -> None:
        """Give up the live code of a run; the next activation replays."""
        ...

    def weight(self, run: int) -> int:
        """Estimated bytes of the live code of a run."""
        ...


class Inquirer(Protocol):
    """Workers elsewhere, as far as they can be asked about the workflows they run."""

    def alive_on(self, namespace: str, queue: str) -> bool: ...
    def runs(self, kind: str, type: str, namespace: str, queue: str, compatibility: str | None) -> bool: ...
    def validates(self, type: str, update: str) -> bool: ...
    def inquire(self, inquiry: Inquiry, history: list[Recorded], at_rest: bool) -> Awaitable[Any]: ...


class Admission(Protocol):
    """Limits on what a queue hands out to workers outside this process."""

    def admits(self, queue: Queue) -> bool: ...
    def promised(self, task_id: str, queue: Queue) -> None:
        """A lease of this queue is on its way to disk."""
        ...

    def settled(self, task_id: str, queue: Queue) -> None:
        """That lease is on disk now, or came to nothing."""
        ...

    def relieved(self, queue: Queue) -> Iterable[Queue]:
        """A lease of this queue has ended: the queues that may hand out more because of it."""
        ...


class SessionGate(Protocol):
    """Which worker outside this process may run the activities of which session."""

    def admits(self, namespace: str, session: WorkerSession, worker_id: str) -> bool: ...
    def took(self, namespace: str, session: WorkerSession, worker_id: str) -> None:
        """An activity of the session is on its way to this worker."""
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
    )
