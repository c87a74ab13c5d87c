"""Describing and listing workflows."""

from __future__ import annotations

from typing import Annotated, cast

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from backstay.protocol import requests as ask
from backstay.protocol import run_lists
from backstay.protocol.run_detail import BUCKETS
from backstay.server.access.auth import OPERATOR
from backstay.server.http.errors import invalid
from backstay.server.http.messages import HttpRequest
from backstay.server.http.router import Route
from backstay.server.operators.discovery import STATUS_ALIASES
from backstay.server.operators.run_filters import page_place, page_token
from backstay.server.operators.visibility import parse_query
from backstay.server.published.control.run_lists import chosen
from backstay.server.published.control.workflow_json import (
    DescribedRun,
    ReservedWorkflow,
    RunAnswer,
    RunInChain,
    described,
    find_run,
    listed,
    run_in_chain,
)
from backstay.server.server import Server

INDEXED = frozenset({*RunAnswer.__struct_fields__, "is_current_run"})
"""The fields of a run in the index."""


class RunsOfWorkflow(Struct, frozen=True, kw_only=True):
    """With `fields` a run has these columns of the index alone."""

    workflow_id: str
    run_count: int
    runs: list[RunInChain]


class WorkflowsAnswer(Struct, frozen=True, kw_only=True):
    workflows: list[RunAnswer]
    workflow_count: Annotated[int, Meta(description="How many are on this page.")]
    looked_at: Annotated[int, Meta(description="How many runs were looked at.")]
    complete: Annotated[bool, Meta(description="Whether that was all of them.")]
    next_page_token: str | None
    namespace: str


async def describe(server: Server, request: HttpRequest) -> DescribedRun | ReservedWorkflow:
    return described(server, await server.api.glance(request.namespace, request.params["workflow_id"]))


async def describe_run(server: Server, request: HttpRequest) -> DescribedRun | ReservedWorkflow:
    return described(server, await server.api.look_at(await find_run(server, request), views=False))


async def runs(server: Server, request: HttpRequest) -> RunsOfWorkflow:
    """The runs of a workflow, the oldest first; with `fields` these columns of the index alone, for which no history is read."""
    workflow_id = request.params["workflow_id"]
    columns = chosen(request.query.get("fields"), INDEXED)
    current = await server.api.glance(request.namespace, workflow_id)
    rows = await server.api.call(ask.ListWorkflows(workflow_id=workflow_id, namespace=request.namespace, limit=1000))
    rows.reverse()
    id = None if current.found.run is None else current.found.run.run_id
    if columns is not None:
        slim = [{**asdict(listed(row)), "is_current_run": row.run_id == id} for row in rows]
        chosen_columns = [cast(RunInChain, {name: row[name] for name in columns}) for row in slim]
        return RunsOfWorkflow(workflow_id=workflow_id, run_count=len(rows), runs=chosen_columns)
    shown: list[RunInChain] = []
    for row in rows:
        shown.append(run_in_chain(current if row.run_id == id else await server.api.look_at(row, views=False)))
        await server.api.turn()
    return RunsOfWorkflow(workflow_id=workflow_id, run_count=len(rows), runs=shown)


async def listing(server: Server, request: HttpRequest) -> WorkflowsAnswer:
    """Workflows by their current runs, newest first, with a query."""
    size = request.integer("page_size", 50, 1, run_lists.PAGE_MAX)
    status = request.query.get("status")
    if status and status not in BUCKETS:
        instead = STATUS_ALIASES.get(status)
        advice = f"; {status} workflows are in the bucket {instead!r}" if instead else ""
        raise invalid("status", f"status must be one of {', '.join(BUCKETS)}, not {status!r}{advice}")
    attributes = dict(server.control.attributes.of(request.namespace))
    parsed = parse_query(request.namespace, request.query.get("query") or "", attributes)
    fields = dict(parsed.fields)
    if status:
        fields["status"] = tuple(one for one in fields.get("status", BUCKETS[status]) if one in BUCKETS[status])
    for parameter, field in (
        ("workflow_type", "workflow_type"),
        ("business_key", "business_key"),
        ("task_queue", "queue"),
    ):
        if request.query.get(parameter):
            fields[field] = (request.query[parameter],)
    query = replace(parsed, fields=fields, flags={"is_current_run": True})
    place = page_place(query, request.query.get("next_page_token"))
    page = await server.api.call(
        run_lists.SearchRuns(query=query, after=place, limit=size, rows_only=True, namespace=request.namespace)
    )
    return WorkflowsAnswer(
        workflows=[listed(run.row) for run in page.runs],
        workflow_count=len(page.runs),
        looked_at=page.looked_at,
        complete=page.complete,
        next_page_token=page_token(query, page.end),
        namespace=request.namespace,
    )


ROUTES = [
    Route("GET", "/api/workflows", listing, "control", OPERATOR, "list"),
    Route("GET", "/api/workflows/{workflow_id}", describe, "control", OPERATOR, "describe"),
    Route("GET", "/api/workflows/{workflow_id}/runs", runs, "control", OPERATOR, "list_runs"),
    Route("GET", "/api/workflows/{workflow_id}/runs/{run_id}", describe_run, "control", OPERATOR, "describe_run"),
]
