"""Late deliveries: tasks whose commit took so long that this process may have lost them meanwhile.

A process that was stopped, or whose machine slept, learns of a commit late. Meanwhile others may have declared it dead,
and done its work. So before tasks of such a commit go to their workers, this process checks in the database that it
still owns them. A task that is no longer leased here is left alone: its owner dispatches it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from backstay.engine.core.batch import BatchEntry
from backstay.engine.core.cache import CachedInstance
from backstay.engine.core.world import World
from backstay.engine.tasks.dispatch import Dispatcher
from backstay.kernel.features.lease import never_heard_of
from backstay.kernel.message import Message
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND
from backstay.store import Store
from backstay.store.errors import Unavailable

log = logging.getLogger("backstay.engine")

STILL = 5 * SECOND
"""A commit that takes longer. A process is declared dead after a longer time, as long as it has its connections."""


class LateEngine(Protocol):
    """The part of an engine that late deliveries use."""

    def owns(self, key: int) -> bool: ...
    def submit(self, key: int, message: Message) -> None: ...


class LateDeliveries:
    def __init__(self, engine: LateEngine, world: World, store: Store, dispatcher: Dispatcher) -> None:
        self._engine = engine
        self._world = world
        self._store = store
        self._dispatcher = dispatcher
        self.confirm: Callable[[], Awaitable[None]] = _nothing
        """Reads the owners from the database. If this process was declared dead, it loses its shards before this
        ends."""
        self._checked: Counter[int] = Counter()  # how many tasks of each instance are being checked

    def has(self, key: int) -> bool:
        """Whether tasks of this instance are being checked. No executor holds them yet, and they must not be taken for lost."""
        return key in self._checked

    def hold(self, batch: Sequence[BatchEntry]) -> None:
        """Take the tasks that these decisions lease out of the batch, and deliver them after the check."""
        held: list[tuple[CachedInstance, Any]] = []
        for item in batch:
            held += [(item.entry, assignment) for assignment in item.assignments]
            item.assignments = []
        if held:
            log.warning(
                "a commit took more than %d s: this process checks that it still owns its tasks", STILL // SECOND
            )
            self._checked.update(assignment.task.workflow for _, assignment in held)
            self._world.spawn(self._deliver(held), "backstay-late-deliveries")

    async def _deliver(self, held: Sequence[tuple[CachedInstance, Any]]) -> None:
        try:
            await self.confirm()
            for entry, assignment in held:
                if not await self._is_leased(assignment.task):
                    continue
                if entry.dead:  # it was evicted meanwhile: the task is given again, as one that has reached no worker
                    self._engine.submit(entry.instance.key, never_heard_of(assignment.task))
                else:
                    self._dispatcher.deliver(entry, assignment)
        except Unavailable:
            pass  # when the database is back, leases that no worker holds are released
        finally:
            self._checked -= Counter(assignment.task.workflow for _, assignment in held)

    async def _is_leased(self, task: Task) -> bool:
        """Whether a lease is unchanged. One without an end lasts no longer than the ownership of its instance."""
        for row in await self._store.tasks(task.workflow):
            if row.id == task.id:
                same = (row.state, row.owner, row.attempt) == (task.state, task.owner, task.attempt)
                return same and (task.until is not None or self._engine.owns(task.workflow))
        return False


async def _nothing() -> None:
    """No other process can do the work of this one."""
