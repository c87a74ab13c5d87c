"""Timers. Scheduled → Fired | Cancelled. Pending exactly while in `Timers.pending`.

Only `TimerFired` resumes the code that sleeps; a timer is due at `fire_at`, exactly as recorded.
"""

from __future__ import annotations

from holdfast.kernel.command import Command, StepCommand
from holdfast.kernel.event import Recorded, StepEvent
from holdfast.kernel.feature import CommandRule, Deadline, Feature, Outcome, Plain, Shape, nothing_to_check
from holdfast.kernel.limits import Breach, over_count
from holdfast.kernel.message import Refused
from holdfast.kernel.state import Run, Workflow
from holdfast.kernel.task import Resume
from holdfast.kernel.turn import Turn
from holdfast.kernel.values import Micros, seconds, timer_id


class StartTimer(StepCommand, frozen=True, kw_only=True, omit_defaults=True, tag="start_timer"):
    delay_seconds: float


class CancelTimer(Command, frozen=True, kw_only=True, omit_defaults=True, tag="cancel_timer"):
    """The code no longer waits for this timer. Losing the race against its firing is not an error."""

    step: int


class TimerScheduled(StepEvent, frozen=True, kw_only=True, omit_defaults=True):
    timer_id: str
    delay_seconds: float
    fire_at: Micros


class TimerFired(StepEvent, frozen=True, kw_only=True, omit_defaults=True):
    timer_id: str
    delay_seconds: float
    fire_at: Micros
    fired_at: Micros


class TimerCancelled(StepEvent, frozen=True, kw_only=True, omit_defaults=True):
    timer_id: str
    delay_seconds: float
    fire_at: Micros
    cancelled_at: Micros


class Timers:
    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending: dict[int, TimerScheduled] = {}


def check(turn: Turn, command: StartTimer) -> None:
    if not 0 <= command.delay_seconds < 1e10:
        raise Refused(
            "invalid_commands",
            f"delay_seconds must be between 0 and 10^10, not {command.delay_seconds}",
            field="delay_seconds",
        )


def start(turn: Turn, command: StartTimer) -> None:
    run = turn.run
    step = run.step + 1
    scheduled = TimerScheduled(
        sequence=step,
        timer_id=timer_id(run.run_id, step),
        delay_seconds=command.delay_seconds,
        fire_at=turn.now + seconds(command.delay_seconds),
    )
    turn.record(scheduled)
    if scheduled.fire_at <= turn.now:
        _fire(turn, step)


def cancel(turn: Turn, command: CancelTimer) -> None:
    if command.step in turn.run.part(Timers).pending:
        _cancel(turn, command.step)


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
        )
    )


def _limits(turn: Turn, commands: list[Command]) -> Breach | None:
    asked = sum(isinstance(command, StartTimer) for command in commands)
    if not asked:
        return None
    pending = len(turn.run.part(Timers).pending)
    return over_count("pending_timer_count", pending + asked, turn.machine.limits.pending_timer_count)


def _armed(flow: Workflow, step: int) -> Micros | None:
    timer = flow.current.part(Timers).pending.get(step)
    return None if timer is None else timer.fire_at


def _fire(turn: Turn, step: int) -> None:
    timer = turn.run.part(Timers).pending[step]
    turn.record(
        TimerFired(
            sequence=step,
            timer_id=timer.timer_id,
            delay_seconds=timer.delay_seconds,
            fire_at=timer.fire_at,
            fired_at=turn.now,
        )
    )


def _scheduled(run: Run, event: TimerScheduled, entry: Recorded) -> None:
    run.part(Timers).pending[event.sequence] = event
    run.remind(event.fire_at, "timer", event.sequence)


def _resolved(run: Run, event: TimerFired | TimerCancelled, entry: Recorded) -> None:
    run.part(Timers).pending.pop(event.sequence, None)


def _wake(run: Run, event: TimerFired, entry: Recorded) -> Resume:
    return Resume(
        workflow_wait_kind="timer",
        open_wait_id=f"timer:{event.timer_id}",
        resume_source_kind="timer",
        resume_source_id=event.timer_id,
        timer_id=event.timer_id,
        workflow_sequence=entry.sequence,
        workflow_event_type="TimerFired",
    )


def _shape(event: StepEvent) -> Shape:
    return Shape("timer")


def _outcome(event: TimerFired) -> Outcome:
    return Plain(True)


FEATURE = Feature(
    name="timer",
    commands={StartTimer: CommandRule(check, start), CancelTimer: CommandRule(nothing_to_check, cancel)},
    evolve={TimerScheduled: _scheduled, TimerFired: _resolved, TimerCancelled: _resolved},
    resume={TimerFired: _wake},
    deadlines={"timer": Deadline(_armed, _fire)},
    cancel=cancel_all,
    limits=_limits,
    shapes={TimerScheduled: _shape, TimerFired: _shape, TimerCancelled: _shape},
    outcomes={TimerFired: _outcome},
)
