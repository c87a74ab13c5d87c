"""One run of the link: servers, workers and clients in processes of their own, on one wire; then calm, and everything must end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any

from backstay.engine.cluster import notices
from backstay.kernel.limits import Limits as Sizes
from backstay.kernel.machine import Machine
from backstay.kernel.values import SECOND
from backstay.link import http, nodes
from backstay.protocol.requests import Request
from backstay.sdk import errors
from backstay.sdk.author import group
from backstay.sdk.remote import host, report_queue, standstill, transport, worker_link
from backstay.server import server as serving
from backstay.server.http import connections
from backstay.store import Ready

from .. import clients as people
from ..simulation import Simulation
from .faults import LINK
from .laws import LinkAuditor
from .limits import MINUTE, Limits
from .process import ProcessLoop
from .programs import PAYLOAD, TOGETHER, LinkGrammar
from .published import Published, has_published
from .servers import HOST, TOKEN, URL, ServerProcess
from .wire import Listening, Network
from .workers import Threads, WorkerProcess

BOUND = 2 * 3600
"""Virtual seconds within which everything must have ended once faults have stopped."""

SERVED = 0.1
"""When a minute has begun, who has waited for it is served within this many seconds."""


class Line:
    """A client's way to its server: the real one."""

    def __init__(self) -> None:
        self.patience = people.PATIENCE
        self._transport = transport.HttpTransport(transport.Access(URL, TOKEN, "default"))

    async def call(self, request: Request[Any]) -> Any:
        try:
            return await asyncio.wait_for(self._transport.call(request), self.patience)
        except (errors.ServerUnreachable, TimeoutError):
            raise people.Lost from None
        except errors.RequestRefused as refusal:
            if refusal.reason == "storage_error":
                raise people.Lost from None  # it was not written; who insists says it again
            raise


class LinkClient(people.Client):
    def __init__(self, sim: LinkSimulation, number: int) -> None:
        super().__init__(sim, number)
        self.wire = Line()  # type: ignore[assignment]


class LinkSimulation(Simulation):
    kinds = LINK

    def __init__(self, seed: int, *, published: bool | None = None, **options: Any) -> None:
        """`published`: whether there are workers of the published package; unless somebody says it, that is part of the seed."""
        options.setdefault("places", 3)
        self.one_owner = Random(f"{seed}:file").random() < 0.3  # one server works, and the others stand by
        self.limits = Limits(seed, self.one_owner)
        self.network = Network(self)
        super().__init__(seed, **options)
        self.people = ProcessLoop("people", self.loop, self.network)
        self.workers: list[WorkerProcess] = []
        self.died_at: dict[str, float] = {}  # when a worker of this name died last
        self.graveyard: list[ProcessLoop] = []
        self._names = count()
        if self.random.random() < 0.5:
            self.places = 1
        dice = Random(f"{seed}:addresses")
        self.hidden = dice.random() < 0.3  # nobody but servers reaches a server by its own name
        self.balanced = dice.random() < 0.5  # the common name leads to any server, each time to another
        self.calm_since: float | None = None
        wanted = has_published(seed) if published is None else published
        self.published = Published(self) if wanted else None

    @property
    def laws(self) -> LinkAuditor:
        assert isinstance(self.auditor, LinkAuditor)
        return self.auditor

    def _auditor(self) -> LinkAuditor:
        return LinkAuditor(self)

    def _client(self, number: int) -> people.Client:
        return LinkClient(self, number)

    def _planner(self) -> None:
        return None

    def newest_build(self) -> str:
        return "B"

    @property
    def linked(self) -> bool:
        """Whether servers call each other. Without links they have the database alone."""
        return self.published is not None and self.published.linked

    @property
    def parted(self) -> bool:
        """Whether none of these calls ever leads anywhere."""
        return self.published is not None and self.published.parted

    # -- processes

    def chosen(self, listening: list[Listening]) -> Listening | None:
        """Where a new connection goes: to who owns something, as a proxy would have it that looks who is ready."""
        holders = [node.loop for node in self.nodes if node.holds]  # type: ignore[attr-defined]
        ready = [one for one in listening if one.process in holders]
        if ready and self.balanced:
            return self.random.choice(ready)
        return next(iter(ready), listening[0] if listening else None)

    def reaches(self, process: ProcessLoop, host: str) -> bool:
        """Whether a process gets through to a server by this name."""
        if host == HOST:
            return True
        if process.owner is None:  # a server calls another one
            return not self.parted
        return self.parted or not self.hidden

    def died(self, node: Any) -> None:
        super().died(node)
        self.graveyard.append(node.loop)

    def open(self, place: int) -> None:
        if not self._over:
            self._generation += 1
            self.nodes.append(ServerProcess(self, place, self._generation))  # type: ignore[arg-type]

    def _hire(self, number: int, name: str | None = None) -> None:
        if not self._over:
            self._generation += 1
            name = name or f"worker-{number}.{next(self._names)}"
            self.workers.append(WorkerProcess(self, number, self._generation, name))

    def worker_died(self, worker: Any) -> None:
        if self._over:
            return
        self.workers.remove(worker)
        self.graveyard.append(worker.loop)
        self.died_at[worker.worker_id] = self.loop.time()
        self.loop.call_soon(worker.bury)
        pause = 0.1 if self.faults.calm else self.random.choice([0.01, 1, 5, 30])
        name = None if self.faults.fires("another name") else worker.worker_id
        self.loop.call_later(pause, self._hire, worker.place, name)

    def _stop_for_a_while(self, process: ProcessLoop) -> None:
        pause = self.random.choice([0.5, 1.8, 3, 9, 30, 100, 400])
        self.log(f"{process.name} stands still for {pause} s")
        process.stop()
        self.loop.call_later(pause, self._go_on, process, self.loop.time())

    def _go_on(self, process: ProcessLoop, since: float) -> None:
        if not process.stopped:
            return  # all is calm, and it was told before
        if process.owner is not None:
            process.owner.steady = self.loop.time()
            process.owner.stood_still = self.loop.time() - since
        process.go_on()

    def _disturb(self) -> None:
        if self._over:
            return
        self.loop.call_later(1 + self.random.random() * 5, self._disturb)
        self.auditor.heard()
        self.laws.leases_have_a_reason()
        self.laws.attempts_are_wanted()
        if self.published is not None:
            self.published.laws.look()
        if self.faults.calm:
            return
        servers: list[Any] = list(self.nodes)
        for server in servers:
            if not server.serving:
                continue
            if self._hit("stop server"):
                self._stop_for_a_while(server.loop)
            elif self._hit("restart server"):
                server.stop()
            if self.places > 1 and not self.one_owner and self._hit("falsely dead"):
                self.sharing.fence(server)
        others = [] if self.published is None else self.published.workers
        for worker in (*self.workers, *others):
            if worker.loop.stopped or not worker.open:
                continue
            if isinstance(worker, WorkerProcess):
                worker.disturb()
            if self._hit("stop worker"):
                self._stop_for_a_while(worker.loop)
            elif self._hit("drain worker"):
                worker.leave()
        if self._hit("kill everybody"):
            for process in (*servers, *self.workers, *others):
                process.life.die("its machine is gone")

    def _each_minute(self) -> None:
        if not self._over:
            self.loop.call_later((MINUTE - self.true_time() % MINUTE) / SECOND, self._minute_begins)

    def _minute_begins(self) -> None:
        self._each_minute()
        servers: list[Any] = [node for node in self.nodes if node.holds]  # type: ignore[attr-defined]
        self.loop.call_later(SERVED, self._minute_has_begun, servers)

    def _minute_has_begun(self, servers: list[Any]) -> None:
        for server in servers:
            if server.holds and server.app.recovery.up:
                self.laws.minute_has_begun(server)

    def _hit(self, fault: str) -> bool:
        return self.random.random() < 0.03 and self.faults.fires(fault)

    # -- the story

    async def _tell(self) -> None:
        ended: asyncio.Future[BaseException | None] = self.loop.create_future()
        story = self.people.create_task(self._story())
        story.add_done_callback(lambda done: ended.set_result(None if done.cancelled() else done.exception()))
        await asyncio.wait([ended, self._failed], return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            error = ended.result()
            if error is not None:
                self.violation("nothing unforeseen happens", repr(error))

    async def _story(self) -> None:
        for place in range(self.places):
            self.open(place)
        for number in range(self.random.choice([1, 2, 2, 3])):
            self._hire(number)
        if self.published is not None:
            self.published.begin()
        self._disturb()
        if self.one_owner and self.limits.any:
            self._each_minute()
        await asyncio.gather(*(client.live() for client in self._clients))
        self.log("calm")
        self.faults.calm = True
        self.calm_at = self.true_time()
        self.calm_since = self.loop.time()
        processes: list[Any] = self._processes()
        for process in processes:
            if process.loop.stopped:
                self._go_on(process.loop, self.loop.time())
        await self._stay()
        await self._all_end()
        if self.published is not None:
            await self.published.ends()
        self.log("over")
        self._over = True
        self.auditor.finish()
        self.log(f"digest of the rows {self.history_digest()}")

    async def _stay(self) -> None:
        """Nobody is replaced: whoever came through the faults half-broken shows it now."""
        await asyncio.sleep(500)
        for _ in range(7):
            await asyncio.sleep(100)
            self.auditor.nothing_waits(patience=50, kind="workflow")
            self.laws.all_answered()
            self.laws.nothing_held()
            self.laws.beliefs()
        self.auditor.nothing_waits(patience=300, kind="activity")
        self.auditor.mended()

    def _processes(self) -> list[Any]:
        others = [] if self.published is None else self.published.workers
        return [*self.nodes, *self.workers, *others]

    def _leave(self) -> None:
        processes = self._processes()
        for process in processes:
            process.life.alive = False
            process.bury()
        for loop in (*(process.loop for process in processes), *self.graveyard, self.people):
            loop.bury()
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.loop.close()

    @contextmanager
    def world(self) -> Iterator[None]:
        """What the code of workers and servers takes from nowhere but its module, set for the time of one run."""
        dice = Random(f"{self.seed}:pauses")
        numbers = count(1)

        def opened(path: str, kinds: Any, offload: Any) -> Any:
            node: Any = next(n for n in self.nodes if n.loop is asyncio.get_running_loop())  # type: ignore[attr-defined]
            return Ready(node.connect(kinds))

        patches: list[tuple[Any, str, Any]] = [
            (serving, "open_store", opened),
            (serving, "is_server", lambda path: self.linked),
            (serving, "Machine", partial(Machine, limits=Sizes(payload_size=PAYLOAD))),
            (worker_link, "random", dice.random),
            (report_queue, "BATCH_BYTES", TOGETHER),
            (transport, "random", dice.random),
            (transport, "time", SimpleNamespace(monotonic=self.loop.time)),
            (http, "time", SimpleNamespace(monotonic=self.loop.time)),
            (nodes, "time", SimpleNamespace(monotonic=self.loop.time)),
            (connections, "time", SimpleNamespace(monotonic=self.loop.time)),
            (transport, "fresh_id", lambda: f"{next(numbers):026d}"),
            (host, "ThreadPool", Threads),
            (host, "time", None),
            (standstill, "time", None),  # it counts by the time of the loop
            (people, "Grammar", LinkGrammar),
            (group, "FEW", 1),  # groups of a few members already have windows
            (
                notices,
                "REST",
                1,
            ),  # the simulator reads notices seldom enough, also where servers only tell their addresses
        ]
        kept = [(module, name, getattr(module, name)) for module, name, _ in patches]
        for module, name, value in patches:
            setattr(module, name, value)
        try:
            yield
        finally:
            for module, name, value in kept:
                setattr(module, name, value)

    def run(self) -> LinkSimulation:
        with self.world(), nullcontext() if self.published is None else self.published.world():
            super().run()
        return self
