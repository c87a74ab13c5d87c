"""Routes by which administrators create, rotate and revoke tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from backstay.server.access.auth import ADMIN
from backstay.server.access.tokens import Role, shown
from backstay.server.http.errors import HttpError, invalid
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.server import Server


class CreateTokenBody(Struct, frozen=True, kw_only=True):
    role: Role
    namespace: str | None = None
    note: Annotated[str, Meta(max_length=1000)] | None = None
    payloads: bool = True


class RotateTokenBody(Struct, frozen=True, kw_only=True):
    pass


class TokenAnswer(Struct, frozen=True, kw_only=True):
    token_id: str
    role: Role
    namespace: Annotated[str | None, Meta(description="The one namespace that the token is for; null: all.")]
    payloads: Annotated[bool, Meta(description="Whether its caller may read payloads.")]
    note: str | None
    created_at: str
    rotated_at: str | None


class TokensAnswer(Struct, frozen=True, kw_only=True):
    tokens: list[TokenAnswer]


class TokenSecretAnswer(TokenAnswer, frozen=True, kw_only=True):
    token: Annotated[str, Meta(description="The token itself, which cannot be shown again.")]
    outcome: Literal["created", "rotated"]


class RevokedTokenAnswer(TokenAnswer, frozen=True, kw_only=True):
    outcome: Literal["revoked"]


async def create(server: Server, request: HttpRequest) -> HttpResponse:
    """Create a token. Only this response shows it."""
    body = request.decode(CreateTokenBody)
    _refuse_if_open(server)
    if not body.payloads and body.role != "viewer":
        raise invalid("payloads", f"only a viewer can be kept from payloads; the role {body.role} needs them")
    namespace = None if body.namespace is None else body.namespace.lower()
    if namespace is not None:
        server.namespaces.check(namespace)
    _within(request, namespace)
    made, secret = await server.access.tokens.create(
        server.new_id(), body.role, server.now, namespace, body.note, payloads=body.payloads
    )
    return HttpResponse(TokenSecretAnswer(**shown(made), token=secret, outcome="created"), 201)


async def listing(server: Server, request: HttpRequest) -> TokensAnswer:
    bound = request.bound
    mine = [token for token in server.access.tokens.all() if bound in (None, token.namespace)]
    return TokensAnswer(tokens=[TokenAnswer(**shown(token)) for token in mine])


async def rotate(server: Server, request: HttpRequest) -> TokenSecretAnswer:
    """Give a token another secret; the old one is refused from now on."""
    request.decode(RotateTokenBody)
    _refuse_if_open(server)
    _mine(server, request)
    rotated, secret = await server.access.tokens.rotate(request.params["token_id"], server.now)
    await server.access.browser_sessions.end_of_token(rotated.id)
    return TokenSecretAnswer(**shown(rotated), token=secret, outcome="rotated")


async def revoke(server: Server, request: HttpRequest) -> RevokedTokenAnswer:
    _mine(server, request)
    revoked = await server.access.tokens.revoke(request.params["token_id"])
    await server.access.browser_sessions.end_of_token(revoked.id)
    return RevokedTokenAnswer(**shown(revoked), outcome="revoked")


def _refuse_if_open(server: Server) -> None:
    """A server without authentication creates no credentials, since they would stay valid after authentication is
    turned on."""
    if server.settings.auth == "none":
        raise HttpError(
            409,
            "tokens_not_given",
            "this server requires no token (auth is none), so it creates none for unknown callers",
            remediation="Make tokens with dw token create --db on the machine of the database, or start the server with auth=token.",
        )


def _mine(server: Server, request: HttpRequest) -> None:
    """Whether the caller may see a token: one bound to a namespace sees only the tokens of that."""
    found = server.access.tokens.kept.get("", request.params["token_id"])
    if found is not None and request.bound is not None and found.namespace != request.bound:
        raise HttpError(404, "token_not_found", f"there is no token {found.id!r}", token_id=found.id)


def _within(request: HttpRequest, namespace: str | None) -> None:
    if request.bound is not None and namespace != request.bound:
        raise HttpError(
            403,
            "forbidden",
            f"this token is limited to namespace {request.bound!r}, and so are the tokens that it creates",
            field="namespace",
        )


ROUTES = [
    Route(
        "POST",
        "/api/tokens",
        create,
        "control",
        ADMIN,
        body=CreateTokenBody,
        any_namespace=True,
        told=TokenSecretAnswer,
    ),
    Route("GET", "/api/tokens", listing, "control", ADMIN, any_namespace=True),
    Route("POST", "/api/tokens/{token_id}/rotate", rotate, "control", ADMIN, body=RotateTokenBody, any_namespace=True),
    Route("DELETE", "/api/tokens/{token_id}", revoke, "control", ADMIN, any_namespace=True),
]
