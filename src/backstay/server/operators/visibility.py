"""The query of a list: terms joined by AND. Fields are those of the system, registered search attributes, and `Label.KEY`.

WorkflowType = 'order' AND Status = 'running' AND customer = 'ada' AND amount = 42
State IN ('blocked', 'retrying') AND StartTime > '2026-01-31T12:00:00Z' AND Label.team = 'shop'
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from msgspec.structs import replace

from backstay.kernel.values import Micros
from backstay.kernel.views.run_query import OPEN, STATUSES, RunQuery, Value
from backstay.server.http.errors import HttpError
from backstay.server.operators.run_filters import moment
from backstay.server.operators.visibility_contract import FIELDS as LIST_FIELDS
from backstay.server.operators.visibility_contract import MOST_VALUES

FIELDS = {
    "WorkflowType": "workflow_type",
    "WorkflowId": "instance_id",
    "RunId": "run_id",
    "TaskQueue": "queue",
    "BuildId": "compatibility",
    "BusinessKey": "business_key",
    "State": "state",
    "Attention": "attention",
    "WaitKind": "wait_kind",
    "LivenessState": "liveness_state",
}
TIMES = {"StartTime": "started", "CloseTime": "closed"}
LONGEST = 4096

_LITERAL = r"""'(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | true\b | false\b | -?\d+\.\d+\b | -?\d+\b"""
_NAME = re.compile(r"\s*((?:Label\.[A-Za-z0-9_.:-]{1,64})|(?:[A-Za-z][A-Za-z0-9_]*))\s*")
_EQUAL = re.compile(rf"=\s*({_LITERAL})\s*", re.VERBOSE)
_COMPARED = re.compile(rf"(>=|<=|>|<)\s*({_LITERAL})\s*", re.VERBOSE)
_IN = re.compile(rf"IN\s*\(\s*((?:{_LITERAL})(?:\s*,\s*(?:{_LITERAL}))*)\s*\)\s*", re.VERBOSE | re.IGNORECASE)
_ONE = re.compile(_LITERAL, re.VERBOSE)
_AND = re.compile(r"AND\b", re.IGNORECASE)

Literal = str | float | bool


class Compared(NamedTuple):
    """`>`, `>=`, `<` or `<=` of a time."""

    how: str
    value: Literal


class AnyOf(NamedTuple):
    values: tuple[Literal, ...]


Term = Literal | Compared | AnyOf


def parse_query(namespace: str, text: str, attributes: Mapping[str, str]) -> RunQuery:
    """The query in this text; raises an error that names the character where it cannot be parsed."""
    fields: dict[str, tuple[str, ...]] = {}
    labels: dict[str, tuple[str, ...]] = {}
    searches: dict[str, tuple[Value, ...]] = {}
    times: dict[str, Micros] = {}
    for name, term in parse(text):
        if name in TIMES:
            _time(times, name, term)
            continue
        values = _values(name, term)
        if name == "Status":
            _narrow(fields, "status", _statuses(values))
        elif name in FIELDS:
            _narrow(fields, FIELDS[name], _texts(name, values))
        elif name.startswith("Label."):
            _narrow(labels, name.removeprefix("Label."), _texts(name, values))
        elif name in attributes:
            known = searches.get(name)
            searches[name] = values if known is None else tuple(value for value in known if value in values)
        else:
            raise _unknown(name, namespace, attributes)
    for what in ("started", "closed"):
        after, before = times.get(f"{what}_after"), times.get(f"{what}_before")
        if after is not None and before is not None and before <= after:
            raise _problem("invalid_visibility_query", "a range of times ends before it begins")
    query = RunQuery(namespace=namespace, fields=fields, labels=labels, attributes=searches)
    return replace(query, **times)


def parse(text: str) -> list[tuple[str, Term]]:
    """The terms of a query. Equality is the literal itself."""
    if len(text) > LONGEST:
        raise _problem("invalid_visibility_query", f"a query has at most {LONGEST} characters")
    terms: list[tuple[str, Term]] = []
    at = 0
    while at < len(text.rstrip()):
        if terms:
            joined = _AND.match(text, at)
            if joined is None:
                raise _problem("invalid_visibility_query", f"expected AND at character {at}: {text[at : at + 20]!r}")
            at = joined.end()
        name = _NAME.match(text, at)
        term = None if name is None else _term(text, name.end())
        if name is None or term is None:
            raise _problem(
                "invalid_visibility_query",
                f"expected Field = literal, Field IN (...) or a comparison at character {at}: {text[at : at + 20]!r};"
                " texts are in quotes",
            )
        terms.append((name[1], term[0]))
        at = term[1]
    return terms


def _term(text: str, at: int) -> tuple[Term, int] | None:
    equal = _EQUAL.match(text, at)
    if equal is not None:
        return _literal(equal[1]), equal.end()
    compared = _COMPARED.match(text, at)
    if compared is not None:
        return Compared(compared[1], _literal(compared[2])), compared.end()
    listed = _IN.match(text, at)
    if listed is not None:
        return AnyOf(tuple(_literal(one[0]) for one in _ONE.finditer(listed[1]))), listed.end()
    return None


def _values(name: str, term: Term) -> tuple[Literal, ...]:
    if isinstance(term, Compared):
        raise _problem(
            "invalid_visibility_query",
            f"{name} {term.how} cannot be asked: only {' and '.join(TIMES)} are compared; use = or IN (...)",
        )
    values = term.values if isinstance(term, AnyOf) else (term,)
    if len(values) > MOST_VALUES:
        raise _problem("invalid_visibility_query", f"{name} has at most {MOST_VALUES} values")
    return values


def _time(times: dict[str, Micros], name: str, term: Term) -> None:
    if not isinstance(term, Compared):
        raise _problem(
            "unsupported_visibility_predicate",
            f"{name} cannot be compared for equality; use {name} > '...' AND {name} < '...'",
        )
    try:
        at = moment(name, str(term.value))
    except HttpError as wrong:
        raise _problem("invalid_visibility_query", wrong.message) from None
    if term.how in (">", ">="):
        at += term.how == ">"
        place = f"{TIMES[name]}_after"
        times[place] = max(at, times.get(place, at))
    else:
        at += term.how == "<="
        place = f"{TIMES[name]}_before"
        times[place] = min(at, times.get(place, at))


def _narrow(found: dict[str, tuple[str, ...]], name: str, values: tuple[str, ...]) -> None:
    """Both terms count: none of the values are left if they exclude each other."""
    known = found.get(name)
    found[name] = values if known is None else tuple(value for value in known if value in values)


def _texts(name: str, values: tuple[Literal, ...]) -> tuple[str, ...]:
    texts = tuple(value for value in values if isinstance(value, str))
    if len(texts) < len(values):
        raise _problem("invalid_visibility_query", f"{name} is a text: put it in quotes")
    field = LIST_FIELDS.get(FIELDS.get(name, ""))
    if field is not None and field.ours:
        for text in texts:
            if text not in field.options:
                raise _problem("invalid_visibility_query", f"{name} is one of {', '.join(field.options)}, not {text!r}")
    return texts


def _statuses(values: tuple[Literal, ...]) -> tuple[str, ...]:
    found: list[str] = []
    for value in values:
        if value not in STATUSES:
            raise _problem("invalid_visibility_query", f"Status is one of {', '.join(STATUSES)}, not {value!r}")
        found += OPEN if value == "running" else (str(value),)
    return tuple(dict.fromkeys(found))


def _unknown(name: str, namespace: str, attributes: Mapping[str, str]) -> HttpError:
    known = [*FIELDS, "Status", *TIMES]
    near = get_close_matches(name, [*known, *attributes], 1)
    meant = f"did you mean {near[0]!r}? Else " if near else ""
    return _problem(
        "unsupported_visibility_field",
        f"{name!r} is no field of the system ({', '.join(known)}) and no search attribute of namespace {namespace!r};"
        f" {meant}register it with POST /api/search-attributes",
    )


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
    errors: dict[str, Any] = {"query": [message]}
    return HttpError(422, reason, message, field="query", errors=errors, validation_errors=errors)
