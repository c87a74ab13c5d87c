"""The engine lock: which of the processes at one database is its engine.

One process holds the lock and is the *engine*: it hands out tasks, fires timers, delivers messages between instances. The
others are *guests*: they read, and submit messages beside it, and each tries a few times a second to take over. A process
that runs no tasks never takes over, since work would wait while it is the engine.

Who holds the lock is a question of speed, never of safety. Two processes may both believe for a moment to be the engine: one
that was suspended, or cut off from its database, does not know yet that another took over. So nothing relies on the lock
alone. Each decision is written under a guard on its instance's row, and of two decisions on the same state one fails and is
decided again on what the other wrote (`rollback`). On PostgreSQL the lock belongs to the session that writes: a process that
loses it has lost its connection, and fences the batch that was under way before it goes on (`store/postgresql/writer.py`).
Without the guard a late commit of the old engine would overwrite what the new one decided. What the old engine remembers
is worthless as soon as another took over: every `term` has a number, and what was read from the database in one term is not
used in the next. `tests/processes/test_failover.py` and the simulator's nodes, which lose lock and database at random, show
it.

The in-process leases of a dead engine end with it. Their owner names the engine's incarnation, they have no time of expiry, and
the next engine releases all that are not its own (`Recovery`). Leases of workers elsewhere outlive an engine: their workers come
back to the next one and report to it.
"""

from __future__ import annotations

import logging

from backstay.engine.engine import Engine
from backstay.engine.lifecycle import EngineHooks, call_all

log = logging.getLogger("backstay.engine")


class EngineLock:
    """`guest`: this process never becomes the engine of a database that others can reach."""

    def __init__(self, engine: Engine, lifecycle: EngineHooks, *, guest: bool = False) -> None:
        self._engine = engine
        self._lifecycle = lifecycle
        self.guest = guest and engine.store.shared
        self.term = 0  # changes when this process becomes the engine, and when it stops being it

    async def acquire(self) -> bool:
        """Become the engine when this process starts; False if another process is."""
        store = self._engine.store
        if not await store.acquire():
            return False
        await store.notices()
        self._begin_term()
        return True

    async def take_over(self) -> bool:
        """Become the engine if the process that was it is gone."""
        store = self._engine.store
        if not await store.acquire():
            return False
        log.info("the process that ran the engine is gone; this one takes over")
        for prepare in self._lifecycle.before_take_over:
            await prepare()
        await store.notices()
        call_all(
            self._lifecycle.on_foreign_commit
        )  # the last commits of the engine before may have gone unnoticed here
        if not await store.acquire():  # the lock may have been lost during the preparation
            return False
        self._begin_term()
        return True

    def _begin_term(self) -> None:
        # Notices from before were taken off the store unread: recovery reads the instances that they are about.
        self.term += 1
        self._engine.take_over()

    def step_down(self) -> None:
        """Another process became the engine while the database was out of reach. What this one remembers is outdated."""
        log.warning("another process runs the engine now; this one reads and submits beside it")
        self.term += 1
        self._engine.step_down()
        call_all(self._lifecycle.on_lost)
