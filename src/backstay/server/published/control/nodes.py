"""Routes of the nodes of a database: all living nodes, their shards, and which of them drain."""

from __future__ import annotations

from msgspec import Struct

from backstay.engine.cluster.gone_nodes import GoneNodeAnswer
from backstay.engine.cluster.node_views import NodeAnswer, NodesAnswer, NoSuchNode, find_gone, find_node
from backstay.server.access.auth import ADMIN, OPERATOR
from backstay.server.http.errors import HttpError
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.server import Server


class NodeBody(Struct, frozen=True, kw_only=True):
    """Nothing: the path says which node."""


class ForgottenNodes(Struct, frozen=True, kw_only=True):
    forgotten: list[GoneNodeAnswer]


async def nodes(server: Server, request: HttpRequest) -> NodesAnswer:
    """Every living process at the database, and those that are gone. `this` is the one that answers."""
    _refuse_bound(request)
    return await server.cluster.roster.read()


def _refuse_bound(request: HttpRequest) -> None:
    if request.bound is not None:
        message = f"this token is limited to namespace {request.bound!r}, and a node works for all namespaces"
        raise HttpError(403, "forbidden", message, namespace=request.bound)


async def drain(server: Server, request: HttpRequest) -> HttpResponse:
    """Let a node hand its shards to others. It still serves callers, and is not ready for new ones."""
    return await _wish(server, request, True)


async def resume(server: Server, request: HttpRequest) -> HttpResponse:
    """Let a node take shards again."""
    return await _wish(server, request, False)


async def forget_gone(server: Server, request: HttpRequest) -> ForgottenNodes:
    """Name a node that is gone no more."""
    request.decode(NodeBody)
    try:
        matching = find_gone(await nodes(server, request), request.params["node"])
    except NoSuchNode as unknown:
        raise HttpError(404, "node_not_found", str(unknown)) from None
    await server.cluster.roster.forget([int(one["id"]) for one in matching])
    return ForgottenNodes(forgotten=matching)


async def _wish(server: Server, request: HttpRequest, draining: bool) -> HttpResponse:
    request.decode(NodeBody)
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
    await server.cluster.roster.wish(int(node["id"]), draining)
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
            told=answer,
        )
        for verb, act, answer in (
            ("drain", drain, NodeAnswer),
            ("resume", resume, NodeAnswer),
            ("forget", forget_gone, ForgottenNodes),
        )
    ),
]
