"""The definition of a run: its possible sources, and until when it may change.

`WorkflowStarted` records the definition that was known when the run was started: that of the live workers of its type,
or that of the caller, or none. A run whose code has decided nothing yet has no past to be faithful to. So the worker
that completes its first task records its own definition, if it is another one (`AdoptDefinition`), and that is the
definition of the run from then on: for contracts, for versions and for every answer about the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import asdict, replace

from backstay.kernel.command import Command
from backstay.kernel.event import Event, Recorded
from backstay.kernel.features.start.records import Identity, RecordedDefinition, WorkflowStarted
from backstay.kernel.state import Instance, Run
from backstay.kernel.turn import Turn
from backstay.kernel.words import RUN, Phrase, Story, Words


class AdoptDefinition(Command, frozen=True, kw_only=True, omit_defaults=True, tag="adopt_definition"):
    """The worker's own definition of the workflow, with the first completion of a run that was started with another."""

    leads = True
    definition: RecordedDefinition


class WorkflowDefinitionAdopted(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of `WorkflowStarted` that this definition replaces, under the same names."""

    workflow_class: str | None = None
    workflow_definition_fingerprint: str | None = None
    declared_change_ids: list[str] | None = None
    declared_queries: list[str] = []
    declared_query_contracts: list[dict[str, Any]] = []
    declared_signals: list[str] = []
    declared_signal_contracts: list[dict[str, Any]] = []
    declared_updates: list[str] = []
    declared_update_contracts: list[dict[str, Any]] = []
    declared_update_validators: list[str] | None = None
    declared_entry_method: str = "handle"
    declared_entry_mode: str = "canonical"
    declared_entry_declaring_class: str | None = None
    declared_cleanup_seconds: float | None = None


def declare(definition: RecordedDefinition) -> dict[str, Any]:
    """The fields of `WorkflowStarted` that record a definition."""
    return {
        "workflow_class": definition.workflow_class,
        "workflow_definition_fingerprint": definition.fingerprint,
        "declared_change_ids": definition.change_ids,
        "declared_queries": definition.queries,
        "declared_query_contracts": definition.query_contracts,
        "declared_signals": definition.signals,
        "declared_signal_contracts": definition.signal_contracts,
        "declared_updates": definition.updates,
        "declared_update_contracts": definition.update_contracts,
        "declared_update_validators": definition.update_validators if definition.updates else None,
        "declared_entry_method": definition.entry_method,
        "declared_entry_mode": definition.entry_mode,
        "declared_entry_declaring_class": definition.entry_declaring_class,
        "declared_cleanup_seconds": definition.cleanup_seconds,
    }


def definition_of(started: WorkflowStarted) -> RecordedDefinition | None:
    """The definition that a run has recorded, for a next run whose definition is not known."""
    if started.declared_queries is None:
        return None
    return RecordedDefinition(
        workflow_class=started.workflow_class,
        fingerprint=started.workflow_definition_fingerprint,
        change_ids=started.declared_change_ids,
        queries=started.declared_queries,
        query_contracts=started.declared_query_contracts or [],
        signals=started.declared_signals or [],
        signal_contracts=started.declared_signal_contracts or [],
        updates=started.declared_updates or [],
        update_contracts=started.declared_update_contracts or [],
        update_validators=started.declared_update_validators,
        entry_method=started.declared_entry_method or "handle",
        entry_mode=started.declared_entry_mode or "canonical",
        entry_declaring_class=started.declared_entry_declaring_class,
        cleanup_seconds=started.declared_cleanup_seconds,
    )


def differs(started: WorkflowStarted, definition: RecordedDefinition) -> bool:
    """Whether a run has recorded another definition than this one, or none.

    A fingerprint leaves annotations out, and contracts are made of them, so both are compared.
    """
    return (
        started.declared_queries is None
        or started.workflow_definition_fingerprint != definition.fingerprint
        or started.declared_signal_contracts != definition.signal_contracts
        or started.declared_update_contracts != definition.update_contracts
        or started.declared_query_contracts != definition.query_contracts
        or (bool(definition.updates) and started.declared_update_validators != definition.update_validators)
        or started.declared_cleanup_seconds != definition.cleanup_seconds
    )


def undecided(instance: Instance) -> bool:
    """Whether the code of the current run has decided nothing yet, so that its definition is open."""
    return instance.cursor == 0 and not instance.current.part(Identity).settled


def started_of(history: Iterable[Recorded]) -> WorkflowStarted | None:
    """The start of a run as it counts: with the definition that its history has adopted."""
    started: WorkflowStarted | None = None
    for entry in history:
        event = entry.event
        if isinstance(event, WorkflowStarted):
            started = event
        elif isinstance(event, WorkflowDefinitionAdopted) and started is not None:
            return adopted(started, event)
    return started


def adopted(started: WorkflowStarted, event: WorkflowDefinitionAdopted) -> WorkflowStarted:
    return replace(started, **asdict(event))


def check(turn: Turn, command: AdoptDefinition) -> None:
    """There is nothing to refuse: a definition that comes too late is not adopted."""


def adopt(turn: Turn, command: AdoptDefinition) -> None:
    started = turn.run.part(Identity).started
    if started is not None and undecided(turn.instance) and differs(started, command.definition):
        turn.record(WorkflowDefinitionAdopted(**declare(command.definition)))


def evolve(run: Run, event: WorkflowDefinitionAdopted, entry: Recorded) -> None:
    identity = run.part(Identity)
    identity.adopted = identity.settled = True
    if identity.started is not None:
        identity.started = adopted(identity.started, event)


def _say(story: Story, event: WorkflowDefinitionAdopted) -> Phrase:
    code = event.workflow_definition_fingerprint
    return Phrase("◆", f"definition of the worker recorded{'' if code is None else f' ({code[:16]})'}", "quiet")


WORDS: dict[type[Event], Words] = {WorkflowDefinitionAdopted: Words(RUN, _say)}
