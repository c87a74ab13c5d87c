"""The common part of the routes for parts of a run: the selected run, and the allowed parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Generic, NamedTuple, NoReturn, TypeVar, cast

import msgspec
from msgspec import Struct

from backstay.kernel.decision import RunRow
from backstay.protocol import requests as ask
from backstay.protocol.shown_payloads import PayloadMode
from backstay.server.access.auth import OPERATOR
from backstay.server.http.errors import HttpError, invalid
from backstay.server.http.messages import HttpRequest
from backstay.server.http.router import Handler, Route
from backstay.server.published.control.workflow_json import find_run
from backstay.server.server import Server

T = TypeVar("T")

PAGE_BYTES = 1 << 20  # of a page; the texts beside it stay below the same size
_ALWAYS = ("namespace",)


async def selected_run(server: Server, request: HttpRequest) -> RunRow:
    """The run that the path names, or the current run of the workflow. Its history is not read."""
    if "run_id" in request.params:
        return await find_run(server, request)
    workflow_id = request.params["workflow_id"]
    rows = await server.api.call(ask.ListWorkflows(workflow_id=workflow_id, namespace=request.namespace, limit=1))
    if rows:
        return rows[0]
    if await server.api.stored.find(request.namespace, workflow_id) is None:
        message = f"there is no workflow {workflow_id!r} in namespace {request.namespace!r}"
        raise HttpError(404, "instance_not_found", message, workflow_id=workflow_id)
    raise HttpError(409, "instance_not_started", f"workflow {workflow_id!r} has no run yet", workflow_id=workflow_id)


def quiet(request: HttpRequest) -> bool:
    """Whether the caller may not read payloads."""
    return not request.caller.payloads


def check_parameters(request: HttpRequest, *names: str) -> None:
    """Refuse parameters that the route does not have: a filter that is misspelt must not seem to match everything."""
    for name in request.query:
        if name not in names and name not in _ALWAYS:
            unknown("parameter", name, name, names, "unknown_parameter")


def unknown(what: str, field: str, value: str, known: Sequence[str], reason: str) -> NoReturn:
    near = get_close_matches(value, known, 1)
    meant = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(known) or 'none'}"
    error = invalid(field, f"there is no {what} {value[:100]!r}{meant}", reason)
    error.fields["nearest"] = near[0] if near else None
    raise error


def choice(request: HttpRequest, name: str, known: Sequence[str], default: str) -> str:
    value = request.query.get(name) or default
    if value not in known and value != default:
        unknown(name, name, value, known, f"unknown_{name}")
    return value


def choices(request: HttpRequest, name: str, known: Sequence[str]) -> frozenset[str]:
    """Several values of one parameter, separated by commas."""
    found = [value for value in (request.query.get(name) or "").split(",") if value]
    for value in found:
        if value not in known:
            unknown(name, name, value, known, f"unknown_{name}")
    return frozenset(found)


def number(request: HttpRequest, name: str, low: int = 0) -> int | None:
    """A whole number of the query string, if it is there."""
    text = request.query.get(name)
    return None if not text else checked_number(name, text, low)


def checked_number(name: str, text: str, low: int = 0) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 15 or int(text) < low:
        raise invalid(name, f"{name} must be a whole number of at least {low}, not {text[:100]!r}")
    return int(text)


class PartAnswer(Struct, frozen=True, kw_only=True):
    """The run whose part it is."""

    workflow_id: str
    run_id: str
    namespace: str


def about_run(row: RunRow) -> dict[str, str]:
    """The fields that every part begins with."""
    return {"workflow_id": row.workflow_id, "run_id": row.run_id, "namespace": row.namespace}


def part(name: str, handler: Handler, operation: str | None = None) -> list[Route]:
    """The routes of a part: of the current run, and of any run."""
    instance = "/api/workflows/{workflow_id}"
    return [
        Route("GET", f"{instance}/{name}", handler, "control", OPERATOR, operation),
        Route("GET", f"{instance}/runs/{{run_id}}/{name}", handler, "control", OPERATOR, operation),
    ]


class Page(NamedTuple, Generic[T]):
    """Items of a page, and whether more of them follow."""

    items: list[T]
    more: bool


def fitting_items(items: Iterable[T], count: int) -> Page[T]:
    """The first of these items: at most so many, and as many as fit into a page."""
    found: list[T] = []
    size = 0
    for item in items:
        size += len(msgspec.json.encode(item))
        if len(found) == count or (found and size > PAGE_BYTES):
            return Page(found, True)
        found.append(item)
    return Page(found, False)


def payload_mode(request: HttpRequest) -> PayloadMode:
    """How a list shows payloads: as text, unless the caller requests less or the stored form."""
    mode = choice(request, "payloads", ("text", "none", "blob"), "text")
    return "none" if quiet(request) else cast(PayloadMode, mode)
