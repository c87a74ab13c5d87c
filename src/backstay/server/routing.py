"""Routes: which function answers which path, on which plane, for which roles.

One function a route: it takes the server and the call, and gives the body of the answer, or `Answer` to say more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from msgspec import Struct

from backstay.server.auth import Role
from backstay.server.problems import Problem

if TYPE_CHECKING:
    from backstay.server.call import Call
    from backstay.server.server import Server

Plane = Literal["open", "discovery", "worker", "control", "own"]
"""`open` needs nothing, `discovery` a credential, the others also their version and a namespace that exists.

`own` is for our own clients and workers: bodies and answers as their structs are, without an envelope.
"""


_WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")


class Answer(NamedTuple):
    """`raw`: bytes of a type of its own, without the envelope of the plane. `parts`: the same, sent as they come.

    `last`: the connection ends with it, so that whoever asks again may be led to another server.
    """

    body: Mapping[str, Any]
    status: int = 200
    raw: bytes | None = None
    content_type: str = "application/json"
    parts: AsyncGenerator[bytes] | None = None
    last: bool = False


Handler = Callable[["Server", "Call"], Awaitable[Mapping[str, Any] | Answer]]


class Begun(Protocol):
    """A call that was taken, and whose answer is still to come."""

    @property
    def answer(self) -> asyncio.Future[Any]:
        """Done when there is something to reply."""
        ...

    def give_up(self) -> None:
        """Nobody waits for the answer any more."""
        ...

    def reply(self) -> Answer:
        """What to reply, once there is something. Ends it."""
        ...


Begin = Callable[["Server", "Call"], Begun | Answer]


class Route(NamedTuple):
    method: str
    path: str
    handler: Handler
    plane: Plane
    roles: frozenset[Role]
    operation: str | None = None  # of the control plane's answer contract
    any_namespace: bool = False  # does not ask whether the caller's namespace exists
    body: type[Struct] | None = None  # the struct that its requests are decoded into
    answers: str = "application/json"  # in which form it is answered when all is well
    begin: Begin | None = None  # answers without a coroutine, instead of the handler

    @property
    def reads_body(self) -> bool:
        return self.plane != "open" and self.method in _WITH_BODY


class _Node:
    __slots__ = ("children", "parameter", "routes")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.parameter: _Node | None = None  # what any other segment leads to
        self.routes: dict[str, tuple[Route, list[str]]] = {}


class Router:
    """A tree of path segments; a literal one goes before a parameter."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        self.routes = list(routes)
        for route in self.routes:
            node = self._root
            names: list[str] = []
            for part in route.path.strip("/").split("/"):
                if part.startswith("{"):
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
        parts = path.strip("/").split("/")
        found = _descend(self._root, parts, 0, ())
        if found is None:
            raise Problem(404, "route_not_found", f"there is no route {path}; every route is under /api")
        node, values = found
        chosen = node.routes.get(method)
        if chosen is None:
            allowed = ", ".join(sorted(node.routes))
            raise Problem(
                405, "method_not_allowed", f"{path} takes {allowed}, not {method}", allowed=sorted(node.routes)
            )
        route, names = chosen
        return route, dict(zip(names, values, strict=True))


def _descend(node: _Node, parts: list[str], at: int, values: tuple[str, ...]) -> tuple[_Node, tuple[str, ...]] | None:
    if at == len(parts):
        return (node, values) if node.routes else None
    literal = node.children.get(parts[at])
    if literal is not None:
        found = _descend(literal, parts, at + 1, values)
        if found is not None:
            return found
    if node.parameter is None or not parts[at]:
        return None
    return _descend(node.parameter, parts, at + 1, (*values, parts[at]))
