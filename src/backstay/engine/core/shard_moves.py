"""Shard moves: an engine drops and reads state when its process gains or loses shards."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from backstay.engine.core.cache import Cache, CachedInstance
from backstay.engine.core.loading import Loading
from backstay.engine.core.outbox import Outbox
from backstay.engine.core.timer_queue import TimerQueue
from backstay.engine.core.waiters import Waiters
from backstay.engine.tasks.leases import Leases
from backstay.engine.tasks.matching import Matching


class MovingEngine(Protocol):
    """The part of an engine that moves of shards use."""

    owned: bytearray
    cache: Cache
    leases: Leases
    loading: Loading
    waiters: Waiters
    timers: TimerQueue
    matching: Matching
    outbox: Outbox

    def discard_cached(self, entry: CachedInstance) -> None: ...

    def reconcile(self, key: int) -> None: ...


class ShardMoves:
    def __init__(self, engine: MovingEngine, shards: int) -> None:
        self._engine = engine
        self._mask = shards - 1

    def gain(self, shards: Collection[int]) -> None:
        """This process owns these shards from now on: their instances in memory may be outdated, and are read again."""
        for shard in shards:
            self._engine.owned[shard] = 1
        for entry in self._in_memory(shards):
            if entry.inflight == 0 and not entry.code_is_busy:
                self._engine.discard_cached(entry)
            else:
                # Decided beside the owner and not on disk yet, so recovery does not find its tasks.
                self._engine.reconcile(entry.instance.key)
        self._engine.leases.read = False
        self._engine.loading.outdate()
        self._engine.waiters.check_owned()

    def lose(self, shards: Collection[int]) -> None:
        """Another process owns these shards: drop their timers, lanes, leases, and all instances at rest.

        From here on this process serves them as any other does, in the middle of whatever it was doing. Decisions that
        are not on disk yet are written with a notice, and code in the middle of a task reports when it ends.
        """
        for shard in shards:
            self._engine.owned[shard] = 0
        lost = frozenset(shards)

        def is_lost(key: int) -> bool:
            return key & self._mask in lost

        self._engine.timers.forget(is_lost)
        self._engine.matching.lanes.forget(is_lost)
        self._engine.matching.remote_workers.forget(is_lost)
        given = self._engine.leases.forget(is_lost)
        if self._engine.matching.admission is not None:
            self._engine.matching.admission.moved(given)
        self._engine.outbox.forget(is_lost)
        for entry in self._in_memory(shards):
            if entry.inflight == 0 and not entry.code_is_busy:
                self._engine.discard_cached(entry)
        self._engine.loading.outdate()
        self._engine.waiters.check_all()

    def _in_memory(self, shards: Collection[int]) -> list[CachedInstance]:
        return [entry for entry in self._engine.cache if entry.instance.key & self._mask in shards]
