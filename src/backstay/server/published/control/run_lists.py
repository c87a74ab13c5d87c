"""The operator's lists of runs, by bucket: exact filters, saved views, and each run as its summary.

Columns of the index are filtered by the database. Other fields (what a run waits for, whether it moves) follow from history
and are computed run by run, so a filter on them reads a bounded number of runs for each page.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from msgspec import Meta, Struct

from backstay.kernel.decision import RunRow
from backstay.kernel.event import HistoryDamaged
from backstay.kernel.features.start import WorkflowStarted
from backstay.kernel.views.actions import declared
from backstay.protocol import requests as ask
from backstay.protocol.history import iso
from backstay.protocol.run_detail import BUCKETS
from backstay.protocol.tasks import after_token, optional_iso, page_token
from backstay.server.auth import OPERATOR
from backstay.server.http_errors import HttpError, invalid
from backstay.server.http_messages import HttpRequest, HttpResponse
from backstay.server.published.control.damaged import SUMMARY
from backstay.server.published.control.workflow_json import listed
from backstay.server.router import Route
from backstay.server.saved_views import SYSTEM, SavedView
from backstay.server.server import Server
from backstay.server.visibility_contract import VERSION, Filters, check_filters, definition, supported

# A list of runs is by status, while the `status_bucket` of a run (`BUCKETS`) counts all that did not complete as failed.
LISTS: dict[str, tuple[str, ...] | None] = {
    "all": None,
    "running": BUCKETS["running"],
    **{status: (status,) for status in ("completed", "failed", "cancelled", "terminated")},
}
STRIDE = 200
LOOKED_AT = 2000  # runs that one page reads at most
_LABEL = re.compile(r"labels?\[([A-Za-z0-9_.:-]{1,64})\]")
_INDEXED = {
    "instance_id": "workflow_id",
    "run_id": "run_id",
    "workflow_type": "workflow_type",
    "business_key": "business_key",
    "compatibility": "compatibility",
    "queue": "queue",
    "status": "status",
}


class ViewBody(Struct, frozen=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=191)]
    bucket: str = "running"
    version: int = VERSION
    filters: dict[str, str | bool] = {}
    labels: dict[str, str] = {}


async def flows(server: Server, request: HttpRequest) -> dict[str, Any]:
    bucket = request.params["bucket"]
    if bucket not in LISTS:
        raise invalid("bucket", f"bucket must be one of {', '.join(LISTS)}, not {bucket!r}")
    view = _view(server, request)
    applied = _asked(request).over(Filters() if view is None else Filters(fields=view.filters, labels=view.labels))
    token = request.query.get("next_page_token") or None
    before = after_token(token, "next_page_token") if token else None
    size = request.integer("page_size", 50, 1, 200)
    found, last = await _page(server, request.namespace, LISTS[bucket], applied, before, size)
    return {
        "flows": found,
        "flow_count": len(found),
        "namespace": request.namespace,
        "next_page_token": None if last is None else page_token(last),
        "visibility_filters": {
            "version": VERSION,
            "bucket": bucket,
            "definition": definition(),
            "applied": {**applied.fields, **({"labels": applied.labels} if applied.labels else {})},
            "saved_view": None if view is None else view.shown(),
        },
    }


def _asked(request: HttpRequest) -> Filters:
    labels: dict[str, str] = {}
    fields: dict[str, Any] = {}
    for name, value in request.query.items():
        named = _LABEL.fullmatch(name)
        if named is not None:
            labels[named[1]] = value
        elif name not in ("page_size", "next_page_token", "view"):
            fields[name] = value
    return Filters(fields=check_filters(fields), labels=labels)


def _view(server: Server, request: HttpRequest) -> SavedView | None:
    id = request.query.get("view")
    if not id:
        return None
    found = SYSTEM.get(id) or server.saved_views.get(request.namespace, id)
    if found is None:
        raise HttpError(404, "saved_view_not_found", f"there is no saved view {id!r}", view=id, field="view")
    supported(found.version)
    return found


async def _page(
    server: Server,
    namespace: str,
    statuses: tuple[str, ...] | None,
    applied: Filters,
    before: int | None,
    size: int,
) -> tuple[list[dict[str, Any]], int | None]:
    """Runs that match, newest first, and the one after which the next page begins."""
    indexed: dict[str, Any] = {_INDEXED[name]: value for name, value in applied.fields.items() if name in _INDEXED}
    label = next(iter(applied.labels.items()), None)
    found: list[dict[str, Any]] = []
    looked = 0
    while True:
        asked = ask.ListWorkflows(
            namespace=namespace, statuses=statuses, label=label, before=before, limit=STRIDE, **indexed
        )
        rows = await server.api.call(asked)
        sizes = await server.store.sizes([row.key for row in rows]) if rows else {}
        for row in rows:
            before, looked = row.key, looked + 1
            shown = _of_index(server, row, *sizes.get(row.key, (row.length, 0)))
            if _fits(shown, applied, partly=True):
                shown |= await _of_history(server, row)
                if _fits(shown, applied):
                    found.append(shown)
            if len(found) == size or looked == LOOKED_AT:
                return found, before
        if len(rows) < STRIDE:
            return found, None


def _fits(shown: dict[str, Any], applied: Filters, *, partly: bool = False) -> bool:
    """Whether a run matches the filters. `partly`: only those on fields that are known yet."""
    labels: dict[str, str] = shown["visibility_labels"]
    return all(labels.get(name) == value for name, value in applied.labels.items()) and all(
        shown[name] == value for name, value in applied.fields.items() if not partly or name in shown
    )


def _of_index(server: Server, row: RunRow, length: int, size: int) -> dict[str, Any]:
    settings = server.settings
    events, bytes = settings.continue_as_new_event_threshold, settings.continue_as_new_size_bytes_threshold
    started = iso(row.started_at)
    return listed(row) | {
        "id": row.run_id,
        "instance_id": row.workflow_id,
        "queue": row.queue,
        "archived": row.archived_at is not None,
        "archived_at": optional_iso(row.archived_at),
        "sort_timestamp": started,
        "sort_key": f"{started}#{row.run_id}",
        "history_event_count": length,
        "history_size_bytes": size,
        "continue_as_new_recommended": bool((events and length >= events) or (bytes and size >= bytes)),
    }


async def _of_history(server: Server, row: RunRow) -> dict[str, Any]:
    """The fields that follow from the history of a run and the tasks of its instance."""
    described = ask.DescribeWorkflow(workflow_id=row.workflow_id, namespace=row.namespace)
    try:
        found = await server.api.call(described)
        opening = await server.store.history(row.key, 0, 2)
    except HistoryDamaged as damage:
        return SUMMARY if damage.run == row.key or row.closed_at is None else SUMMARY | _ENDED
    started = next((entry.event for entry in opening if isinstance(entry.event, WorkflowStarted)), None)
    held = found if found.run is not None and found.run.run_id == row.run_id else None
    actions = None if held is None else held.actions
    first = min((view.task for view in held.tasks), key=lambda task: task.available_at, default=None) if held else None
    return {
        "is_current_run": held is not None,
        "declared_entry_mode": None if started is None else started.declared_entry_mode,
        "declared_contract_source": declared(started).declared_contract_source,
        "liveness_state": "closed" if held is None else held.liveness_state,
        **{name: None if held is None else getattr(held, name) for name in _RESUME},
        "next_task_id": None if first is None else first.id,
        "next_task_type": None if first is None else first.kind,
        "next_task_status": None if first is None else first.state,
        "repair_blocked_reason": "selected_run_not_current" if actions is None else actions.repair_blocked_reason,
        "repair_attention": actions is not None and actions.repair_attention,
        "task_problem": actions is not None and actions.task_problem,
    }


# An earlier run of an instance whose current one cannot be read.
_ENDED: dict[str, Any] = {
    "is_current_run": False,
    "liveness_state": "closed",
    "repair_blocked_reason": "selected_run_not_current",
    "repair_attention": False,
    "task_problem": False,
}
_RESUME = ("wait_kind", "open_wait_id", "resume_source_kind", "resume_source_id")


async def views(server: Server, request: HttpRequest) -> dict[str, Any]:
    """The views of the server, and those that were saved in this namespace."""
    own = sorted((view for _, view in server.saved_views.of(request.namespace)), key=lambda view: view.name)
    return {"saved_views": [view.shown() for view in (*SYSTEM.values(), *own)], "namespace": request.namespace}


async def save(server: Server, request: HttpRequest) -> HttpResponse:
    body = request.decode(ViewBody)
    supported(body.version)
    if body.bucket not in BUCKETS:
        raise invalid("bucket", f"bucket must be one of {', '.join(BUCKETS)}, not {body.bucket!r}")
    view = SavedView(
        id=server.engine.world.ids.ulid(),
        name=body.name,
        bucket=body.bucket,
        version=body.version,
        filters=check_filters(dict(body.filters)),
        labels=body.labels,
    )
    await server.saved_views.put(request.namespace, view.id, view)
    return HttpResponse(view.shown(), 201)


async def forget(server: Server, request: HttpRequest) -> dict[str, Any]:
    id = request.params["view_id"]
    if server.saved_views.get(request.namespace, id) is None:
        raise HttpError(404, "saved_view_not_found", f"there is no saved view {id!r} to remove", view=id)
    await server.saved_views.remove(request.namespace, id)
    return {"id": id, "removed": True}


ROUTES = [
    Route("GET", "/api/flows/{bucket}", flows, "control", OPERATOR),
    Route("GET", "/api/saved-views", views, "control", OPERATOR),
    Route("POST", "/api/saved-views", save, "control", OPERATOR, body=ViewBody),
    Route("DELETE", "/api/saved-views/{view_id}", forget, "control", OPERATOR),
]
