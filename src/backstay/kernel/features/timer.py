"""Timers. Scheduled → Fired | Cancelled. A timer is pending exactly while in `Timers.pending`.

Only `TimerFired` wakes the code. A timer is due at `fire_at`, as recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backstay.kernel import groups
from backstay.kernel.command import Command, StepCommand
from backstay.kernel.event import Recorded, StepEvent, clock
from backstay.kernel.feature import (
    CommandRule,
    Deadline,
    Deciding,
    Feature,
    History,
    Lifecycle,
    Outcome,
    Plain,
    Shape,
    nothing_to_check,
)
from backstay.kernel.groups import GroupEntry
from backstay.kernel.limits import Breach, over_count
from backstay.kernel.message import Refused
from backstay.kernel.state import Instance, Run
from backstay.kernel.task import Resume
from backstay.kernel.turn import Turn
from backstay.kernel.values import SECOND, Micros, seconds, timer_id
from backstay.kernel.words import About, Phrase, Story, Words


class StartTimer(StepCommand, frozen=True, kw_only=True, omit_defaults=True, tag="start_timer"):
    delay_seconds: float
    parallel_group_path: list[GroupEntry] = []


class CancelTimer(Command, frozen=True, kw_only=True, omit_defaults=True, tag="cancel_timer"):
    """The code no longer waits for this timer. It is no error if the timer has fired already."""

    step: int


class TimerEvent(StepEvent, frozen=True, kw_only=True, omit_defaults=True):
    """A timer, or with a `timer_kind` the timeout of the wait whose step it shares."""

    timer_id: str
    delay_seconds: float
    fire_at: Micros
    timer_kind: str | None = None  # condition_timeout | signal_timeout
    condition_wait_id: str | None = None
    condition_key: str | None = None
    condition_definition_fingerprint: str | None = None
    signal_wait_id: str | None = None
    signal_name: str | None = None
    parallel_group_path: list[GroupEntry] = []


class TimerScheduled(TimerEvent, frozen=True, kw_only=True, omit_defaults=True):
    pass


class TimerFired(TimerEvent, frozen=True, kw_only=True, omit_defaults=True):
    fired_at: Micros


class TimerCancelled(TimerEvent, frozen=True, kw_only=True, omit_defaults=True):
    cancelled_at: Micros


class Timers:
    __slots__ = ("fired", "pending")

    def __init__(self) -> None:
        self.pending: dict[int, TimerScheduled] = {}
        self.fired: dict[int, int] = {}  # steps of waits whose timeout has fired, and the history sequence of that


def check(turn: Turn, command: StartTimer) -> None:
    groups.check(command.parallel_group_path)
    if not 0 <= command.delay_seconds < 1e10:
        raise Refused(
            "invalid_commands",
            f"delay_seconds must be between 0 and 10^10, not {command.delay_seconds}",
            field="delay_seconds",
        )


def start(turn: Turn, command: StartTimer) -> None:
    arm(turn, turn.run.step + 1, command.delay_seconds, path=command.parallel_group_path)


def arm(turn: Turn, step: int, delay: float, *, path: Sequence[GroupEntry] = (), **timeout_of: str | None) -> None:
    """Start the timer of a step. `timeout_of`: the fields of the wait that it is the timeout of."""
    scheduled = TimerScheduled(
        sequence=step,
        timer_id=timer_id(turn.run.run_id, step),
        delay_seconds=delay,
        fire_at=turn.now + seconds(delay),
        parallel_group_path=list(path),
        **timeout_of,
    )
    turn.record(scheduled)
    if scheduled.fire_at <= turn.now:
        _fire(turn, step)


def disarm(turn: Turn, step: int) -> str | None:
    """Cancel the timer of a step if it is pending. Returns its id, or None."""
    timer = turn.run.part(Timers).pending.get(step)
    if timer is None:
        return None
    _cancel(turn, step)
    return timer.timer_id


def cancel(turn: Turn, command: CancelTimer) -> None:
    disarm(turn, command.step)


def cancel_all(turn: Turn) -> None:
    for step in list(turn.run.part(Timers).pending):
        _cancel(turn, step)


def _cancel(turn: Turn, step: int) -> None:
    timer = turn.run.part(Timers).pending[step]
    turn.record(
        TimerCancelled(
            sequence=step,
            timer_id=timer.timer_id,
            delay_seconds=timer.delay_seconds,
            fire_at=timer.fire_at,
            cancelled_at=turn.now,
            **_wait_fields(timer),
        )
    )


def _limits(turn: Turn, commands: list[Command]) -> Breach | None:
    added = sum(isinstance(command, StartTimer) for command in commands)
    if not added:
        return None
    pending = len(turn.run.part(Timers).pending)
    return over_count("pending_timer_count", pending + added, turn.features.limits.pending_timer_count)


def _armed(instance: Instance, step: int) -> Micros | None:
    timer = instance.current.part(Timers).pending.get(step)
    return None if timer is None else timer.fire_at


def _length(instance: Instance, step: int) -> Micros:
    return seconds(instance.current.part(Timers).pending[step].delay_seconds)


def _fire(turn: Turn, step: int) -> None:
    timer = turn.run.part(Timers).pending[step]
    turn.record(
        TimerFired(
            sequence=step,
            timer_id=timer.timer_id,
            delay_seconds=timer.delay_seconds,
            fire_at=timer.fire_at,
            fired_at=turn.now,
            **_wait_fields(timer),
        )
    )
    if timer.timer_kind is not None:
        turn.features.timed_out(turn, step)


def _wait_fields(timer: TimerScheduled) -> dict[str, Any]:
    if timer.timer_kind is None:
        return {}
    return {field: getattr(timer, field) for field in _WAIT_FIELDS}


_WAIT_FIELDS = (
    "timer_kind",
    "condition_wait_id",
    "condition_key",
    "condition_definition_fingerprint",
    "signal_wait_id",
    "signal_name",
)


class _Clock:
    """The leaf of a timer in a group. A timer runs from the start, whatever the group's limit."""

    def dispatched(self, run: Run, at: Micros) -> None:
        """A timer is never held back."""


_CLOCK = _Clock()


def _scheduled(run: Run, event: TimerScheduled, entry: Recorded) -> None:
    run.part(Timers).pending[event.sequence] = event
    if event.timer_kind is None:  # otherwise its wait is the leaf
        groups.join(run, event.sequence, event.parallel_group_path, _CLOCK)
    run.add_deadline(event.fire_at, "timer", event.sequence)


def _cancelled(run: Run, event: TimerCancelled, entry: Recorded) -> None:
    run.part(Timers).pending.pop(event.sequence, None)
    if event.timer_kind is None:
        groups.leave(run, event.sequence, event.parallel_group_path, False, clock(entry), cancelled=True)


def _fired(run: Run, event: TimerFired, entry: Recorded) -> None:
    timers = run.part(Timers)
    timers.pending.pop(event.sequence, None)
    if event.timer_kind is None:
        groups.leave(run, event.sequence, event.parallel_group_path, True, clock(entry))
    else:
        timers.fired[event.sequence] = entry.sequence


def _wake(run: Run, event: TimerFired, entry: Recorded) -> Resume | None:
    if event.parallel_group_path and not groups.wakes(run, event.sequence):
        return None
    return Resume(
        workflow_wait_kind=_WAIT[event.timer_kind],
        open_wait_id=event.condition_wait_id or event.signal_wait_id or f"timer:{event.timer_id}",
        resume_source_kind="timer",
        resume_source_id=event.timer_id,
        timer_id=event.timer_id,
        condition_wait_id=event.condition_wait_id,
        condition_key=event.condition_key,
        condition_definition_fingerprint=event.condition_definition_fingerprint,
        signal_name=event.signal_name,
        signal_wait_id=event.signal_wait_id,
        workflow_sequence=entry.sequence,
        workflow_event_type="TimerFired",
    )


_WAIT = {None: "timer", "condition_timeout": "condition", "signal_timeout": "signal"}
_SHAPES = {
    None: Shape("timer"),
    "condition_timeout": Shape("condition wait"),
    "signal_timeout": Shape("signal wait"),
}


def _shape(event: TimerEvent) -> Shape:
    return _SHAPES[event.timer_kind]


def _outcome(event: TimerFired) -> Outcome | None:
    return (
        Plain(True) if event.timer_kind is None else None
    )  # the events of the wait determine the meaning of its timeout


def _say_scheduled(story: Story, event: TimerScheduled) -> Phrase:
    length = story.form.span(seconds(event.delay_seconds))
    waiting = story.open.get(event.sequence)
    if waiting is not None:  # the timeout of a wait
        waiting.fires_at = event.fire_at
        return Phrase("◷", f"timeout set for {length}", "quiet", news=event.delay_seconds >= 1)
    story.begin(event.sequence, f"timer of {length}").fires_at = event.fire_at
    return Phrase("◷", f"timer set for {length}", news=event.delay_seconds >= 1)


def _say_fired(story: Story, event: TimerFired) -> Phrase:
    waiting = story.open.get(event.sequence)
    if waiting is None or not waiting.outside or event.timer_kind == "signal_timeout":
        story.end(event.sequence)
    else:
        waiting.fires_at = None  # the wait ends when its code has seen this
    late = story.at - event.fire_at
    return Phrase("◷", "timer fired" + (f", {story.form.span(late)} late" if late > SECOND else ""), "good")


def _say_cancelled(story: Story, event: TimerCancelled) -> Phrase:
    waiting = story.open.get(event.sequence)
    if waiting is None or not waiting.outside:
        story.end(event.sequence)
    return Phrase("◷", "timer cancelled", "quiet")


_ABOUT = About("timer", "timer", "timer_id", ("signal_name", "condition_key"))


FEATURE = Feature(
    name="timer",
    deciding=Deciding(
        commands={StartTimer: CommandRule(check, start), CancelTimer: CommandRule(nothing_to_check, cancel)},
        limits=_limits,
        deadlines={"timer": Deadline(_armed, _fire, _length)},
    ),
    history=History(
        evolve={TimerScheduled: _scheduled, TimerFired: _fired, TimerCancelled: _cancelled},
        resume={TimerFired: _wake},
        shapes={TimerScheduled: _shape, TimerFired: _shape, TimerCancelled: _shape},
        outcomes={TimerFired: _outcome},
    ),
    lifecycle=Lifecycle(cancel=cancel_all),
    words={
        TimerScheduled: Words(_ABOUT, _say_scheduled),
        TimerFired: Words(_ABOUT, _say_fired),
        TimerCancelled: Words(_ABOUT, _say_cancelled),
    },
)
