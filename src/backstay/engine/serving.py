"""Handing out work: what is leased goes to its worker, and who has room or waits is offered what stands in the lanes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable
from typing import TYPE_CHECKING, Any

from backstay.engine.cache import Entry
from backstay.engine.leases import Queue, queue_of
from backstay.engine.stations import Station
from backstay.engine.workers import Executor, Lane, Waiter
from backstay.kernel.features.lease import Offer, Release
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND
from backstay.store import Unavailable

if TYPE_CHECKING:
    from backstay.engine.engine import Engine


MOMENT = SECOND
"""How much longer a poll waits for a commit that is under way when its time is over."""


class Serving:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._matching = engine.matching
        self._reading = 0  # instances, for tasks that executors have room for
        self._looking = False  # about to look for whoever has room

    def deliver(self, entry: Entry, assignment: Any) -> None:
        """Hand out work whose lease is on disk now."""
        task: Task = assignment.task
        matching = self._matching
        if matching.admission is not None:
            matching.admission.settled(task.id, queue_of(task))
            if task.until is not None and not self._engine.leases.has(task.id):
                self._look_soon()  # the decision that leased it took it back
        executor = matching.executor_of(task.owner or "")
        if executor is not None:
            if task.kind == "workflow":
                entry.held = True
            executor.deliver(assignment)
            return
        station = matching.stations.of(task.id)
        if station is not None:
            station.deliver(entry, assignment)
            return
        waiter = matching.promised(task.id)
        if waiter is None:
            return  # claimed by name: the caller has the task in its reply
        if waiter.future.done():
            release = Release(task_id=task.id, owner=task.owner or "", attempt=task.attempt, begun=False)
            self._engine.submit(entry.flow.key, release)
        else:
            waiter.future.set_result(assignment)

    def withdraw(self, task_ids: Iterable[str]) -> None:
        """Attempts are over that somebody may still work on. Who polls hears of it from the next heartbeat."""
        for task_id in task_ids:
            station = self._matching.stations.of(task_id)
            if station is not None:
                station.withdrawn(task_id)
            for executor in self._matching.executors:
                if task_id in executor.holding:
                    executor.withdrawn(task_id)

    def poll(self, waiter: Waiter) -> None:
        """A poll has come: offer it the best task that waits for one like it."""
        matching = self._matching
        queue = (waiter.kind, waiter.namespace, waiter.queue)
        while matching.admits(queue):
            found = matching.next_for(lambda lane: matching.fits(waiter, lane))
            # Nobody takes what was claimed by name or closed while it stood in its lane; there may be another.
            if found is None or not self._offer_to(waiter, *found):
                return

    def _offer_to(self, waiter: Waiter, task_id: str, key: int) -> bool:
        """Offer a task while a poll waits; whether it goes on waiting, as far as is known at once. Later it shows later."""
        answers: list[BaseException | None] = []
        at_once = True

        def answered(_: Any, error: BaseException | None) -> None:
            answers.append(error)
            if not at_once and error is None and self._matching.waits(waiter):
                self.poll(waiter)

        self._engine.submit(key, Offer(task_id=task_id), answered)
        at_once = False
        return answers == [None] and self._matching.waits(waiter)

    def succeed(self, before: Waiter, after: Waiter) -> bool:
        """A poll is repeated under its id: its first answer goes nowhere. What was promised to that is for the second.

        Whether anything was: it comes with the commit that is under way.
        """
        promised = self._matching.succeed(before, after)
        if not before.future.done():
            before.future.set_result(None)
        return promised

    def roomier(self, freed: Iterable[Queue], stations: Iterable[Station]) -> None:
        """Leases have ended: of these queues, and of these stations."""
        matching = self._matching
        if freed and matching.known and (matching.polled or matching.admission is not None):
            self.vacant(matching.relieved(freed))
        for station in stations:
            self.station(station)

    def vacant(self, queues: Container[Queue]) -> None:
        """These queues may lease again: whoever waits there, polls or stations, is served, with the best tasks of all of them.

        So that for one vacancy not the whole lane is read from disk, a task whose instance is not in memory is waited for.
        """
        matching = self._matching
        for _ in range(len(matching.known)):
            found = matching.next_for(lambda lane: lane.place in queues and matching.takes(lane))
            if found is None or self._offer_and_read(*found, lambda: self.vacant(queues)):
                return

    def broken(self, promises: Collection[Task]) -> None:
        """Leases that were promised come to nothing: whom they took room from has room again."""
        matching = self._matching
        if promises:
            if matching.admission is not None:
                for task in promises:
                    matching.admission.settled(task.id, queue_of(task))
            self._look_soon()

    def _look_soon(self) -> None:
        if self._matching.known and not self._looking:
            self._looking = True
            self._engine.world.soon(self._look)

    def _look(self) -> None:
        self._looking = False
        if self._engine.down is None:  # otherwise everybody is served when it is up again
            self.everybody()

    def parked(self, queue: Queue) -> None:
        """Serve whoever polls this queue."""
        for waiter in self._matching.waiting(queue):
            self.poll(waiter)

    def give_up(self, waiter: Waiter) -> None:
        """A poll's time is over. If a task was promised to it just now, it waits a moment for that commit."""
        if self._matching.unpark(waiter):
            self._dismiss(waiter)
        elif not waiter.future.done():
            world = self._engine.world
            world.at(world.now() + MOMENT, lambda: self._dismiss(waiter))

    def _dismiss(self, waiter: Waiter) -> None:
        """There is nothing for this poll. A task that was promised to it goes to others when its commit is through."""
        self._matching.unpark(waiter)
        if not waiter.future.done():
            waiter.future.set_result(None)

    def everybody(self) -> None:
        """Serve whoever waits anywhere, as far as there is room."""
        matching = self._matching
        for queue in matching.parked():
            self.parked(queue)
        for stations in list(matching.stations.by_queue.values()):
            for station in list(stations):
                self.station(station)

    def station(self, station: Station) -> None:
        """A station has room: give it what waits in its lanes."""
        matching = self._matching
        for _ in range(sum(station.slots.values())):
            if not matching.known or not station.open:
                return
            found = matching.next_for(lambda lane: station.takes(lane) and matching.admits(lane.place))
            if found is None:
                return
            if matching.admission is None:
                self._offer(*found)
            elif self._offer_and_read(*found, lambda: self.station(station)):
                return

    def executor(self, executor: Executor) -> None:
        """An executor has room: give it what waits in its lanes."""
        matching = self._matching
        if not matching.known:
            return

        def wants(lane: Lane) -> bool:
            return executor.runs(
                lane.kind, lane.type, lane.namespace, lane.queue, lane.compatibility
            ) and executor.has_room(lane.kind, lane.type)

        while (found := matching.next_for(wants)) is not None:
            if self._offer_there(executor, *found):
                return  # it has not taken room yet; asking for more now would read the whole lane for one place

    def _offer_there(self, executor: Executor, task_id: str, key: int) -> bool:
        """Offer a task that an executor may have; whether its instance is being read first. Then that goes on later."""
        offer = Offer(task_id=task_id)
        later = False

        def answered(_: Any, error: BaseException | None) -> None:
            if isinstance(error, Unavailable):
                self._engine.submit_later(key, offer)
            if later:
                self._reading -= 1
                # Whoever ends its work asks for one more; what nobody took leaves that place to another.
                if task_id not in executor.holding or not self._reading:
                    self.executor(executor)

        self._engine.submit(key, offer, answered)
        later = self._engine.loading.reads(key)
        self._reading += later
        return later

    def _offer_and_read(self, task_id: str, key: int, then: Callable[[], None]) -> bool:
        """Offer a task; whether its instance is being read first. Then `then` is called when that is through."""
        offer = Offer(task_id=task_id)
        later = False

        def answered(_: Any, error: BaseException | None) -> None:
            if isinstance(error, Unavailable):
                self._engine.submit_later(key, offer)
            if later:
                then()

        self._engine.submit(key, offer, answered)
        later = self._engine.loading.reads(key)
        return later

    def _offer(self, task_id: str, key: int) -> None:
        self._engine.submit(key, Offer(task_id=task_id))
