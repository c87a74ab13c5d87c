"""Routes: path, handler, plane and roles.

One function a route: it takes the server and the request, and returns the body of the response, or an `HttpResponse`. Most are
coroutines. The hot ones are plain functions that return an `HttpResponse` or a `PendingReply`: they run as soon as the request
has been read, so that it joins the batch that is open, and needs no asyncio task.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, is_typeddict
from urllib.parse import unquote

from msgspec import Struct, StructMeta

from backstay.server.access.auth import OPERATOR, READER, Role
from backstay.server.http.errors import HttpError
from backstay.server.http.messages import HttpRequest, HttpResponse

if TYPE_CHECKING:
    from backstay.server.http.pending_reply import PendingReply
    from backstay.server.server import Server

Plane = Literal["open", "sign_in", "discovery", "worker", "control", "own", "node"]
"""`open` needs nothing, `sign_in` brings a credential in its body, `discovery` needs a credential, the others also their version
and a namespace that exists.

`own` is for our own clients and workers: requests and responses are plain structs without an envelope. `node` is the same
between the nodes of a database, whose credential is a secret of theirs, and whose requests name their namespace themselves.
"""


_WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")

SMALL_BODY = 64 << 10
"""Bytes of a body that holds names and numbers, and no payload."""


Handler = Callable[
    ["Server", HttpRequest],
    "Coroutine[Any, Any, Mapping[str, Any] | Struct | HttpResponse] | PendingReply | HttpResponse",
]


class Route(NamedTuple):
    method: str
    path: str
    handler: Handler
    plane: Plane
    roles: frozenset[Role]
    operation: str | None = None  # in the control plane's response contract
    any_namespace: bool = False  # the caller's namespace need not exist
    body: type[Struct] | None = None  # the struct that its requests are decoded into
    answers: str = "application/json"  # the content type of a successful response
    max_body_bytes: int | None = None  # fewer than the setting allows
    payload_free: bool = False  # bytes that it sends as they are hold no payload, so everybody may read them
    own_dry_run: bool = False  # the handler itself looks at `dry_run`
    only_reads: bool = False  # although its method is one that changes things
    told: Any = None  # the type of a successful answer, or a union of types, where the handler wraps it into a response

    @property
    def answer_types(self) -> tuple[Any, ...]:
        """The types of a successful answer: the return annotation of the handler. None if it names no type."""
        if self.told is not None:
            return get_args(self.told) or (self.told,)
        handler: Any = inspect.unwrap(self.handler)
        annotation = handler.__annotations__.get("return") or ""
        types = [handler.__globals__.get(name) for name in annotation.split(" | ")]
        return tuple(kind for kind in types if is_typeddict(kind) or isinstance(kind, StructMeta))

    @property
    def changes(self) -> bool:
        return self.method in _WITH_BODY and not self.only_reads

    @property
    def reads_body(self) -> bool:
        return self.plane != "open" and self.method in _WITH_BODY

    @property
    def needs_credential(self) -> bool:
        return self.plane not in ("open", "sign_in")


def with_viewers(routes: Iterable[Route]) -> list[Route]:
    """The routes with the rule about viewers: they read what operators read, and change nothing."""
    return [
        route._replace(roles=READER) if route.method == "GET" and route.roles == OPERATOR else route for route in routes
    ]


class _Node:
    __slots__ = ("children", "parameter", "rest", "routes")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.parameter: _Node | None = None  # for any other segment
        self.rest: _Node | None = None  # for all segments that are left
        self.routes: dict[str, tuple[Route, list[str]]] = {}


class Router:
    """Finds the route of a request in a tree of path segments; a literal segment wins over a parameter."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        self.routes = list(routes)
        for route in self.routes:
            node = self._root
            names: list[str] = []
            for part in route.path.strip("/").split("/"):
                if part.endswith("*}"):  # only as the last one
                    names.append(part[1:-2])
                    if node.rest is None:
                        node.rest = _Node()
                    node = node.rest
                elif part.startswith("{"):
                    names.append(part[1:-1])
                    if node.parameter is None:
                        node.parameter = _Node()
                    node = node.parameter
                else:
                    node = node.children.setdefault(part, _Node())
            if route.method in node.routes:
                raise ValueError(f"two routes for {route.method} {route.path}")
            node.routes[route.method] = (route, names)

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route of a path as it was sent, and its parameters. A `%2F` is a part of a name, and not of the route."""
        parts = path.strip("/").split("/")
        if "%" in path:
            parts = [unquote(part) for part in parts]
        # A literal path without this method leaves it to a parameter: a schedule may be called `preview`.
        found = _descend(self._root, parts, 0, (), method) or _descend(self._root, parts, 0, (), None)
        if found is None:
            raise HttpError(404, "route_not_found", f"there is no route {path}; every route is under /api")
        node, values = found
        chosen = node.routes.get(method)
        if chosen is None:
            allowed = ", ".join(sorted(node.routes))
            raise HttpError(
                405, "method_not_allowed", f"{path} takes {allowed}, not {method}", allowed=sorted(node.routes)
            )
        route, names = chosen
        return route, dict(zip(names, values, strict=True))


def _descend(
    node: _Node, parts: list[str], at: int, values: tuple[str, ...], method: str | None
) -> tuple[_Node, tuple[str, ...]] | None:
    """The node of a path, with the values of its parameters. `method`: one that the node must have; None: any."""
    if at == len(parts):
        known = bool(node.routes) if method is None else method in node.routes
        return (node, values) if known else None
    literal = node.children.get(parts[at])
    if literal is not None:
        found = _descend(literal, parts, at + 1, values, method)
        if found is not None:
            return found
    if node.parameter is not None and parts[at]:
        found = _descend(node.parameter, parts, at + 1, (*values, parts[at]), method)
        if found is not None:
            return found
    if node.rest is None:
        return None
    return _descend(node.rest, parts, len(parts), (*values, "/".join(parts[at:])), method)
