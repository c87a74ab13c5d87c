"""The dispatcher: hands leased tasks to their workers, and offers waiting tasks to workers that have room.

A task is offered by a message to its instance (`Offer`), since only a decision can lease it. An instance that is not in memory
is read first, and the next offer to the same worker waits for that read: otherwise one free slot would read a whole lane.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any, Protocol

from backstay.engine.core.cache import CachedInstance
from backstay.engine.core.loading import Loading
from backstay.engine.core.periodic import PeriodicJob
from backstay.engine.core.world import World
from backstay.engine.tasks.leases import Leases, Queue, queue_of
from backstay.engine.tasks.matching import Matching, runs_lane
from backstay.engine.tasks.parked_polls import ParkedPoll
from backstay.engine.tasks.refused_completions import Submits
from backstay.engine.tasks.remote_workers import RemoteWorker
from backstay.engine.tasks.workers import Executor, Lane
from backstay.kernel.features.lease import Offer, never_heard_of
from backstay.kernel.message import Message
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND
from backstay.store.errors import Unavailable

LAST_COMMIT = SECOND
"""How much longer a poll whose time is over waits for the commit of the task that is reserved for it."""


class DispatchEngine(Submits, Protocol):
    """The part of an engine that the dispatcher uses."""

    down: Unavailable | None

    def submit_later(self, key: int, message: Message) -> None: ...


class Dispatcher:
    def __init__(
        self, engine: DispatchEngine, world: World, matching: Matching, leases: Leases, loading: Loading
    ) -> None:
        self._engine = engine
        self._world = world
        self._matching = matching
        self._leases = leases
        self._loading = loading
        self._reading = 0  # instances, for tasks that executors have room for
        self._serving_soon = False
        isolation = matching.isolation
        job = PeriodicJob(world, "isolation", self._serve_isolated, lambda: bool(isolation.by_worker))
        self._isolation_job = job
        isolation.on_begin = lambda: job.start(SECOND)
        self.renew: Callable[[Task], None] = lambda task: None  # called with leases that this process has to renew

    # -- tasks whose leases are on disk

    def deliver(self, entry: CachedInstance, assignment: Any) -> None:
        """Hand a task whose lease is on disk now to its worker."""
        task: Task = assignment.task
        matching = self._matching
        if matching.admission is not None:
            matching.admission.settled(task.id, queue_of(task))
            if task.until is not None and not self._leases.has(task.id):
                self._serve_soon()  # the same decision has leased it and ended the lease
        executor = matching.executor_of(task.owner or "")
        if executor is not None:
            if task.kind == "workflow":
                entry.code_is_busy = True
            if task.until is not None:  # another process owns the instance
                self.renew(task)
            executor.deliver(assignment)
            return
        worker = matching.remote_workers.holder_of(task.id)
        if worker is not None:
            worker.deliver(entry, assignment)
            return
        poll = matching.polls.take_reserved(task.id)
        if poll is None:
            return  # claimed by name: the caller has the task in its reply
        if poll.future.done():
            self._engine.submit(entry.instance.key, never_heard_of(task))
        else:
            poll.future.set_result(assignment)

    def withdraw(self, task_ids: Iterable[str]) -> None:
        """Tell the workers of these tasks that their attempts are over. A polling worker learns it from its next heartbeat."""
        for task_id in task_ids:
            worker = self._matching.remote_workers.holder_of(task_id)
            if worker is not None:
                worker.withdrawn(task_id)
            for executor in self._matching.executors:
                if task_id in executor.holding:
                    executor.withdrawn(task_id)

    # -- polls

    def serve_poll(self, poll: ParkedPoll) -> None:
        """Offer the poll the best waiting task that it can take."""
        matching = self._matching
        while True:
            task = matching.lanes.take_best(lambda lane: matching.fits(poll, lane) and matching.admits(lane.place))
            # A task may have been claimed by name, or closed, while it stood in its lane. Then the next one is offered.
            if task is None or not self._offer_to_poll(poll, *task):
                return

    def _offer_to_poll(self, poll: ParkedPoll, task_id: str, key: int) -> bool:
        """Offer a task while a poll is parked; whether it is known at once that the poll is still parked."""
        answers: list[BaseException | None] = []
        at_once = True

        def answered(_: Any, error: BaseException | None) -> None:
            answers.append(error)
            if not at_once and error is None and self._matching.polls.is_parked(poll):
                self.serve_poll(poll)

        self._engine.submit(key, Offer(task_id=task_id), answered)
        at_once = False
        return answers == [None] and self._matching.polls.is_parked(poll)

    def settle_poll(self, poll: ParkedPoll, assigned: Any) -> ParkedPoll:
        """Give a poll that was held back its task, or let it wait on. Returns the poll that the task is for: the worker may have
        repeated it."""
        while poll.successor is not None:
            poll = poll.successor
        polls = self._matching.polls
        if assigned is None:
            if polls.resume(poll):
                self.serve_poll(poll)
        elif poll.future.done():
            self._engine.submit(assigned.task.workflow, never_heard_of(assigned.task))
        else:
            polls.unpark(poll)
            poll.future.set_result(assigned)
        return poll

    def replace_poll(self, before: ParkedPoll, after: ParkedPoll) -> bool:
        """A worker repeated a poll with the same id: end the first poll and hand its reserved task to the second.

        Returns whether a task was reserved: the second poll gets it with the commit that is under way.
        """
        reserved = self._matching.polls.replace(before, after)
        if not before.future.done():
            before.future.set_result(None)
        return reserved

    def end_poll(self, poll: ParkedPoll) -> None:
        """A poll's time is over. If a task was reserved for it just now, it waits a moment for that commit."""
        if self._matching.polls.unpark(poll):
            self._answer_empty(poll)
        elif not poll.future.done():
            world = self._world
            world.at(world.now() + LAST_COMMIT, lambda: self._answer_empty(poll))

    def _answer_empty(self, poll: ParkedPoll) -> None:
        """Answer a poll without a task. A task that was reserved for it is released after its commit (`deliver`)."""
        self._matching.polls.unpark(poll)
        if not poll.future.done():
            poll.future.set_result(None)

    # -- workers that have room

    def serve_all(self) -> None:
        """Serve every parked poll and every remote worker that has room."""
        matching = self._matching
        for queue in list(matching.polls.by_queue):
            self.serve_polls(queue)
        for workers in list(matching.remote_workers.by_queue.values()):
            for worker in list(workers):
                self.serve_worker(worker)

    def serve_polls(self, queue: Queue) -> None:
        for poll in self._matching.polls.on(queue):
            self.serve_poll(poll)

    def serve_freed(self, freed: Iterable[Queue], workers: Iterable[RemoteWorker]) -> None:
        """Leases of these queues and of these remote workers have ended: offer waiting tasks there."""
        matching = self._matching
        if freed and matching.lanes.waiting and (matching.polls.by_queue or matching.admission is not None):
            self.serve_queues(matching.relieved(freed))
        for worker in workers:
            self.serve_worker(worker)

    def ended_elsewhere(self, leases: Sequence[Task], tasks: Mapping[str, Task]) -> None:
        """Another process has ended these leases: their queues and the slots of their workers are free here, too.
        `tasks`: the current tasks."""
        workers = self._matching.remote_workers.ended_elsewhere(leases, tasks)
        for task in leases:
            self._matching.isolation.end(task.id)
        self.serve_freed([queue_of(task) for task in leases], workers)

    def serve_queues(self, queues: Container[Queue]) -> None:
        """These queues may lease again: serve the polls and remote workers there with the best tasks of all of them."""
        matching = self._matching
        for _ in range(len(matching.lanes.waiting)):
            task = matching.lanes.take_best(lambda lane: lane.place in queues and matching.has_taker(lane))
            if task is None or self._offer_and_read(*task, lambda: self.serve_queues(queues)):
                return

    def serve_worker(self, worker: RemoteWorker) -> None:
        """A remote worker has room: offer it the tasks that wait in its lanes."""
        matching = self._matching
        for _ in range(sum(worker.slots.values())):
            if not matching.lanes.waiting or not worker.open:
                return
            task = matching.lanes.take_best(lambda lane: worker.takes(lane) and matching.admits(lane.place))
            if task is None:
                return
            task_id, key = task
            if matching.admission is None:
                self._engine.submit(key, Offer(task_id=task_id))
            elif self._offer_and_read(task_id, key, lambda: self.serve_worker(worker)):
                return

    def serve_executor(self, executor: Executor) -> None:
        """An executor has room: offer it the tasks that wait in its lanes."""
        matching = self._matching
        isolation = matching.isolation
        if not matching.lanes.waiting:
            return

        def wanted(lane: Lane) -> bool:
            return (
                runs_lane(executor, lane)
                and executor.has_room(lane.kind, lane.type)
                and (not isolation.by_worker or isolation.admits((lane.namespace, executor.owner), lane.suspect))
            )

        while (task := matching.lanes.take_best(wanted)) is not None:
            if self._offer_to_executor(executor, *task):
                return  # no slot is taken before the read has ended; to go on now would read the whole lane for one slot

    def _offer_to_executor(self, executor: Executor, task_id: str, key: int) -> bool:
        """Offer a task to an executor. True if its instance is read first; `serve_executor` then goes on after the read."""
        offer = Offer(task_id=task_id)
        later = False

        def answered(_: Any, error: BaseException | None) -> None:
            if isinstance(error, Unavailable):
                self._engine.submit_later(key, offer)
            if later:
                self._reading -= 1
                # An executor that took the task asks for the next one when it ends. If it did not take it, its slot is still
                # free for another.
                if task_id not in executor.holding or not self._reading:
                    self.serve_executor(executor)

        self._engine.submit(key, offer, answered)
        later = self._loading.reads(key)
        self._reading += later
        return later

    def _offer_and_read(self, task_id: str, key: int, then: Callable[[], None]) -> bool:
        """Offer a task. True if its instance is read first; `then` is called after the read."""
        offer = Offer(task_id=task_id)
        later = False

        def answered(_: Any, error: BaseException | None) -> None:
            if isinstance(error, Unavailable):
                self._engine.submit_later(key, offer)
            if later:
                then()

        self._engine.submit(key, offer, answered)
        later = self._loading.reads(key)
        return later

    # -- suspects

    async def _serve_isolated(self) -> None:
        """The trial of a suspect may be over: offer waiting tasks to its worker."""
        self.on_trial_ended()

    def on_trial_ended(self) -> None:
        """A worker that had a suspect may get other tasks again."""
        if self._matching.lanes.waiting:
            self._world.soon(self._serve_everyone)

    def _serve_everyone(self) -> None:
        if self._engine.down is None:
            self.serve_all()
            for executor in self._matching.executors:
                self.serve_executor(executor)

    def stop(self) -> None:
        self._isolation_job.stop()

    # -- reserved slots that are not used

    def on_unleased(self, tasks: Collection[Task]) -> None:
        """These tasks are not leased after all: offer their reserved slots to other tasks."""
        matching = self._matching
        if tasks:
            for task in tasks if matching.isolation.by_worker else ():
                matching.isolation.end(task.id)
            if matching.admission is not None:
                for task in tasks:
                    matching.admission.settled(task.id, queue_of(task))
            self._serve_soon()

    def _serve_soon(self) -> None:
        if self._matching.lanes.waiting and not self._serving_soon:
            self._serving_soon = True
            self._world.soon(self._serve_now)

    def _serve_now(self) -> None:
        self._serving_soon = False
        if self._engine.down is None:  # otherwise recovery serves all when the database is back
            self.serve_all()
