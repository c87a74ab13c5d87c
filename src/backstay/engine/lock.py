"""The engine lock: which of the processes at one database is its engine.

One process holds the lock and is the *engine*: it hands out tasks, fires timers, delivers messages between instances. The
others are *guests*: they read, and submit messages beside it, and each tries a few times a second to take over. A process
that runs no tasks never takes over, since work would wait while it is the engine.

**Can there be two engines?** Two processes may believe for a moment that they are the engine; they never hold the lock at the
same time. The belief is a flag in memory (`Engine.holder`): a process that was cut off from its database keeps it until its next
write fails. The lock is in the system below. On a SQLite file it is an OS lock of the process, so a process that is only
suspended keeps it, and nobody takes over. On PostgreSQL it belongs to the session in which the engine writes: the session that
lost the lock cannot commit any more, and after a reconnect the engine goes on only if it gets the lock back and no other engine
had it in between (`store/postgresql/writer.py`). So two engines never write at the same time.

Correctness does not rely on that, since guests write beside the engine all the time. Each decision is written under a guard on
its instance's row; of two decisions on the same state one fails and is decided again on what the other wrote (`rollback`).
Without the guard a late commit of one process would overwrite what another decided. The lock decides who hands out tasks and
fires timers; with two engines work would be done twice, and recorded once. What the old engine has in memory is outdated as
soon as another took over: every `term` has a number, and rows that were read in one term are not used in the next.
`tests/processes/test_failover.py` and the simulator's nodes, which lose lock and database at random, show it.

The in-process leases of a dead engine end with it. Their owner names the engine's incarnation, they have no expiry, and the
next engine releases all that are not its own (`Recovery`). Leases of remote workers outlive an engine: their workers reconnect
to the next one and report to it.
"""

from __future__ import annotations

import logging

from backstay.engine.engine import Engine
from backstay.engine.lifecycle import EngineHooks, call_all
from backstay.store.copying.mark import refuse_unfinished

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
        await refuse_unfinished(store)
        await store.notices()
        self._begin_term()
        return True

    async def take_over(self) -> bool:
        """Become the engine if the process that held the lock is gone."""
        store = self._engine.store
        if not await store.acquire():
            return False
        await refuse_unfinished(store)  # a copier that was killed
        log.info("the process that ran the engine of this database is gone; this process takes over")
        for prepare in self._lifecycle.before_take_over:
            await prepare()
        await store.notices()
        call_all(
            self._lifecycle.on_foreign_commit
        )  # this process may not have noticed the last commits of the engine before
        if not await store.acquire():  # the lock may have been lost during the preparation
            return False
        self._begin_term()
        return True

    def _begin_term(self) -> None:
        # The notices up to now were deleted unread: recovery reads the instances that they name.
        self.term += 1
        self._engine.take_over()

    def step_down(self) -> None:
        """Another process became the engine while the database was unavailable. The state in this one is outdated."""
        log.warning("another process runs the engine of this database now; this process reads and submits beside it")
        self.term += 1
        self._engine.step_down()
        call_all(self._lifecycle.on_lost)
