"""Queries and update validators that workers elsewhere run; both are called questions here.

Asked → leased → answered, or given up by the caller. Questions are in memory only: they write no history and end with
their caller. They change nothing, so they may be asked twice: if the connection of a worker is lost, its question goes to
another worker or to the same one again, and the first answer counts. Answers are remembered for a while, so that a worker
whose reply was lost may repeat its answer.

A server whose database has other nodes asks those, too, while it has no worker for a question (`elsewhere`). Our own workers have
a link to every node that they reach, so this is for the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Literal, NamedTuple, Protocol

from backstay.engine.core.world import World
from backstay.engine.requests.queries import missing_worker
from backstay.kernel.event import Recorded
from backstay.kernel.features.start import WorkflowStarted
from backstay.kernel.features.update import UNAVAILABLE
from backstay.kernel.message import Refused
from backstay.kernel.values import SECOND, Micros
from backstay.protocol.commands import Inquiry
from backstay.server.http.errors import NotTheEngine, Stopping
from backstay.server.workers.worker_registry import RegisteredWorker, WorkerRegistry

Kind = Literal["query", "validate"]
BOTH: frozenset[str] = frozenset({"query", "validate"})
WORDS = {"query": "query", "validate": "update_validation"}
REMEMBERED = 1000  # closed questions; the oldest is forgotten first
SPREAD = 3  # workers that get the same question: one that kills its workers must not kill the whole fleet


class PendingQuery:
    """One open question. `answer` resolves to the answer of the code, or to a refusal."""

    __slots__ = ("answer", "asked", "history", "id", "inquiry", "owner", "queue", "until")

    def __init__(
        self, id: str, inquiry: Inquiry, history: list[Recorded], queue: str, answer: asyncio.Future[Any]
    ) -> None:
        self.id = id
        self.inquiry = inquiry
        self.history = history
        self.queue = queue
        self.answer = answer
        self.owner: str | None = None  # the worker that has it now
        self.asked: list[str] = []  # the owner of each lease
        self.until: Micros = 0

    @property
    def attempt(self) -> int:
        return len(self.asked)

    def is_for(self, worker: RegisteredWorker) -> bool:
        """Whether this worker may get the question, after the workers that had it and were lost."""
        return not self.asked or worker.worker_id in self.asked or len(set(self.asked)) < SPREAD

    @property
    def place(self) -> tuple[str, str]:
        return self.inquiry.namespace, self.id


class Closed(NamedTuple):
    """How a worker has closed a question, and under which lease."""

    kind: str
    owner: str
    attempt: int
    outcome: str


class QueryPoll:
    """A parked poll for questions."""

    __slots__ = ("future", "kinds", "worker")

    def __init__(
        self, worker: RegisteredWorker, kinds: frozenset[str], future: asyncio.Future[PendingQuery | None]
    ) -> None:
        self.worker = worker
        self.kinds = kinds
        self.future = future


class QueryLink(Protocol):
    """A linked worker: it is sent questions without polling for them."""

    worker: RegisteredWorker

    @property
    def listens(self) -> bool: ...
    def ask(self, question: PendingQuery) -> None: ...


class RemoteQueries:
    """The open questions of an engine to workers elsewhere, and the polls that wait for them."""

    def __init__(
        self,
        world: World,
        workers: WorkerRegistry,
        timeout_seconds: float,
        max_pending: int,
        is_engine: Callable[[], bool],
        links: Iterable[QueryLink],
        elsewhere: Callable[[PendingQuery], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """`is_engine`: whether this server is the engine; no other server has workers. `links`: the open links of our own
        workers. `elsewhere`: calls other nodes, until one of them has answered."""
        self._elsewhere = elsewhere
        self._world = world
        self._is_engine = is_engine
        self._workers = workers
        self._timeout = timeout_seconds
        self._max = max_pending
        # By namespace and id, so that no namespace finds the questions of another.
        self._open: dict[tuple[str, str], PendingQuery] = {}
        self._closed: dict[tuple[str, str], Closed] = {}
        self._askers: list[QueryPoll] = []
        self._links = links
        self._stopped = False

    # -- for the engine

    def alive_on(self, namespace: str, queue: str) -> bool:
        return any(not self._workers.given_up(worker) for worker in self._workers.on(namespace, queue))

    def runs(self, kind: str, type: str, namespace: str, queue: str, compatibility: str | None) -> bool:
        """Whether a worker can answer. A server that is not the engine does not know, and `inquire` refuses there."""
        return not self._is_engine() or any(
            _runs(worker, type, compatibility) for worker in self._live(namespace, queue)
        )

    async def look(self) -> bool:
        if self._elsewhere is None:
            return False
        before = self._workers.changes
        await self._workers.kept.load()
        return self._workers.changes != before

    def validates(self, type: str, update: str) -> bool:
        return any(_validates(worker, type, update) for worker in self._workers.everybody())

    def has_worker(self, inquiry: Inquiry, queue: str) -> bool:
        """Whether a worker that could answer waits for questions here now."""
        question = PendingQuery("", inquiry, [], queue, self._world.future())
        return any(link.listens and _fits(link.worker, BOTH, question) for link in self._links) or any(
            not asker.future.done() and _fits(asker.worker, asker.kinds, question) for asker in self._askers
        )

    async def inquire(
        self, inquiry: Inquiry, history: list[Recorded], at_rest: bool, *, only_here: bool = False
    ) -> Any:
        """Ask, and wait for the answer. The question is dropped when its caller gives up. `only_here`: of no other node."""
        if not self._is_engine():
            raise _elsewhere()
        queue = queue_of_run(history)
        if self._stopped:
            raise Stopping
        if inquiry.kind == "validate" and self._needs_no_answer(inquiry, queue):
            return None
        waiting = sum(q.inquiry.namespace == inquiry.namespace and q.queue == queue for q in self._open.values())
        if waiting >= self._max:
            raise Refused("query_task_queue_full", f"queue {queue!r} has {waiting} questions waiting; ask again later")
        question = PendingQuery(self._world.ids.ulid(), inquiry, history, queue, self._world.future())
        self._open[question.place] = question
        alarm = self._world.at(self._world.now() + round(self._timeout * SECOND), lambda: self._time_is_over(question))
        self._offer(question)
        asking = None
        if question.owner is None and self._elsewhere is not None and not only_here:
            asking = self._world.spawn(self._elsewhere(question), "backstay-question-elsewhere")
        try:
            return await question.answer
        finally:
            alarm.cancel()
            if asking is not None:
                asking.cancel()
            self._open.pop(question.place, None)

    @property
    def waiting(self) -> list[PendingQuery]:
        """The questions that no worker has at the moment."""
        return [question for question in self._open.values() if question.owner is None]

    # -- for workers

    def poll(self, worker: RegisteredWorker, kinds: frozenset[str]) -> PendingQuery | None:
        """The oldest question that this worker can answer."""
        for question in self.waiting:
            if _fits(worker, kinds, question):
                return self._lease(worker, question)
        return None

    def park(self, worker: RegisteredWorker, kinds: frozenset[str]) -> QueryPoll:
        asker = QueryPoll(worker, kinds, self._world.future())
        found = self.poll(worker, kinds)
        if found is not None:
            asker.future.set_result(found)
        else:
            self._askers.append(asker)
        return asker

    def unpark(self, asker: QueryPoll) -> None:
        """End a parked poll, with a question or without."""
        if asker in self._askers:
            self._askers.remove(asker)
        if not asker.future.done():
            asker.future.set_result(None)

    def give_back(self, question: PendingQuery) -> None:
        question.owner = None
        self._offer(question)

    def serve(self, link: QueryLink) -> None:
        """Send a newly linked worker the waiting questions that it can answer."""
        while link.listens and (question := self.poll(link.worker, BOTH)) is not None:
            link.ask(question)

    def return_unasked(self, namespace: str, id: str) -> None:
        question = self._open.get((namespace, id))
        if question is not None:
            self.give_back(question)

    def take_back(self, namespace: str, owner: str) -> None:
        """Offer the questions of a lost worker to others. Its own answer still counts if it comes first."""
        for question in list(self._open.values()):
            if question.owner == owner and question.inquiry.namespace == namespace:
                self.give_back(question)

    def leased(self, namespace: str, id: str, owner: str, attempt: int) -> PendingQuery | None:
        """The open question that this worker has, or had before it was lost."""
        question = self._open.get((namespace, id))
        return question if question is not None and owner in question.asked[attempt - 1 : attempt] else None

    def stop(self) -> None:
        """End all polls and questions because the server stops."""
        self._stopped = True
        self._dismiss(Stopping)

    def send_away(self) -> None:
        """End all polls and questions because another server is the engine: callers and workers repeat them there."""
        self._dismiss(_elsewhere)

    def held(
        self,
        namespace: str,
        id: str,
        kind: Kind,
        owner: str,
        attempt: int,
        refuse: Callable[[str, str], Exception],
    ) -> PendingQuery:
        """The question that this worker answers; raises why it may not."""
        question = self._open.get((namespace, id))
        word = WORDS[kind]
        if question is None or question.inquiry.kind != kind:
            raise refuse(f"{word}_task_not_found", f"there is no open {word} task {id!r}; its caller may be gone")
        if question.owner is None:
            raise refuse(f"{word}_task_not_leased", f"{word} task {id!r} is not leased")
        if question.owner != owner:
            raise refuse("lease_owner_mismatch", f"{word} task {id!r} is leased to another worker")
        if question.attempt != attempt:
            raise refuse(
                f"{word}_task_attempt_mismatch", f"{word} task {id!r} is on attempt {question.attempt}, not {attempt}"
            )
        return question

    def remember(self, question: PendingQuery, outcome: str) -> None:
        """Remember how a worker has closed a question, so that a repeated request gets the same reply."""
        assert question.owner is not None, "only a leased question is closed by a worker"
        self._closed[question.place] = Closed(question.inquiry.kind, question.owner, question.attempt, outcome)
        while len(self._closed) > REMEMBERED:
            del self._closed[next(iter(self._closed))]

    def closed(self, namespace: str, id: str, kind: Kind, owner: str, attempt: int) -> str | None:
        """How this worker has closed the question before, if it has."""
        found = self._closed.get((namespace, id))
        return None if found is None or found[:-1] != (kind, owner, attempt) else found.outcome

    def answer(self, question: PendingQuery, value: Any) -> None:
        self._open.pop(question.place, None)
        if not question.answer.done():
            question.answer.set_result(value)

    def refuse(self, question: PendingQuery, error: Exception) -> None:
        self._open.pop(question.place, None)
        if not question.answer.done():
            question.answer.set_exception(error)

    def workers_changed(self) -> None:
        """Answer the questions after validators that a worker without such a validator has come for."""
        for question in self.waiting:
            if question.inquiry.kind == "validate" and self._needs_no_answer(question.inquiry, question.queue):
                self.answer(question, None)

    # -- inside

    def _needs_no_answer(self, inquiry: Inquiry, queue: str) -> bool:
        """Whether live workers run the workflow, and none of them has a validator for this update."""
        able = [one for one in self._live(inquiry.namespace, queue) if _runs(one, inquiry.workflow_type, None)]
        return bool(able) and not any(_validates(one, inquiry.workflow_type, inquiry.name) for one in able)

    def _dismiss(self, why: Callable[[], Exception]) -> None:
        for asker in list(self._askers):
            self.unpark(asker)
        for question in list(self._open.values()):
            self.refuse(question, why())

    def _offer(self, question: PendingQuery) -> None:
        for link in self._links:
            if link.listens and _fits(link.worker, BOTH, question):
                link.ask(self._lease(link.worker, question))
                return
        for asker in self._askers:
            if not asker.future.done() and _fits(asker.worker, asker.kinds, question):
                self._askers.remove(asker)
                asker.future.set_result(self._lease(asker.worker, question))
                return

    def _lease(self, worker: RegisteredWorker, question: PendingQuery) -> PendingQuery:
        question.owner = worker.worker_id
        question.asked.append(worker.worker_id)
        question.until = self._world.now() + round(self._timeout * SECOND)
        return question

    def _time_is_over(self, question: PendingQuery) -> None:
        if question.owner is not None:
            who = f"worker {question.owner!r} has not answered"
        elif question.asked:
            who = f"worker {question.asked[-1]!r} received the question and disconnected"
        else:
            who = "no worker took it"
        if question.inquiry.kind == "query":
            error = Refused(
                "query_worker_timeout",
                f"query {question.inquiry.name!r} had no answer within {self._timeout:g} seconds: {who}",
            )
        elif not question.asked and not any(
            _runs(worker, question.inquiry.workflow_type, None)
            for worker in self._live(question.inquiry.namespace, question.queue)
        ):
            error = Refused(UNAVAILABLE, missing_worker(question.inquiry.workflow_type, question.queue))
        else:
            error = Refused(
                "update_validation_execution_timeout",
                f"the validator of update {question.inquiry.name!r} had no answer within {self._timeout:g} seconds: {who}",
                retryable=True,
            )
        self.refuse(question, error)

    def _live(self, namespace: str, queue: str) -> list[RegisteredWorker]:
        return [worker for worker in self._workers.on(namespace, queue) if not self._workers.given_up(worker)]


def _elsewhere() -> NotTheEngine:
    return NotTheEngine(
        "engine_elsewhere", "another process runs the engine of this database; this server cannot ask a worker"
    )


def _runs(worker: RegisteredWorker, type: str, compatibility: str | None) -> bool:
    types = worker.workflow_types
    return (types is None or type in types) and (compatibility is None or worker.build_id == compatibility)


def _validates(worker: RegisteredWorker, type: str, update: str) -> bool:
    contract = worker.workflow_command_contracts.get(type)
    return contract is not None and update in (contract.update_validators or ())


def _fits(worker: RegisteredWorker, kinds: frozenset[str], question: PendingQuery) -> bool:
    inquiry = question.inquiry
    return (
        inquiry.kind in kinds
        and worker.namespace == inquiry.namespace
        and question.queue in worker.queues
        and question.is_for(worker)
        and _runs(worker, inquiry.workflow_type, None)
        and (inquiry.kind == "query" or _validates(worker, inquiry.workflow_type, inquiry.name))
    )


def queue_of_run(history: list[Recorded]) -> str:
    """The task queue of the run, from its first events."""
    return next(entry.event.routing.queue for entry in history if isinstance(entry.event, WorkflowStarted))
