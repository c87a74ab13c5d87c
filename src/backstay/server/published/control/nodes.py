"""Routes of the nodes of a database: all living processes that work at it, who owns how much, and which of them are leaving."""

from __future__ import annotations

from msgspec import Struct

from backstay.engine.draining import wish
from backstay.engine.node_views import NodesAnswer, NoSuchNode, find_node, shown_nodes
from backstay.server.auth import ADMIN, OPERATOR
from backstay.server.http_errors import HttpError
from backstay.server.http_messages import HttpRequest, HttpResponse
from backstay.server.router import Route
from backstay.server.server import Server


class NodeBody(Struct, frozen=True, kw_only=True):
    """Nothing: the path says which node."""


async def nodes(server: Server, request: HttpRequest) -> NodesAnswer:
    """Every living process at the database. `this` is the one that answers."""
    return shown_nodes(await server.store.look(), one_owner=server.store.exclusive)


async def drain(server: Server, request: HttpRequest) -> HttpResponse:
    """Let a node hand its shards to others. It serves on, and is not ready for new callers."""
    return await _wish(server, request, True)


async def resume(server: Server, request: HttpRequest) -> HttpResponse:
    """Let a node take shards again."""
    return await _wish(server, request, False)


async def _wish(server: Server, request: HttpRequest, draining: bool) -> HttpResponse:
    request.decode(NodeBody)
    if request.bound is not None:
        message = f"this token opens the namespace {request.bound!r} only, and a node works for all of them"
        raise HttpError(403, "forbidden", message, namespace=request.bound)
    found = await nodes(server, request)
    try:
        node = find_node(found, request.params["node"])
    except NoSuchNode as unknown:
        status, reason = (409, "ambiguous_node") if unknown.ids else (404, "node_not_found")
        raise HttpError(status, reason, str(unknown), ids=unknown.ids) from None
    if found["one_owner"]:
        raise HttpError(
            409,
            "one_owner",
            "one process at a time works for a file; stop it (SIGTERM), and another one that has it open takes over",
        )
    await wish(server.engine.world, server.store, int(node["id"]), draining)
    return HttpResponse({**node, "draining": draining}, 202)


ROUTES = [
    Route("GET", "/api/nodes", nodes, "control", OPERATOR, any_namespace=True),
    *(
        Route(
            "POST",
            f"/api/nodes/{{node}}/{verb}",
            act,
            "control",
            ADMIN,
            any_namespace=True,
            body=NodeBody,
        )
        for verb, act in (("drain", drain), ("resume", resume))
    ),
]
