"""Workers of the published package, and the definition of the runs that they begin.

Such a worker registers its contracts and sends no definition with a completion. So the server adopts the registered
definition for it, with the first completion of a run. Signals that were accepted before a contract was known, and do not fit it,
are rejected in the same completion, and no page of history shows them to the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from backstay.codec import avro
from backstay.kernel import contract
from backstay.kernel.command import Command
from backstay.kernel.event import Recorded
from backstay.kernel.features.signal import SignalReceived, Signals
from backstay.kernel.features.signal_rejection import INVALID, UNKNOWN, RejectSignal
from backstay.kernel.features.start import (
    AdoptDefinition,
    Identity,
    RecordedDefinition,
    WorkflowDefinitionAdopted,
    WorkflowStarted,
    definition_of,
    differs,
    undecided,
)
from backstay.kernel.state import Instance
from backstay.kernel.task import Task
from backstay.kernel.values import run_of
from backstay.server.server import Server
from backstay.server.workers.worker_registry import RegisteredWorker


def hidden(events: Sequence[Recorded], started: WorkflowStarted, own: RecordedDefinition | None) -> frozenset[str]:
    """The ids of the events in a page of history that the code of a worker must not see. `own`: the definition of that worker,
    if the run has decided nothing yet."""
    if own is not None and differs(started, own):
        definition = own
    elif any(isinstance(entry.event, WorkflowDefinitionAdopted) for entry in events):
        definition = definition_of(started)
    else:
        return frozenset()
    if definition is None:
        return frozenset()
    received = [entry.event for entry in events if isinstance(entry.event, SignalReceived)]
    return frozenset(event.signal_id for event in received if rejection(definition, event) is not None)


def rejection(definition: RecordedDefinition, event: SignalReceived) -> RejectSignal | None:
    """The rejection of a signal that does not fit the contract of a definition."""
    if event.signal_name not in definition.signals:
        return RejectSignal(signal_id=event.signal_id, rejection_reason=UNKNOWN)
    declared = contract.find(definition.signal_contracts, event.signal_name)
    values: Any = [] if event.arguments is None else avro.decode(event.arguments)
    if declared is None or not isinstance(values, list):
        return None
    errors = contract.check(declared, cast(list[Any], values))
    if not errors:
        return None
    return RejectSignal(signal_id=event.signal_id, rejection_reason=INVALID, validation_errors=errors)


async def leading(server: Server, worker: RegisteredWorker | None, task_id: str, leased: Task | None) -> list[Command]:
    """The commands that record the definition of a worker, if this is the first task of a run with another one. `leased`: the
    task, if this node has leased it."""
    if worker is None or not _may_be_first(task_id):
        return []
    place = leased or await server.api.stored.run(worker.namespace, run_of(task_id))
    if place is None:
        return []
    definition = server.workers.definition_by(worker, place.type if isinstance(place, Task) else place.workflow_type)
    if definition is None:
        return []
    cached = server.engine.cache.get(place.workflow)
    instance = await server.api.committed(place.workflow) if cached is None else cached.instance
    started = None if instance.run is None else instance.run.part(Identity).started
    if started is None or not undecided(instance) or not differs(started, definition):
        return []
    return [AdoptDefinition(definition=definition), *_rejections(instance, definition)]


def _may_be_first(task_id: str) -> bool:
    """Whether a task is for the start of a run, which is its second event, or for an update."""
    _, _, task = task_id.rpartition("-")
    return task == "w2" or task.startswith("v")


def _rejections(instance: Instance, definition: RecordedDefinition) -> list[Command]:
    received = instance.current.part(Signals).received.values()
    found = (rejection(definition, entry.event) for entry in received)
    return [command for command in found if command is not None]
