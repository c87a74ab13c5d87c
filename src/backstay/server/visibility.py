"""The query of a list: `Field = literal`, joined by AND. Fields are those of the system, or registered search attributes.

WorkflowType = 'order' AND Status = 'running' AND customer = 'ada' AND amount = 42
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from backstay.protocol.run_detail import BUCKETS
from backstay.server.http_errors import HttpError

if TYPE_CHECKING:
    from backstay.server.server import Server

FIELDS = {
    "WorkflowType": "workflow_type",
    "WorkflowId": "workflow_id",
    "RunId": "run_id",
    "TaskQueue": "queue",
    "BuildId": "compatibility",
    "BusinessKey": "business_key",
}
STATUSES = ("pending", "running", "waiting", "completed", "failed", "cancelled", "terminated")
LONGEST = 4096

_TERM = re.compile(
    r"""\s*([A-Za-z][A-Za-z0-9_]*)\s*=\s*
    ('(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | true\b | false\b | -?\d+\.\d+\b | -?\d+\b)\s*""",
    re.VERBOSE,
)
_AND = re.compile(r"AND\b", re.IGNORECASE)

Literal = str | float | bool


class Query(Struct):
    fields: dict[str, str] = {}
    searches: list[tuple[str, Literal]] = []
    statuses: tuple[str, ...] | None = None


def parse_query(server: Server, namespace: str, text: str) -> Query:
    """The query in this text; raises an error that names the character where it cannot be parsed."""
    found = Query()
    for name, literal in parse(text):
        if name == "Status":
            found.statuses = common_statuses(found.statuses, _status(literal))
        elif name in FIELDS:
            _field(found, name, literal)
        elif name in ("StartTime", "CloseTime"):
            raise _problem(
                "unsupported_visibility_predicate", f"{name} cannot be compared for equality; page through instead"
            )
        elif server.attributes.get(namespace, name) is not None:
            found.searches.append((name, literal))
        else:
            raise _problem(
                "unsupported_visibility_field",
                f"{name!r} is no field of the system ({', '.join([*FIELDS, 'Status'])}) and no search attribute"
                f" of namespace {namespace!r}; register it with POST /api/search-attributes",
            )
    return found


def parse(text: str) -> list[tuple[str, Literal]]:
    if len(text) > LONGEST:
        raise _problem("invalid_visibility_query", f"a query has at most {LONGEST} characters")
    terms: list[tuple[str, Literal]] = []
    at = 0
    while at < len(text.rstrip()):
        if terms:
            joined = _AND.match(text, at)
            if joined is None:
                raise _problem("invalid_visibility_query", f"expected AND at character {at}: {text[at : at + 20]!r}")
            at = joined.end()
        term = _TERM.match(text, at)
        if term is None:
            raise _problem(
                "invalid_visibility_query",
                f"expected Field = literal at character {at}: {text[at : at + 20]!r}; texts are in quotes",
            )
        terms.append((term[1], _literal(term[2])))
        at = term.end()
    return terms


def common_statuses(one: tuple[str, ...] | None, other: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Statuses that satisfy both filters; none at all when they exclude each other."""
    if one is None or other is None:
        return other if one is None else one
    return tuple(status for status in one if status in other) or ("",)


def _field(found: Query, name: str, literal: Literal) -> None:
    if not isinstance(literal, str):
        raise _problem("invalid_visibility_query", f"{name} is a text: put it in quotes")
    column = FIELDS[name]
    if found.fields.setdefault(column, literal) != literal:
        found.statuses = ("",)  # contradiction: no run matches


def _status(literal: Literal) -> tuple[str, ...]:
    if literal == "running":
        return BUCKETS["running"]
    if literal not in STATUSES:
        raise _problem("invalid_visibility_query", f"Status is one of {', '.join(STATUSES)}, not {literal!r}")
    return (str(literal),)


def _literal(text: str) -> Literal:
    if text[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    if text in ("true", "false"):
        return text == "true"
    number = float(text) if "." in text else int(text)
    if not -(2**63) <= number < 2**63:
        raise _problem("invalid_visibility_query", f"a number has at most 64 bits, which {text[:40]} has not")
    return number


def _problem(reason: str, message: str) -> HttpError:
    return HttpError(
        422, reason, message, field="query", errors={"query": [message]}, validation_errors={"query": [message]}
    )
