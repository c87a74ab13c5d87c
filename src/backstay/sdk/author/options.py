"""The table of option types. Options of authors and callers are checked against it once, when they are given.

Later code trusts them. A value of a wrong type would be stored, and could not be read back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, get_args

from backstay.kernel.call_options import SUMMARY_LENGTH, CallOptions
from backstay.kernel.features.child.records import POLICIES
from backstay.kernel.features.start import DuplicatePolicy
from backstay.protocol.requests import Status
from backstay.sdk import former_names
from backstay.sdk.author.durations import to_seconds


class CommonOptions(TypedDict, total=False):
    """Options that activities and children share.

    `queue` is the task queue. `summary` is a short text about this call for people, as in `charge.options(summary="order 17")`:
    history, timeline, `dw` and the operators' page show it.
    """

    queue: str
    summary: str


def carried(given: Mapping[str, Any], known: type[CallOptions]) -> dict[str, Any]:
    """Return those of the given options that the kernel carries as they are."""
    return {name: given[name] for name in known.__struct_fields__ if name in given}


class Kind(NamedTuple):
    fits: Callable[[Any], bool]
    words: str


def check(given: Mapping[str, Any], known: Any, what: str = "option", error: type[TypeError] = TypeError) -> None:
    """Raise for options that the TypedDict `known` does not have, and for values of a wrong type."""
    unknown = sorted(set(given) - set(known.__annotations__))
    if unknown:
        names = sorted(known.__annotations__)
        hint = former_names.hint(unknown[0], names) or "known are " + ", ".join(names)
        raise error(f"unknown {what} {unknown[0]!r}; {hint}")
    for name, value in given.items():
        expect(name, value, error)


def expect(name: str, value: Any, error: type[TypeError] = TypeError) -> None:
    """Raise if the value of an option does not have the type that the table says."""
    kind = EXPECTED.get(name)
    if kind is None:
        return
    try:
        fits = kind.fits(value)
    except ValueError as problem:
        raise ValueError(f"{name}: {problem}") from None
    except TypeError:
        fits = False
    if not fits:
        raise error(f"{name} must be {kind.words}, not {value!r}")


def listed(name: str, given: Any) -> Iterable[Any]:
    """Return the items of an option that takes several. Raises if a single thing, such as a text, was given."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"{name} takes several: write {name}=[{given!r}]")
    return given  # pyright: ignore[reportUnknownVariableType]


def served(queues: Any) -> list[str]:
    """Return the task queues that a worker polls, each once."""
    several = list(dict.fromkeys(listed("queues", queues)))
    for queue in several:
        if not isinstance(queue, str):
            raise TypeError(f"queues are named by text, not {queue!r}")
    if not several:
        raise ValueError("queues names none; a worker serves at least one")
    return several


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_summary(value: Any) -> bool:
    if isinstance(value, str) and len(value) > SUMMARY_LENGTH:
        raise ValueError(f"{len(value)} characters, at most {SUMMARY_LENGTH} are accepted")
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return is_whole(value) and value >= 1


def _is_whole_or_none(value: Any) -> bool:
    return value is None or is_whole(value)


def _between(low: int, high: int) -> Kind:
    def fits(value: Any) -> bool:
        return is_whole(value) and low <= value <= high

    return Kind(fits, f"a whole number from {low} to {high}")


def _one_of(*words: str) -> Kind:
    return Kind(words.__contains__, "one of " + ", ".join(map(repr, words)))


def _is_named(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)  # pyright: ignore[reportUnknownVariableType]


def _is_labels(value: Any) -> bool:
    return _is_named(value) and all(isinstance(label, str) for label in value.values())


def _is_retries(value: Any) -> bool:
    return value == "forever" or (isinstance(value, int) and value >= 0)


def _is_duration(value: Any) -> bool:
    return value is None or to_seconds(value) >= 0


def _is_backoff(value: Any) -> bool:
    several = isinstance(value, Sequence) and not isinstance(value, str)
    return all(to_seconds(pause) >= 0 for pause in value) if several else _is_duration(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _is_deadline(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9)


def _is_fatal(value: Any) -> bool:
    return (
        isinstance(value, Collection)
        and not isinstance(value, str)
        and all(isinstance(kind, str) or issubclass(kind, BaseException) for kind in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    )


_TEXT = Kind(_is_text, "text")
_MAYBE = Kind(_is_text_or_none, "text")
_COUNT = Kind(_is_count, "a whole number of 1 or more")
_FLAG = Kind(_is_flag, "True or False")
_NAMED = Kind(_is_named, "a mapping with names of text")
_DURATION = Kind(_is_duration, "a duration: seconds, text like '90s' or a timedelta")

EXPECTED: dict[str, Kind] = {
    "id": _TEXT,
    "run_id": _TEXT,
    "type": _MAYBE,
    "name": _MAYBE,
    "namespace": _TEXT,
    "queue": _MAYBE,
    "connection": _MAYBE,
    "compatibility": _MAYBE,
    "compatibility_namespace": _MAYBE,
    "business_key": _MAYBE,
    "request_id": _MAYBE,
    "reason": _MAYBE,
    "note": _MAYBE,
    "summary": Kind(_is_summary, f"text of at most {SUMMARY_LENGTH} characters"),
    "timezone": _TEXT,
    "fairness_key": _MAYBE,
    "fairness_weight": _between(1, 1000),
    "priority": _between(0, 9),
    "max_runs": Kind(_is_whole_or_none, "a whole number"),
    "labels": Kind(_is_labels, "a mapping of text to text"),
    "memo": _NAMED,
    "search": _NAMED,
    "local": _FLAG,
    "thread": _FLAG,
    "paused": _FLAG,
    "retries": Kind(_is_retries, "0, a positive whole number or 'forever'"),
    "max_crashes": Kind(_is_retries, "0, a positive whole number or 'forever'"),
    "at_most_once": _FLAG,
    "backoff": Kind(_is_backoff, "a duration, or several"),
    "workflow_deadline": Kind(_is_deadline, "a number of seconds above 0, or None for no deadline"),
    "fatal": Kind(_is_fatal, "several exception classes or their names, as in [ValueError]"),
    "timeout": _DURATION,
    "run_timeout": _DURATION,
    "start_timeout": _DURATION,
    "schedule_timeout": _DURATION,
    "heartbeat_timeout": _DURATION,
    "parent_close": _one_of(*POLICIES),
    "threads": _COUNT,
    "weight": _COUNT,
    "async_tasks": _COUNT,
    "workflow_tasks": _COUNT,
    "guard": _one_of("error", "warn", "off"),
    "if_exists": _one_of(*get_args(DuplicatePolicy)),
    "status": _one_of(*get_args(Status)),
}
