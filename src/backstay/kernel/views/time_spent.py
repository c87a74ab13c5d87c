"""Where the time of a run went: each moment counts once, for the liveliest thing that went on in it.

code        workflow code ran
activities  an activity ran
backoff     an activity waited before its next attempt
queue       a task waited for a worker: of an activity, or where nothing else is known, of the workflow
timers      it slept
waiting     it waited for something from outside: a message, a condition, a child
"""

from __future__ import annotations

from collections.abc import Iterator

from backstay.kernel.values import Micros
from backstay.kernel.views.outline import NONE, Outline

KINDS: tuple[str, ...] = ("code", "activities", "backoff", "queue", "timers", "waiting")
"""The liveliest first."""

Span = tuple[Micros, Micros, str]


def time_spent(outline: Outline, length: Micros) -> dict[str, Micros]:
    """How much of the `length` of a run was spent on what. The rest of the time it waited for a worker of its code."""
    spent = dict.fromkeys(KINDS, 0)
    changes: list[tuple[Micros, int, int]] = []
    for begin, end, kind in _spans(outline, length):
        begin, end = min(max(begin, 0), length), min(end, length)
        if begin < end:
            changes += ((begin, KINDS.index(kind), 1), (end, KINDS.index(kind), -1))
    active = [0] * len(KINDS)
    at = 0
    for time, kind, change in [*sorted(changes), (length, 0, 0)]:
        if time > at:
            spent[next((name for name, number in zip(KINDS, active, strict=True) if number), "queue")] += time - at
            at = time
        active[kind] += change
    return spent


def _spans(outline: Outline, length: Micros) -> Iterator[Span]:
    tasks = outline.tasks.columns
    for leased, recorded in zip(tasks["leased"], tasks["recorded"], strict=True):
        if leased != NONE:
            yield leased, recorded, "code"
    steps = outline.steps.columns
    places: dict[int, Micros] = {}
    for row, first in enumerate(steps["first"]):
        started, began, ended = steps["started"][row], steps["began"][row], steps["ended"][row]
        end = length if ended == NONE else started + ended
        places[first] = started
        match outline.texts[steps["kind"][row]]:
            case "activity":
                yield started, end, "queue"
                if began != NONE:
                    yield started + began, end, "activities"
            case "timer":
                yield started, end, "timers"
            case _:
                yield started, end, "waiting"
    earlier = outline.attempts.columns
    for row, first in enumerate(earlier["first"]):
        started, began, ended, after = places[first], earlier["began"][row], earlier["ended"][row], earlier["next"][row]
        if NONE not in (began, ended):
            yield started + began, started + ended, "activities"
        if NONE not in (ended, after):
            yield started + ended, started + after, "backoff"
