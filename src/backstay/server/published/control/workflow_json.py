"""The JSON of workflows and runs on the control plane, from history and index rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import asdict

from backstay.engine.reading.looking import Ends, Looked
from backstay.kernel.decision import RunRow
from backstay.kernel.values import CODEC
from backstay.kernel.views.actions import Actions
from backstay.protocol import requests as ask
from backstay.protocol.history import iso
from backstay.protocol.payloads import decoded, envelope
from backstay.protocol.run_detail import BUCKET_OF
from backstay.protocol.run_fields import HistoryBudget, run_fields
from backstay.protocol.tasks import optional_iso
from backstay.server.http.answer_types import joined
from backstay.server.http.errors import HttpError
from backstay.server.operators.fleet import FleetOfRun

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


class RunWithResult(RunAnswer, frozen=True, kw_only=True):
    """A run with what its history says of its begin and its end."""

    input: Annotated[Any, Meta(description="The arguments as plain values.")]
    input_envelope: Annotated[dict[str, str] | None, Meta(description="The arguments as they are stored.")]
    output: Annotated[Any, Meta(description="The result as a plain value.")]
    output_envelope: Annotated[dict[str, str] | None, Meta(description="The result as it is stored.")]
    execution_timeout_seconds: float | None
    run_timeout_seconds: float | None
    execution_deadline_at: str | None
    run_deadline_at: str | None
    workflow_definition_fingerprint: str | None
    last_progress_at: Annotated[str | None, Meta(description="When its last event was recorded.")]
    memo: dict[str, Any]


class RunInChain(RunWithResult, frozen=True, kw_only=True):
    """One run among all runs of its instance."""

    is_current_run: bool
    archived: bool
    actions: Actions | None


class RunState(RunWithResult, frozen=True, kw_only=True):
    """The state of a run, its next step, and the commands that it would accept."""

    id: str
    instance_id: str
    queue: str
    is_current_run: bool
    archived: bool
    archived_at: str | None
    sort_timestamp: str
    sort_key: str
    duration_ms: int | None
    history_event_count: int
    history_size_bytes: int
    continue_as_new_recommended: bool
    state: str
    attention: Annotated[str | None, Meta(description="Why an operator should look at it.")]
    state_since: str | None
    state_until: str | None
    declared_entry_mode: str | None
    declared_contract_source: str
    liveness_state: str | None
    wait_kind: str | None
    wait_reason: Annotated[str | None, Meta(description="The wait, in words.")]
    wait_started_at: str | None
    wait_deadline_at: str | None
    open_wait_id: str | None
    resume_source_kind: str | None
    resume_source_id: str | None
    next_task_id: str | None
    next_task_type: str | None
    next_task_status: str | None
    next_task_at: str | None
    next_task_lease_expires_at: str | None
    next_wake_at: str | None
    attempt: int
    attempts: Annotated[int | None, Meta(description="The most attempts; null: no limit.")]
    last_error: str | None
    exception_count: int
    actions: Actions


class ChainOfRun(Struct, frozen=True, kw_only=True):
    """Which run of its instance is the current one."""

    current_run_id: str | None
    current_run_source: str | None
    run_count: int


if TYPE_CHECKING:

    class DescribedRun(RunState, frozen=True, kw_only=True):
        current_run_id: str | None
        current_run_source: str | None
        run_count: int
else:
    DescribedRun = joined(
        *("DescribedRun", __name__, RunState, Actions, ChainOfRun, FleetOfRun),
        about="A run as its description has it. The commands that it accepts also stand flat beside its other fields.",
    )


class ReservedWorkflow(Struct, frozen=True, kw_only=True):
    """An instance that has no run yet."""

    workflow_id: str
    namespace: str
    workflow_type: str | None
    run_id: None = None
    status: str
    status_bucket: str = "running"
    is_terminal: bool = False


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


def described(server: Server, looked: Looked) -> DescribedRun | ReservedWorkflow:
    """A run, or an instance that has none yet."""
    found = looked.found
    if found.run is not None:
        return described_run(server, looked, found.run)
    return ReservedWorkflow(
        workflow_id=found.workflow_id,
        namespace=found.namespace,
        workflow_type=found.workflow_type,
        status=found.status,
    )


def described_run(server: Server, looked: Looked, row: RunRow) -> DescribedRun:
    found = looked.found
    return DescribedRun(
        **asdict(listed(row)),
        **_recorded(looked.ends),
        **run_fields(row, found, budget(server)),
        **asdict(server.fleet.of_run(row)),
        memo={key: decoded(blob) for key, blob in found.memo.items()},
        current_run_id=found.current_run_id,
        current_run_source=found.current_run_source,
        run_count=row.number,
    )


def undescribed(server: Server, row: RunRow) -> DescribedRun:
    """The same fields of a run whose history cannot be read, from its row alone."""
    return DescribedRun(
        **asdict(listed(row)),
        **_recorded(Ends()),
        **run_fields(row, None, budget(server)),
        **asdict(server.fleet.of_run(row)),
        memo={},
        current_run_id=None,
        current_run_source=None,
        run_count=row.number,
    )


def run_in_chain(looked: Looked) -> RunInChain:
    found = looked.found
    assert found.run is not None, "it is a run"
    return RunInChain(
        **asdict(listed(found.run)),
        **_recorded(looked.ends),
        memo={key: decoded(blob) for key, blob in found.memo.items()},
        is_current_run=found.is_current_run,
        archived=found.run.archived_at is not None,
        actions=found.actions,
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
