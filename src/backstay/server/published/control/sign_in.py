"""`/api/session`: a browser signs in with a token, asks who it is, and signs out. See `browser.py`.

`/api/sessions`: administrators see who is signed in, and end sessions.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

from msgspec import Meta, Struct

from backstay.protocol.history import iso
from backstay.protocol.tasks import optional_iso
from backstay.server.answers.house import SessionAnswer
from backstay.server.auth import ADMIN, ANYBODY, EVERY, OF_ROLE, SETTING, SIGNED, Caller
from backstay.server.browser import BrowserSession, cross_site
from backstay.server.http_errors import HttpError, invalid
from backstay.server.http_messages import HttpRequest, HttpResponse, ParsedRequest
from backstay.server.router import Route
from backstay.server.server import Server

MAX_BODY = 4096

HOW = "dw token create --role viewer"


class SignInBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    token: Annotated[str, Meta(min_length=1, max_length=1024)]


async def sign_in(server: Server, request: HttpRequest) -> HttpResponse:
    """Open a session with a token. The answer sets the cookie of it."""
    headers = request.headers
    if ("sec-fetch-site" in headers or "origin" in headers) and not server.browser_sessions.same_origin(headers):
        raise cross_site()
    body = request.decode(SignInBody)
    if server.settings.auth == "none":
        raise HttpError(409, "sign_in_not_needed", "this server asks nobody for a token (auth is none)")
    server.wrong_tokens.check(request.address)
    found = server.authenticator.of_token(body.token.strip())
    if found is None:
        await server.registries.confirm()  # it may have been made by another process a moment ago
        found = server.authenticator.of_token(body.token.strip())
    if found is None:
        server.wrong_tokens.add(request.address)
        raise HttpError(401, "wrong_token", "this is no token of this server", remediation=_how_to(server))
    caller = found.caller
    roles = caller.roles - {"worker"}
    if not roles:
        raise HttpError(
            403, "forbidden", "a worker's token opens no page; sign in with the token of a viewer or operator"
        )
    if server.signatures is not None and (roles != OF_ROLE["viewer"] or (caller.token_id or "").startswith(SETTING)):
        raise HttpError(403, "viewer_token_needed", _how_to(server), remediation=HOW)
    caller = caller._replace(roles=roles)
    session, secret = await server.browser_sessions.open(
        server.engine.world.ids.ulid(),
        caller.token_id or "",
        found.digest,
        caller.role,
        caller.namespace,
        caller.payloads,
        request.address,
    )
    cookie = server.browser_sessions.cookie(headers, secret, server.browser_sessions.lifetime_seconds)
    caller = request.caller = caller._replace(session_id=session.id, method="session")
    return HttpResponse({**_shown(server, caller), "outcome": "signed_in"}, 201, headers=_cookie(cookie))


async def who(server: Server, request: HttpRequest) -> SessionAnswer:
    """Who the caller is, and what it may do."""
    return _shown(server, _caller(server, request))


async def sign_out(server: Server, request: HttpRequest) -> HttpResponse:
    """End the session of the caller, and delete its cookie."""
    request.caller = _caller(server, request)
    session_id = request.caller.session_id
    if session_id is None:
        raise invalid("cookie", "this request has no session to end: it came with another credential than the cookie")
    await server.browser_sessions.end(session_id)
    cookie = server.browser_sessions.cookie(request.headers, "", 0)
    return HttpResponse({"session_id": session_id, "outcome": "signed_out"}, headers=_cookie(cookie))


async def listing(server: Server, request: HttpRequest) -> dict[str, Any]:
    """The sessions of browsers, the newest first. An administrator of one namespace sees those bound to it."""
    found = sorted(_visible(server, request), key=lambda session: session.created_at, reverse=True)
    return {
        "sessions": [
            {
                "session_id": session.id,
                "token_id": session.token_id,
                "role": session.role,
                "namespace": session.namespace,
                "payloads": session.payloads,
                "address": session.address,
                "created_at": iso(session.created_at),
                "expires_at": iso(session.expires_at),
            }
            for session in found
        ]
    }


async def end(server: Server, request: HttpRequest) -> dict[str, Any]:
    """End a session. Its person has to sign in again."""
    session_id = request.params["session_id"]
    if all(session.id != session_id for session in _visible(server, request)):
        raise HttpError(404, "session_not_found", f"there is no session {session_id!r}", session_id=session_id)
    await server.browser_sessions.end(session_id)
    return {"session_id": session_id, "outcome": "ended"}


def _visible(server: Server, request: HttpRequest) -> list[BrowserSession]:
    now, bound = server.now, request.bound
    return [
        session
        for session in server.browser_sessions.kept.all()
        if session.expires_at > now and bound in (None, session.namespace)
    ]


def _caller(server: Server, request: HttpRequest) -> Caller:
    signatures = server.signatures
    if signatures is not None and "x-signature" in request.headers and isinstance(request, ParsedRequest):
        signatures.check(request.method, request.target, request.headers, request.body)
        return SIGNED
    try:
        return server.authenticator.caller(request.headers)
    except HttpError as error:
        error.fields |= {"authentication": server.settings.auth, "remediation": _how_to(server)}
        raise


def _how_to(server: Server) -> str:
    if server.signatures is not None:
        return f"Requests to this server are signed. For a browser make a viewer token ({HOW}), and sign in with that."
    return f"Sign in with a token of this server; for one that reads and changes nothing: {HOW}"


def _shown(server: Server, caller: Caller) -> SessionAnswer:
    settings = server.settings
    found = (session for session in server.browser_sessions.kept.all() if session.id == caller.session_id)
    session = None if caller.session_id is None else next(found, None)
    return {
        "authenticated": caller is not ANYBODY,
        "authentication": settings.auth,
        "method": caller.method,
        "role": caller.role,
        "roles": sorted(caller.roles),
        "namespace": caller.namespace,
        "default_namespace": settings.default_namespace,
        "token_id": caller.token_id,
        "session_id": caller.session_id,
        "payloads": caller.payloads,
        "signed_in_at": optional_iso(None if session is None else session.created_at),
        "expires_at": optional_iso(None if session is None else session.expires_at),
        "environment": {"name": settings.environment_name, "colour": settings.environment_colour},
        "server_id": settings.server_id,
        "version": version("backstay"),
    }


def _cookie(cookie: str) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"set-cookie", cookie.encode()),)


ROUTES = [
    Route("POST", "/api/session", sign_in, "sign_in", EVERY, body=SignInBody, max_body_bytes=MAX_BODY),
    Route("GET", "/api/session", who, "sign_in", EVERY),
    Route("DELETE", "/api/session", sign_out, "sign_in", EVERY, max_body_bytes=MAX_BODY),
    Route("GET", "/api/sessions", listing, "control", ADMIN, any_namespace=True),
    Route("DELETE", "/api/sessions/{session_id}", end, "control", ADMIN, any_namespace=True),
]
