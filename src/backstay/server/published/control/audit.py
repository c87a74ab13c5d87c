"""`GET /api/audit`: commands and changes with their callers, newest first."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any

from msgspec import Meta, Struct

from backstay.kernel.values import Micros
from backstay.protocol.tasks import optional_iso
from backstay.server.access.auth import OPERATOR
from backstay.server.http.errors import invalid
from backstay.server.http.messages import HttpRequest
from backstay.server.http.router import Route
from backstay.server.operators.audit import PAGE, PAGE_MAX, AuditFilter, audit_page, moment
from backstay.server.server import Server

FILTERS = ("command_type", "status", "token_id", "caller", "source", "workflow_id")
PARAMETERS = (*FILTERS, "from", "to", "automatic_starts", "page_size", "next_page_token", "namespace")
STATUSES = ("accepted", "rejected", "unreadable")


class AuditLookedAt(Struct, frozen=True, kw_only=True):
    """How far back the page looked."""

    commands: int
    until: str | None
    complete: Annotated[bool, Meta(description="Whether there is nothing older.")]


class AuditAnswer(Struct, frozen=True, kw_only=True):
    namespace: str
    entries: list[dict[str, Any]]
    entry_count: int
    next_page_token: str | None
    looked_at: AuditLookedAt


async def audit(server: Server, request: HttpRequest) -> AuditAnswer:
    """Commands of the namespace and changes of the server, newest first."""
    _check(request)
    query = request.query
    where = AuditFilter(
        namespace=request.namespace,
        since=_moment(request, "from"),
        until=_moment(request, "to"),
        bound=request.bound is not None,
        automatic_starts=bool(request.integer("automatic_starts", 1, 0, 1)),
        **{name: query.get(name) or None for name in FILTERS},
    )
    if where.since is not None and where.until is not None and where.since >= where.until:
        raise invalid("to", "the range ends before it begins: `to` must be after `from`", "invalid_range")
    token = query.get("next_page_token") or None
    size = request.integer("page_size", PAGE, 1, PAGE_MAX)
    page = await audit_page(server.api.stored, server.control.system_actions.newest_first(), where, token, size)
    return AuditAnswer(
        namespace=request.namespace,
        entries=page.entries,
        entry_count=len(page.entries),
        next_page_token=page.token,
        looked_at=AuditLookedAt(
            commands=page.looked_at,
            until=optional_iso(page.looked_until),
            complete=page.token is None,
        ),
    )


def _check(request: HttpRequest) -> None:
    for name in request.query:
        if name not in PARAMETERS:
            near = get_close_matches(name, PARAMETERS, 1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(PARAMETERS)}"
            raise invalid(name, f"the audit has no parameter {name[:100]!r}; {meant}", "unknown_parameter")
    status = request.query.get("status")
    if status and status not in STATUSES:
        raise invalid("status", f"status is one of {', '.join(STATUSES)}, not {status[:100]!r}")


def _moment(request: HttpRequest, name: str) -> Micros | None:
    text = request.query.get(name)
    if not text:
        return None
    try:
        return moment(text)
    except (ValueError, OverflowError):
        raise invalid(name, f"{name} must be a time such as 2026-01-31T12:00:00Z, not {text[:100]!r}") from None


ROUTES = [Route("GET", "/api/audit", audit, "control", OPERATOR)]
