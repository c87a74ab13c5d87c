"""The JSON of workflows and runs on the control plane, from history and index rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from backstay.engine.reading.looking import Ends, Looked
from backstay.kernel.decision import RunRow
from backstay.kernel.values import CODEC
from backstay.protocol import requests as ask
from backstay.protocol.history import iso
from backstay.protocol.payloads import decoded, envelope
from backstay.protocol.run_detail import BUCKET_OF
from backstay.protocol.run_fields import HistoryBudget, run_fields
from backstay.protocol.tasks import optional_iso
from backstay.server.http.errors import HttpError

if TYPE_CHECKING:
    from backstay.server.http.messages import HttpRequest
    from backstay.server.server import Server


class RunAnswer(Struct, frozen=True, kw_only=True):
    """The fields of a run in the index."""

    workflow_id: str
    run_id: str
    run_number: int
    workflow_type: str
    namespace: str
    business_key: str | None
    visibility_labels: dict[str, str]
    search_attributes: dict[str, Any]
    status: str
    status_bucket: str
    is_terminal: bool
    closed_reason: str | None
    task_queue: str
    connection: str | None
    compatibility: str | None
    payload_codec: str
    started_at: str
    closed_at: str | None
    history_length: int


def bucket(status: str) -> str:
    return BUCKET_OF.get(status, "running")


def listed(row: RunRow) -> RunAnswer:
    """A run in a list: the fields of its index row."""
    return RunAnswer(
        workflow_id=row.workflow_id,
        run_id=row.run_id,
        run_number=row.number,
        workflow_type=row.workflow_type,
        namespace=row.namespace,
        business_key=row.business_key,
        visibility_labels=row.labels,
        search_attributes=row.search_attributes,
        status=row.status,
        status_bucket=bucket(row.status),
        is_terminal=row.closed_at is not None,
        closed_reason=row.closed_reason,
        task_queue=row.queue,
        connection=row.connection,
        compatibility=row.compatibility,
        payload_codec=CODEC,
        started_at=iso(row.started_at),
        closed_at=optional_iso(row.closed_at),
        history_length=row.length,
    )


async def find_instance(server: Server, request: HttpRequest) -> Looked:
    """The current run of the instance that the path names, with its whole history."""
    workflow_id = request.params["workflow_id"]
    return await server.api.look(ask.DescribeWorkflow(workflow_id=workflow_id, namespace=request.namespace))


def budget(server: Server) -> HistoryBudget:
    settings = server.settings
    return HistoryBudget(settings.continue_as_new_event_threshold, settings.continue_as_new_size_bytes_threshold)


def described(server: Server, looked: Looked) -> dict[str, Any]:
    """A run, or an instance that has none yet."""
    found = looked.found
    row = found.run
    if row is None:
        return {
            "workflow_id": found.workflow_id,
            "namespace": found.namespace,
            "workflow_type": found.workflow_type,
            "run_id": None,
            "status": found.status,
            "status_bucket": "running",
            "is_terminal": False,
        }
    return (
        asdict(listed(row))
        | _recorded(looked.ends)
        | {"memo": {key: decoded(blob) for key, blob in found.memo.items()}}
        | run_fields(row, found, budget(server))
        | {
            "current_run_id": found.current_run_id,
            "current_run_source": found.current_run_source,
            "run_count": row.number,
        }
        | msgspec.to_builtins(server.fleet.of_run(row))
    )


def undescribed(server: Server, row: RunRow) -> dict[str, Any]:
    """The same fields of a run whose history cannot be read, from its row alone."""
    about: dict[str, Any] = {
        "memo": {},
        "current_run_id": None,
        "current_run_source": None,
        "run_count": row.number,
    }
    return (
        asdict(listed(row))
        | _recorded(Ends())
        | run_fields(row, None, budget(server))
        | about
        | msgspec.to_builtins(server.fleet.of_run(row))
    )


def run_in_chain(looked: Looked) -> dict[str, Any]:
    """One run among all runs of its instance."""
    found = looked.found
    assert found.run is not None, "it is a run"
    return (
        asdict(listed(found.run))
        | _recorded(looked.ends)
        | {
            "memo": {key: decoded(blob) for key, blob in found.memo.items()},
            "is_current_run": found.is_current_run,
            "archived": found.run.archived_at is not None,
            "actions": msgspec.to_builtins(found.actions),
        }
    )


def _recorded(ends: Ends) -> dict[str, Any]:
    """The input and output of a run, and its deadlines."""
    started = ends.started
    return {
        "input": None if started is None else decoded(started.arguments),
        "input_envelope": None if started is None else envelope(started.arguments),
        "output": decoded(ends.output),
        "output_envelope": envelope(ends.output),
        "execution_timeout_seconds": None if started is None else started.execution_timeout_seconds,
        "run_timeout_seconds": None if started is None else started.run_timeout_seconds,
        "execution_deadline_at": None if started is None else optional_iso(started.execution_deadline_at),
        "run_deadline_at": None if started is None else optional_iso(started.run_deadline_at),
        "workflow_definition_fingerprint": None if started is None else started.workflow_definition_fingerprint,
        "last_progress_at": optional_iso(ends.last_at),
    }


async def find_run(server: Server, request: HttpRequest) -> RunRow:
    """The run that the path names, if it is one of the workflow that the path names."""
    run_id, workflow_id = request.params["run_id"], request.params["workflow_id"]
    row = await server.api.stored.run(request.namespace, run_id)
    if row is None or row.workflow_id != workflow_id:
        raise HttpError(
            404,
            "run_not_found",
            f"workflow {workflow_id!r} has no run {run_id!r}",
            workflow_id=workflow_id,
            run_id=run_id,
        )
    return row
