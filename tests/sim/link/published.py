"""Workers of the published package in processes of their own: the real `Worker` and `Client`, which poll over the wire.

They know no server but by the name of all of them, and each of their requests may reach another one. Some seeds have them;
in most of these the servers call each other, as servers of one database do, so that a task comes to a poll elsewhere by news
and fetches; in the others it has to be stolen.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import traceback
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from durable_workflow import Worker, _activity_lease, _query_task_authority, client, retry_policy, worker
from durable_workflow.activity import ActivityContext

from ..virtual import EPOCH
from ..world import Life
from .errands import QUEUE, Customer, Errand, carry
from .process import ProcessLoop
from .published_client import WireClient
from .published_laws import PublishedLaws

if TYPE_CHECKING:
    from .simulation import LinkSimulation

SHARE = 0.4
"""How many of the seeds have workers of the published package."""

LINKED = 0.75
"""In how many of these the servers call each other, if there are several that work."""

PARTED = 0.2
"""In how many of those no such call ever leads anywhere."""


def has_published(seed: int) -> bool:
    return Random(f"{seed}:published").random() < SHARE


class _Worker(Worker):
    """What it says of its machine is the same in every run, and it says nothing when it is dead."""

    process: PublishedProcess

    async def stop(self) -> None:
        if self.process.life.alive:
            await super().stop()

    def _current_process_metrics(self) -> dict[str, Any]:
        return {"process_id": 1}


class PublishedProcess:
    """One process. Whoever comes back under its name is another."""

    def __init__(self, sim: LinkSimulation, all: Published, place: int, generation: int, name: str) -> None:
        self.sim = sim
        self.place = place
        self.worker_id = name
        self.name = f"{name}.{generation}"
        self.open = False
        self.steady = sim.loop.time()  # since when nothing has stopped it
        self.random = Random(f"{sim.seed}:{self.name}")
        self.life = Life(sim.faults, self._died)
        self.loop = ProcessLoop(self.name, sim.loop, sim.network, self)
        self.loop.before_call = lambda: self.life.survives("kill worker")
        self.worker: _Worker | None = None
        self._all = all
        self._told = self.loop.create_future()
        sim.log(f"{self.name} begins")
        self.loop.create_task(self._live(), name="published worker")

    async def _live(self) -> None:
        dice = self.random
        with suppress(Exception):  # it is not known, or not any more: whoever comes back tries again
            async with WireClient(self.sim, self.loop, self.name, self) as connected:
                self.worker = made = _Worker(
                    connected,
                    task_queue=QUEUE,
                    workflows=[Errand],
                    activities=[carry],
                    worker_id=self.worker_id,
                    poll_timeout=dice.choice([10, 30, 50]),
                    max_concurrent_workflow_tasks=dice.choice([1, 3]),
                    max_concurrent_activity_tasks=dice.choice([1, 3]),
                    shutdown_timeout=dice.choice([0.5, 30]),
                )
                made.process = self
                running = asyncio.create_task(made.run())
                await asyncio.wait([running, self._told], return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    self.sim.log(f"{self.name} cannot go on: {running.exception()!r:.200}")
                await made.stop()
        self.life.die("drained" if self._told.done() else "could not open")

    def leave(self) -> None:
        """Like SIGTERM."""
        if not self._told.done():
            self.sim.log(f"{self.name} is told to stop")
            self._told.set_result(None)

    def _died(self, why: str) -> None:
        self.sim.log(f"{self.name} dies: {why}")
        self.loop.kill()
        self._all.died(self)

    def bury(self) -> None:
        """Nothing of it outlives its process."""

    # -- what it does

    async def carries(self, context: ActivityContext, kind: str) -> None:
        """One attempt of an activity."""
        faults = self.sim.faults
        if not self.life.survives("kill in activity"):
            await asyncio.Future()
        pause = self.random.choice([0, 0.01, 0.3])
        if kind == "slow":
            pause = self.random.choice([3, 20])
        if faults.fires("stall"):
            pause = faults.dice("stall").choice([3, 30, 400])
        if kind == "beating":
            for _ in range(3):
                await context.heartbeat({"at": pause})
                await asyncio.sleep(pause / 3)
        else:
            await asyncio.sleep(pause)
        if faults.fires("late report"):
            await asyncio.sleep(faults.dice("late report").choice([5, 40, 400]))
        if kind == "flaky" and context.info.attempt_number < 3:
            raise RuntimeError(f"attempt {context.info.attempt_number} fails")

    # -- what it says

    def asks(self, path: str, body: bytes) -> Any:
        self.open = self.open or path.endswith("/poll")
        return self._all.laws.asks(self, path, json.loads(body) if body else {})

    def answered(self, asked: Any, status: int, body: bytes) -> None:
        self._all.laws.answered(asked, status, json.loads(body) if body else {})

    def unanswered(self, asked: Any, why: str) -> None:
        self._all.laws.unanswered(asked, why)


class Published:
    """All of a seed that belongs to the published package."""

    def __init__(self, sim: LinkSimulation) -> None:
        self._sim = sim
        self._dice = dice = Random(f"{sim.seed}:published dice")
        self.linked = dice.random() < LINKED and sim.places > 1 and not sim.one_owner
        self.parted = self.linked and dice.random() < PARTED
        self.laws = PublishedLaws(sim, self)
        self.workers: list[PublishedProcess] = []
        self.customers: list[Customer] = []
        self.died_at: dict[str, float] = {}  # when a worker of this name died last
        self._generation = 0

    def begin(self) -> None:
        sim, dice = self._sim, self._dice
        for place in range(dice.choice([1, 1, 2])):
            self._hire(place)
        early, late = dice.choice([1, 2, 4]), 2
        self.customers = [Customer(sim, number, dice, number >= early) for number in range(early + late)]
        for customer in self.customers:
            sim.people.create_task(customer.live(), name=customer.id)

    def _hire(self, place: int, name: str | None = None) -> None:
        if not self._sim._over:
            self._generation += 1
            name = name or f"published-{place}.{self._generation}"
            self.workers.append(PublishedProcess(self._sim, self, place, self._generation, name))

    def died(self, process: PublishedProcess) -> None:
        sim = self._sim
        if sim._over:
            return
        self.workers.remove(process)
        sim.graveyard.append(process.loop)
        self.died_at[process.worker_id] = sim.loop.time()
        pause = 0.1 if sim.faults.calm else self._dice.choice([0.01, 1, 5, 30])
        name = None if sim.faults.fires("another name") else process.worker_id
        sim.loop.call_later(pause, self._hire, process.place, name)

    async def ends(self) -> None:
        """Whoever waits for what has come hears of it."""
        for server in self._sim.nodes:
            self._sim.successes["task fetched"] += server.app.engine.counters.fetched
        for _ in range(60):
            if all(customer.ended for customer in self.customers):
                return
            await asyncio.sleep(1)
        left = [customer.id for customer in self.customers if not customer.ended]
        self._sim.violation("customers are answered", left)

    @contextmanager
    def world(self) -> Iterator[None]:
        """What the published package takes from nowhere but its modules, set for the time of one run."""
        loop = self._sim.loop
        dice = Random(f"{self._sim.seed}:published package")
        clock = SimpleNamespace(
            monotonic=loop.time, perf_counter=loop.time, time=lambda: EPOCH / 1_000_000 + loop.time()
        )
        ids = SimpleNamespace(uuid4=lambda: uuid.UUID(int=dice.getrandbits(128), version=4), UUID=uuid.UUID)
        patches: list[tuple[Any, str, Any]] = [
            *((module, "time", clock) for module in (_activity_lease, _query_task_authority, client, worker)),
            *((module, "uuid", ids) for module in (client, worker)),
            (retry_policy, "random", SimpleNamespace(uniform=dice.uniform)),
            (worker, "traceback", SimpleNamespace(format_exc=_without_places, format_exception=_told_without_places)),
        ]
        kept = [(module, name, getattr(module, name)) for module, name, _ in patches]
        for module, name, value in patches:
            setattr(module, name, value)
        said = logging.getLogger("durable_workflow")
        level, propagate = said.level, said.propagate
        said.propagate = False
        listener = _Listener(self._sim)
        said.addHandler(listener)
        said.setLevel(logging.WARNING)
        quiet = logging.getLogger("httpx")
        loud = quiet.level
        quiet.setLevel(logging.WARNING)
        try:
            yield
        finally:
            for module, name, value in kept:
                setattr(module, name, value)
            said.removeHandler(listener)
            said.setLevel(level)
            said.propagate = propagate
            quiet.setLevel(loud)


def _without_places() -> str:
    """The exception that is handled, as it reads wherever this checkout and its packages are."""
    return "".join(traceback.format_exception_only(sys.exception()))


def _told_without_places(_: object, error: BaseException, places: object) -> list[str]:
    return traceback.format_exception_only(error)


class _Listener(logging.Handler):
    def __init__(self, sim: LinkSimulation) -> None:
        super().__init__()
        self._sim = sim

    def emit(self, record: logging.LogRecord) -> None:
        self._sim.log(f"  published {record.levelname.lower()}: {record.getMessage()}"[:300])
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, AttributeError | TypeError | NameError):  # of the simulated world, which lacks something
            self._sim.violation("nothing unforeseen happens", f"in the published package: {error!r}")
