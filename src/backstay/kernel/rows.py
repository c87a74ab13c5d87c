"""The rows that are stored beside history: of the instance itself, and of its run in the index."""

from __future__ import annotations

from backstay.kernel.decision import RunRow, WorkflowRow
from backstay.kernel.features.archive import Archived
from backstay.kernel.features.search import SearchAttributes
from backstay.kernel.features.start import Identity
from backstay.kernel.state import Run, Workflow


def run_row(flow: Workflow, run: Run) -> RunRow:
    """The index row of a run."""
    labels = run.part(Identity)
    search = run.parts.get(SearchAttributes)
    archived = run.parts.get(Archived)
    return RunRow(
        run.key,
        flow.key,
        run.run_id,
        run.number,
        flow.namespace,
        flow.workflow_id,
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


def instance_row(flow: Workflow, awaited: int, outside: bool) -> WorkflowRow:
    """The row of an instance. `awaited`: how many other instances owe it an answer. `outside`: only something from outside
    makes it go on."""
    run = flow.run
    return WorkflowRow(
        flow.key,
        flow.namespace,
        flow.workflow_id,
        flow.workflow_type,
        flow.last,
        None if run is None else run.key,
        flow.command_sequence,
        flow.cursor,
        flow.next_wake,
        len(flow.tasks) + flow.missing,  # a row that is lost is not forgotten until it has been looked for
        0 if run is None else run.length,
        0 if run is None else run.checksum,
        flow.reserved_at,
        int(outside),
        awaited,
        tuple(flow.held) if flow.held else (),
    )
