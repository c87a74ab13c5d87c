"""Describing and listing workflows."""

from __future__ import annotations

from typing import Any

from backstay.protocol import requests as ask
from backstay.protocol.run_detail import BUCKETS
from backstay.protocol.tasks import after_token, page_token
from backstay.server.auth import OPERATOR
from backstay.server.discovery import STATUS_ALIASES
from backstay.server.http_errors import invalid
from backstay.server.http_messages import HttpRequest
from backstay.server.published.control.workflow_json import described, find_run, listed, run_in_chain
from backstay.server.router import Route
from backstay.server.server import Server
from backstay.server.visibility import common_statuses, parse_query


async def describe(server: Server, request: HttpRequest) -> dict[str, Any]:
    return described(server, await server.api.glance(request.namespace, request.params["workflow_id"]))


async def describe_run(server: Server, request: HttpRequest) -> dict[str, Any]:
    return described(server, await server.api.look_at(await find_run(server, request)))


async def runs(server: Server, request: HttpRequest) -> dict[str, Any]:
    workflow_id = request.params["workflow_id"]
    current = await server.api.glance(request.namespace, workflow_id)
    rows = await server.api.call(ask.ListWorkflows(workflow_id=workflow_id, namespace=request.namespace, limit=1000))
    rows.reverse()
    id = None if current.found.run is None else current.found.run.run_id
    shown: list[dict[str, Any]] = []
    for row in rows:
        shown.append(run_in_chain(current if row.run_id == id else await server.api.look_at(row)))
        await server.api.turn()
    return {"workflow_id": workflow_id, "run_count": len(rows), "runs": shown}


async def listing(server: Server, request: HttpRequest) -> dict[str, Any]:
    size = request.integer("page_size", 50, 1, 200)
    status = request.query.get("status")
    if status and status not in BUCKETS:
        instead = STATUS_ALIASES.get(status)
        advice = f"; {status} workflows are in the bucket {instead!r}" if instead else ""
        raise invalid("status", f"status must be one of {', '.join(BUCKETS)}, not {status!r}{advice}")
    asked = parse_query(server, request.namespace, request.query.get("query") or "")
    token = request.query.get("next_page_token") or None
    rows = await server.api.call(
        ask.ListWorkflows(
            namespace=request.namespace,
            workflow_type=request.query.get("workflow_type") or asked.fields.get("workflow_type"),
            business_key=request.query.get("business_key") or asked.fields.get("business_key"),
            queue=request.query.get("task_queue") or asked.fields.get("queue"),
            workflow_id=asked.fields.get("workflow_id"),
            run_id=asked.fields.get("run_id"),
            compatibility=asked.fields.get("compatibility"),
            searches=tuple(asked.searches),
            statuses=common_statuses(BUCKETS[status] if status else None, asked.statuses),
            current=True,
            before=after_token(token, "next_page_token") if token else None,
            limit=size + 1,
        )
    )
    page = rows[:size]
    return {
        "workflows": [listed(row) for row in page],
        "workflow_count": len(page),
        "next_page_token": page_token(page[-1].key) if len(rows) > size else None,
        "namespace": request.namespace,
    }


ROUTES = [
    Route("GET", "/api/workflows", listing, "control", OPERATOR, "list"),
    Route("GET", "/api/workflows/{workflow_id}", describe, "control", OPERATOR, "describe"),
    Route("GET", "/api/workflows/{workflow_id}/runs", runs, "control", OPERATOR, "list_runs"),
    Route("GET", "/api/workflows/{workflow_id}/runs/{run_id}", describe_run, "control", OPERATOR, "describe_run"),
]
