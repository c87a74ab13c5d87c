"""Skip wait: an operator's command that ends a timer, or the timeout of a wait, now. The code goes on as if its time had come.

`WaitSkipped` records the caller and the reason; the `TimerFired` that follows in the same decision is an ordinary one,
so a replay and every worker read it as if the clock had reached it. A wait whose timeout is skipped times out, unless
its signal has come or its condition holds.
"""

from __future__ import annotations

from typing import Any

from backstay.kernel.event import Event, Recorded
from backstay.kernel.feature import Deciding, Feature, History
from backstay.kernel.features.activity.records import Activities
from backstay.kernel.features.child.records import Children
from backstay.kernel.features.condition import Conditions
from backstay.kernel.features.instance_commands import (
    CommandReply,
    ReasonedCommand,
    Rejection,
    accept,
    cause,
    may_accept,
    reject,
)
from backstay.kernel.features.signal import open_waits
from backstay.kernel.features.timer import Timers, TimerScheduled
from backstay.kernel.operator_command import REASON, CommandField, CommandOutcome, CommandRefusal, OperatorCommand
from backstay.kernel.state import Instance, Run
from backstay.kernel.turn import Turn
from backstay.kernel.values import Micros, condition_wait_id, execution_id, signal_wait_id, timer_id
from backstay.kernel.words import About, Phrase, Story, Words

NAMED = 20  # timers that a rejection names at most


class SkipWait(ReasonedCommand, frozen=True, kw_only=True):
    """`wait_id` is the id of a timer or of a timed wait. None: the only timer of the run."""

    command_type = "skip_wait"

    wait_id: str | None = None

    def intent(self) -> bytes:
        return (self.wait_id or "").encode() + b"\0" + (self.reason or "").encode()


class WaitSkipped(Event, frozen=True, kw_only=True, omit_defaults=True):
    """The timer of `step` fires now. `fire_at` is when it would have fired."""

    workflow_command_id: str
    timer_id: str
    step: int
    fire_at: Micros
    reason: str | None = None


def skip_wait(turn: Turn, message: SkipWait) -> None:
    if not may_accept(turn, message):
        return
    timer = _find(turn.run, message.wait_id)
    if isinstance(timer, Rejection):
        reject(turn, message, timer)
        return
    command = accept(turn, message, "wait_skipped")
    turn.context = cause(command)
    turn.record(
        WaitSkipped(
            workflow_command_id=command.id,
            timer_id=timer.timer_id,
            step=timer.sequence,
            fire_at=timer.fire_at,
            reason=message.reason,
        )
    )
    turn.features.agenda.deadlines["timer"].due(turn, timer.sequence)


def _find(run: Run, wait_id: str | None) -> TimerScheduled | Rejection:
    """The timer that is meant, or why the command is rejected."""
    pending = run.part(Timers).pending.values()
    if wait_id is None:
        return _only(list(pending))
    wanted = wait_id.removeprefix("timer:")
    for timer in pending:
        if wanted in (timer.timer_id, timer.condition_wait_id, timer.signal_wait_id):
            return timer
    if _is_open(run, wait_id):
        return NOT_TIMED
    return NOT_OPEN if _was_step(run, wanted) else NOT_FOUND


def _only(pending: list[TimerScheduled]) -> TimerScheduled | Rejection:
    if len(pending) == 1:
        return pending[0]
    if not pending:
        return NO_TIMED_WAIT
    named = [timer.timer_id for timer in pending[:NAMED]]
    more = [f"{len(pending) - NAMED} more"] if len(pending) > NAMED else []
    return AMBIGUOUS._replace(errors={"wait_id": [*named, *more]})


def _is_open(run: Run, wait_id: str) -> bool:
    """Whether the run waits for this, without a timer: an activity, a child, a signal or a condition."""
    activities = run.part(Activities).open.values()
    return (
        any(wait.condition_wait_id == wait_id for wait in run.part(Conditions).open.values())
        or any(wait.signal_wait_id == wait_id for wait in open_waits(run))
        or wait_id.removeprefix("activity:") in {each.scheduled.activity_execution_id for each in activities}
        or wait_id.removeprefix("child:")
        in {child.scheduled.child_call_id for child in run.part(Children).open.values()}
    )


def _was_step(run: Run, id: str) -> bool:
    """Whether the run has had a step of this id. The state no longer has the kind of the step."""
    digits = id[len(id.rstrip("0123456789")) :]
    step = int(digits) if 0 < len(digits) <= 9 else 0
    made = (timer_id, condition_wait_id, signal_wait_id, execution_id)
    return 1 <= step <= run.step and any(id == make(run.run_id, step) for make in made)


NO_TIMED_WAIT = Rejection("no_timed_wait", "rejected_no_timed_wait", temporary=True)
AMBIGUOUS = Rejection("wait_ambiguous", "rejected_ambiguous", temporary=True)
NOT_TIMED = Rejection("wait_not_timed", "rejected_no_timed_wait")
NOT_OPEN = Rejection("wait_not_open", "rejected_no_timed_wait")
NOT_FOUND = Rejection("wait_not_found", "rejected_not_found")


def _skipped(run: Run, event: WaitSkipped, entry: Recorded) -> None:
    """`TimerFired` follows in the same decision, and changes the run."""


def _say(story: Story, event: WaitSkipped) -> Phrase:
    early = story.form.span(max(0, event.fire_at - story.at))
    return Phrase("◷", f"the wait is skipped, {early} early{story.because(event.reason)}", "retry")


def _blocked(instance: Instance, state: str, now: Micros) -> str | None:
    timer = _find(instance.current, None)
    return timer.reason if isinstance(timer, Rejection) else None


def _wait_blocked(view: Any) -> str | None:
    if view.status != "open" or view.source_status == "timeout_fired":
        return NOT_OPEN.reason
    return NOT_TIMED.reason if view.deadline_at is None else None


def _timer_blocked(view: Any) -> str | None:
    return None if view.status == "pending" else NOT_OPEN.reason


def _several(command: CommandReply) -> str:
    return f"it has several timers; name one: {', '.join(command.validation_errors.get('wait_id', ()))}"


SKIP_WAIT = OperatorCommand(
    message=SkipWait,
    request="SkipWait",
    label="Skip wait",
    help="End a timer or a timed wait of {run} now.",
    more="The code continues as if the time had passed: a sleep ends, and a wait with a timeout times out.",
    examples=("order-1", 'order-1 --timer 01J8...-t3 --reason "the customer called"'),
    fields=(
        CommandField(
            "wait_id",
            "The id of a timer or timed wait. Required if the run has several.",
            ("--timer", "--wait"),
            "ID",
            "waits",
        ),
        REASON,
    ),
    action="skip",
    outcomes={"wait_skipped": CommandOutcome("its timer has fired", goes_on=True)},
    refusals={
        NO_TIMED_WAIT.reason: CommandRefusal("it has no timer to end; `dw why ID` says what it waits for"),
        AMBIGUOUS.reason: CommandRefusal(_several),
        NOT_TIMED.reason: CommandRefusal("that wait has no timer, so it cannot be skipped"),
        NOT_OPEN.reason: CommandRefusal("that wait has ended, or it is not a timer"),
        NOT_FOUND.reason: CommandRefusal(
            "its current run has no such wait; timer_id and wait_id are in the detail of the run", 404
        ),
    },
    blocked=_blocked,
    blocked_words={
        NO_TIMED_WAIT.reason: "It has no timer.",
        AMBIGUOUS.reason: "It has several timers; skip one of them in the list of waits.",
    },
    hidden=frozenset({NO_TIMED_WAIT.reason, "run_closed", "selected_run_not_current"}),
    parts={"waits": _wait_blocked, "timers": _timer_blocked},
)


FEATURE = Feature(
    name="skip_wait",
    deciding=Deciding(messages={SkipWait: skip_wait}),
    history=History(evolve={WaitSkipped: _skipped}),
    words={WaitSkipped: Words(About("timer", "timer", "timer_id"), _say)},
    operator=(SKIP_WAIT,),
)
