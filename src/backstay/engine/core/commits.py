"""Commits: the turns of a batch are sealed, written together, and followed by their effects. One batch after another.

A batch is written while the next one is being decided. So there is one write at a time, and decisions made meanwhile
wait for the next: the slower the disk, the larger the batches.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Protocol

from backstay.engine.core.batch import BATCH, BatchEntry, CommitObserver, Uncommitted
from backstay.engine.core.cache import Cache
from backstay.engine.core.counters import Counters
from backstay.engine.core.effects import Effects, log_failed_effect
from backstay.engine.core.rollback import Rollback
from backstay.engine.core.waiters import Waiters
from backstay.engine.core.world import World
from backstay.engine.tasks.inline import InlineCode
from backstay.engine.tasks.late_deliveries import STILL, LateDeliveries
from backstay.kernel.decision import Decision
from backstay.kernel.values import Micros
from backstay.store import Applied, Store
from backstay.store.errors import Unavailable

log = logging.getLogger("backstay.engine")


class CommittingEngine(Protocol):
    """The part of an engine that commits use."""

    down: Unavailable | None
    idle: bool

    @property
    def owns_all(self) -> bool: ...

    def owns(self, key: int) -> bool: ...

    def seal(self, item: BatchEntry) -> None: ...

    def mark_busy(self) -> None: ...


class Commits:
    def __init__(
        self,
        engine: CommittingEngine,
        world: World,
        store: Store,
        cache: Cache,
        counters: Counters,
        waiters: Waiters,
        uncommitted: Uncommitted,
        inline: InlineCode,
        rollback: Rollback,
        effects: Effects,
        late_deliveries: LateDeliveries,
    ) -> None:
        self._engine = engine
        self._world = world
        self._store = store
        self._cache = cache
        self._counters = counters
        self._waiters = waiters
        self._uncommitted = uncommitted
        self._inline = inline
        self._rollback = rollback
        self._effects = effects
        self._late_deliveries = late_deliveries
        self._observers: list[CommitObserver] = []
        self.writing = False
        self._write_began: Micros = 0
        self.scheduled = False

    def observe(self, observer: CommitObserver) -> None:
        """Call `observer` with every batch that is on disk, before any reply. It only takes notes."""
        self._observers.append(observer)

    def ignore(self, observer: CommitObserver) -> None:
        if observer in self._observers:
            self._observers.remove(observer)

    @property
    def under_way_for(self) -> Micros:
        """How long the commit that is being written has taken so far."""
        return self._world.ticks() - self._write_began if self.writing else 0

    def schedule(self) -> None:
        if not self.scheduled and not self.writing:
            self.scheduled = True
            self._world.soon(self._flush)

    def keep_going(self) -> None:
        """Flush again soon, even if there is nothing to write: more code is due than one commit should wait for."""
        if not self._uncommitted.open:
            self.schedule()

    def _flush(self) -> None:
        self.scheduled = False
        if self.writing:
            return
        self._inline.run()
        if not self._uncommitted.open:
            self._uncommitted.end_batch()
            return
        batch = self._uncommitted.next_batch()
        self.writing = True
        decisions: list[Decision] = []
        for item in batch:
            if item.decision is None:
                self._engine.seal(item)
            decisions.append(item.decision)  # type: ignore[arg-type]
        self._write_began = self._world.ticks()
        self._store.apply(decisions, partial(self._written, batch))

    def _written(self, batch: list[BatchEntry], applied: Applied) -> None:
        self.writing = False
        if self._engine.idle:
            self._engine.mark_busy()
        self._uncommitted.end_batch()
        self._rollback.restless.clear()
        took = self._world.ticks() - self._write_began
        if applied.down is not None:
            self._counters.lost_commits += 1
            self._rollback.go_down(batch, applied.down)
            return
        if applied.stale or applied.failed:
            # Another process committed first: the waiters that registered on stale state are checked again.
            self._waiters.note(batch[position].entry.instance.key for position in applied.stale)
            self._waiters.check_all()
            batch = self._rollback.split_batch(batch, applied)
        try:
            self._counters.committed(batch, took)
            if not self._engine.owns_all:
                self._counters.guest_decisions += sum(not self._engine.owns(item.entry.instance.key) for item in batch)
            for observe in self._observers:
                observe(batch)
        except Exception:  # figures and views may be wrong then; the decisions of the batch still take effect
            log.exception("an observer of commits failed")
        if took > STILL and not self._store.exclusive:
            self._late_deliveries.hold(batch)
        for item in batch:
            try:
                self._effects.carry_out(item)
            except Exception:  # in the effects of one decision; those of the others take place
                log_failed_effect(item.entry)
        self._cache.trim()
        if self._uncommitted.open or self._inline.due:
            self.schedule()

    async def drain(self) -> None:
        """Let every decision that was made reach the disk, and those that are made meanwhile."""
        while (self._uncommitted.open or self.writing) and self._engine.down is None:
            await self._end_of_batch()

    async def settle(self) -> None:
        """Let every decision that was made so far reach the disk, while others are made."""
        ends = self.writing + -(-len(self._uncommitted.open) // BATCH)
        while ends > 0 and (self._uncommitted.open or self.writing) and self._engine.down is None:
            await self._end_of_batch()
            ends -= 1

    async def _end_of_batch(self) -> None:
        ended: asyncio.Future[None] = self._world.future()
        self._uncommitted.call_at_end(ended)
        await ended
