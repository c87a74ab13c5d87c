"""Shards: the instances that this process owns, and those that belong to other processes.

A process reads the owners of all shards several times a second. It claims shards that are free, up to its fair share;
it deposes processes that are dead, so that their shards become free; and it hands shards over to a process that has too
few. For the shards it owns it does everything: it keeps instances in memory, hands out tasks, fires timers, delivers
messages. For all others it is a *guest*: it reads, and commits beside the owner under the guard of the instance row,
and leaves a notice.

**Can a shard have two owners?** Two processes may believe for a moment that they own it; one row decides. A deposed
process can no longer commit, because the statement that frees its shards also fences the row that each of its batches
checks (`store/ownership.py`). Its memory is outdated then, and it learns that with its next commit or look.
Correctness does not rely on any of this: each decision is written under a guard on its instance's row, so of two
decisions on the same state one fails and is decided again. A shard with two owners would only do work twice that is
recorded once.

**How a shard is handed over**, in this order (`_give`). First the shard is no longer owned here: from then on every
write to it leaves a notice, leases get an end, and no instance of it stays in memory. Then the earlier decisions reach
the disk. Then each lease without an end that a worker of this process still works under gets one, since such a lease is
over when its shard has another owner. Last, the row changes. A process that dies in between still owns the shard by its
row, and is deposed. In another order, the next owner would release work that still runs here, or miss rows that are
written after its read (mutants "owned is cleared after the row", "no lease gets an end on leaving").

A file is owned as a whole by the process that holds its lock; nothing is ever handed over there.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec.structs import replace

from backstay.engine.cluster.database_clock import DatabaseClock
from backstay.engine.cluster.fair_share import lacking, share_of, weight_of
from backstay.engine.cluster.gone_nodes import entry_of, is_named
from backstay.engine.cluster.guest_leases import GuestLeases
from backstay.engine.cluster.levels import ReachedLevel
from backstay.engine.core.engine import Engine
from backstay.engine.core.lifecycle import EngineHooks, call_all
from backstay.engine.core.periodic import PeriodicJob
from backstay.kernel.values import SECOND, Micros, partition_of
from backstay.protocol.native.nodes import SPEAKS, Owner, understands
from backstay.store.copying.mark import refuse_unfinished
from backstay.store.errors import Deposed, Forgotten, IncompatibleStore, Unavailable
from backstay.store.ownership import SILENT, NodeFacts, NodeRow, Ownership, ShardRow

log = logging.getLogger("backstay.engine")

LOOK = SECOND // 5  # how often to read the owners
MARK = SECOND  # how often to say that this process is alive
GONE = SECOND // 10  # a session that was gone for so long is not one that reconnects
MISSED = 5  # looks that could not be made are an outage, and all sessions may have ended
SHAKEN = 10  # looks after an outage, during which others have time to reconnect
BACK = (
    5 * SECOND
)  # after an outage, in which no process could report that it is alive: the time that others have to report
LEAVING = SECOND // 100  # between two looks whether shards that are being handed over have left
MOVED = 8  # shards that are handed over at a time
NAMES = 256  # ids that are tried until one is in a shard of this process


class Shards:
    """`facts`: the published facts about this process. `on_gain` is called with shards that are owned from now on, and
    whether their last owner may have left something undone; `on_loss` with shards that are not owned any more."""

    def __init__(
        self,
        engine: Engine,
        lifecycle: EngineHooks,
        leases: GuestLeases,
        clock: DatabaseClock,
        *,
        facts: Callable[[], NodeFacts] = NodeFacts,
    ) -> None:
        self._engine = engine
        self._store = engine.store
        self._world = engine.world
        self._lifecycle = lifecycle
        self._leases = leases
        self._clock = clock
        self._facts = facts
        self.on_gain: Callable[[Collection[int], bool], None] = lambda shards, abandoned: None
        self.on_loss: Callable[[Collection[int]], None] = lambda shards: None
        self.on_look: Callable[[Collection[int]], None] = lambda living: None  # called with the processes that live
        self._me = 0
        self._rows: list[ShardRow] = [ShardRow(None, -1)] * engine.store.shards
        self._read: Sequence[ShardRow] = ()  # the result of the last look
        self.nodes: dict[int, NodeRow] = {}
        # The level that every process can read, as of the last look. A silent process counts until it is fenced: it may
        # resume. And it does not rise when this process fences one: an older one may have been let in by the sight of
        # that row since.
        self._readable = facts().level
        self._reached = ReachedLevel(engine.store)
        # How much other processes have committed, and the version of the registries, as the last look has seen them.
        self.commits: Sequence[int] | None = None
        self.registry: int | None = None
        self._unlinked: set[int] = set()  # processes that speak another version, as already logged
        self._gone: dict[int, Micros] = {}  # processes whose session was gone, and since when that is known
        self._marked: Micros | None = None
        self._looked: Micros | None = None
        self._shaken: Micros = 0  # until then a session that is gone says nothing: all were, a moment ago
        self._back: Micros = 0  # until then silence does not count: a moment ago no process could be heard
        self._told: NodeFacts | None = None
        self._checked = False  # that no copy into this database is unfinished
        self._compatible = False  # with the other processes, when this one was opened
        self._looks = 0  # that have begun
        self._seen = 0  # the latest of those that have ended
        self._giving: set[int] = set()  # shards that are being handed over
        self._leaving = False
        # Shards that were claimed, received, handed over or lost; processes that were deposed; the number of times that
        # the database has lost confirmed commits.
        self.counts: Counter[str] = Counter()
        self.forgotten_at: Micros | None = None  # when it had done so for the last time
        self._job = PeriodicJob(engine.world, "look", self._look_in_turn)
        lifecycle.on_unavailable.append(lambda: self.count_forgotten() if isinstance(engine.down, Forgotten) else None)

    # -- owners

    @property
    def me(self) -> int:
        """The row of this process."""
        return self._me

    @property
    def rows(self) -> Sequence[ShardRow]:
        """The owner of each shard, as of the last look."""
        return self._rows

    def owner_of(self, partition: int) -> Owner | None:
        """The process that owns the instances of a partition; None: this process, or unknown."""
        shard = partition & (len(self._rows) - 1)
        if self._engine.owned[shard]:
            return None
        row = self._rows[shard]
        node = None if row.owner is None or row.owner == self._me else self.nodes.get(row.owner)
        if node is None:
            return None
        return Owner(node.id, node.facts.address if understands(node.facts.speaks) else None, row.term)

    def learn(self, shard: int, row: ShardRow) -> None:
        """Another process names the owner of a shard."""
        if row.term > self._rows[shard].term:
            self._rows[shard] = row

    @property
    def others(self) -> list[NodeRow]:
        """The other living processes."""
        return [node for node in self.nodes.values() if node.id != self._me]

    @property
    def unlinked(self) -> bool:
        """Whether some living process cannot be called by this one, or cannot call it: then commits are noticed by looking."""
        if self._store.exclusive:
            return True
        return any(node.facts.address is None for node in self.nodes.values()) and len(self.nodes) > 1

    def new_id(self, namespace: str) -> str:
        """A new workflow id, in a shard of this process if it owns any."""
        engine = self._engine
        name = self._world.ids.ulid()
        for _ in range(NAMES if engine.holder and not engine.owns_all else 0):
            if engine.owns(partition_of(namespace, name)):
                break
            name = self._world.ids.ulid()
        return name

    @property
    def linked(self) -> list[Owner]:
        """The other living processes that can be called."""
        return [
            Owner(node.id, node.facts.address, 0)
            for node in self.others
            if node.facts.address is not None and understands(node.facts.speaks)
        ]

    # -- looking

    async def start(self) -> None:
        """Look for the first time, and claim what is free. A process that was killed is known to be gone at the second look."""
        await self.look()
        if self._gone and not self._engine.owns_all:
            await self._pause(GONE)
            await self.look()
        if not (self._store.exclusive and self._engine.holder):
            self._job.start(LOOK)

    def stop(self) -> None:
        self._job.stop()

    async def _look_in_turn(self) -> None:
        if not (self._store.exclusive and self._engine.holder):
            await self.look()

    async def look(self) -> None:
        """Read the owners, and bring the number of shards of this process to its share."""
        try:
            await self._look()
        except Forgotten as error:
            self._engine.on_unavailable(error)

    def count_forgotten(self) -> None:
        self.counts["forgotten"] += 1
        self.forgotten_at = self._world.now()

    async def _look(self) -> None:
        engine = self._engine
        if engine.down is not None or self._giving or self._leaving:
            return
        await self._mark()
        if engine.down is not None:
            return
        await self.check()
        if not self._compatible:
            await self._refuse_a_higher_level()
        elif self._readable > self._reached.known:
            await self._reached.reach(self._readable)
        await self._depose_the_dead()
        share = self._share(self._told or self._facts())
        owned = sum(engine.owned)
        if self._leaving:
            return
        if owned < share:
            await self._claim(share - owned)
        elif owned > share + 1 or (
            owned and not share
        ):  # one too many is not worth a move, but a leaving process keeps none
            await self._balance(owned - share)

    async def check(self) -> None:
        """Read the owners. Shards of this process that another one owns by now are dropped.

        A deposed process has a new row, which owns nothing: its shards are dropped before anything is read.
        """
        if self._store.me != self._me and self._engine.holder:
            self._drop([shard for shard, owned in enumerate(self._engine.owned) if owned])
        self._looks += 1
        number = self._looks
        before = self._world.ticks()
        view = await self._store.look()
        if view.clock is not None:
            self._clock.told(before, view.clock)
        if number < self._seen or view.me != self._store.me:
            return  # a look that began later is back already, or this process has another row: this result is outdated
        self._seen = number
        if view.me != self._me:
            self._rows = [ShardRow(None, -1)] * len(view.shards)
            self._read = ()
            self._marked = None  # its row is new
        self._me = view.me
        self.nodes = {node.id: node for node in view.nodes}
        self._readable = min((node.facts.level for node in view.nodes), default=self._facts().level)
        self.commits, self.registry = view.commits, view.registry
        if view.shards is not self._read:  # else they are known: most looks find the result of the previous one
            self._read = view.shards
            for shard, row in enumerate(view.shards):
                if row.term >= self._rows[shard].term:
                    self._rows[shard] = row
        self._name_the_unlinked()
        self.on_look(self.nodes)
        self._follow(view)

    def _name_the_unlinked(self) -> None:
        """Say once of each process that it cannot be called because it is of another release."""
        self._unlinked &= self.nodes.keys()
        for node in self.others:
            facts = node.facts
            if facts.address is None or understands(facts.speaks) or node.id in self._unlinked:
                continue
            self._unlinked.add(node.id)
            log.error(
                "%s (node %d, release %s) speaks versions %d to %d of the messages between nodes, and this process version %d: they"
                " do not call each other, and requests for its instances go through the database, which is slower. Run the same"
                " release of Backstay on all nodes",
                *(facts.name, node.id, facts.version, *facts.speaks, SPEAKS[1]),
            )

    def _follow(self, view: Ownership) -> None:
        owned = self._engine.owned
        # The map and not the result of the read: this process may have claimed or given away shards since the read.
        mine = {shard for shard, row in enumerate(self._rows) if row.owner == view.me and view.me in self.nodes}
        lost = [shard for shard in range(len(owned)) if owned[shard] and shard not in mine]
        if lost:
            self._drop(lost)
        given = [shard for shard in sorted(mine - self._giving) if not owned[shard]]
        if given:
            self.counts["received"] += len(given)
            self._gain(given, abandoned=False)

    def _drop(self, shards: Sequence[int]) -> None:
        log.warning("other processes own %s of the shards of this process now: it was declared dead", len(shards))
        self.counts["lost"] += len(shards)
        self._lose(shards)
        if not self._engine.holder:
            call_all(self._lifecycle.on_lost)

    async def _mark(self) -> None:
        now = self._world.now()
        facts = replace(self._facts(), joining=not self._compatible)
        due = self._marked is None or facts != self._told or not 0 <= now - self._marked < MARK
        if not due:
            return
        if await self._store.mark(facts, now):
            self._marked, self._told = now, facts
        else:  # also if it has nothing to write: as long as its row is fenced, it can own nothing
            self._engine.on_unavailable(Deposed("another process declared this one dead"))

    async def confirm(self) -> None:
        """Check in the database that this process is still alive for the others. If others have declared it dead, it
        loses its shards."""
        self._marked = None
        await self._mark()
        if self._engine.down is None:
            await self.check()

    async def _pause(self, length: Micros) -> None:
        over = self._world.future()
        self._world.at(self._world.now() + length, lambda: None if over.done() else over.set_result(None))
        await over

    @property
    def level(self) -> int:
        """The level that may be written: every process can read it, and the database remembers that."""
        return min(self._readable, self._reached.known)

    async def _refuse_a_higher_level(self) -> None:
        """Others write what all of them can read. If all can read more than this process, it could not read everything. The same is
        true of what those have written that are gone.

        One that is joining is no proof that this one may: of two that begin together each would be the other's.
        """
        mine = self._facts().level
        levels = [node.facts.level for node in self.others if not node.facts.joining or node.facts.level > mine]
        if levels and min(levels) > mine:
            raise IncompatibleStore(
                "all other processes at this database are of later releases, and may write what this release cannot read"
                f" (they have level {min(levels)}, this one has {mine}); run their release"
            )
        reached = await self._reached.read()
        if reached > mine:
            raise IncompatibleStore(
                "this database was used by processes of later releases, which may have written what this release cannot read"
                f" (they have reached level {reached}, this one has {mine}); run their release"
            )
        self._compatible = True

    # -- the dead

    async def _depose_the_dead(self) -> None:
        now = self._world.now()
        if self._looked is not None and now - self._looked > MISSED * LOOK:
            self._shaken, self._back = now + SHAKEN * LOOK, now + BACK
        self._looked = now
        gone = {node.id for node in self.others if node.session is False and now >= self._shaken}
        self._gone = {id: self._gone.get(id, now) for id in gone}
        if not self._share(self._facts()):
            return
        for node in self.others:
            worked = self._owns_something(node.id)
            without = worked and node.id in gone and now - self._gone[node.id] >= GONE
            silent = node.silent >= SILENT and now >= self._back
            if (without or silent) and await self._store.depose(node.id, gone=without):
                shards = [shard for shard, row in enumerate(self._rows) if row.owner == node.id]
                if is_named(node, shards):
                    self._store.keep(entry_of(node, shards, now), lambda error: None)  # a name less is no harm
                if worked:
                    who = node.facts.name or f"process {node.id}"
                    log.warning("%s is gone; other processes take over its shards", who)
                    self.counts["deposed"] += 1
                self.nodes.pop(node.id, None)
                self.on_look(self.nodes)
                self._gone.pop(node.id, None)
                for shard, row in enumerate(self._rows):
                    if row.owner == node.id:
                        self._rows[shard] = row._replace(owner=None)

    def _owns_something(self, node: int) -> bool:
        return any(row.owner == node for row in self._rows)

    # -- the fair share

    def _share(self, facts: NodeFacts) -> int:
        return share_of(facts, self.others, len(self._rows), exclusive=self._store.exclusive)

    async def _claim(self, most: int) -> None:
        free = [
            shard
            for shard, row in enumerate(self._rows)
            if (row.owner is None or row.owner not in self.nodes) and not self._engine.owned[shard]
        ]
        if not free:
            return
        if not self._checked:
            await refuse_unfinished(self._store)
            self._checked = True
        if not self._engine.holder:
            for prepare in self._lifecycle.before_take_over:
                await prepare()
        start = self._me % len(free)  # where others do not begin
        wanted = [*free[start:], *free[:start]][:most]
        claimed = await self._store.claim(wanted)
        if claimed:
            self.counts["claimed"] += len(claimed)
            for shard, row in claimed.items():
                self._rows[shard] = row
            self._gain(claimed, abandoned=True)

    async def _balance(self, surplus: int) -> None:
        """Hand a few shards to the process that is farthest below its share. If this one is leaving, some may stay
        without an owner."""
        lack = lacking(self._rows, self.others, self._facts())
        to = max(lack, key=lambda node: lack[node], default=None)
        if to is None:
            return
        owned = [shard for shard, mine in enumerate(self._engine.owned) if mine]
        await self._give(owned[: min(MOVED, surplus, lack[to])], to)

    # -- handing over

    async def leave(self) -> None:
        """Hand all shards over before this process ends: to others, in equal parts, or leave them without an owner."""
        self._leaving = True
        while self._giving:  # interrupted, their leases would be without an end at the next owner
            await self._pause(LEAVING)
        self._job.stop()
        if self._store.exclusive or self._engine.down is not None:
            return
        owned = [shard for shard, mine in enumerate(self._engine.owned) if mine]
        able = [node.id for node in self.others if weight_of(node)]
        try:
            for n, to in enumerate(able):
                await self._give(owned[n :: len(able)], to)
            if owned and not able:
                await self._give(owned, None)
        except Unavailable as error:
            log.warning("this process did not hand over its shards, so they are taken from it: %s", error)

    async def _give(self, shards: Sequence[int], to: int | None) -> None:
        engine = self._engine
        shards = [shard for shard in shards if engine.owned[shard]]
        if not shards:
            return
        self._giving.update(shards)
        try:
            self._lose(shards)
            await engine.commits.settle()
            if await self._leases.give_ends(shards) and engine.down is None:
                for shard in await self._store.hand_over(shards, to, self._world.now()):
                    row = self._rows[shard]
                    self._rows[shard] = ShardRow(to, row.term + 1, row.clock)
                    self.counts["handed_over"] += 1
        finally:
            self._giving.difference_update(shards)

    def _gain(self, shards: Iterable[int], *, abandoned: bool) -> None:
        gained = frozenset(shards)
        self._world.ids.after(max(self._rows[shard].clock for shard in gained))
        self._engine.shard_moves.gain(gained)
        self.on_gain(gained, abandoned)
        call_all(self._lifecycle.on_foreign_commit)  # the last commits of their owner may not have been noticed

    def _lose(self, shards: Iterable[int]) -> None:
        lost = frozenset(shards)
        self._engine.shard_moves.lose(lost)
        self.on_loss(lost)
