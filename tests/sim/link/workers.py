"""Workers: the real one, with its session, its live code and its HTTP client, in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from random import Random
from typing import TYPE_CHECKING, Any, Self

from backstay.protocol.native import worker as wire
from backstay.sdk.errors import ServerError
from backstay.sdk.remote.report_queue import PendingReport
from backstay.sdk.remote.worker import AsyncWorker

from ..programs import AWAY, FAR, ledger
from ..world import Life
from .process import ProcessLoop
from .programs import KNOWN
from .servers import TOKEN, URL

if TYPE_CHECKING:
    from .simulation import LinkSimulation


class Threads:
    """A pool of threads as its worker sees it: a call is made some time later, and its result comes some time after that."""

    def __init__(
        self, clock: Any, size: int, name: str, around: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop)
        self._loop = loop
        self._process: WorkerProcess = loop.owner
        self._activities = name == "backstay-activity"
        self._around = around

    def submit(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._loop.call_later(self._pause(), self._make, call, done)

    def _make(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        if self._activities:
            ledger.kill = lambda: self._process.life.survives("deadly activity")
        result = call()
        if self._activities and not self._process.life.survives("kill in activity"):
            return
        pause = self._pause()
        faults = self._process.sim.faults
        if self._activities and faults.fires("late report"):
            pause += faults.dice("late report").choice([5, 40, 400])
        self._loop.call_later(pause, self._done, done, result)

    def _done(self, done: Callable[[Any], None], result: Any) -> None:
        with self._around():
            done(result)

    def _pause(self) -> float:
        if not self._activities:
            return 0
        faults = self._process.sim.faults
        if faults.fires("stall"):
            return faults.dice("stall").choice([3, 30, 400])
        return self._process.random.choice(faults.swarm.hands)

    def close(self) -> None:
        pass


class WatchedWorker(AsyncWorker):
    """A worker whose deliveries and reports are told to the laws."""

    def __init__(self, process: WorkerProcess, **options: Any) -> None:
        super().__init__(URL, KNOWN, **options)
        self._process = process

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        deliver = self.host.deliver

        def delivered(deliveries: list[wire.Delivery], link: Any) -> None:
            for delivery in deliveries:
                self._process.sim.log(f"{self._process.name} is given {_what(delivery)}")
                if isinstance(delivery, wire.TaskLease):
                    self._process.sim.laws.given(self._process, delivery)
                elif isinstance(delivery, wire.ActivityLease):
                    self._process.sim.laws.begins(self._process, delivery.assignment.task)
            deliver(deliveries, link)
            self._process.sim.laws.slots(self._process)

        self.host.deliver = delivered  # type: ignore[method-assign]
        send = self.host.reports._send

        def reported(pending: PendingReport) -> None:
            self._process.sim.laws.reports(self._process, pending)
            send(pending)

        self.host.reports._send = reported
        return self


def _what(delivery: wire.Delivery) -> str:
    match delivery:
        case wire.TaskLease():
            return f"{delivery.task_id} attempt {delivery.attempt} of {delivery.workflow_id}, after {delivery.after}"
        case wire.ActivityLease(assignment=assignment):
            return f"{assignment.activity_attempt_id} of {assignment.workflow_id}"
        case wire.QueryTask():
            return f"question {delivery.question}"


class WorkerProcess:
    """One process. Whoever comes back under its name is another."""

    def __init__(self, sim: LinkSimulation, place: int, generation: int, name: str) -> None:
        self.sim = sim
        self.place = place
        self.worker_id = name
        self.name = f"{name}.{generation}"
        self.random = Random(f"{sim.seed}:{self.name}")
        self.life = Life(sim.faults, self._died)
        self.loop = ProcessLoop(self.name, sim.loop, sim.network, self)
        self.loop.before_call = lambda: self.life.survives("kill worker")
        room = self.random.choice(sim.swarm.rooms)
        self.worker = WatchedWorker(
            self,
            queues=["default", FAR, AWAY],
            token=TOKEN,
            worker_id=name,
            guard="off",
            threads=room,
            async_tasks=room,
            workflow_tasks=self.random.choice([1, 3, 1000]),
            live=self.random.choice([1, 4, 5000]),
            drain=self.random.choice([0.5, 30]),
        )
        self.open = False
        self.steady = sim.loop.time()  # since when nothing has stopped it
        self.stood_still = 0.0  # for how long it stood still before that
        self._told = self.loop.create_future()
        sim.log(f"{self.name} begins")
        self.loop.create_task(self._live(), name="worker")

    async def _live(self) -> None:
        worker = self.worker
        try:
            await worker.__aenter__()
        except ServerError as error:
            self.life.die(f"could not open: {error}")
            return
        self.open = True
        self.sim.log(f"{self.name} is at work")
        life = worker._running
        assert life is not None
        await asyncio.wait([life, self._told], return_when=asyncio.FIRST_COMPLETED)
        if life.done():
            self.sim.violation("a worker works until it is told to stop", repr(life.exception()))
        await worker.close()
        self.life.die("drained")

    def leave(self) -> None:
        """Like SIGTERM."""
        if not self._told.done():
            self.sim.log(f"{self.name} is told to stop")
            self._told.set_result(None)

    def _died(self, why: str) -> None:
        self.sim.log(f"{self.name} dies: {why}")
        self.loop.kill()
        self.sim.worker_died(self)  # type: ignore[arg-type]

    def bury(self) -> None:
        """Live code goes with its process."""
        executor = getattr(self.worker, "executor", None)
        if executor is not None:
            for run in list(executor._live_runs):
                executor._live_runs.pop(run).abandon()

    def disturb(self) -> None:
        """A workflow type proves slow."""
        if self.open and self.sim.faults.fires("moved to thread"):
            types = sorted(self.worker.registry.workflows)
            self.worker.executor._slow.add(self.sim.faults.dice("moved to thread").choice(types))

    def holds(self, task_id: str) -> bool:
        """Whether it knows of this lease."""
        return task_id in self.worker.host.leases

    def held(self) -> dict[str, tuple[int, str]]:
        """The attempts and the kinds of slots of the tasks that it works on, by their ids."""
        host = self.worker.host
        reported = self.worker.links.unanswered()
        return {
            id: (attempt, origin.kind)
            for id, attempt in host.leases.items()
            if id not in reported and (origin := host._origins.get(id)) is not None
        }

    def attempts(self) -> dict[str, Any]:
        """The attempts that it makes, by their ids."""
        running = self.worker.executor.activities._running if self.open and not self.loop.stopped else {}
        return {id: attempt for id, (attempt, _) in running.items()}

    def standings(self) -> dict[int, Any]:
        """Where its live code stands, as far as it knows."""
        return dict(self.worker.host.sticky._by_run) if self.open and self.life.alive else {}
