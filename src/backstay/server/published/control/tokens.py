"""Routes by which administrators create, rotate and revoke tokens."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from backstay.server.auth import ADMIN
from backstay.server.http_errors import HttpError, invalid
from backstay.server.http_messages import HttpRequest, HttpResponse
from backstay.server.router import Route
from backstay.server.server import Server
from backstay.server.tokens import Role, shown


class CreateTokenBody(Struct, frozen=True, kw_only=True):
    role: Role
    namespace: str | None = None
    note: Annotated[str, Meta(max_length=1000)] | None = None
    payloads: bool = True


class RotateTokenBody(Struct, frozen=True, kw_only=True):
    pass


async def create(server: Server, request: HttpRequest) -> HttpResponse:
    """Create a token. Only this response shows it."""
    body = request.decode(CreateTokenBody)
    if not body.payloads and body.role != "viewer":
        raise invalid("payloads", f"only a viewer can be kept from payloads; the role {body.role} works with them")
    namespace = None if body.namespace is None else body.namespace.lower()
    if namespace is not None:
        server.namespaces.check(namespace)
    _within(request, namespace)
    made, secret = await server.tokens.create(
        server.engine.world.ids.ulid(), body.role, server.now, namespace, body.note, payloads=body.payloads
    )
    return HttpResponse(shown(made) | {"token": secret, "outcome": "created"}, 201)


async def listing(server: Server, request: HttpRequest) -> dict[str, Any]:
    bound = request.bound
    return {"tokens": [shown(token) for token in server.tokens.all() if bound in (None, token.namespace)]}


async def rotate(server: Server, request: HttpRequest) -> dict[str, Any]:
    """Give a token another secret; the old one is refused from now on."""
    request.decode(RotateTokenBody)
    _mine(server, request)
    rotated, secret = await server.tokens.rotate(request.params["token_id"], server.now)
    await server.browser_sessions.end_of_token(rotated.id)
    return shown(rotated) | {"token": secret, "outcome": "rotated"}


async def revoke(server: Server, request: HttpRequest) -> dict[str, Any]:
    _mine(server, request)
    revoked = await server.tokens.revoke(request.params["token_id"])
    await server.browser_sessions.end_of_token(revoked.id)
    return shown(revoked) | {"outcome": "revoked"}


def _mine(server: Server, request: HttpRequest) -> None:
    """Whether the caller may see a token: one bound to a namespace sees only the tokens of that."""
    found = server.tokens.kept.get("", request.params["token_id"])
    if found is not None and request.bound is not None and found.namespace != request.bound:
        raise HttpError(404, "token_not_found", f"there is no token {found.id!r}", token_id=found.id)


def _within(request: HttpRequest, namespace: str | None) -> None:
    if request.bound is not None and namespace != request.bound:
        raise HttpError(
            403,
            "forbidden",
            f"this token opens the namespace {request.bound!r} only, and so do the tokens that it makes",
            field="namespace",
        )


ROUTES = [
    Route("POST", "/api/tokens", create, "control", ADMIN, body=CreateTokenBody, any_namespace=True),
    Route("GET", "/api/tokens", listing, "control", ADMIN, any_namespace=True),
    Route("POST", "/api/tokens/{token_id}/rotate", rotate, "control", ADMIN, body=RotateTokenBody, any_namespace=True),
    Route("DELETE", "/api/tokens/{token_id}", revoke, "control", ADMIN, any_namespace=True),
]
