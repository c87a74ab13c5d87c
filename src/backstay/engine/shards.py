"""Shards: which instances this process works for, and which belong to others.

A process looks several times a second at who owns what. It claims shards that are free, up to its fair share; it deposes
processes that are dead, so that their shards become free; and it hands shards over to a process that has too few. For the shards
it owns it does everything: it keeps instances in memory, hands out tasks, fires timers, delivers messages. For all others it is a
*guest*: it reads, and commits beside the owner under the guard of the instance row, and leaves a notice.

**Can a shard have two owners?** Two processes may believe for a moment that they own it; one row says who does. Who is deposed
cannot commit any more, because the same statement that frees its shards fences the row that every batch of it checks
(`store/ownership.py`). What it has in memory is outdated then, and it learns that with its next commit or look. Correctness does
not rely on any of this: each decision is written under a guard on its instance's row, so of two decisions on the same state one
fails and is decided again. A shard with two owners would only do work twice that is recorded once.

**How a shard is handed over**, in this order (`_give`). First it is not owned here any more: from then on everything that is
written to it leaves a notice, no lease without an end is given, and nothing of it is kept in memory. Then what was decided before
reaches the disk. Then each lease without an end that a worker of this process still works under gets one, since such a lease is
over when its shard has another owner. Last, the row changes. A process that dies in between still owns the shard by its row, and
is deposed. Without the order, the next owner would release work that goes on here, or miss what is written after it has read
(mutants "owned is cleared after the row", "no lease gets an end on leaving").

A file is owned as a whole by the process that holds its lock; nothing is ever handed over there.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec.structs import replace

from backstay.engine.database_clock import DatabaseClock
from backstay.engine.engine import Engine
from backstay.engine.guest_leases import GuestLeases
from backstay.engine.lifecycle import EngineHooks, call_all
from backstay.engine.periodic import PeriodicJob
from backstay.kernel.values import SECOND, Micros, partition_of
from backstay.protocol.native.nodes import Owner, understands
from backstay.store import Deposed, Forgotten, IncompatibleStore, Unavailable
from backstay.store.copying.mark import refuse_unfinished
from backstay.store.ownership import SILENT, NodeFacts, NodeRow, Ownership, ShardRow

log = logging.getLogger("backstay.engine")

LOOK = SECOND // 5  # how often to look at who owns what
MARK = SECOND  # how often to say that this process is alive
GONE = SECOND // 10  # a session that was gone for so long is not one that reconnects
MISSED = 5  # looks that could not be made are an outage, and all sessions may have ended
SHAKEN = 10  # looks after an outage, during which others have time to reconnect
BACK = 5 * SECOND  # after an outage, in which nobody could say that it is alive: so long others have time to say it
LEAVING = SECOND // 100  # between two looks whether shards that are being handed over have left
MOVED = 8  # shards that are handed over at a time
NAMES = 256  # ids that are tried until one is in a shard of this process


class Shards:
    """`facts`: what this process tells about itself. `on_gain` is called with shards that are owned from now on, and whether
    their last owner may have left something undone; `on_loss` with shards that are not owned any more."""

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
        self._read: Sequence[ShardRow] = ()  # what the last look has found
        self.nodes: dict[int, NodeRow] = {}
        # What every process can read, as the last look has seen it. Who is silent counts until it is fenced: it may go on. And it
        # does not rise when this process fences one: an older one may have been let in by the sight of that row since.
        self.level = facts().level
        # How much other processes have committed, and the version of the registries, as the last look has seen them.
        self.commits: Sequence[int] | None = None
        self.registry: int | None = None
        self._gone: dict[int, Micros] = {}  # processes whose session was gone, and since when that is known
        self._marked: Micros | None = None
        self._looked: Micros | None = None
        self._shaken: Micros = 0  # until then a session that is gone says nothing: all were, a moment ago
        self._back: Micros = 0  # until then silence says nothing: nobody could be heard, a moment ago
        self._told: NodeFacts | None = None
        self._checked = False  # that no copy into this database is unfinished
        self._compatible = False  # with the other processes, when this one was opened
        self._looks = 0  # that have begun
        self._seen = 0  # the latest of those that have ended
        self._giving: set[int] = set()  # shards that are being handed over
        self._leaving = False
        # Shards that were claimed, received, handed over or lost; processes that were deposed; how often the database has
        # forgotten what it had confirmed.
        self.counts: Counter[str] = Counter()
        self.forgotten_at: Micros | None = None  # when it had done so for the last time
        self._job = PeriodicJob(engine.world, "look", self._look_in_turn)
        lifecycle.on_unavailable.append(lambda: self.count_forgotten() if isinstance(engine.down, Forgotten) else None)

    # -- who owns what

    @property
    def me(self) -> int:
        """The row of this process."""
        return self._me

    @property
    def rows(self) -> Sequence[ShardRow]:
        """Who owns which shard, as of the last look."""
        return self._rows

    def owner_of(self, partition: int) -> Owner | None:
        """The process that owns the instances of a partition; None: this one, or nobody that is known."""
        shard = partition & (len(self._rows) - 1)
        if self._engine.owned[shard]:
            return None
        row = self._rows[shard]
        node = None if row.owner is None or row.owner == self._me else self.nodes.get(row.owner)
        if node is None:
            return None
        return Owner(node.id, node.facts.address if understands(node.facts.speaks) else None, row.term)

    def learn(self, shard: int, row: ShardRow) -> None:
        """Another process says who owns a shard."""
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
        """Look at who owns what, and bring the shards of this process to its share."""
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
            self._refuse_a_higher_level()
        await self._depose_the_dead()
        share = self._share_of(self._told or self._facts())
        owned = sum(engine.owned)
        if self._leaving:
            return
        if owned < share:
            await self._claim(share - owned)
        elif owned > share + 1 or (owned and not share):  # one too many is not worth a move, but who leaves keeps none
            await self._balance(owned - share)

    async def check(self) -> None:
        """Read who owns what. Shards of this process that another one owns by now are dropped.

        Who was deposed has another row since, which owns nothing: what was owned is dropped before anything is read.
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
            return  # a look that began later is back already, or this process has another row: this shows what was so before
        self._seen = number
        if view.me != self._me:
            self._rows = [ShardRow(None, -1)] * len(view.shards)
            self._read = ()
            self._marked = None  # its row is new
        self._me = view.me
        self.nodes = {node.id: node for node in view.nodes}
        self.level = min((node.facts.level for node in view.nodes), default=self._facts().level)
        self.commits, self.registry = view.commits, view.registry
        if view.shards is not self._read:  # else they are known: most looks find what the one before has found
            self._read = view.shards
            for shard, row in enumerate(view.shards):
                if row.term >= self._rows[shard].term:
                    self._rows[shard] = row
        self.on_look(self.nodes)
        self._follow(view)

    def _follow(self, view: Ownership) -> None:
        owned = self._engine.owned
        # The map, and not what was just read: that may be older than what this process has claimed or given away meanwhile.
        mine = {shard for shard, row in enumerate(self._rows) if row.owner == view.me and view.me in self.nodes}
        lost = [shard for shard in range(len(owned)) if owned[shard] and shard not in mine]
        if lost:
            self._drop(lost)
        given = [shard for shard in sorted(mine - self._giving) if not owned[shard]]
        if given:
            self.counts["received"] += len(given)
            self._gain(given, abandoned=False)

    def _drop(self, shards: Sequence[int]) -> None:
        log.warning("other processes work for %s of the shards of this one now: it was taken for dead", len(shards))
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
            self._engine.on_unavailable(Deposed("another process has taken this one for dead"))

    def _weight(self) -> int:
        facts = self._facts()
        return 0 if facts.draining else facts.weight

    async def _pause(self, length: Micros) -> None:
        over = self._world.future()
        self._world.at(self._world.now() + length, lambda: None if over.done() else over.set_result(None))
        await over

    def _refuse_a_higher_level(self) -> None:
        """Others write what all of them can read. If all can read more than this process, it could not read everything.

        One that is joining is no proof that this one may: of two that begin together each would be the other's.
        """
        mine = self._facts().level
        levels = [node.facts.level for node in self.others if not node.facts.joining or node.facts.level > mine]
        if levels and min(levels) > mine:
            raise IncompatibleStore(
                "all other processes at this database are of later releases, and may write what this release cannot read"
                f" (they have level {min(levels)}, this one has {mine}); run their release"
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
        if not self._share_of(self._facts()):
            return
        for node in self.others:
            worked = self._owns_something(node.id)
            without = worked and node.id in gone and now - self._gone[node.id] >= GONE
            silent = node.silent >= SILENT and now >= self._back
            if (without or silent) and await self._store.depose(node.id, gone=without):
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

    def _share_of(self, facts: NodeFacts) -> int:
        """How many shards a process should own: all of them, if it is alone or if the database has one owner only.

        One that drains takes what is free if nobody else can: work that waits is worse than a process that cannot be stopped yet.
        """
        shards = len(self._rows)
        if not facts.weight:
            return 0
        if self._store.exclusive:
            return 0 if facts.draining else shards
        others = sum(self._weight_of(node) for node in self.others)
        if facts.draining:
            return 0 if others else shards
        return -(-shards * facts.weight // (facts.weight + others))

    def _weight_of(self, node: NodeRow) -> int:
        return node.facts.weight if node.is_alive and not node.facts.draining else 0

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
        """Hand a few shards to the process that is farthest below its share. If this one is leaving, also to nobody."""
        counts = Counter(row.owner for row in self._rows)
        lacking = {
            node.id: self._fair(node) - counts[node.id] for node in self.others if self._fair(node) > counts[node.id]
        }
        to = max(lacking, key=lambda node: lacking[node], default=None)
        if to is None:
            return
        owned = [shard for shard, mine in enumerate(self._engine.owned) if mine]
        await self._give(owned[: min(MOVED, surplus, lacking[to])], to)

    def _fair(self, node: NodeRow) -> int:
        everybody = sum(self._weight_of(one) for one in self.nodes.values() if one.id != self._me) + self._weight()
        weight = self._weight_of(node)
        return -(-len(self._rows) * weight // everybody) if weight else 0

    # -- handing over

    async def leave(self) -> None:
        """Hand all shards over before this process ends: to others, in equal parts, or to nobody."""
        self._leaving = True
        while self._giving:  # interrupted, their leases would be without an end at the next owner
            await self._pause(LEAVING)
        self._job.stop()
        if self._store.exclusive or self._engine.down is not None:
            return
        owned = [shard for shard, mine in enumerate(self._engine.owned) if mine]
        able = [node.id for node in self.others if self._weight_of(node)]
        try:
            for n, to in enumerate(able):
                await self._give(owned[n :: len(able)], to)
            if owned and not able:
                await self._give(owned, None)
        except Unavailable as error:
            log.warning("the shards of this process were not handed over, and are taken from it: %s", error)

    async def _give(self, shards: Sequence[int], to: int | None) -> None:
        engine = self._engine
        shards = [shard for shard in shards if engine.owned[shard]]
        if not shards:
            return
        self._giving.update(shards)
        try:
            self._lose(shards)
            await engine.settle()
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
        self._engine.gain(gained)
        self.on_gain(gained, abandoned)
        call_all(self._lifecycle.on_foreign_commit)  # the last commits of their owner may not have been noticed

    def _lose(self, shards: Iterable[int]) -> None:
        lost = frozenset(shards)
        self._engine.lose(lost)
        self.on_loss(lost)
