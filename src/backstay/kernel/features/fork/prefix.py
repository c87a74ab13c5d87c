"""The part of a history that a fork or a rewind keeps, and what it may do again.

A point is named by a step (`3`: that step is done anew), by an event (`event:12`: that one is the last to be kept), or by
the type of an activity or child (`charge`: its last step is done anew). Without a name it is the last step that failed.

What is open at the point begins again. Steps after which no kept step comes are left out: the code asks for them again,
with the arguments that it has now. Others stay as they were scheduled, and only their attempts are left out. An open
child cannot be asked for twice under one step, so there a point is refused. An update that its handler answered after the
point is handled again; one that it never answered is left out, because its sender is told that it failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from backstay.kernel.event import Event, Recorded
from backstay.kernel.features.activity.records import (
    Activities,
    ActivityCancelled,
    ActivityCompleted,
    ActivityFailed,
    ActivityScheduled,
    ActivityStarted,
    ActivityTimedOut,
)
from backstay.kernel.features.child.records import (
    ChildClosed,
    Children,
    ChildRunFailed,
    ChildWorkflowScheduled,
)
from backstay.kernel.features.condition import Conditions, ConditionWaitOpened
from backstay.kernel.features.fork.records import ForkPlan, RepeatedEffect
from backstay.kernel.features.side_effect import SideEffectRecorded
from backstay.kernel.features.signal import Signals, SignalWaitOpened
from backstay.kernel.features.start import STANDALONE
from backstay.kernel.features.timer import Timers, TimerScheduled
from backstay.kernel.features.update import UpdateAccepted, UpdateApplied, UpdateCompleted, Updates
from backstay.kernel.message import Refused
from backstay.kernel.state import Instance, Run
from backstay.kernel.tables import FeatureTables

OPENERS = (ActivityScheduled, TimerScheduled, ConditionWaitOpened, SignalWaitOpened)
"""The events of an open step that are kept."""


class Prefix(NamedTuple):
    """The events to keep, up to the event `through`; `open`: the steps among them that begin again."""

    entries: list[Recorded]
    through: int
    open: frozenset[int]


def prefix_of(
    features: FeatureTables, history: Sequence[Recorded], at: str | None, replaced: Mapping[int, Any]
) -> Prefix:
    """The part of a history before a point. `replaced`: the steps whose results are replaced."""
    body = _before_end(features, history)
    through = _through(body, at)
    for step in sorted(replaced):
        through = _with_replaced(body, step, through)
    run = _folded(features, body[:through])
    steps = {step for entry in body[:through] if (step := step_of(entry.event)) is not None}
    open_steps = _open_steps(run) - replaced.keys()
    last = max(steps - open_steps, default=0)
    begins_again = frozenset(step for step in open_steps if step < last)
    child = next((step for step in run.part(Children).open if step in begins_again), None)
    if child is not None:
        raise Refused(
            "child_open_at_point",
            f"the child at step {child} is open at this point, and later steps are kept; fork at step {child} instead",
            field="at",
        )
    in_hand = run.part(Updates).pending.keys()
    unanswered = in_hand - _answered(history)
    entries: list[Recorded] = []
    for entry in body[:through]:
        event = entry.event
        if isinstance(event, UpdateAccepted) and event.update_id in unanswered:
            continue
        if isinstance(event, UpdateApplied) and event.update_id in in_hand:
            continue
        step = step_of(event)
        if step is None or (step not in open_steps and step not in replaced):
            entries.append(entry)
        elif step in replaced:
            if not any(step_of(kept.event) == step for kept in entries):
                entries.append(entry)
        elif step in begins_again and isinstance(event, OPENERS):
            entries.append(entry)
    return Prefix(entries, through, begins_again)


def plan_of(
    features: FeatureTables,
    history: Sequence[Recorded],
    at: str | None,
    replaced: Mapping[int, Any],
    *,
    workflow_id: str,
    run_id: str,
) -> ForkPlan:
    """What a fork or a rewind at this point would keep, and what it may do again."""
    prefix = prefix_of(features, history, at, replaced)
    done = {step for entry in prefix.entries if (step := step_of(entry.event)) is not None} - prefix.open
    return ForkPlan(
        workflow_id=workflow_id,
        run_id=run_id,
        through_event=prefix.through,
        kept_events=len(prefix.entries),
        repeats=[effect for effect in _effects(history) if effect.step not in done],
    )


def step_of(event: Event) -> int | None:
    """The step that an event is about. An update only says at which step the run stood."""
    if isinstance(event, UpdateApplied | UpdateCompleted):
        return None
    step = getattr(event, "sequence", None)
    return getattr(event, "step", None) if step is None else step


# -- points


def _through(body: Sequence[Recorded], at: str | None) -> int:
    """The number of the last event before a point."""
    if at is None:
        return _before(body, _failed(body))
    kind, colon, number = at.rpartition(":")
    if kind in ("", "step", "event") and number.isascii() and number.isdecimal() and len(number) < 10:
        if kind == "event":
            return _event(body, int(number))
        if not colon or kind:
            return _before(body, int(number))
    named = [step for step, name in _names(body) if name == at]
    if not named:
        raise _nowhere("step_not_found", f"the run has no activity or child of the type {at!r}")
    return _before(body, named[-1])


def _failed(body: Sequence[Recorded]) -> int:
    for entry in reversed(body):
        if isinstance(entry.event, ActivityFailed | ActivityTimedOut | ChildRunFailed):
            return entry.event.sequence
    raise _nowhere("point_missing", "no step of the run has failed, so name the point")


def _before(body: Sequence[Recorded], step: int) -> int:
    for entry in body:
        if step_of(entry.event) == step:
            return entry.sequence - 1
    raise _nowhere("step_not_found", f"the run has no step {step}")


def _event(body: Sequence[Recorded], number: int) -> int:
    if not 2 <= number <= len(body):
        last = f"{len(body)} is the last one that can be kept"
        raise _nowhere("event_not_found", f"event {number} cannot be the last to be kept: 2 is the first, and {last}")
    return number


def _with_replaced(body: Sequence[Recorded], step: int, through: int) -> int:
    """The point, which includes the beginning of a step whose result is given."""
    first = _before(body, step) + 1
    if first > through + 1:
        raise _invalid_set(f"step {step} is after the point, so it has no result to replace")
    event = body[first - 1].event
    if not isinstance(event, ActivityScheduled | SideEffectRecorded | ChildWorkflowScheduled):
        raise _invalid_set(f"step {step} is no activity, child or side effect, so it has no result")
    return max(through, first)


def _nowhere(reason: str, why: str) -> Refused:
    return Refused(reason, f"{why}; a point is a step (3), an event (event:12) or the type of a step", field="at")


def _invalid_set(why: str) -> Refused:
    return Refused("invalid_set", why, field="set")


def _names(body: Sequence[Recorded]) -> Iterator[tuple[int, str]]:
    for entry in body:
        match entry.event:
            case ActivityScheduled(sequence=step, activity_type=name):
                yield step, name
            case ChildWorkflowScheduled(sequence=step, child_workflow_type=name):
                yield step, name
            case ActivityCompleted(local_activity=True, sequence=step, activity_type=name):
                yield step, name
            case _:
                pass


# -- what is open, and what was done


def _before_end(features: FeatureTables, history: Sequence[Recorded]) -> Sequence[Recorded]:
    """The events before the terminal one."""
    run = _folded(features, history)
    if run.workflow_type == STANDALONE or not history:
        raise Refused("not_a_workflow", "a single activity has no steps before it; start it again instead", field="at")
    ended = next((place for place, entry in enumerate(history) if entry.event is run.ended_by), len(history))
    return history[:ended]


def _folded(features: FeatureTables, history: Sequence[Recorded]) -> Run:
    run = Run(0, "", 1)
    features.fold(Instance(0, "", ""), run, history)
    return run


def _open_steps(run: Run) -> set[int]:
    return {
        *run.part(Activities).open,
        *run.part(Timers).pending,
        *run.part(Children).open,
        *run.part(Conditions).open,
        *run.part(Signals).waits,
    }


def _answered(history: Sequence[Recorded]) -> set[str]:
    """The updates that their handler has answered. Others fail when their run ends."""
    ends = (entry.event for entry in history if isinstance(entry.event, UpdateCompleted))
    return {end.update_id for end in ends if end.terminal_reason is None}


def _effects(history: Sequence[Recorded]) -> Iterator[RepeatedEffect]:
    """Everything that a run has begun outside of itself, by step."""
    found: dict[int, RepeatedEffect] = {}
    for entry in history:
        event: Any = entry.event
        step: int = step_of(event) or 0
        match event:
            case ActivityStarted() | ActivityCompleted(local_activity=True) | ActivityFailed(local_activity=True):
                found[step] = _effect(step, "activity", event.activity_type, event.activity_execution_id)
            case ChildWorkflowScheduled():
                found[step] = _effect(step, "child", event.child_workflow_type, event.child_workflow_instance_id)
            case SideEffectRecorded(stream_name=str(name)):
                found[step] = _effect(step, "stream", name, f"{name}:{step}", "completed")
            case _:
                pass
        outcome = event.child_status if isinstance(event, ChildClosed) else _OUTCOMES.get(type(entry.event))
        if outcome is not None and step in found:
            found[step] = replace(found[step], outcome=outcome)
    yield from found.values()


_OUTCOMES: dict[type[Event], str] = {
    ActivityCompleted: "completed",
    ActivityFailed: "failed",
    ActivityTimedOut: "timed_out",
    ActivityCancelled: "cancelled",
}


def _effect(
    step: int, kind: Literal["activity", "child", "stream"], type: str, key: str, outcome: str = "started"
) -> RepeatedEffect:
    return RepeatedEffect(step=step, kind=kind, type=type, idempotency_key=key, outcome=outcome)
