"""Saved views: a bucket of runs with filters, under a name. Those of the system cannot be changed."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from backstay.server.access.auth import OPERATOR
from backstay.server.http.errors import HttpError
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import SMALL_BODY, Route
from backstay.server.operators.run_filters import Filters, Plain, check_filters
from backstay.server.operators.visibility_contract import LISTS, VERSION, one_of, supported
from backstay.server.published.control.run_lists import query_in
from backstay.server.registries.saved_views import SYSTEM, SavedView, SavedViewAnswer
from backstay.server.server import Server

NAME_MAX = 191
FILTERS_MAX = 50  # labels of a view, and attributes
MOST = 1000
"""Views of a namespace. Every server holds them in memory."""


class ViewBody(Struct, frozen=True, kw_only=True):
    """`owner` and `position` are for people to sort by; everybody of the namespace can use and change a view."""

    name: Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
    bucket: str = "running"
    version: int = VERSION
    filters: dict[str, Plain] = {}
    labels: Annotated[dict[str, str | list[str]], Meta(max_length=FILTERS_MAX)] = {}
    attributes: Annotated[dict[str, str | list[str]], Meta(max_length=FILTERS_MAX)] = {}
    owner: Annotated[str, Meta(max_length=NAME_MAX)] | None = None
    position: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class SavedViewsAnswer(Struct, frozen=True, kw_only=True):
    saved_views: list[SavedViewAnswer]
    namespace: str


async def views(server: Server, request: HttpRequest) -> SavedViewsAnswer:
    """The views of the server, and those that were saved in this namespace."""
    own = sorted(
        (view for _, view in server.control.saved_views.of(request.namespace)),
        key=lambda view: (view.position, view.name),
    )
    return SavedViewsAnswer(
        saved_views=[view.shown() for view in (*SYSTEM.values(), *own)], namespace=request.namespace
    )


async def view(server: Server, request: HttpRequest) -> SavedViewAnswer:
    """One view, also one of the system, or of a version that this server does not know."""
    id = request.params["view_id"]
    return (SYSTEM.get(id) or _own(server, request)).shown()


async def save(server: Server, request: HttpRequest) -> HttpResponse:
    if sum(1 for _ in server.control.saved_views.of(request.namespace)) >= MOST:
        raise HttpError(
            409,
            "too_many_saved_views",
            f"this namespace has {MOST} saved views; remove an unused one",
            limit=MOST,
        )
    made = _checked(server, request, request.decode(ViewBody), server.new_id())
    made = replace(made, created_at=server.now, updated_at=server.now)
    await server.control.saved_views.put(request.namespace, made.id, made)
    return HttpResponse(made.shown(), 201)


async def change(server: Server, request: HttpRequest) -> SavedViewAnswer:
    """Replace a view as a whole."""
    id = request.params["view_id"]
    if id in SYSTEM:
        raise HttpError(
            409, "system_view", f"{id!r} comes with the server and cannot be changed; save one of your own", view=id
        )
    before = _own(server, request)
    body = request.decode(ViewBody)
    changed = replace(_checked(server, request, body, id), created_at=before.created_at, updated_at=server.now)
    if body.owner is None:
        changed = replace(changed, owner=before.owner)
    await server.control.saved_views.put(request.namespace, id, changed)
    return changed.shown()


class RemovedViewAnswer(Struct, frozen=True, kw_only=True):
    id: str
    removed: bool = True


async def forget(server: Server, request: HttpRequest) -> RemovedViewAnswer:
    id = _own(server, request).id
    await server.control.saved_views.remove(request.namespace, id)
    return RemovedViewAnswer(id=id)


def _own(server: Server, request: HttpRequest) -> SavedView:
    id = request.params["view_id"]
    found = server.control.saved_views.get(request.namespace, id)
    if found is None:
        raise HttpError(404, "saved_view_not_found", f"there is no saved view {id!r}", view=id)
    return found


def _checked(server: Server, request: HttpRequest, body: ViewBody, id: str) -> SavedView:
    supported(body.version)
    bucket = one_of("bucket", body.bucket, LISTS)
    filters = check_filters(Filters(fields=body.filters, labels=body.labels, attributes=body.attributes))
    query_in(server, request.namespace, bucket, filters)  # raises if its query is not possible
    return SavedView(
        id=id,
        name=body.name,
        bucket=bucket,
        version=body.version,
        filters=filters.fields,
        labels=filters.labels,
        attributes=filters.attributes,
        owner=body.owner or request.caller.token_id,
        position=body.position,
    )


ROUTES = [
    Route("GET", "/api/saved-views", views, "control", OPERATOR),
    Route(
        "POST",
        "/api/saved-views",
        save,
        "control",
        OPERATOR,
        body=ViewBody,
        max_body_bytes=SMALL_BODY,
        told=SavedViewAnswer,
    ),
    Route("GET", "/api/saved-views/{view_id}", view, "control", OPERATOR),
    Route("PUT", "/api/saved-views/{view_id}", change, "control", OPERATOR, body=ViewBody, max_body_bytes=SMALL_BODY),
    Route("DELETE", "/api/saved-views/{view_id}", forget, "control", OPERATOR),
]
