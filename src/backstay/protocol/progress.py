"""The progress report of a heartbeat as one flat object that people can read.

Text is the message and a number is `current`. Of an object `message` and `unit` are text, `current` and `total` numbers
that are not negative, `details` an object; every other field, and every value of another type, is a detail under its
own name. Details are flat: a nested object gives dotted names, a list is its JSON. A report never fails a heartbeat;
one that is too large is cut, so that history stays small.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

from backstay.kernel.features.activity import Progress

MESSAGE = 280  # characters
UNIT = NAME = 64
DETAILS = 20
DEPTH = 8
LARGEST = 2**63 - 1  # of a stored number


def progress(given: Any) -> Progress | None:
    """The report as a flat object, or None if it is empty."""
    match given:
        case None:
            return None
        case dict():
            return _object(cast(dict[str, Any], given))
        case str():
            return Progress(message=given[:MESSAGE]) if given else None
        case _ if _counts(given):
            return Progress(current=given)
        case _:
            return _object({"value": given})


def _object(given: dict[str, Any]) -> Progress | None:
    told: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for name, value in given.items():
        match name, value:
            case _, None if name in Progress.__struct_fields__:
                pass
            case "message", str():
                told[name] = value[:MESSAGE]
            case "unit", str():
                told[name] = value[:UNIT]
            case "current" | "total", _ if _counts(value):
                told[name] = value
            case "details", dict():
                rest |= cast(dict[str, Any], value)
            case _:
                rest[name] = value
    details = dict(_leaves(rest))
    if details:
        told["details"] = details
    return Progress(**told) if told else None


def _leaves(given: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The first details of an object, flat."""
    for count, leaf in enumerate(_flat(given, "", DEPTH)):
        if count == DETAILS:
            return
        yield leaf


def _flat(given: dict[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        called = f"{prefix}{name}"
        match value:
            case dict() if value and depth:
                yield from _flat(cast(dict[str, Any], value), f"{called}.", depth - 1)
            case dict() | list():
                yield called[:NAME], _text(value)
            case str():
                yield called[:NAME], value[:MESSAGE]
            case int() if abs(value) > LARGEST:
                yield called[:NAME], str(value)[:MESSAGE]
            case _:
                yield called[:NAME], value


def _text(value: Any) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)[:MESSAGE]
    except RecursionError:
        return "(nested too deeply to be shown)"


def _counts(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST
