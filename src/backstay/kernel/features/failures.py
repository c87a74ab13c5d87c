"""Failures that code caught: `FailureHandled` records that a step failed and the code went on."""

from __future__ import annotations

from msgspec import Struct

from backstay.kernel.event import Event, Recorded
from backstay.kernel.failure import Handled, HandledFailure
from backstay.kernel.feature import Feature, History
from backstay.kernel.state import Run
from backstay.kernel.turn import Turn
from backstay.kernel.words import About, Phrase, Story, Words


class FailureHandled(Event, frozen=True, kw_only=True, omit_defaults=True):
    failure_id: str
    sequence: int
    failure_category: str
    source_kind: str
    source_id: str
    propagation_kind: str
    message: str
    exception_type: str | None = None
    exception_class: str | None = None
    handled: bool = True
    # The class that the worker raised it as, and how it found that class.
    resolved_class: str | None = None
    resolution_source: str | None = None


class UnhandledFailure(Struct, frozen=True, kw_only=True):
    """A failure of a step that the code has not handled yet, with the fields of a later `FailureHandled`."""

    failure_id: str
    sequence: int
    failure_category: str
    source_kind: str
    source_id: str
    propagation_kind: str
    message: str
    exception_type: str | None
    exception_class: str | None
    recorded: int  # its place in history


class Failures:
    """The failures of steps that the code has not handled yet, and how many failures there were in all."""

    __slots__ = ("count", "raised")

    def __init__(self) -> None:
        self.count = 0
        self.raised: dict[str, UnhandledFailure] = {}


def remember(run: Run, raised: UnhandledFailure) -> None:
    failures = run.part(Failures)
    failures.count += 1
    failures.raised[raised.failure_id] = raised


def unhandled_until(run: Run, seen: int) -> list[str]:
    """The ids of the unhandled failures up to this history sequence."""
    return [raised.failure_id for raised in run.part(Failures).raised.values() if raised.recorded <= seen]


def record_handled(turn: Turn, handled: Handled) -> None:
    found = handled if isinstance(handled, HandledFailure) else HandledFailure(handled)
    failure_id = found.failure_id
    raised = turn.run.part(Failures).raised.get(failure_id)
    if raised is None:
        return  # recorded before, by a completion whose reply was lost
    turn.record(
        FailureHandled(
            failure_id=failure_id,
            sequence=raised.sequence,
            failure_category=raised.failure_category,
            source_kind=raised.source_kind,
            source_id=raised.source_id,
            propagation_kind=raised.propagation_kind,
            message=raised.message,
            exception_type=raised.exception_type,
            exception_class=raised.exception_class,
            resolved_class=found.resolved_class,
            resolution_source=found.resolution_source,
        )
    )


def _handled(run: Run, event: FailureHandled, entry: Recorded) -> None:
    run.part(Failures).raised.pop(event.failure_id, None)


def _say_handled(story: Story, event: FailureHandled) -> Phrase:
    return Phrase("↷", f"the code caught the failure of step {event.sequence} and went on", "quiet")


_ABOUT = About("failure", "workflow_failure", "failure_id")


FEATURE = Feature(
    name="failures",
    history=History(evolve={FailureHandled: _handled}),
    words={FailureHandled: Words(_ABOUT, _say_handled)},
)
