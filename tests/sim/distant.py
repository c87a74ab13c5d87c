"""A database that is far away, as a server is: the way there takes time and so does the way back, and the world goes on.

Each verb is answered with what was true in the middle. Reads have sessions of their own: they overtake commits and each other.
What is written goes through one session, one thing after the other. When it is lost, others may take its node for dead; what it
was told and has not done yet it does before it ends, or never.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from backstay.kernel.decision import Decision
from backstay.kernel.event import Event
from backstay.store import Applied, Deferred, RegistryEntry
from backstay.store.errors import Unavailable

from .disk import READS, MemoryStore, Seam

if TYPE_CHECKING:
    from .nodes import Node

FAULT = "far database"
SHARE = 1 / 3
"""How many seeds have their database elsewhere."""

FROM_AFAR = (*READS, "kept", "changed", "has_engine", "look", "sends_of", "registry_version", "leased_by")
IN_ORDER = ("probe", "acquire", "notices", "mark", "claim", "depose", "hand_over", "keep_if", "close")
"""Done by the session that writes."""

# How long a way is, in seconds, and how often: on an ordinary line, and on one that is in trouble all day.
WAYS = [[0], [0.0001, 0.0005, 0.002], [0.01, 0.05], [0.2, 0.5, 3]]
OVERTAKEN = 0.2
LONGEST = 3.0
ORDINARY = [30, 56, 12, 2]
SLOW = [10, 30, 40, 20]


def is_far(seed: int) -> bool:
    return Random(f"{seed}:far").random() < SHARE


class Way:
    """The line between one node and the database. It ends with the node."""

    def __init__(self, node: Node) -> None:
        self._sim = node.sim
        self._life = node.life
        self._dice = Random(f"{node.sim.seed}:far {node.name}")
        self._writing, self._reading = (self._dice.choice([ORDINARY, ORDINARY, SLOW]) for _ in range(2))

    async def go(self, *, reading: bool = False) -> None:
        """One way. A node that is dead by then hears nothing any more, and says nothing."""
        pause = self._dice.choice(self._dice.choices(WAYS, self._reading if reading else self._writing)[0])
        if pause:
            self._sim.faults.fired[FAULT] += 1
            there: asyncio.Future[None] = self._sim.loop.create_future()
            self._sim.loop.call_later(pause, _arrive, there)
            await there
        if not self._life.alive:
            await self._sim.loop.create_future()

    async def linger(self, key: int) -> None:
        """Some answers come right behind the next commit of what they are about: what is read is never older than then."""
        if self._sim.faults.calm or self._dice.random() >= OVERTAKEN:
            return
        there: asyncio.Future[None] = self._sim.loop.create_future()
        pause = self._dice.choice([0, 0.01, 0.3])
        self._sim.disk.overtaken.setdefault(key, []).append(lambda: self._sim.loop.call_later(pause, _arrive, there))
        self._sim.loop.call_later(LONGEST, _arrive, there)
        await there

    def chance(self) -> bool:
        return self._dice.random() < 0.5

    def outage(self) -> float:
        """How long the server takes to notice that nobody listens any more."""
        return self._dice.choice([0.02, 0.5, 4, 20])


class DistantStore(MemoryStore):
    def __init__(self, node: Node, kinds: dict[str, type[Event]], seam: Seam) -> None:
        super().__init__(node.sim.disk, kinds, seam)
        self._node = node
        self._way = Way(node)
        self._session = asyncio.Lock()
        self._closed = False
        self._told: Sequence[Decision] = ()  # a batch that is on its way to the server
        self._unknown: Sequence[Decision] = ()  # one of a session that we have lost and the server has not

    # -- what is written

    def apply(self, decisions: Sequence[Decision], done: Callable[[Applied], None]) -> None:
        async def go() -> None:
            async with self._session:
                self._told = decisions
                await self._way.go()
                self._told = ()
                written: asyncio.Future[Applied] = self._node.sim.loop.create_future()
                self._seam.commit(self, decisions, written.set_result)
                applied = await written
                await self._way.go()
            done(applied)

        self._node.world.spawn(go(), "commit")

    def keep(self, entry: RegistryEntry, done: Callable[[Unavailable | None], None]) -> None:
        async def go() -> None:
            answer: list[Unavailable | None] = []
            await self._in_order(lambda: super(DistantStore, self).keep(entry, answer.append))
            done(answer[0])

        self._node.world.spawn(go(), "keep")

    def keep_all(self, entries: Sequence[RegistryEntry], done: Callable[[Unavailable | None], None]) -> None:
        async def go() -> None:
            answer: list[Unavailable | None] = []
            await self._in_order(lambda: super(DistantStore, self).keep_all(entries, answer.append))
            done(answer[0])

        self._node.world.spawn(go(), "keep")

    async def _in_order(self, verb: Callable[[], Any]) -> Any:
        async with self._session:
            return await self._far(verb)

    def _connected(self, verb: Callable[[], Any]) -> Any:
        """What needs the session that writes: there is none until a probe has found a way to the server again."""
        if self._down:
            raise Unavailable("the connection is lost")
        return verb()

    async def _far(self, verb: Callable[[], Any], *, reading: bool = False, about: int | None = None) -> Any:
        await self._way.go(reading=reading)
        try:
            if self._closed:
                raise Unavailable("the database is closed")
            answer = verb()
            if isinstance(answer, Awaitable):
                answer = await answer
        except Exception:
            await self._way.go(reading=reading)
            raise
        await self._way.go(reading=reading)
        if about is not None:
            await self._way.linger(about)
        return answer

    # -- the session that writes is lost

    def lose_connection(self) -> None:
        super().lose_connection()
        self.row.session = bool(self._unknown)  # the server has not noticed yet
        if not self._unknown:
            self._may_be_fenced()

    def fail_over(self) -> None:
        super().fail_over()
        self._unknown = ()  # the server that had it is gone

    def _may_be_fenced(self) -> None:
        faults = self._node.sim.faults
        if "falsely dead" in faults.on and not faults.calm and self._way.chance():
            faults.fired["falsely dead"] += 1
            self._node.sim.sharing.fence(self._node)

    def lose_answer(self, decisions: Sequence[Decision]) -> bool:
        """The session is lost in the middle of a commit. The server may not know yet: then the commit is still to come."""
        if self._way.chance():
            return False
        self._unknown = decisions
        self._node.sim.loop.call_later(self._way.outage(), self._end_session)
        return True

    def _end_session(self) -> None:
        """What the session before was told it has done by now, or never will; and others may notice."""
        if self._unknown:
            self._do_or_leave(self._unknown)
            self._unknown = ()
            self.row.session = False
            self._may_be_fenced()

    def _probe(self) -> Any:
        if self._seam.probe(self) is None:
            self._end_session()  # a new one fences it off
        return MemoryStore.probe(self)

    def cut(self) -> None:
        """The node is dead, and its sessions end."""
        self._closed = True
        self._do_or_leave(self._told or self._unknown)
        self._told = self._unknown = ()
        super().cut()

    def _do_or_leave(self, decisions: Sequence[Decision]) -> None:
        if decisions and self._way.chance():
            down, self._down = self._down, False
            self.write(decisions)
            self._down = down
            self._node.sim.rows.written()


def _about(store: DistantStore, verb: str, args: tuple[Any, ...]) -> int | None:
    """The instance that is asked about, by its key or by the key of a run."""
    if verb in ("load", "command", "commands"):
        return args[0]
    run = store.disk.runs.get(args[0]) if verb in ("history", "last_event") else None
    return None if run is None else run.workflow


def _arrive(there: asyncio.Future[None]) -> None:
    if not there.done():
        there.set_result(None)


def _reading(name: str) -> Any:
    verb = getattr(MemoryStore, name)

    def ask(self: DistantStore, *args: Any, **kwargs: Any) -> Deferred[Any]:
        return Deferred(
            lambda: self._far(lambda: verb(self, *args, **kwargs), reading=True, about=_about(self, name, args))
        )

    return ask


def _ordering(name: str) -> Any:
    verb = DistantStore._probe if name == "probe" else getattr(MemoryStore, name)
    connected = name not in ("probe", "close")

    def ask(self: DistantStore, *args: Any, **kwargs: Any) -> Deferred[Any]:
        def do() -> Any:
            return self._connected(lambda: verb(self, *args, **kwargs)) if connected else verb(self, *args, **kwargs)

        return Deferred(lambda: self._in_order(do))

    return ask


for _name in FROM_AFAR:
    setattr(DistantStore, _name, _reading(_name))
for _name in IN_ORDER:
    setattr(DistantStore, _name, _ordering(_name))
