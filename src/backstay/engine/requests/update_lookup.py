"""Finding an update: its acceptance and its end, along the chain of runs that carried it on.

An update's id says after which event of its run it was accepted. So finding it reads history from there until its end, however
long the history before it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from backstay.engine.core.engine import Engine
from backstay.engine.core.instances import Instances
from backstay.kernel.event import Recorded
from backstay.kernel.features.continue_as_new import WorkflowContinuedAsNew
from backstay.kernel.features.update import UpdateAccepted, UpdateCompleted
from backstay.kernel.values import accepted_after, run_of

PAGE = 200


class FoundUpdate(NamedTuple):
    """An update that was accepted. `completed` is the event that ended it; None if it is open."""

    name: str
    completed: Recorded | None


async def find_update(
    engine: Engine, instances: Instances, namespace: str, key: int, update_id: str
) -> FoundUpdate | None:
    located = await engine.store.locate(namespace, run_of(update_id))
    if located is None or located.workflow != key:
        return None
    name: str | None = None
    after_event = accepted_after(update_id)
    while located is not None:
        went_on: str | None = None
        async for entry in _events(engine, located.run, after_event):
            match entry.event:
                case UpdateAccepted(update_id=id, update_name=called) if id == update_id:
                    name = called
                case UpdateCompleted(update_id=id, update_name=called) if id == update_id:
                    return FoundUpdate(called, entry)
                case WorkflowContinuedAsNew(continued_to_run_id=run_id):
                    went_on = run_id
                case _:
                    pass
        located = None if went_on is None else await engine.store.locate(namespace, went_on)
        after_event = 0
    if name is None:
        name = await _held(instances, key, update_id)
    return None if name is None else FoundUpdate(name, None)


async def _events(engine: Engine, run: int, after: int) -> AsyncIterator[Recorded]:
    while True:
        page = await engine.store.history(run, after, PAGE)
        for entry in page:
            yield entry
        if len(page) < PAGE:
            return
        after = page[-1].sequence


async def _held(instances: Instances, key: int, update_id: str) -> str | None:
    """The name of an update that is buffered: it was accepted during a workflow task and is recorded when that ends."""
    instance = await instances.committed(key)
    events = (event for event, _ in instance.buffered_events if isinstance(event, UpdateAccepted))
    return next((event.update_name for event in events if event.update_id == update_id), None)
