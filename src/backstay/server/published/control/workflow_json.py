"""The JSON of workflows and runs on the control plane, from history and index rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from backstay.kernel.decision import RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.features.close import WorkflowCompleted
from backstay.kernel.features.start import WorkflowStarted
from backstay.kernel.values import CODEC
from backstay.protocol import requests as ask
from backstay.protocol.history import iso
from backstay.protocol.payloads import decoded, envelope
from backstay.protocol.requests import Description
from backstay.protocol.run_detail import BUCKET_OF, memo
from backstay.protocol.tasks import optional_iso
from backstay.server.http_errors import HttpError

if TYPE_CHECKING:
    from backstay.server.http_messages import HttpRequest
    from backstay.server.server import Server


def bucket(status: str) -> str:
    return BUCKET_OF.get(status, "running")


def listed(row: RunRow) -> dict[str, Any]:
    """A run in a list: what its index row holds."""
    return {
        "workflow_id": row.workflow_id,
        "run_id": row.run_id,
        "run_number": row.number,
        "workflow_type": row.workflow_type,
        "namespace": row.namespace,
        "business_key": row.business_key,
        "visibility_labels": row.labels,
        "search_attributes": row.search_attributes,
        "status": row.status,
        "status_bucket": bucket(row.status),
        "is_terminal": row.closed_at is not None,
        "closed_reason": row.closed_reason,
        "task_queue": row.queue,
        "connection": row.connection,
        "compatibility": row.compatibility,
        "payload_codec": CODEC,
        "started_at": iso(row.started_at),
        "closed_at": optional_iso(row.closed_at),
        "history_length": row.length,
    }


async def find_instance(server: Server, request: HttpRequest) -> tuple[Description, list[Recorded]]:
    """The instance that the path names, and the history of its current run."""
    workflow_id = request.params["workflow_id"]
    return await server.api.look(ask.DescribeWorkflow(workflow_id=workflow_id, namespace=request.namespace))


def described(server: Server, found: Description, history: list[Recorded]) -> dict[str, Any]:
    """An instance by its current run."""
    if found.run is None:
        return {
            "workflow_id": found.workflow_id,
            "namespace": found.namespace,
            "workflow_type": found.workflow_type,
            "run_id": None,
            "status": found.status,
            "status_bucket": "running",
            "is_terminal": False,
        }
    view = _shown(found.run, history[:2], history[-1] if history else None, is_current=True)
    view |= {
        "memo": {key: decoded(blob) for key, blob in found.memo.items()},
        "run_count": found.run.number,
        "wait_kind": found.wait_kind,
        "wait_reason": found.wait_kind,
        "open_wait_id": found.open_wait_id,
        "resume_source_kind": found.resume_source_kind,
        "resume_source_id": found.resume_source_id,
        "liveness_state": found.liveness_state,
        "next_wake_at": optional_iso(found.next_wake),
        "exception_count": found.exception_count,
        "actions": msgspec.to_builtins(found.actions),
        "can_query": found.actions is not None and found.actions.can_query,
        "query_blocked_reason": None if found.actions is None else found.actions.query_blocked_reason,
        **server.fleet.of_run(found.run),
    }
    return view


async def run_of_workflow(server: Server, row: RunRow, *, is_current: bool) -> dict[str, Any]:
    """One run with its input and output."""
    store = server.engine.store
    view = _shown(row, await store.history(row.key, 0, 2), await store.last_event(row.key), is_current=is_current)
    if not is_current:
        view["memo"] = {key: decoded(blob) for key, blob in memo(await store.history(row.key)).items()}
    return view


def _shown(row: RunRow, opening: list[Recorded], last: Recorded | None, *, is_current: bool) -> dict[str, Any]:
    started = next((entry.event for entry in opening if isinstance(entry.event, WorkflowStarted)), None)
    output = last.event.output if last is not None and isinstance(last.event, WorkflowCompleted) else None
    view = listed(row)
    if started is not None:
        view |= {
            "input": decoded(started.arguments),
            "input_envelope": envelope(started.arguments),
            "execution_timeout_seconds": started.execution_timeout_seconds,
            "run_timeout_seconds": started.run_timeout_seconds,
            "execution_deadline_at": optional_iso(started.execution_deadline_at),
            "run_deadline_at": optional_iso(started.run_deadline_at),
            "workflow_definition_fingerprint": started.workflow_definition_fingerprint,
            "memo": {key: decoded(blob) for key, blob in started.memo.items()},
        }
    open_run = row.closed_at is None
    return view | {
        "output": decoded(output),
        "output_envelope": envelope(output),
        "is_current_run": is_current,
        "last_progress_at": None if last is None else iso(last.at),
        "actions": {
            "can_signal": open_run and is_current,
            "can_query": is_current,
            "can_update": open_run and is_current,
            "can_cancel": open_run and is_current,
            "can_terminate": open_run and is_current,
            "can_repair": open_run and is_current,
            "can_archive": not open_run,
        },
    }


async def find_run(server: Server, request: HttpRequest) -> RunRow:
    """The run that the path names, if it is one of the workflow that the path names."""
    run_id, workflow_id = request.params["run_id"], request.params["workflow_id"]
    row = await server.engine.store.run(request.namespace, run_id)
    if row is None or row.workflow_id != workflow_id:
        raise HttpError(
            404,
            "run_not_found",
            f"workflow {workflow_id!r} has no run {run_id!r}",
            workflow_id=workflow_id,
            run_id=run_id,
        )
    return row
