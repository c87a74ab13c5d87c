"""Shares of limits: the leases of several processes at one database together never exceed a limit.

Each limited scope (leases of a queue, dispatches of a namespace in this minute, ...) has one entry in the registry: the
share of each process, and the processes that request more. It is only written if it is as was read (`Store.keep_if`),
so the sum of all shares never passes the limit. A process leases within its share, from memory. A process takes more
when a task and a worker wait, at most ten times a second. It gives shares that were unused for a second to processes
that request some, and more beyond that, so that shares even out. Where the limit is below the number of processes, it
moves between them: a process without a share gets some after a second.

A task needs room in all scopes of its queue. Shares are requested in a fixed order: the next scope only once there is
room in the scopes before it, and a process that waits for the next scope keeps a share of the earlier ones. So two
processes cannot deadlock.

**What a share pays for.** A lease counts against the process that granted it (`Task.node`) until it is over, even if
another process owns its instance meanwhile. So nothing has to move when a shard does, and tasks of others' shards are
stolen within the same share. The process itself knows how many of its leases there are: those of its own shards as they
end, those of others' shards by looking each second (`QueueAdmission.check_abroad`).

**A dead process** holds the shares that its leases need: their rows name it, and it cannot write more of them, because
it is fenced or its row is removed, and its number is never used again. So a process that needs a share and finds none
reads the entry, then the living processes, deposes dead ones, reads the leases, and frees the shares of dead processes
beyond their leases. In another order the share of a process that has just begun, or of one that is about to commit its
last lease, would be free (mutant "share freed before deposition"). A share of a minute is used up, and free when the
minute is over.

**Why the limit holds.** A process lowers its allowance before it writes a smaller share, and raises it after it has
read or written a larger one. If it is unknown whether a smaller share was written, the process uses the smaller one
until another write of this entry has succeeded: each writing has a stamp of its own, so the first cannot take place
after the second.

A file has one process, which counts by itself. A process that is alone at a server takes all there is at its first lease, and
looks no more until another one joins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Struct

from backstay.engine.core.periodic import PeriodicJob
from backstay.engine.core.world import World
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Micros
from backstay.store import RegistryEntry
from backstay.store.ownership import NodeRow, Ownership

MINUTE = 60 * SECOND
KIND = "budget"
TURN = SECOND // 10  # between two looks while something is wanted
IDLE = SECOND  # idle time after which an unused share goes to a process that requests one
KEPT = 60  # times as long an unused share is kept without requests: a worker may poll only now and then


class LimitScope(NamedTuple):
    """What is limited: leases at once or dispatches per minute, of tasks of one kind, of a queue or of a namespace (`queue` None);
    or of a budget group, which has both kinds and no namespace."""

    per_minute: bool
    kind: str
    namespace: str
    queue: str | None

    @property
    def name(self) -> str:
        what = "dispatches" if self.per_minute else "leases"
        return ":".join([what, self.kind] if self.queue is None else [what, self.kind, self.queue])

    def has(self, task: Task) -> bool:
        return (task.kind, task.routing.namespace) == (self.kind, self.namespace) and (
            self.queue is None or task.routing.queue == self.queue
        )


class BudgetEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The share of each process in a limit, and the requests for more, the oldest first. `stamp`: no two writings are
    the same."""

    stamp: str = ""
    minute: int = 0
    held: dict[int, int] = {}
    asking: list[int] = []


class BudgetShare:
    """The share of this process in one limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.amount = 0  # that this process may use
        self.minute = 0  # of which that is
        self.owed = 0  # the part that goes to others as soon as it is unused
        self.elsewhere = 0  # the shares of others
        self.unsure = False  # whether what was given is written
        self.wanted = False  # a task and a worker wait for some
        self.having: frozenset[LimitScope] = frozenset()  # scopes whose share is of use only with some of this one
        self.most = 0  # that was used since `since`
        self.since: Micros = 0
        self.idle_for = 0  # times in a row that some was not used
        self.grown: Micros = 0  # when there was less

    @property
    def is_of_use(self) -> bool:
        return self.wanted or self.amount > 0 or self.unsure

    def begin(self, minute: int) -> None:
        """Shares of an earlier minute are over."""
        if self.minute != minute:
            self.minute, self.amount, self.owed, self.unsure = minute, 0, 0, False


class BudgetStore(Protocol):
    """The part of a store that shares are kept in."""

    def kept(self, kind: str) -> Awaitable[list[RegistryEntry]]: ...
    def keep_if(self, entry: RegistryEntry, before: bytes | None) -> Awaitable[bool]: ...
    def look(self) -> Awaitable[Ownership]: ...
    def depose(self, node: int, *, gone: bool = False) -> Awaitable[bool]: ...
    def leased(self) -> Awaitable[Sequence[Task]]: ...


_decode = msgspec.json.Decoder(BudgetEntry).decode


class BudgetShares:
    """`me`: the row of this process; `nodes`: the living ones. `used`: how much of a scope this process uses; `waiting`: how many
    tasks wait here for some. `check` is awaited before each look; `on_room` is called when there is room again."""

    def __init__(
        self,
        world: World,
        store: BudgetStore,
        *,
        me: Callable[[], int],
        nodes: Callable[[], Collection[int]],
        used: Callable[[LimitScope], int],
        waiting: Callable[[LimitScope], int],
        check: Callable[[], Awaitable[None]],
        on_room: Callable[[], None],
    ) -> None:
        self._world = world
        self._store = store
        self._me_now = me
        self._me = 0
        self._nodes = nodes
        self._used = used
        self._waiting = waiting
        self._check = check
        self._on_room = on_room
        self._shares: dict[LimitScope, BudgetShare] = {}
        self._looked: Micros = 0
        self._shown: dict[tuple[str, str], bytes | None] = {}  # entries that were read for operators
        self._shown_at: Micros = 0
        self._counted: Micros = 0  # when the leases of dead processes were counted last
        self._present: tuple[Collection[int], Counter[tuple[LimitScope, int | None]]] | None = (
            None  # found in this look
        )
        self._job = PeriodicJob(world, "budgets", self.look, lambda: bool(self._shares))

    def stop(self) -> None:
        self._job.stop()

    # -- the allowance of this process

    def amount(self, scope: LimitScope) -> int:
        """The share of this process."""
        share = self._current(scope)
        return 0 if share is None else share.amount

    def elsewhere(self, scope: LimitScope) -> int:
        """The shares of other processes, as of a read within the last seconds."""
        share = self._current(scope)
        if self._world.now() - self._shown_at < IDLE:
            held = self._entry(scope, self._shown.get((scope.namespace, scope.name))).held
            return sum(held.values()) - held.get(self._me_now(), 0)
        return 0 if share is None else share.elsewhere

    def has_room(self, scope: LimitScope, used: int) -> bool:
        share = self._current(scope)
        return share is not None and used < share.amount - share.owed

    def spends(self, scope: LimitScope, used: int) -> None:
        """This process uses more of a scope."""
        share = self._current(scope)
        if share is not None:
            share.most = max(share.most, used)

    def want(self, scope: LimitScope, limit: int, having: Iterable[LimitScope] = ()) -> None:
        """A task and a worker wait, and there is no room; but there is room in other scopes of this task, `having`."""
        share = self._shares.setdefault(scope, BudgetShare(limit))
        share.limit, share.wanted = limit, True
        share.having |= frozenset(having)
        pause = max(0, self._looked + TURN - self._world.now())
        self._job.hurry(pause)
        self._job.start(pause)

    def _current(self, scope: LimitScope) -> BudgetShare | None:
        share = self._shares.get(scope)
        if share is None or self._me != self._me_now() or (scope.per_minute and share.minute != self._minute):
            return None
        return share

    @property
    def _minute(self) -> int:
        return self._world.now() // MINUTE

    # -- looking

    async def look(self) -> None:
        """Read all shares; take, give back and hand over."""
        self._looked = self._world.now()
        if self._me != self._me_now():  # deposed: its shares are no longer its own
            self._me = self._me_now()
            self._shares = {scope: _fresh(share) for scope, share in self._shares.items() if share.wanted}
        try:
            await self._check()
            if self._others() or any(share.wanted for share in self._shares.values()):
                await self._look()
        finally:
            self._shares = {scope: share for scope, share in self._shares.items() if share.is_of_use}
            self._job.interval = self._pause()

    async def refresh(self) -> None:
        """Read what everybody holds, to show it."""
        self._shown = await self._read()
        self._shown_at = self._world.now()

    async def leave(self) -> None:
        """Give back unused shares: this process ends."""
        self._job.stop()
        found = await self._read()
        for scope, share in list(self._shares.items()):
            body = found.get((scope.namespace, scope.name))
            entry = self._entry(scope, body)
            if self._me != self._me_now():
                return
            left = min(self._used(scope), entry.held.get(self._me, 0))
            share.amount = 0
            await self._write(
                scope, share, entry, {**entry.held, self._me: left}, _without(entry.asking, self._me), body
            )

    async def _look(self) -> None:
        found = await self._read()
        self._present = None
        room = False
        for scope, share in self._shares.items():
            room |= self._learn(share, self._entry(scope, found.get((scope.namespace, scope.name))), scope)
        for scope, share in list(self._shares.items()):
            body = found.get((scope.namespace, scope.name))
            if scope.per_minute and body is not None and _decode(body).minute == self._minute + 1:
                continue  # for others this minute is over
            if self._me != self._me_now():
                return  # deposed meanwhile: its use under another number says nothing about its old shares
            room |= await self._settle(scope, share, body)
        if room:
            self._on_room()

    def _pause(self) -> Micros:
        """Until the next look. The rest of a minute needs no haste; the next minute is noticed by itself."""
        urgent = [scope for scope, share in self._shares.items() if share.wanted or share.owed]
        if not urgent:
            return IDLE
        pause = TURN if any(not scope.per_minute for scope in urgent) else IDLE // 2
        return pause + self._world.ids.serial() % (TURN // 4)

    async def _read(self) -> dict[tuple[str, str], bytes | None]:
        return {(entry.namespace, entry.name): entry.body for entry in await self._store.kept(KIND)}

    def _entry(self, scope: LimitScope, body: bytes | None) -> BudgetEntry:
        """The shares by process; empty for a minute that is over."""
        entry = BudgetEntry() if body is None else _decode(body)
        minute = self._minute if scope.per_minute else 0
        return entry if entry.minute == minute else BudgetEntry(minute=minute)

    def _learn(self, share: BudgetShare, entry: BudgetEntry, scope: LimitScope) -> bool:
        """Use the share that the entry shows for this process. True: waiting tasks can use it."""
        share.begin(entry.minute)
        held = entry.held.get(self._me, 0)
        share.elsewhere = sum(entry.held.values()) - held
        amount = min(held, share.amount) if share.unsure else held
        if amount > share.amount:
            share.grown = self._world.now()
        share.amount = amount
        if share.wanted and self._used(scope) < amount - share.owed:
            self._satisfied(scope, share)
            return True
        return False

    def _satisfied(self, scope: LimitScope, share: BudgetShare) -> None:
        """The requested share has arrived: it is needed now, and so are the shares that were kept for it."""
        now = self._world.now()
        share.since, share.most = now, self._used(scope)
        for before in share.having:
            kept = self._shares.get(before)
            if kept is not None:
                kept.grown = kept.since = now
                kept.most = self._used(before)
        share.wanted, share.having = False, frozenset()

    # -- one limit

    async def _settle(self, scope: LimitScope, share: BudgetShare, body: bytes | None) -> bool:
        entry = self._entry(scope, body)
        if share.minute != entry.minute:
            return False  # it has just begun
        held = dict(entry.held)
        if share.wanted and share.limit <= sum(held.values()) and not scope.per_minute:
            held = await self._without_the_gone(scope, held)
            if self._me != self._me_now():
                return False  # as before
        held[self._me] = share.amount  # less than it says, if it is unsure
        asking = [node for node in entry.asking if node != self._me and node in self._nodes()]
        more = self._more(scope, share, share.limit - sum(held.values()), len(asking)) if share.wanted else 0
        given = 0 if more else self._give(scope, share, held, asking)
        held[self._me] += more
        share.amount -= given  # before it is written
        if share.wanted and not more and self._others():
            waits = self._me in entry.asking and not given
            asking = [node for node in entry.asking if node in (*asking, self._me)] if waits else [*asking, self._me]
        if not await self._write(scope, share, entry, held, asking, body):
            share.amount += given if share.minute == entry.minute else 0
            return False
        if more:
            share.grown = self._world.now()
            self._satisfied(scope, share)
        return more > 0

    def _more(self, scope: LimitScope, share: BudgetShare, free: int, asking: int) -> int:
        """How much to take of the free part: all that is needed; half of it, or less, if others may need some."""
        if free <= 0 or share.owed:
            return 0
        if not self._others():
            return free
        needed = max(1, self._waiting(scope) + self._used(scope) - share.amount)
        return min(needed, -(-free // max(2, asking + 1)))

    def _give(self, scope: LimitScope, share: BudgetShare, held: dict[int, int], asking: list[int]) -> int:
        """Hand surplus shares, and those unused for a second, to processes that request some; give back long unused
        ones."""
        now, used = self._world.now(), self._used(scope)
        spare = max(0, share.amount - used)
        idle = 0
        if now - share.since >= IDLE:
            idle = max(0, share.amount - max(share.most, used))
            share.since, share.most = now, used
            share.idle_for = share.idle_for + 1 if idle else 0
            if not asking and share.idle_for < KEPT:
                idle = 0
        needed = any(other.wanted and scope in other.having for other in self._shares.values())
        if needed or not self._others():
            idle = 0
        if scope.per_minute:
            owed = spare // 2 if asking else 0
        else:
            owed = _owed(share.amount, [held.get(node, 0) for node in asking], now - share.grown >= IDLE and not needed)
        given = min(spare, max(owed, idle))
        share.owed = max(0, owed - given)
        held[self._me] -= given
        for _ in range(given if asking else 0):
            to = min(asking, key=lambda node: held.get(node, 0))  # of several the first
            held[to] = held.get(to, 0) + 1
        return given

    async def _without_the_gone(self, scope: LimitScope, held: dict[int, int]) -> dict[int, int]:
        """All shares, without those of dead processes beyond their leases."""
        now = self._world.now()
        strange = [node for node in held if node != self._me and node not in self._nodes()]
        if not strange or (self._present is None and now - self._counted < IDLE // 2):
            return held
        if self._present is None:
            self._counted = now
            there = {node.id for node in (await self._store.look()).nodes if not await self._is_deposed(node)}
            leases = await self._store.leased()
            self._present = there, Counter((one, task.node) for task in leases for one in self._shares if one.has(task))
        there, counts = self._present
        return {
            node: amount if node in there or node == self._me else min(amount, counts[scope, node])
            for node, amount in held.items()
        }

    async def _is_deposed(self, node: NodeRow) -> bool:
        """Depose a dead process: one without shards is deposed nowhere else."""
        if node.is_alive or node.id == self._me or node.id in self._nodes():
            return False
        return await self._store.depose(node.id, gone=node.session is False)

    async def _write(
        self,
        scope: LimitScope,
        share: BudgetShare,
        entry: BudgetEntry,
        held: Mapping[int, int],
        asking: Sequence[int],
        body: bytes | None,
    ) -> bool:
        held = {node: amount for node, amount in sorted(held.items()) if amount > 0}
        asking = list(asking)
        if (held, asking) == (entry.held, entry.asking) and not share.unsure:
            return True
        if body is None and not held and not asking:
            return True
        new = BudgetEntry(stamp=self._world.ids.ulid(), minute=entry.minute, held=held, asking=asking)
        written = msgspec.json.encode(new) if held or asking else None
        unsure, share.unsure = share.unsure, True
        done = await self._store.keep_if(RegistryEntry(KIND, scope.namespace, scope.name, written, counted=False), body)
        share.unsure = unsure and not done
        if done and share.minute == entry.minute:
            share.amount = held.get(self._me, 0)
            share.elsewhere = sum(held.values()) - share.amount
        return done

    def _others(self) -> bool:
        return any(node != self._me for node in self._nodes())


def _fresh(share: BudgetShare) -> BudgetShare:
    new = BudgetShare(share.limit)
    new.wanted = True
    return new


def _without(nodes: Iterable[int], node: int) -> list[int]:
    return [one for one in nodes if one != node]


def _owed(mine: int, theirs: list[int], wanders: bool) -> int:
    """How much to hand over so that shares even out; the last one only to a process without any, after a while."""
    owed = 0
    theirs = sorted(theirs)
    while theirs and mine > 0 and (theirs[0] + 2 <= mine or (theirs[0] == 0 and wanders)):
        wanders = False
        mine, theirs[0], owed = mine - 1, theirs[0] + 1, owed + 1
        theirs.sort()
    return owed
