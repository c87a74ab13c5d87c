"""The rows that are stored beside history: one of the instance, and one of each run in the index."""

from __future__ import annotations

from backstay.kernel.decision import InstanceRow, RunRow
from backstay.kernel.features.archive import Archived
from backstay.kernel.features.search import SearchAttributes
from backstay.kernel.features.start import Identity
from backstay.kernel.state import Instance, Run


def run_row(instance: Instance, run: Run) -> RunRow:
    """The index row of a run."""
    labels = run.part(Identity)
    search = run.parts.get(SearchAttributes)
    archived = run.parts.get(Archived)
    return RunRow(
        run.key,
        instance.key,
        run.run_id,
        run.number,
        instance.namespace,
        instance.workflow_id,
        run.workflow_type,
        run.status,
        run.closed_reason,
        run.routing.queue,
        run.routing.connection,
        run.routing.compatibility,
        labels.business_key,
        labels.visibility_labels,
        {} if search is None else search.values,
        run.started_at,
        run.closed_at,
        run.length,
        None if archived is None else archived.at,
    )


def instance_row(instance: Instance, unanswered: int, waits_externally: bool) -> InstanceRow:
    """The row of an instance. `unanswered`: how many other instances owe it an answer. `waits_externally`: only
    something from outside makes it go on."""
    run = instance.run
    return InstanceRow(
        instance.key,
        instance.namespace,
        instance.workflow_id,
        instance.workflow_type,
        instance.last_decision,
        None if run is None else run.key,
        instance.command_sequence,
        instance.cursor,
        instance.next_wake,
        len(instance.tasks) + instance.missing_tasks,  # a row that is lost counts until it was looked for
        0 if run is None else run.length,
        0 if run is None else run.checksum,
        instance.reserved_at,
        int(waits_externally),
        unanswered,
        instance.attempts,
        tuple(instance.buffered_events) if instance.buffered_events else (),
    )
