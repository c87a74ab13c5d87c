"""The parameters of a list or a count of runs, checked: the query, and its echo in the answer.

A parameter may be repeated: a run has one of its values. A saved view is such parameters, too; those of the request count before
those of the view. A page token belongs to one list: it carries a digest of the query.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from backstay.kernel.message import Refused
from backstay.kernel.values import Micros
from backstay.kernel.views.run_query import FLAGS, OPEN, SORTS, RunPlace, RunQuery, Sort, Value
from backstay.protocol.run_detail import BUCKETS
from backstay.server.http.errors import HttpError, invalid
from backstay.server.operators.visibility_contract import (
    FIELDS,
    LISTS,
    MOST_VALUES,
    ORDERS,
    TIMES,
    as_boolean,
    as_text,
    one_of,
    unknown_field,
)

PARAMETERS = (*FIELDS, "q", *TIMES, "sort", "order")
Plain = str | bool | list[str]

_LABEL = re.compile(r"labels?\[([A-Za-z0-9_.:-]{1,64})\]")
_ATTRIBUTE = re.compile(r"(?:search_)?attributes?\[([A-Za-z][A-Za-z0-9_.:-]{0,63})\]")
_encode = msgspec.json.Encoder(order="sorted").encode


class Filters(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters by name, with one value or several; a run must have one of them."""

    fields: dict[str, Plain] = {}
    labels: dict[str, str | list[str]] = {}
    attributes: dict[str, str | list[str]] = {}

    def over(self, other: Filters) -> Filters:
        """Both filters together; for a field of both, this one counts."""
        return Filters(
            fields=other.fields | self.fields,
            labels=other.labels | self.labels,
            attributes=other.attributes | self.attributes,
        )

    def shown(self) -> dict[str, Any]:
        told: dict[str, Any] = dict(self.fields)
        if self.labels:
            told["labels"] = self.labels
        if self.attributes:
            told["attributes"] = self.attributes
        return told


def filters_of(parameters: Mapping[str, Sequence[str]], others: Sequence[str]) -> Filters:
    """The filters of a request. `others` are its parameters that are none."""
    fields: dict[str, Plain] = {}
    labels: dict[str, str | list[str]] = {}
    attributes: dict[str, str | list[str]] = {}
    for name, values in parameters.items():
        if name in others:
            continue
        label, attribute = _LABEL.fullmatch(name), _ATTRIBUTE.fullmatch(name)
        if label is not None:
            _join(labels, label[1], _texts(name, values))
        elif attribute is not None:
            _join(attributes, attribute[1], _texts(name, values))
        else:
            fields[name] = values[0] if len(values) == 1 else list(values)
    return check_filters(Filters(fields=fields, labels=labels, attributes=attributes), others)


def _join(found: dict[str, str | list[str]], name: str, values: list[str]) -> None:
    before = found.get(name, [])
    every = [*([before] if isinstance(before, str) else before), *values]
    found[name] = every[0] if len(every) == 1 else every


def check_filters(given: Filters, others: Sequence[str] = ()) -> Filters:
    """The same filters with values of their types; raises an error that names the field at fault."""
    checked: dict[str, Plain] = {}
    for name, value in given.fields.items():
        if name not in PARAMETERS:
            raise unknown_field(name, (*PARAMETERS, *others))
        checked[name] = _checked(name, value)
    for name in ("labels", "attributes"):
        several: dict[str, str | list[str]] = getattr(given, name)
        for key, value in several.items():
            _texts(f"{name}[{key}]", value if isinstance(value, list) else [value])
    return replace(given, fields=checked)


def _checked(name: str, value: Any) -> Plain:
    values = cast(list[Any], value) if isinstance(value, list) else [value]
    field = FIELDS.get(name)
    if field is None or field.type == "boolean":
        if len(values) != 1:
            raise invalid(name, f"{name} has one value, not {len(values)}")
        return _single(name, values[0])
    texts = _texts(name, values)
    if field.ours:
        for text in texts:
            one_of(name, text, field.options)
    return texts[0] if len(texts) == 1 else texts


def _single(name: str, value: Any) -> str | bool:
    if name in FIELDS:
        return as_boolean(name, value)
    text = as_text(name, value)
    if name == "sort":
        return one_of(name, text, SORTS)
    if name == "order":
        return one_of(name, text, ORDERS)
    if name in TIMES:
        moment(name, text)
    return text


def _texts(name: str, values: Sequence[Any]) -> list[str]:
    if not 0 < len(values) <= MOST_VALUES:
        raise invalid(name, f"{name} has 1 to {MOST_VALUES} values, not {len(values)}")
    return list(dict.fromkeys(as_text(name, value) for value in values))


def moment(name: str, text: str) -> Micros:
    """A time of a parameter: ISO 8601, in UTC unless it says otherwise."""
    try:
        at = datetime.fromisoformat(text.strip().replace(" ", "+"))
        return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        raise invalid(name, f"{name} is a time like 2026-01-31T12:00:00Z, not {text[:40]!r}") from None


def query_of(
    namespace: str, bucket: str, filters: Filters, types: Mapping[str, str], budget: tuple[int, int]
) -> RunQuery:
    """The query of these filters. `types`: of the search attributes of the namespace."""
    fields: dict[str, tuple[str, ...]] = {}
    flags: dict[str, bool] = {}
    statuses = LISTS[bucket]
    for name, value in filters.fields.items():
        if isinstance(value, bool):
            flags[name] = value
        elif name in ("status", "status_bucket"):
            statuses = _common(statuses, name, several(value))
        elif name in FIELDS:
            fields[name] = several(value)
    if statuses != LISTS["all"]:
        fields["status"] = statuses
    times = {name: moment(name, str(filters.fields[name])) for name in TIMES if name in filters.fields}
    for what in ("started", "closed"):
        after, before = times.get(f"{what}_after"), times.get(f"{what}_before")
        if after is not None and before is not None and before <= after:
            raise invalid(f"{what}_before", f"{what}_before is not after {what}_after: the range ends before it begins")
    assert flags.keys() <= set(FLAGS)
    return RunQuery(
        namespace=namespace,
        q=str(filters.fields["q"]) or None if "q" in filters.fields else None,
        fields=fields,
        flags=flags,
        labels={name: several(value) for name, value in filters.labels.items()},
        attributes={
            name: tuple(one for text in several(value) for one in attribute_values(name, text, types))
            for name, value in filters.attributes.items()
        },
        budget=budget,
        sort=cast(Sort, filters.fields.get("sort", "started")),
        descending=filters.fields.get("order", "desc") == "desc",
        **times,
    )


def several(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _common(allowed: tuple[str, ...], name: str, values: tuple[str, ...]) -> tuple[str, ...]:
    """The statuses of both. `running` stands for every run that has not closed."""
    if name == "status_bucket":
        wanted = {status for value in values for status in BUCKETS.get(value, ())}
    else:
        wanted = {status for value in values for status in (OPEN if value == "running" else (value,))}
    return tuple(status for status in allowed if status in wanted)


def attribute_values(name: str, text: str, types: Mapping[str, str]) -> tuple[Value, ...]:
    """The possible values of a text as a search attribute of its type."""
    kind = types.get(name)
    if kind is None:
        near = unknown_field(name, types).message.partition("; ")[2]
        raise invalid(
            f"attribute[{name}]",
            f"{name!r} is no search attribute of this namespace; {near or 'register it with POST /api/search-attributes'}",
        )
    if kind == "bool":
        return (as_boolean(f"attribute[{name}]", text),)
    if kind in ("int", "double", "float"):
        try:
            return (int(text) if re.fullmatch(r"-?\d{1,18}", text) else float(text),)
        except ValueError:
            raise invalid(f"attribute[{name}]", f"{name} is a number, not {text[:40]!r}") from None
    return (text,)


# -- page tokens


def page_token(query: RunQuery, place: RunPlace | None) -> str | None:
    if place is None:
        return None
    return urlsafe_b64encode(_encode([_digest(query), *map(str, (place.value, place.key, place.top or ""))])).decode()


def page_place(query: RunQuery, token: str | None) -> RunPlace | None:
    """Where a page begins; raises an error if the token is none, or is that of another list."""
    if not token:
        return None
    try:
        digest, value, key, top = msgspec.json.decode(urlsafe_b64decode(token), type=tuple[str, str, str, str])
        place = RunPlace(int(value), int(key), int(top) if top else None)
        if not all(abs(number) < 1 << 63 for number in place if number is not None):
            raise ValueError(token)
    except (ValueError, msgspec.MsgspecError):
        raise Refused(
            "invalid_page_token", "this page token was not given by this server", field="next_page_token"
        ) from None
    if digest != _digest(query):
        raise HttpError(
            422,
            "page_token_of_another_list",
            "this page token belongs to a list with other filters or another order; begin at the first page",
            field="next_page_token",
        )
    return place


def _digest(query: RunQuery) -> str:
    return sha256(_encode(query)).hexdigest()[:16]
