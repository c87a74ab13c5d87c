"""`/api/session`: a browser signs in with a token, reads its session, and signs out. See `browser.py`.

`/api/sessions`: administrators list the sessions, and end them.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from backstay.protocol.history import iso
from backstay.protocol.tasks import optional_iso
from backstay.server.access.auth import ADMIN, ANYBODY, EVERY, OF_ROLE, SETTING, SIGNED, Caller
from backstay.server.access.browser import BrowserSession, cross_site
from backstay.server.http.errors import HttpError, invalid
from backstay.server.http.messages import HttpRequest, HttpResponse, ParsedRequest
from backstay.server.http.router import Route
from backstay.server.server import Server

MAX_BODY = 4096

HOW = "dw token create --role viewer"


class SignInBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    token: Annotated[str, Meta(min_length=1, max_length=1024)]


class EnvironmentAnswer(Struct, frozen=True, kw_only=True):
    """How the page names this installation, and with which colour."""

    name: str | None
    colour: str | None


class SessionAnswer(Struct, frozen=True, kw_only=True):
    """Who the caller is, and what it may do."""

    authenticated: bool
    authentication: Annotated[str, Meta(description="The setting `auth` of the server.")]
    method: Annotated[str, Meta(description="The kind of the credential.")]
    role: str
    roles: list[str]
    namespace: Annotated[str | None, Meta(description="The only namespace that the caller may use; null: any.")]
    default_namespace: str
    token_id: str | None
    session_id: str | None
    payloads: Annotated[bool, Meta(description="Whether the caller may read payloads.")]
    signed_in_at: str | None
    expires_at: str | None
    environment: EnvironmentAnswer
    server_id: str
    version: str


class SignedInAnswer(SessionAnswer, frozen=True, kw_only=True):
    outcome: str


async def sign_in(server: Server, request: HttpRequest) -> HttpResponse:
    """Open a session with a token. The answer sets the cookie of it."""
    headers = request.headers
    if ("sec-fetch-site" in headers or "origin" in headers) and not server.access.browser_sessions.same_origin(headers):
        raise cross_site()
    body = request.decode(SignInBody)
    if server.settings.auth == "none":
        raise HttpError(409, "sign_in_not_needed", "this server requires no token (auth is none)")
    found = server.access.authenticator.of_token(body.token.strip())
    if found is None:
        server.access.wrong_tokens.check(request.address)
        await server.registries.confirm()  # it may have been made by another process a moment ago
        found = server.access.authenticator.of_token(body.token.strip())
    if found is None:
        if server.access.wrong_tokens.add(request.address):
            await server.control.system_actions.refuse_sign_in(server.new_id(), server.now, request)
        raise HttpError(401, "wrong_token", "this server does not know this token", remediation=_how_to(server))
    caller = found.caller
    roles = caller.roles - {"worker"}
    if not roles:
        raise HttpError(
            403, "forbidden", "a worker's token cannot open pages; sign in with the token of a viewer or operator"
        )
    if server.access.signatures is not None and (
        roles != OF_ROLE["viewer"] or (caller.token_id or "").startswith(SETTING)
    ):
        raise HttpError(403, "viewer_token_needed", _how_to(server), remediation=HOW)
    caller = caller._replace(roles=roles)
    session, secret = await server.access.browser_sessions.open(
        server.new_id(),
        caller.token_id or "",
        found.digest,
        caller.role,
        caller.namespace,
        caller.payloads,
        request.address,
    )
    cookie = server.access.browser_sessions.cookie(headers, secret, server.access.browser_sessions.lifetime_seconds)
    caller = request.caller = caller._replace(session_id=session.id, method="session")
    return HttpResponse(
        SignedInAnswer(**asdict(_shown(server, caller)), outcome="signed_in"), 201, headers=_cookie(cookie)
    )


async def who(server: Server, request: HttpRequest) -> SessionAnswer:
    """Who the caller is, and what it may do."""
    return _shown(server, _caller(server, request))


async def sign_out(server: Server, request: HttpRequest) -> HttpResponse:
    """End the session of the caller, and delete its cookie."""
    request.caller = _caller(server, request)
    session_id = request.caller.session_id
    if session_id is None:
        raise invalid("cookie", "this request has no session to end: it came with another credential than the cookie")
    await server.access.browser_sessions.end(session_id)
    cookie = server.access.browser_sessions.cookie(request.headers, "", 0)
    return HttpResponse(EndedSessionAnswer(session_id=session_id, outcome="signed_out"), headers=_cookie(cookie))


class BrowserSessionAnswer(Struct, frozen=True, kw_only=True):
    session_id: str
    token_id: Annotated[str | None, Meta(description="The token that its person signed in with.")]
    role: str
    namespace: str | None
    payloads: Annotated[bool, Meta(description="Whether its person may read payloads.")]
    address: Annotated[str, Meta(description="The address from which its person signed in.")]
    created_at: str
    expires_at: str


class BrowserSessionsAnswer(Struct, frozen=True, kw_only=True):
    sessions: list[BrowserSessionAnswer]


class EndedSessionAnswer(Struct, frozen=True, kw_only=True):
    session_id: str
    outcome: Literal["ended", "signed_out"]


async def listing(server: Server, request: HttpRequest) -> BrowserSessionsAnswer:
    """The sessions of browsers, the newest first. An administrator of one namespace sees those bound to it."""
    found = sorted(_visible(server, request), key=lambda session: session.created_at, reverse=True)
    return BrowserSessionsAnswer(
        sessions=[
            BrowserSessionAnswer(
                session_id=session.id,
                token_id=session.token_id,
                role=session.role,
                namespace=session.namespace,
                payloads=session.payloads,
                address=session.address,
                created_at=iso(session.created_at),
                expires_at=iso(session.expires_at),
            )
            for session in found
        ]
    )


async def end(server: Server, request: HttpRequest) -> EndedSessionAnswer:
    """End a session. Its person has to sign in again."""
    session_id = request.params["session_id"]
    if all(session.id != session_id for session in _visible(server, request)):
        raise HttpError(404, "session_not_found", f"there is no session {session_id!r}", session_id=session_id)
    await server.access.browser_sessions.end(session_id)
    return EndedSessionAnswer(session_id=session_id, outcome="ended")


def _visible(server: Server, request: HttpRequest) -> list[BrowserSession]:
    now, bound = server.now, request.bound
    return [
        session
        for session in server.access.browser_sessions.kept.all()
        if session.expires_at > now and bound in (None, session.namespace)
    ]


def _caller(server: Server, request: HttpRequest) -> Caller:
    signatures = server.access.signatures
    if signatures is not None and "x-signature" in request.headers and isinstance(request, ParsedRequest):
        signatures.check(request.method, request.target, request.headers, request.body)
        return SIGNED
    try:
        return server.access.authenticator.caller(request.headers)
    except HttpError as error:
        error.fields |= {
            "authentication": server.settings.auth,
            "remediation": _how_to(server),
            "environment": asdict(_environment(server)),
        }
        raise


def _how_to(server: Server) -> str:
    if server.access.signatures is not None:
        return f"Requests to this server are signed. For a browser make a viewer token ({HOW}), and sign in with that."
    return f"Sign in with a token of this server; for one that reads and changes nothing: {HOW}"


def _shown(server: Server, caller: Caller) -> SessionAnswer:
    settings = server.settings
    found = (session for session in server.access.browser_sessions.kept.all() if session.id == caller.session_id)
    session = None if caller.session_id is None else next(found, None)
    return SessionAnswer(
        authenticated=caller is not ANYBODY,
        authentication=settings.auth,
        method=caller.method,
        role=caller.role,
        roles=sorted(caller.roles),
        namespace=caller.namespace,
        default_namespace=settings.default_namespace,
        token_id=caller.token_id,
        session_id=caller.session_id,
        payloads=caller.payloads,
        signed_in_at=optional_iso(None if session is None else session.created_at),
        expires_at=optional_iso(None if session is None else session.expires_at),
        environment=_environment(server),
        server_id=settings.server_id,
        version=version("backstay"),
    )


def _environment(server: Server) -> EnvironmentAnswer:
    return EnvironmentAnswer(name=server.settings.environment_name, colour=server.settings.environment_colour)


def _cookie(cookie: str) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"set-cookie", cookie.encode()),)


ROUTES = [
    Route(
        "POST", "/api/session", sign_in, "sign_in", EVERY, body=SignInBody, max_body_bytes=MAX_BODY, told=SignedInAnswer
    ),
    Route("GET", "/api/session", who, "sign_in", EVERY),
    Route("DELETE", "/api/session", sign_out, "sign_in", EVERY, max_body_bytes=MAX_BODY, told=EndedSessionAnswer),
    Route("GET", "/api/sessions", listing, "control", ADMIN, any_namespace=True),
    Route("DELETE", "/api/sessions/{session_id}", end, "control", ADMIN, any_namespace=True),
]
