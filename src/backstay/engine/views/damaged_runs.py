"""Damaged runs: open runs whose history cannot be folded. Nothing resumes them, whatever tasks and wakes they have.

Damage is found when a run is loaded, when its views are made, when an operator opens it, and by the liveness
certificate. Then a mark is stored in place of its summary, so that everything that counts runs by their summaries
counts it: states, causes, lists, metrics, health. A mark is only a hint: each reader of the run folds it again. If
that works, because the rows were restored, an ordinary summary takes the place of the mark.
"""

from __future__ import annotations

import asyncio
import logging

from backstay.engine.core.engine import Engine
from backstay.engine.views.run_views import damage_row
from backstay.kernel.decision import RunRow
from backstay.kernel.event import HistoryDamaged
from backstay.kernel.state import Instance
from backstay.kernel.values import Micros
from backstay.store import Opening, RunFilter
from backstay.store.errors import Unavailable
from backstay.store.views import DAMAGED, ViewChanges

log = logging.getLogger("backstay.engine")

KNOWN = 10_000  # damaged instances that are remembered in memory; the others are found again by their marks


class DamagedRuns:
    """`stores`: whether views of runs are stored. Without them, only this process knows its findings."""

    def __init__(self, engine: Engine, *, stores: bool) -> None:
        self._engine = engine
        self._stores = stores
        self._checking: set[int] = set()
        self.known: dict[int, Micros] = {}  # instances whose current run is damaged, and when that was found
        self.unreadable: set[int] = set()  # runs whose views cannot be made, closed ones, too
        self.drifted: set[int] = set()  # instances whose row names another run than their newest, when last looked at
        engine.loading.on_damage = self.suspect

    def suspect(self, workflow: int) -> None:
        """The current run of an instance could not be folded just now: look at it, and mark it."""
        if workflow not in self.known and workflow not in self._checking:
            self._checking.add(workflow)
            self._engine.world.spawn(self._check_later(workflow), "backstay-damage")

    async def _check_later(self, workflow: int) -> None:
        try:
            await self.check(workflow)
        except Unavailable:
            pass  # the next load of it finds it again
        except Exception:
            log.exception("the history of instance %s could not be checked", workflow)
        finally:
            self._checking.discard(workflow)

    async def check(self, workflow: int) -> HistoryDamaged | None:
        """Fold the current run of an instance from disk. Its damage, or None; the mark of the run is set
        accordingly."""
        store = self._engine.store
        while True:
            before = (await store.facts([workflow])).get(workflow)
            damage = await self._fold(workflow)
            after = (await store.facts([workflow])).get(workflow)
            if damage is None or before == after:
                break  # else it has moved on meanwhile, or its rows were removed
        row = None if damage is None or before is None else await self._open_run(workflow, before.run)
        if damage is None or before is None or row is None:
            self.known.pop(workflow, None)
            return None
        self.unreadable.add(row.key)
        if len(self.known) < KNOWN:
            self.known.setdefault(workflow, self._engine.world.now())
        self._engine.reload(workflow)  # so that nothing builds on the state in memory
        if self._stores and self._engine.holder:
            await self._mark(row, before.last_decision)
        return damage.of(row.workflow_id, row.run_id)

    async def noticed(self, row: RunRow) -> None:
        """A reader could not fold this run. An open run is marked as damaged. The stored summary of any other run is
        removed, because it is outdated."""
        engine = self._engine
        if row.is_open:
            await self.check(row.workflow)
        elif engine.holder and self._stores:
            written: asyncio.Future[object] = engine.world.future()
            engine.store.put_views(
                ViewChanges(forgotten=[row.key]), lambda error: None if written.done() else written.set_result(error)
            )
            await written

    async def _fold(self, workflow: int) -> HistoryDamaged | None:
        engine = self._engine
        try:
            opening = await engine.store.opening(workflow)
            if opening is None:
                return None
            folded = (
                await self._newest_run(workflow) if opening.run is None else await self._named_run(opening, opening.run)
            )
        except HistoryDamaged as damage:
            return damage
        except Unavailable:
            raise
        except Exception as error:  # its checksums are right, and it makes no sense
            return HistoryDamaged(0, 0, f"it cannot be folded ({type(error).__name__}: {error})")
        if folded is not None and folded.run is not None:
            self.unreadable.discard(folded.run.key)
        return None

    async def _named_run(self, opening: Opening, named: RunRow) -> Instance | None:
        try:
            folded = await self._engine.loading.fold_slowly(opening)
        except HistoryDamaged:
            if named.is_open:
                raise
            return await self._newest_run(opening.row.key)  # an older run fits the row no better than a damaged one
        self.drifted.discard(opening.row.key)
        return folded

    async def _newest_run(self, workflow: int) -> Instance | None:
        """The state of an instance whose row may name a wrong run. If it does, the row is written again."""
        engine = self._engine
        loaded = await engine.store.load(workflow)
        if loaded is None:
            return None
        folded = engine.loading.restore(loaded)
        if loaded.drifted:
            self.drifted.add(workflow)
            if engine.owns(workflow) and engine.reload(workflow):
                engine.reconcile(workflow)
        return folded

    async def _open_run(self, workflow: int, run: int | None) -> RunRow | None:
        """The row of the run that does not go on. If the row of the instance names none, it is the newest one."""
        store = self._engine.store
        row = None if run is None else await store.run_by_key(run)
        if row is None:
            opening = await store.opening(workflow)
            if opening is None:
                return None
            where = RunFilter(namespace=opening.row.namespace, workflow_id=opening.row.workflow_id, limit=1)
            row = next(iter(await store.runs(where)), None)
        return row if row is not None and row.is_open else None

    async def _mark(self, row: RunRow, stamp: int) -> None:
        world, store = self._engine.world, self._engine.store
        stored = (await store.summaries([row.key])).get(row.key)
        since = stored.since if stored is not None and stored.schema == DAMAGED else world.now()
        written = world.future()
        changes = ViewChanges([damage_row(row, stamp, since)])
        store.put_views(changes, lambda error: None if written.done() else written.set_result(error))
        await written
