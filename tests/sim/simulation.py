"""One run of the simulator: a seed, a world, nodes, clients, faults; then calm, and everything must come to its end."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from backstay.codec import exceptions, tracebacks
from backstay.engine.cluster import notices, process_facts, shards, stealing, task_news
from backstay.kernel.event import HistoryDamaged
from backstay.kernel.failure import Diagnostics
from backstay.kernel.features.schedule import firing
from backstay.kernel.machine import Machine
from backstay.kernel.message import Refused
from backstay.kernel.values import SECOND
from backstay.sdk.worker import slow_code
from backstay.store.errors import StoreError

from . import programs
from .amnesia import Amnesia
from .auditor import Auditor
from .away import AwayWorker
from .clients import Client, Listener, Lost, Told
from .disk import Disk, MemoryStore, Seam
from .distant import FAULT as FAR
from .distant import DistantStore, is_far
from .faults import NODES, Faults
from .files import Files, FileStore
from .node_links import NodeNetwork, has_links
from .nodes import Node
from .ownership_laws import SETTLED
from .rows import Rows
from .schedules import SHARE, Planner
from .sharing import Sharing, shards_of
from .views import check_all_stored, check_certificate, check_summaries
from .virtual import EPOCH, Standstill, VirtualLoop
from .workers import Worker

MACHINE = Machine()

OPERATIONS = 200
"""How much happens before calm comes, unless more is asked for."""

BOUND = 6 * 3600
"""Virtual seconds within which everything must have ended once faults have stopped."""


ENOUGH = 10_000
"""Operations, beside twenty times those that were asked for, that come to no end."""


class Violation(Exception):
    def __init__(self, law: str, about: object) -> None:
        super().__init__(f"{law}: {about}")
        self.law = law


class Simulation:
    kinds = NODES

    def __init__(
        self,
        seed: int,
        *,
        faults: Iterable[str] | None = None,
        operations: int = OPERATIONS,
        instances: int | None = None,
        clients: int = 3,
        places: int = 3,
        store: str = "memory",
        far: bool | None = None,
        often: Iterable[str] = (),
        views: bool = False,
        shards: int | None = None,
        links: bool | None = None,
    ) -> None:
        """`often`: faults that this run is to have many of. `views`: nodes store views, as they do by default elsewhere; here
        only if asked for, since their alarms would move those of all seeds that are remembered. `links`: whether nodes call
        each other; unless somebody says it, that is part of the seed."""
        self.views = views
        self.seed = seed
        self.random = Random(f"{seed}:sim")
        self.faults = Faults(seed, faults, self.kinds)
        for fault in often:
            self.faults.chances[fault] = min(10 * self.kinds.chances[fault], 0.7)
        self.swarm = self.faults.swarm
        self.loop = VirtualLoop()
        self.target = operations
        self.instances = (2 if self.faults.swarm.few else max(2, operations // 30)) if instances is None else instances
        self.places = self.random.randint(1, places)
        self.lines: list[str] = []
        self.operations = 0
        self.successes: Counter[str] = Counter()
        self.features: set[str] = set()
        self.disk = Disk(shards_of(seed) if shards is None else shards)
        self.files = Files(self) if store == "sqlite" else None
        # Files are near. Where else the database is, is part of the seed, unless somebody says it.
        elsewhere = (is_far(seed) if far is None else far) and not views
        self.far = elsewhere and self.files is None and FAR in self.faults.on
        self.auditor = self._auditor()
        self.disk.witness = self.auditor.committed
        self.disk.author = self.auditor.ownership.authored
        self.sharing = Sharing(self)
        linked = "links cut" in self.kinds.chances and (has_links(seed) if links is None else links)
        self.links = NodeNetwork(self) if linked and self.files is None else None
        self.sticky = Random(f"{seed}:balancer").random() < 0.5  # everybody talks to one node, or to any one each time
        if not self.far and self.links is None:
            # Far away, two tries of a request may look for its record before either has left one: the database is the judge
            # then, and the second is answered by the record of the first (see `Wire`). A node that stood still may carry out
            # what its caller has given up and asked for elsewhere: the same judge refuses that.
            self.disk.twice = lambda *who: self.violation("I7 a request is decided once", who)
        self.nodes: list[Node] = []
        self.told: list[Told] = []
        self.sabotaged: set[int] = set()
        self.falsified: set[int] = set()  # runs whose index row was forged
        self.damaged: set[int] = set()
        self.unreadable: dict[int, tuple[Told, int]] = {}  # run -> whose it is, how long it was when it was damaged
        self.violations: list[Violation] = []
        self._failed: asyncio.Future[None] = self.loop.create_future()
        self._generation = 0
        self._checked = 0
        self._clients = [self._client(n) for n in range(clients)]
        self.planner = self._planner()
        self._over = False
        self._workers: list[asyncio.Task[None]] = []
        self.away: list[AwayWorker] = []
        self.builds: dict[str, str] = {}  # owner of leases -> the build of its process
        self.rows = Rows(self)
        self.amnesia = Amnesia(self)
        self.rolled: set[int] = set()  # places that have had their rolling restart
        self.deposed = 0  # who were taken for dead before all was calm
        self.deaf = self.faults.fires("deaf")
        # When calm comes, everybody may go on as they are for a while before they are replaced; with clocks that agree.
        # Who has lived through all of it, because nobody is killed in this seed, has the most to show.
        self.stays = Random(f"{seed}:stays").random() < (0.8 if self.faults.on <= self.kinds.gentle else 0.4)
        if self.stays:
            self.faults.chances["clock"] = self.faults.chances["clock step"] = 0
        self.loop_time = 0.0
        self.farthest = 0  # what any clock has ever said
        self.ahead = 0  # by how much the clocks of all have been set forward
        self.calm_at: int | None = None
        self.crashes_on_send = False
        self._interrupts = False  # whoever takes over next cannot read at first

    def _auditor(self) -> Auditor:
        return Auditor(self)

    def _client(self, number: int) -> Client:
        return Client(self, number)

    def _planner(self) -> Planner | None:
        return Planner(self) if Random(f"{self.seed}:schedules").random() < SHARE else None

    # -- what others report

    def log(self, line: str) -> None:
        self.lines.append(f"{self.loop.time():12.6f} {line}")

    def operation(self, what: str) -> None:
        self.log(what)
        self.operated(1)

    def operated(self, count: int) -> None:
        self.operations += count
        if self.operations > ENOUGH + 20 * self.target and not self.violations:
            self.violation("time goes on", "it does one thing after the other and comes to no end")
        if self.operations // 50 > self._checked:
            self._checked = self.operations // 50
            self.loop.call_soon(self._checkpoint)

    def _checkpoint(self) -> None:
        if not self._over:
            self.auditor.checkpoint()
            if self.views:
                check_summaries(self, MACHINE)
            self.auditor.replay_some(1)

    def done(self, what: str) -> None:
        self.successes[what] += 1

    def lossy(self) -> bool:
        """Whether anything has happened so far that may cost an answer."""
        return bool(set(self.faults.fired) - self.kinds.harmless)

    def violation(self, law: str, about: object) -> None:
        violation = Violation(law, about)
        self.log(f"VIOLATION {violation}"[:2000])
        self.violations.append(violation)
        if not self._failed.done():
            self._failed.set_result(None)

    def died(self, node: Node) -> None:
        self.farthest = max(self.farthest, node.world.now())
        store: Any = getattr(node.app, "store", None)
        if store is not None:
            store.cut()
        if self._over:
            return
        self.nodes.remove(node)
        if self.links is not None:
            self.links.died(node)
        self.loop.call_soon(node.bury)
        pause = 0.1 if self.faults.calm else self.random.choice([0.01, 0.5, 5, 30])
        if self._interrupts:
            pause = 10  # a guest is faster
        if node.place < self.places:
            self.loop.call_later(pause, lambda: self.open(node.place))

    def worker_died(self, worker: AwayWorker) -> None:
        if self._over:
            return
        self.away.remove(worker)
        self.loop.call_soon(worker.bury)
        if not worker.draining:
            pause = 0.1 if self.faults.calm else self.random.choice([0.01, 5, 30, 400])
            self.loop.call_later(pause, lambda: self._hire(worker.number))

    def _hire(self, number: int) -> None:
        if not self._over:
            self._generation += 1
            build = "B" if self.faults.calm or self.faults.fires("other build") else "A"
            self.away.append(AwayWorker(self, number, self._generation, build))

    def succeed(self, worker: AwayWorker) -> None:
        """The next of its name begins, while this one still ends what it has."""
        worker.drain()
        self._hire(worker.number)

    # -- the world

    def newest_build(self) -> str:
        return max((node.build for node in self.nodes), default="A")

    def true_time(self) -> int:
        return EPOCH + self.ahead + round(self.loop.time() * SECOND)

    def _set_clocks(self) -> None:
        """Somebody sets the clocks of all nodes forward, or all of them have slept: what is due by the new time comes soon."""
        self.ahead = Random(f"{self.seed}:set clocks").choice([0, 0, 400, 4000]) * SECOND
        if self.ahead:
            self.log(f"all clocks are set forward by {self.ahead // SECOND} s")
            self.features.add("clocks set")
            for node in self.nodes:
                node.world.step = self.ahead

    def latest(self) -> int:
        """What the clock says that is farthest ahead."""
        now = [node.world.now() for node in self.nodes]
        self.farthest = max([self.farthest, *now])
        return max(now, default=1 << 60)

    def connect(self, node: Node, machine: Machine, seam: Seam) -> Any:
        if self.files is not None:
            return FileStore(self, self.files, machine.kinds, seam)
        if self.far:
            return DistantStore(node, machine.kinds, seam)
        return MemoryStore(self.disk, machine.kinds, seam)

    def compare_with_file(self) -> None:
        if self.files is not None:
            different = self.files.compare()
            self.auditor.must(different is None, "I14 the file agrees with the model", different)

    def open(self, place: int) -> None:
        if self._over:
            return
        self._generation += 1
        build = "A"
        if self.faults.calm or place in self.rolled or self.faults.fires("other build"):
            build = "B"
        node = Node(self, place, self._generation, build)
        self.nodes.append(node)
        node.open()

    # -- trouble from outside

    def touch(self, key: int) -> None:
        """Somebody else has committed something for this instance, under an id that no engine here gives."""
        self.rows.touch(key)

    def _disturb(self) -> None:
        if self._over:
            return
        self.loop.call_later(1 + self.random.random() * 5, self._disturb)
        self.auditor.heard()
        if self.faults.calm:
            return
        for node in list(self.nodes):
            node.disturb()
            if node.serving and self.random.random() < 0.02 and self.faults.fires("restart"):
                self.log(f"{node.name} is stopped")
                node.stop()
        for worker in list(self.away):
            if not worker.draining and self.random.random() < 0.02 and self.faults.fires("drain"):
                self.succeed(worker)
        if self.random.random() < 0.01 and self.faults.fires("rolling restart"):
            self._roll(list(range(self.places)))
        self.rows.disturb()
        self.sharing.disturb()
        self.amnesia.disturb()
        if self.links is not None:
            self.links.disturb()

    def _roll(self, places: list[int]) -> None:
        """One node after the other is stopped in good order and comes back with the newer build, while the rest goes on."""
        node = next((n for n in self.nodes if places and n.place == places[0] and n.serving), None)
        if node is not None:
            self.log(f"{node.name} is replaced")
            self.rolled.add(node.place)
            node.stop()
        if places[1:]:
            self.loop.call_later(self.random.choice([0.1, 3, 20]), lambda: self._roll(places[1:]))

    async def _detected(self) -> None:
        """What is damaged is found out by whoever reads it, and nothing is built on it from then on."""
        lengths = {run: len(self.disk.events[run]) for run in self.unreadable}
        for run, (told, _) in self.unreadable.items():
            for _ in range(20):
                try:
                    await self._clients[0].client().history(told.id, self.disk.runs[run].run_id)
                    self.violation("damage is detected", told.id)
                except HistoryDamaged:
                    break
                except (Lost, StoreError):
                    await asyncio.sleep(1)
        after = {run: len(self.disk.events[run]) for run in self.unreadable}
        self.auditor.must(lengths == after, "nothing is built on damaged history", (lengths, after))

    # -- the story

    def run(self) -> Simulation:
        with _world(self), _one_process():
            try:
                self.loop.run_until_complete(self._tell())
            except Standstill as standstill:
                self.violation("time goes on", standstill)
            finally:
                self._over = True
                self.loop_time = self.loop.time()
                self._close()
                if self.files is not None:
                    self.files.remove()
        return self

    async def _tell(self) -> None:
        story = self.loop.create_task(self._story())
        await asyncio.wait([story, self._failed], return_when=asyncio.FIRST_COMPLETED)
        if story.done():
            error = story.exception()
            if error is not None:
                self.violation("nothing unforeseen happens", repr(error))
        else:
            story.cancel()

    async def _story(self) -> None:
        for place in range(self.places):
            self.open(place)
        self._disturb()
        for number in range(2):
            task = self.loop.create_task(Worker(self, number).live())
            task.add_done_callback(lambda done: None if done.cancelled() else self._worker_broke(done.exception()))
            self._workers.append(task)
        for number in range(2):
            self._hire(number)
        others: list[Any] = [] if self.planner is None else [self.planner]
        if self.far:
            others += [Listener(self, number) for number in range(4, 8)]
        await asyncio.gather(*(client.live() for client in (*self._clients, *others)))
        self.log("calm")
        self.faults.calm = True
        self.sharing.calm()
        self.deposed = self.disk.ownership.fences
        if (
            self.stays and not self.faults.on <= self.kinds.gentle
        ):  # leases and timeouts end with it, and work is done again
            self._set_clocks()
        self.calm_at = self.true_time()
        if self.stays:
            await self._stay()
        else:
            self.crashes_on_send = True  # the last crash is the worst: what was to be sent is on disk, and nobody told
            await asyncio.sleep(30)
            self.crashes_on_send = False
        for node in list(self.nodes):
            node.life.die("replaced")
        for worker in list(self.away):
            worker.life.die("replaced")
        await asyncio.sleep(0.05)
        await self._detected()
        if not self.stays:
            await self._deliver()
        if not self.violations:
            await asyncio.sleep(4 * SETTLED if self.far else SETTLED)
            self.auditor.ownership.settled()
        await self._all_end()
        if self.views:
            await asyncio.sleep(700)  # one pass of the background job, however rarely it looks by now
            check_summaries(self, MACHINE)
            check_all_stored(self, self.true_time())
            await check_certificate(self)
        self.log("over")
        self._over = True
        self.auditor.finish()
        self.log(f"digest of the rows {self.history_digest()}")

    def interrupts_takeover(self) -> bool:
        interrupts, self._interrupts = self._interrupts, False
        if interrupts:
            self.faults.fired["recovery error"] += 1
        return interrupts

    def _last_takeover(self) -> None:
        """The last fault hits the takeover itself: who becomes the engine now has to begin again."""
        if (
            len(self.nodes) > 1
            and "recovery error" in self.faults.on
            and Random(f"{self.seed}:takeover").random() < 0.6
        ):
            holders = [node for node in self.nodes if node.serving and node.app.engine.holder]
            if holders:
                self._interrupts = True
                holders[0].life.die("dies when all is calm")

    async def _stay(self) -> None:
        """Nobody is replaced yet: whoever came through the faults half-broken shows it now."""
        self._last_takeover()
        await self._deliver()
        if self.amnesia.times:
            await asyncio.sleep(60)  # all have begun anew, and who was away the longest got nothing at first
        await self._settle()
        if self.sharing.resume():
            await asyncio.sleep(60)
            await self._settle()
        for _ in range(12):
            await asyncio.sleep(100)
            self.auditor.nothing_waits(patience=50, kind="workflow")
        self.auditor.nothing_waits(patience=300, kind="activity")
        self.auditor.mended()

    async def _settle(self) -> None:
        """Shards move a few at a time: with many of them, and a database that is far away, that takes its time."""
        for _ in range(20):
            if not self.auditor.ownership.moves():
                break
            await asyncio.sleep(15)
        self.auditor.ownership.settled()

    async def _deliver(self) -> None:
        """What is to be delivered when faults stop is delivered soon."""
        await asyncio.sleep(60)
        before = {send.key for send in self.undelivered()}
        await asyncio.sleep(30)
        late = [send for send in self.undelivered() if send.key in before]
        self.auditor.must(self.deaf or not late, "I8 what is sent arrives in time", late[:2])

    def _worker_broke(self, error: BaseException | None) -> None:
        if not self._over:
            self.violation("workers are answered", repr(error))

    async def _all_end(self) -> None:
        began = self.loop.time()
        client = self._clients[0]
        client.wire.patience = 60
        if self.planner is not None:
            await self.planner.end()
        round = 0
        while self.loop.time() < began + BOUND:
            await asyncio.sleep(5 if round < 10 else 60)
            round += 1
            open = self._open_runs()
            if not open and not self.undelivered():
                return
            for told in self.told:
                if any(run.workflow_id == told.id for run in open):
                    await self._encourage(client, told, round)
        left = self._open_runs()
        stuck = [(r.workflow_id, r.status) for r in left]
        if stuck:
            key = left[0].workflow
            row = self.disk.workflows[key]
            why = [(t.id, t.state, t.owner, t.block and t.block.message) for t in self.disk.tasks_of(key)]
            last = self.disk.events[row.run or 0][-1]
            self.violation("I8 every run ends once faults stop", (stuck, why, row, last[:4]))

    def goes_on(self, workflow_id: str) -> bool:
        """Whether that is open, as far as history says."""
        row = self.disk.workflows.get(self.disk.names.get(("default", workflow_id), 0))
        return row is not None and row.run is not None and self.auditor.runs[row.run].closed is None

    def _open_runs(self) -> list[Any]:
        """What history says, not what the index does."""
        runs = self.auditor.runs
        left = [r for r in self.disk.runs.values() if runs[r.key].closed is None and r.workflow not in self.damaged]
        unheard = self.rows.unheard() if left else ()
        return [r for r in left if r.workflow_id not in unheard]

    def undelivered(self) -> list[Any]:
        """Sends between instances that are both readable."""
        damaged = {self.disk.workflows[key].workflow_id for key in self.damaged}
        return [s for s in self.disk.sends.values() if s.sender not in self.damaged and s.workflow_id not in damaged]

    async def _encourage(self, client: Client, told: Told, round: int) -> None:
        """Say whatever a program may be waiting for."""
        handle = client.client().handle(told.definition, told.id)
        try:
            if told.paused:
                await handle.unpause()
                told.paused = False
            if round % 3 == 0:
                await handle.signal("inbox", f"end.{told.id}.{round}")
                await handle.signal(told.definition.note, f"end.{told.id}.{round}")
        except (Lost, StoreError, HistoryDamaged):
            pass
        except Exception as error:
            self.log(f"{told.id} would not hear: {error}")

    def history_digest(self) -> str:
        digest = sha256()
        for run in sorted(self.disk.events):
            for row in self.disk.events[run]:
                digest.update(repr((run, row)).encode())
        return digest.hexdigest()[:16]

    def digest(self) -> str:
        return sha256("\n".join(self.lines).encode()).hexdigest()

    def _close(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # what was spawned and never ran
            self._leave()

    def _leave(self) -> None:
        for node in list(self.nodes):
            node.life.alive = False
            node.bury()
        for worker in self.away:
            worker.life.alive = False
            worker.bury()
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with suppress(BaseException):
                task.get_coro().close()  # type: ignore[union-attr]
        self.loop.close()


OF_OLDER_CODE = (
    "history has version marker newer",
    "history has update 'add', which the code does not take before it ends",  # newer code took it while it waited for a step
)


class _Listener(logging.Handler):
    """Backstay logs an exception only for what it did not foresee."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__()
        self._sim = sim

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "backstay.failures":
            return  # what authors' code raised: it was meant to
        error = record.exc_info[1] if record.exc_info else None
        text = record.getMessage()
        self._sim.log(f"  {record.levelname.lower()}: {text}"[:400])
        told = record.args if isinstance(record.args, tuple) else ()
        invalid = [why for why in told if isinstance(why, Refused) and why.reason == "invalid_commands"]
        if invalid:
            self._sim.violation("no code of ours asks for what cannot be", text)
        fired = self._sim.faults.fired
        mixed = fired["other build"] + fired["rolling restart"] > 0
        older = mixed and any(difference in text for difference in OF_OLDER_CODE)
        if " is blocked: " in text and not older:
            self._sim.violation("I5 only older code is blocked", text)
        if "is not running here" in text:
            self._sim.violation("a worker knows what it works on", text)
        if error is not None and not isinstance(error, StoreError | HistoryDamaged):
            where = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
            self._sim.violation("nothing unforeseen happens", f"{text}: {error!r} at {where}")


def _diagnose(exc: BaseException) -> Diagnostics:
    """What Python says of an exception, with the same names of files wherever this checkout is."""
    found = tracebacks.diagnose(exc)
    return replace(
        found,
        file=found.file and found.file.replace(*_HERE),
        trace=[line.replace(*_HERE) for line in found.trace],
        traceback=found.traceback and found.traceback.replace(*_HERE),
    )


_HERE = f"{Path(__file__).parents[2]}{os.sep}", ""


@contextmanager
def _one_process() -> Iterator[None]:
    """Every run has the same process: what it says of itself is a part of requests, whose length decides where they are cut."""
    with (
        patch.object(exceptions, "diagnose", _diagnose),
        patch.object(os, "getpid", lambda: 10_000),
        patch.object(socket, "gethostname", lambda: "vm"),
        patch.object(process_facts, "gethostname", lambda: "vm"),
        patch.object(sys, "argv", ["-c"]),
    ):
        yield


@contextmanager
def _world(sim: Simulation) -> Iterator[None]:
    """What has no place in the world an engine is given, set for the time of one run."""
    listener = _Listener(sim)
    logger = logging.getLogger("backstay")
    level, propagate, handlers = logger.level, logger.propagate, logger.handlers
    logger.handlers, logger.propagate = [listener], False
    logger.setLevel(logging.WARNING)
    kept = notices.NOTICE, shards.LOOK, stealing.EVERY, slow_code.SLOW, firing.ROLL_OVER
    kept_linked = notices.REST, task_news.AGAIN
    # Seldom enough for months to pass in a moment.
    notices.NOTICE, shards.LOOK, stealing.EVERY = 5 * SECOND, 2 * SECOND, 5 * SECOND  # type: ignore[misc]
    if sim.links is not None:
        notices.REST, task_news.AGAIN = 1, 5 * SECOND
    slow_code.SLOW = math.inf
    firing.ROLL_OVER = 30  # type: ignore[misc]
    programs.ledger.__init__()  # type: ignore[misc]
    faults = sim.faults
    programs.ledger.poison = lambda: next((f for f in ("poison", "unresolvable") if faults.fires(f)), None)
    sim.loop.set_exception_handler(lambda _, context: _unhandled(sim, context))
    try:
        yield
    finally:
        notices.NOTICE, shards.LOOK, stealing.EVERY, slow_code.SLOW, firing.ROLL_OVER = kept  # type: ignore[misc]
        notices.REST, task_news.AGAIN = kept_linked
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def _unhandled(sim: Simulation, context: dict[str, Any]) -> None:
    error = context.get("exception")
    waited = context.get("future")
    if error is None or (waited is not None and not isinstance(waited, asyncio.Task)):
        return  # an answer that nobody waits for any more
    where = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
    task = context.get("task") or context.get("future")
    name = task.get_name() if isinstance(task, asyncio.Task) else ""
    first = traceback.extract_tb(error.__traceback__)[:4]
    frames = [(frame.name, frame.lineno) for frame in first]
    sim.violation("nothing unforeseen happens", f"{context.get('message')} {name}: {error!r} at {where} {frames}")
