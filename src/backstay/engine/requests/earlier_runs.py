"""Runs before the current one of an instance, for the commands that name them.

A command belongs to the run that it names, and its number is the next one of that run. The instance in memory knows the number
of its current run only, so the shell counts the commands of an earlier run on disk.
"""

from __future__ import annotations

from typing import Any

from backstay.engine.core.engine import Engine
from backstay.kernel.message import EarlierRun, Refused
from backstay.protocol.commands import ToInstance


async def earlier_run(
    engine: Engine, key: int, request: ToInstance[Any], *, with_history: bool = False
) -> EarlierRun | None:
    """The run that a command names, unless it names none or the current one."""
    if request.run_id is None:
        return None
    store = engine.store
    cached = engine.cache.get(key)  # before anything is read: this state knows everything that is recorded from here on
    loaded_from = None if cached is None else cached.instance.loaded_from
    opening = await store.opening(key)
    if opening is None or opening.run is None or opening.run.run_id == request.run_id:
        return None
    row = await store.run(request.namespace, request.run_id)
    if row is None:
        raise Refused("run_not_found", f"there is no run {request.run_id!r}", run_id=request.run_id)
    return EarlierRun(
        key=row.key,
        run_id=row.run_id,
        number=row.number,
        commands=max(
            (command.sequence or 0 for command in await store.commands(key) if command.run == row.key), default=0
        ),
        loaded_from=opening.row.last_decision if loaded_from is None else loaded_from,
        history=await store.history(row.key) if with_history else [],
    )
