"""Leases in doubt: the database failed during their commit, and they may be on disk.

A lease of a worker with a link is ended, if there is one: its worker got no reply, and another node may own the
instance. A poll is held back until the leases are known again. It then gets the task that it has got, or waits on. If
it waited on at once, it could get a second task, and the first would rest until its lease is over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from backstay.engine.core.engine import Engine
from backstay.engine.tasks.parked_polls import ParkedPoll
from backstay.kernel.features.lease import never_heard_of
from backstay.kernel.message import Refused
from backstay.store.errors import StoreError


class DoubtedPolls:
    """`assignment`: the assignment that a poll has got by its id, as the database knows it."""

    def __init__(self, engine: Engine, assignment: Callable[[ParkedPoll], Awaitable[Any]]) -> None:
        self._engine = engine
        self._assignment = assignment

    @property
    def leases_are_unread(self) -> bool:
        """Whether the leases of this process are still to be read, after an outage or a start."""
        engine = self._engine
        return engine.down is not None or (engine.store.exclusive and engine.holder and not engine.leases.read)

    def settle(self) -> None:
        """End the leases that no worker has heard of, and give each poll in doubt its task, or let it wait on: if the leases are
        known by now."""
        if not self.leases_are_unread:
            workers = self._engine.matching.remote_workers
            unsent, workers.unsent = workers.unsent, []
            for task in unsent:
                self._engine.submit(task.workflow, never_heard_of(task))
            for poll in self._engine.matching.polls.take_doubted():
                self._engine.world.spawn(self._settle(poll), "backstay-doubt")

    async def _settle(self, poll: ParkedPoll) -> None:
        try:
            assigned = await self._assignment(poll)
        except (StoreError, Refused):
            assigned = None  # its lease has an end
        while poll.successor is not None:
            poll = poll.successor
        if not poll.future.done():  # if it has ended, its worker may have got the task by another poll with this id
            self._engine.dispatcher.settle_poll(poll, assigned)
