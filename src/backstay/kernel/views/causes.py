"""Causes: the chain of events that led to an event, back to a message from outside the run.

Decisions of code follow from the event that woke it (`decided_after`). An event of a step follows from the event before
it at that step. Effects of a command follow from the command, which came from outside. Only a part of a long history
is looked at: `Chain.missing` names the event that would have to be read to go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from backstay.kernel.event import Event, Recorded, StepEvent
from backstay.kernel.feature_list import FEATURES
from backstay.kernel.features.activity import ActivityHeartbeatRecorded
from backstay.kernel.features.start import StartAccepted, WorkflowStarted
from backstay.kernel.values import Micros
from backstay.kernel.views.timeline import WORDS

LINKS = 50  # the longest chain

_WAKES: frozenset[type[Event]] = frozenset(
    kind for feature in FEATURES for kind in (*feature.history.resume, *feature.history.own_task)
) | {WorkflowStarted}


class ChainLink(Struct, frozen=True, kw_only=True):
    """One event of a chain. `because`: the event that led to it. `outside`: where it came from, if not from the run."""

    sequence: int
    type: str
    at: Micros
    about: str
    because: int | None = None
    outside: str | None = None


class Chain(NamedTuple):
    """The causes of an event, the first one first. `missing`: an event up to which history would have to be read."""

    causes: list[ChainLink]
    missing: int | None = None


class _Because(NamedTuple):
    sequence: int | None = None
    outside: str | None = None
    missing: int | None = None


def chain_of(events: Sequence[Recorded], sequence: int, most: int = LINKS) -> Chain:
    """The causes of an event, from a part of the history that contains it; the nearest `most` of them."""
    first = events[0].sequence if events else sequence + 1
    causes: list[ChainLink] = []
    at: int | None = sequence
    while at is not None and len(causes) < most:
        if at < first:
            return Chain(causes[::-1], at)
        entry = events[at - first]
        found = _because(events, entry, first)
        causes.append(
            ChainLink(
                sequence=entry.sequence,
                type=entry.type,
                at=entry.at,
                about=subject(entry),
                because=found.sequence,
                outside=found.outside,
            )
        )
        if found.missing is not None:
            return Chain(causes[::-1], found.missing)
        at = found.sequence
    return Chain(causes[::-1])


def subject(entry: Recorded) -> str:
    """An event by its type and the name of its subject: `SignalReceived pay`."""
    about = WORDS[type(entry.event)].about
    name = next((value for field in about.name if (value := getattr(entry.event, field, None))), None)
    return entry.type if name is None else f"{entry.type} {name}"


def last_of(events: Sequence[Recorded], step: int | None) -> int | None:
    """The last event of a step, or of all; heartbeats do not count."""
    for entry in reversed(events):
        if type(entry.event) is not ActivityHeartbeatRecorded and step in (None, step_of(entry.event)):
            return entry.sequence
    return None


def step_of(event: Any) -> int | None:
    return event.sequence if isinstance(event, StepEvent) else getattr(event, "step", None)


def _because(events: Sequence[Recorded], entry: Recorded, first: int) -> _Because:
    context, event = entry.context, entry.event
    earlier = events[: entry.sequence - first]
    if context.command_id is not None:
        # A command may cause several events: the first of them came from outside, the others follow from it.
        for one in reversed(earlier):
            if one.context.command_id == context.command_id and not isinstance(one.event, WorkflowStarted):
                return _Because(one.sequence)
        return _Because(outside=f"a command ({context.source or 'unknown source'})")
    if isinstance(event, StartAccepted):
        return _Because(outside="the caller that started it")
    if isinstance(event, WorkflowStarted):
        return _start(event, earlier)
    if context.decided_after is not None:
        return _woken_by(earlier, context.decided_after, first)
    step = step_of(event)
    if step is None:
        return _Because(outside="the clock" if "TimedOut" in entry.type else "the engine")
    for one in reversed(earlier):
        if step_of(one.event) == step and type(one.event) is not ActivityHeartbeatRecorded:
            return _Because(one.sequence)
    return _Because(missing=first - 1) if first > 1 else _Because(outside="the engine")


def _start(event: WorkflowStarted, earlier: Sequence[Recorded]) -> _Because:
    if event.continued_from_run_id is not None:
        return _Because(outside=f"run {event.continued_from_run_id}, which continued as new")
    if event.parent_workflow_instance_id is not None:
        return _Because(outside=f"{event.parent_workflow_instance_id}, which started it")
    return _Because(earlier[-1].sequence) if earlier else _Because(outside="its start")


def _woken_by(earlier: Sequence[Recorded], seen: int, first: int) -> _Because:
    """The last event that wakes code, of those that the deciding code had seen."""
    for entry in reversed(earlier):
        if entry.sequence <= seen and type(entry.event) in _WAKES:
            return _Because(entry.sequence)
    return _Because(missing=first - 1) if first > 1 else _Because(seen or None)
