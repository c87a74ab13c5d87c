"""The HTTP application: the checks that every request passes, and the envelope of its response.

Route, credential, role, body, version, namespace, handler, envelope: in this order, so that a caller without the role
learns nothing about versions, bodies or namespaces, and a caller without a credential costs no body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from backstay.kernel.message import Refused
from backstay.protocol.native.client import VERSION as OWN_VERSION
from backstay.protocol.native.worker import VIA_HEADER
from backstay.protocol.versions import (
    CONTROL_PLANE,
    CONTROL_PLANE_HEADER,
    VERSION,
    VERSION_HEADER,
    accepts,
)
from backstay.server.access.accounts import NODES, account_of
from backstay.server.access.auth import SIGNED, require_namespace, require_role
from backstay.server.access.signatures import NotTaken, RequestSignature
from backstay.server.cluster.links import ROUTES as NODE_ROUTES
from backstay.server.cluster.links import NotANode, check_digest, check_handed_on, check_link, check_proof
from backstay.server.http.buffered_bytes import limited_bytes
from backstay.server.http.connections import limited_connections
from backstay.server.http.encoding import Encoded, encoded
from backstay.server.http.errors import HttpError, to_http_error
from backstay.server.http.messages import HttpRequest, HttpResponse, ParsedRequest
from backstay.server.http.pages import PAGES
from backstay.server.http.router import Route, Router
from backstay.server.operators.rehearsal import has_dry_run, rehearse, unsupported
from backstay.server.routes import ROUTES
from backstay.server.server import Server
from backstay.server.settings import Settings
from backstay.store.errors import Unavailable

UNKNOWN = ("unauthorized", "session_ended", "namespace_not_found")
VIA = VIA_HEADER.lower()
NOBODY_KNOWS = ("query_worker_unavailable", "workflow_definition_unavailable")


class Connection(Protocol):
    """The connection of a request, as far as the application knows it."""

    authenticated: bool

    def mark_authenticated(self, account: str) -> None:
        """Called when a request has shown a valid credential, with whose it is."""
        ...


class App:
    """A server with its routes, its open connections and the requests that coroutines answer."""

    def __init__(self, server: Server, routes: Sequence[Route] | None = None) -> None:
        """`routes`: None for all of a server."""
        self.server = server
        self.router = Router(_served(server.settings) if routes is None else routes)
        self.connections = limited_connections(server.settings)
        self.buffered = limited_bytes(server.settings)
        self._requests = server.requests
        self.handling: set[asyncio.Task[None]] = set()  # requests that a coroutine answers

    def run(self, handler: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(handler)
        self.handling.add(task)
        task.add_done_callback(self.handling.discard)

    def handle(self, route: Route, request: HttpRequest) -> Any:
        """Hand an admitted request to its handler, or rehearse it if it is a dry run."""
        if request.dry_run and route.changes and not route.own_dry_run:
            if not has_dry_run(route):
                raise unsupported("it is not a route for operators")
            return rehearse(self.server, route, request)
        if route.changes or route.plane != "control":
            return route.handler(self.server, request)
        if self.server.registries.version is not None and self.server.node.shards.unlinked:
            return self._look_and_show(route, request)
        return self._show(route, request)

    async def _look_and_show(self, route: Route, request: HttpRequest) -> Any:
        """Where nodes cannot notify each other of acknowledged changes, read the registries before an answer."""
        with suppress(Unavailable):  # the known entries suffice
            await self.server.registries.refresh()
        reply = self._show(route, request)
        return await reply if asyncio.iscoroutine(reply) else reply

    def _show(self, route: Route, request: HttpRequest) -> Any:
        version = self.server.registries.version
        reply = route.handler(self.server, request)
        return self._read(route, request, reply, version) if asyncio.iscoroutine(reply) else reply

    async def _read(
        self, route: Route, request: HttpRequest, reply: Coroutine[Any, Any, Any], version: int | None
    ) -> Any:
        """Answer a request that changes nothing, when its turn has come. A refusal may be of a moment before something was registered
        at another node."""
        if route.method != "GET":  # it needs a worker
            return await self._read_now(route, request, reply, version)
        try:
            async with self.server.reading_turns.turn(request):
                return await self._read_now(route, request, reply, version)
        finally:
            reply.close()  # if it never had a turn

    async def _read_now(
        self, route: Route, request: HttpRequest, reply: Coroutine[Any, Any, Any], version: int | None
    ) -> Any:
        try:
            return await reply
        except (HttpError, Refused) as error:
            told = to_http_error(error, f"{request.method} {request.path!r}")
            # A query that a worker has refused is not repeated: a worker has answered.
            is_unknown = (told.status in (404, 422) and not route.only_reads) or told.reason in NOBODY_KNOWS
            if not (is_unknown and await self.server.registries.changed_since(version)):
                raise
        again: Any = route.handler(self.server, request)
        return await again

    async def record(self, route: Route, request: HttpRequest, answer: HttpResponse) -> None:
        """Record the effect of a request on the server itself, for the audit."""
        server = self.server
        await server.control.system_actions.record(server.new_id(), server.now, route.path, request, answer)

    def count(self, route: Route | None, status: int) -> None:
        """Count a request that is answered. Whatever callers ask for, these are no more than routes and statuses."""
        self._requests[("", "none", status) if route is None else (route.method, route.path, status)] += 1

    def admit(self, route: Route, request: HttpRequest, connection: Connection) -> None:
        """Check the credential before the body is read; a signature covers the body and is checked later."""
        if not route.needs_credential:
            return
        if VIA in request.headers:
            check_handed_on(self.server, request)
        by_cookie = "cookie" in request.headers and "x-signature" not in request.headers
        if self.server.access.signatures is None or by_cookie or route.plane == "node":
            self.authenticate(route, request, connection)

    def may_be_known(self, request: ParsedRequest, error: Exception) -> bool:
        """Whether a request is refused because of a missing entry that may be in the database."""
        if isinstance(error, NotANode):
            if request.confirmed and error.refusal is not None:
                self.server.node_proofs.remember(error.refusal)
            return error.refusal is not None and not request.confirmed
        if request.confirmed or not isinstance(error, HttpError) or error.reason not in UNKNOWN:
            return False
        tells = "authorization" in request.headers or "cookie" in request.headers or error.status == 404
        counted = self.server.registries.version is not None
        return tells and counted and self.server.access.signatures is None  # a signature is valid once

    async def take(self, request: ParsedRequest, signature: RequestSignature) -> None:
        """Use the signature of a request. Refuses one that was used before."""
        await self.server.access.used_signatures.take(*signature)
        request.taken = True

    async def look(self, error: Exception) -> None:
        """Read from the database the entry whose absence caused a refusal."""
        if isinstance(error, NotANode):
            await self.server.node_proofs.look_again()
        else:
            await self.server.registries.confirm()

    def check(self, route: Route, request: ParsedRequest, connection: Connection) -> None:
        """Check signature, content type, version and namespace once the body has been received."""
        if route.plane == "open":
            return
        signatures = self.server.access.signatures
        is_signed = route.needs_credential and route.plane != "node" and request.caller.method != "session"
        if signatures is not None and is_signed:
            signed = signatures.check(request.method, request.target, request.headers, request.body)
            # A node that hands a request on has used its signature.
            if signed is not None and not request.taken and request.digest is None:
                raise NotTaken(signed)
            request.caller = SIGNED
            connection.mark_authenticated(account_of(SIGNED, request.address))
        if request.digest is not None:
            check_digest(request)
        if request.body:
            check_content_type(request.headers)
        request.version = check_version(route, request.headers)
        if route.needs_credential:
            self.resolve_namespace(route, request)

    def authenticate(self, route: Route, request: HttpRequest, connection: Connection) -> None:
        """Authenticate the caller, and check that it may call this route."""
        if route.plane == "node":
            check_proof(self.server, request)
            connection.mark_authenticated(NODES)
            return
        if VIA in request.headers:
            check_handed_on(self.server, request)
        caller = request.caller = self.server.access.authenticator.caller(request.headers)
        request.roles = caller.roles
        request.bound = caller.namespace
        if not connection.authenticated:
            connection.mark_authenticated(account_of(caller, request.address))
        require_role(caller.roles, route.roles)

    def resolve_namespace(self, route: Route, request: HttpRequest) -> None:
        """Set the namespace of a request: one that exists and that the caller may use."""
        if route.plane == "node":
            return  # it was judged where the caller called
        server = self.server
        wanted = (
            request.headers.get("x-namespace") or request.query.get("namespace") or server.settings.default_namespace
        )
        request.namespace = wanted.lower()
        if not route.any_namespace or route.plane == "control":
            require_namespace(request.params.get("namespace", request.namespace), request.bound)
        if not route.any_namespace:
            server.namespaces.check(request.namespace)

    def encode(self, route: Route | None, request: HttpRequest, answer: HttpResponse) -> Encoded:
        """A response as it is sent."""
        return encoded(route, request, answer, self.server.now, self.server.capabilities)


def _served(settings: Settings) -> list[Route]:
    """The routes of a server. `/metrics` needs no credential if the settings say so."""
    routes = [*ROUTES, *NODE_ROUTES, *PAGES]
    if not settings.metrics_open:
        return routes
    return [route._replace(plane="open") if route.path == "/metrics" else route for route in routes]


def error_response(request: HttpRequest, error: Exception) -> HttpResponse:
    """The response to a request that failed with this error."""
    where = f"{request.method} {request.path!r}"
    http_error = to_http_error(error, where, request.headers.get("traceparent"))
    return HttpResponse(http_error.body(), http_error.status, last=http_error.last)


def check_content_type(headers: Mapping[str, str]) -> None:
    given = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if given != "application/json" and not given.endswith("+json"):
        raise HttpError(415, "unsupported_media_type", f"send application/json, not {given}", field="content-type")


def check_version(route: Route, headers: Mapping[str, str]) -> str:
    """Check the version header of the plane. Returns the version if responses depend on it, else an empty text."""
    if route.plane == "worker":
        return _worker_version(headers)
    if route.plane == "control" or (route.plane == "sign_in" and route.method != "GET"):
        _check_control_version(headers)
    elif route.plane == "own":
        _check_own_version(headers)
    elif route.plane == "node":
        check_link(headers)
    return ""


def _worker_version(headers: Mapping[str, str]) -> str:
    given = headers.get("x-durable-workflow-protocol-version")
    if given is not None and accepts(given):
        return given
    raise HttpError(
        400,
        "missing_protocol_version" if given is None else "unsupported_protocol_version",
        f"worker routes need the header {VERSION_HEADER}: {VERSION} or an older 1.x",
        supported_version=VERSION,
        requested_version=given,
        remediation=f"Send {VERSION_HEADER}: {VERSION}.",
    )


def _check_control_version(headers: Mapping[str, str]) -> None:
    given = headers.get("x-durable-workflow-control-plane-version")
    if given == CONTROL_PLANE:
        return
    raise HttpError(
        400,
        "missing_control_plane_version" if given is None else "unsupported_control_plane_version",
        f"this route needs the header {CONTROL_PLANE_HEADER}: {CONTROL_PLANE}",
        supported_version=CONTROL_PLANE,
        requested_version=given,
        remediation=f"Send {CONTROL_PLANE_HEADER}: {CONTROL_PLANE}.",
    )


def _check_own_version(headers: Mapping[str, str]) -> None:
    given = headers.get("x-backstay-protocol")
    if given == str(OWN_VERSION):
        return
    raise HttpError(
        400,
        "unsupported_backstay_protocol",
        f"this server speaks version {OWN_VERSION} of Backstay's own protocol, the caller {given or 'none'}",
        supported_version=OWN_VERSION,
        requested_version=given,
        remediation="Install the same release of Backstay on both sides.",
    )
