"""Notices: how this process learns what other processes commit to the same database.

A process that changes an instance beside its owner writes a notice row. The owner reads these rows within a fraction of
a second after a commit. Correctness does not depend on notices: they are read every 15 seconds in any case, and the
sweep finds missed work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from backstay.engine.core.cache import CachedInstance
from backstay.engine.core.engine import Engine
from backstay.engine.core.lifecycle import EngineHooks, call_all
from backstay.engine.core.periodic import PeriodicJob
from backstay.kernel.values import SECOND
from backstay.store.errors import Unavailable

NOTICE = SECOND // 50  # how often to look for commits of other processes
QUIET = SECOND // 10  # the same, when no other process has committed for a while
CALM = 2 * SECOND  # that while
REST = 10  # times as long is the pause while no other process is known to write without a word to this one
LOOK_ANYWAY = 15 * SECOND


class Notices:
    """`silent`: whether a process is known that announces its commits by notices alone.

    `commits`: the number of commits of other processes, as of the last look at their rows; None: this process does not
    look.
    """

    def __init__(
        self,
        engine: Engine,
        lifecycle: EngineHooks,
        silent: Callable[[], bool] = lambda: True,
        commits: Callable[[], Sequence[int] | None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._silent = silent
        self._told = commits
        self._commits: Sequence[int] | None = None
        self._lifecycle = lifecycle
        self._heard = engine.world.ticks()  # when another process was last found to have committed
        self._notice_job = PeriodicJob(engine.world, "notice", self._notice, needed=self._is_needed)
        self._anyway_job = PeriodicJob(engine.world, "look anyway", self._look_anyway)
        # Changed by another process while a commit of this one was under way, which may have been before or after.
        self._uncertain: dict[int, CachedInstance] = {}
        self._unread: set[int] = set()  # changed by another process, and could not be read

    def start(self) -> None:
        if self._engine.store.shared:
            self._notice_job.start(NOTICE)
            self._anyway_job.start(LOOK_ANYWAY)

    def stop(self) -> None:
        self._notice_job.stop()
        self._anyway_job.stop()

    def _is_needed(self) -> bool:
        """Whether a look may find anything."""
        if self._uncertain or self._unread:
            return True
        commits = None if self._silent() else self._told()
        if (commits != self._commits) if commits is not None else not self._engine.store.undisturbed():
            return True
        if self._engine.world.ticks() - self._heard > CALM:
            self._notice_job.interval = max(QUIET, self._notice_job.interval)
        return False

    async def _notice(self) -> None:
        engine = self._engine
        self._notice_job.interval = NOTICE if self._silent() else NOTICE * REST
        try:
            await self._look()
        except Unavailable as error:
            # This process may have nothing to write, but an engine without its database stops deciding: another process may
            # take over, and this one learns of that when the database is back.
            if engine.holder:
                engine.on_unavailable(error)
            raise

    async def _look(self) -> None:
        engine = self._engine
        if self._uncertain:
            self._settle()
        if engine.down is not None:
            return
        unread, self._unread = self._unread, set()
        for key in sorted(unread):
            self._read_again(key)
        if not await self._changed():
            return
        self._heard = engine.world.ticks()
        engine.mark_busy()
        try:
            if engine.holder:
                await self._take()
        except Exception:
            call_all(self._lifecycle.on_foreign_commit)  # now, because `changed` says only once that there was a commit
            raise
        call_all(
            self._lifecycle.on_foreign_commit
        )  # last, when outdated instances have been dropped: a wait that begins meanwhile may have read one from memory

    async def _changed(self) -> bool:
        """Whether another process has committed. Without urgency, the counts that were read with the owners are
        enough."""
        commits = None if self._silent() else self._told()
        if commits is None:
            return await self._engine.store.changed()
        before, self._commits = self._commits, commits
        return commits != before

    async def _take(self) -> bool:
        """Reconcile every instance that another process has changed; True if there was one."""
        engine = self._engine
        keys = await engine.store.notices(shards=engine.shards())
        engine.waiters.note(keys)
        for key in keys:
            entry = engine.cache.get(key)
            if entry is not None and (entry.inflight or entry.code_is_busy):
                self._uncertain[key] = entry
            self._read_again(key)
        if keys:
            await engine.outbox.pick_up_of(keys)
        return bool(keys)

    def _read_again(self, key: int) -> None:
        self._engine.reload(key)
        self._engine.loading.outdate(key)
        self._engine.reconcile(key, partial(self._was_read, key))

    def _was_read(self, key: int, _: Any, error: BaseException | None) -> None:
        if isinstance(error, Unavailable):
            self._unread.add(key)  # its notice is gone, and no other part reads a run that has ended

    def _settle(self) -> None:
        """Read the instances again that were busy when their notices came, as soon as they are at rest.

        A commit of this process that was after the other one is stale: its instance has been read again then, and is another entry.
        """
        for key, entry in list(self._uncertain.items()):
            if entry.dead:
                del self._uncertain[key]
            elif not (entry.inflight or entry.code_is_busy):
                del self._uncertain[key]
                self._read_again(key)

    async def _look_anyway(self) -> None:
        engine = self._engine
        if engine.down is not None:
            return
        taken = engine.holder and await self._take()
        if taken or not engine.owns_all:  # for shards of other owners no notice is left here
            engine.waiters.check_owned()
            call_all(self._lifecycle.on_foreign_commit)
