"""Runs whose history is damaged: the readable part is read, and nothing is folded."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from backstay.engine.core.engine import Engine
from backstay.engine.views.run_views import joined
from backstay.kernel.decision import RunRow
from backstay.kernel.event import HistoryDamaged, Recorded
from backstay.protocol.remains import Remains
from backstay.store import Opening, RunFilter, Store
from backstay.store.views import VIEWS

PAGE = 1000
_EVIDENCE = [view for view in VIEWS if view != "timeline"]  # a stored timeline only repeats events


async def remains(engine: Engine, row: RunRow, damage: HistoryDamaged) -> Remains:
    """The readable part of a damaged run."""
    store = engine.store
    opening = await _opening(store, row)
    current = opening is None or opening.row.run == row.key
    newest = await store.runs(RunFilter(namespace=row.namespace, workflow_id=row.workflow_id, limit=1))
    remnant = Remains(
        row=row,
        damage=damage.of(row.workflow_id, row.run_id),
        events=await readable(store, row, damage),
        tasks=[task for task in await store.tasks(row.workflow) if task.run == row.key],
        wake=opening.row.next_wake if opening is not None and current and row.is_open else None,
        unanswered=opening.row.unanswered if opening is not None and current and row.is_open else 0,
        is_current=current,
        current_run_id=newest[0].run_id if newest else None,
        commands=[command for command in await store.commands(row.workflow) if command.may_be_of(row.key)],
        stored={view: await _intact(store, view, row.key) for view in _EVIDENCE},
    )
    linked = {run_id: await store.run(row.namespace, run_id) for run_id in remnant.named_runs}
    return msgspec.structs.replace(remnant, linked={id: run for id, run in linked.items() if run is not None})


async def readable(store: Store, row: RunRow, damage: HistoryDamaged) -> list[Recorded]:
    """The events before the damage. Those after it prove nothing: what they follow from is missing."""
    entries: list[Recorded] = []
    last = damage.sequence - 1 if damage.sequence else row.length  # 0: it is not the history that cannot be read
    try:
        while len(entries) < last:
            page = await store.history(row.key, len(entries), min(PAGE, last - len(entries)))
            if not page:
                break
            entries += page
    except HistoryDamaged:
        pass  # in the page that was read last, and known already
    return entries


async def _opening(store: Store, row: RunRow) -> Opening | None:
    """The rows of the instance, if they can be read."""
    try:
        return await store.opening(row.workflow)
    except HistoryDamaged:
        return None


async def _intact(store: Store, view: str, run: int) -> list[dict[str, Any]]:
    """The entries of a stored view whose rows are as they were written."""
    try:
        return joined([row for row in await store.view_rows(view, run) if row.is_intact])
    except (msgspec.DecodeError, zlib.error):
        return []
