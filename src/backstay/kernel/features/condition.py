"""Condition waits. Opened → Satisfied | TimedOut | Cancelled. A wait is open exactly while in `Conditions.open`.

The predicate is code: a worker evaluates it, and its command decides. A timeout is a timer of the same step. The wait
times out when a worker that has seen the timer fire says so. As a member of a selection it times out by itself, because
the winner must not depend on a worker.
"""

from __future__ import annotations

import re
from typing import Any

from backstay.kernel import groups
from backstay.kernel.command import Command, StepCommand
from backstay.kernel.event import Recorded, StepEvent, clock
from backstay.kernel.feature import (
    CommandRule,
    Compatibility,
    Deciding,
    Feature,
    History,
    Lifecycle,
    Outcome,
    Plain,
    Shape,
    nothing_to_check,
)
from backstay.kernel.features import timer
from backstay.kernel.groups import GroupEntry
from backstay.kernel.message import Refused
from backstay.kernel.state import Run
from backstay.kernel.task import Resume, Task
from backstay.kernel.turn import Turn
from backstay.kernel.values import Micros, condition_wait_id
from backstay.kernel.words import About, Phrase, Story, Words

_KEY = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class OpenConditionWait(StepCommand, frozen=True, kw_only=True, omit_defaults=True, tag="open_condition_wait"):
    condition_key: str | None = None
    condition_definition_fingerprint: str | None = None
    timeout_seconds: float | None = None
    satisfied: bool = False  # the predicate was true when the wait was reached
    parallel_group_path: list[GroupEntry] = []

    @property
    def ends_wait(self) -> bool:
        return self.satisfied


class SatisfyConditionWait(Command, frozen=True, kw_only=True, omit_defaults=True, tag="satisfy_condition_wait"):
    step: int

    @property
    def ends_wait(self) -> bool:
        return True


class TimeOutConditionWait(Command, frozen=True, kw_only=True, omit_defaults=True, tag="time_out_condition_wait"):
    step: int

    @property
    def ends_wait(self) -> bool:
        return True


class CancelConditionWait(Command, frozen=True, kw_only=True, omit_defaults=True, tag="cancel_condition_wait"):
    """The code no longer waits for this condition. It is no error if the wait has ended already."""

    step: int


class ConditionWait(StepEvent, frozen=True, kw_only=True, omit_defaults=True):
    condition_wait_id: str
    condition_key: str | None = None
    condition_definition_fingerprint: str | None = None
    timeout_seconds: float | None = None
    parallel_group_path: list[GroupEntry] = []


class ConditionWaitOpened(ConditionWait, frozen=True, kw_only=True, omit_defaults=True):
    pass


class ConditionWaitSatisfied(ConditionWait, frozen=True, kw_only=True, omit_defaults=True):
    timer_id: str | None = None


class ConditionWaitTimedOut(ConditionWait, frozen=True, kw_only=True, omit_defaults=True):
    timer_id: str | None = None


class ConditionWaitCancelled(ConditionWait, frozen=True, kw_only=True, omit_defaults=True):
    timer_id: str | None = None


class Conditions:
    __slots__ = ("open", "since")

    def __init__(self) -> None:
        self.open: dict[int, ConditionWaitOpened] = {}
        self.since: dict[int, Micros] = {}  # when each of them was opened


def valid_key(key: str) -> bool:
    return _KEY.fullmatch(key) is not None


def check(turn: Turn, command: OpenConditionWait) -> None:
    groups.check(command.parallel_group_path)
    if command.condition_key is not None and not valid_key(command.condition_key):
        raise Refused(
            "invalid_commands",
            f"condition key {command.condition_key!r}: use 1 to 128 of A-Z a-z 0-9 . _ : -",
            field="condition_key",
        )
    check_timeout(command.timeout_seconds)


def check_timeout(timeout: float | None) -> None:
    if timeout is not None and not 0 <= timeout < 1e10:
        raise Refused(
            "invalid_commands", f"timeout_seconds must be between 0 and 10^10, not {timeout}", field="timeout_seconds"
        )


def open_wait(turn: Turn, command: OpenConditionWait) -> None:
    step = turn.run.step + 1
    id = condition_wait_id(turn.run.run_id, step)
    turn.record(
        ConditionWaitOpened(
            sequence=step,
            condition_wait_id=id,
            condition_key=command.condition_key,
            condition_definition_fingerprint=command.condition_definition_fingerprint,
            timeout_seconds=command.timeout_seconds,
            parallel_group_path=command.parallel_group_path,
        )
    )
    if command.satisfied:
        _satisfy(turn, step)
    elif command.timeout_seconds is not None:
        timer.arm(
            turn,
            step,
            command.timeout_seconds,
            timer_kind="condition_timeout",
            condition_wait_id=id,
            condition_key=command.condition_key,
            condition_definition_fingerprint=command.condition_definition_fingerprint,
        )


def check_open(turn: Turn, command: SatisfyConditionWait | TimeOutConditionWait) -> None:
    if isinstance(command, TimeOutConditionWait):
        if command.step not in turn.run.part(timer.Timers).fired:
            raise Refused("invalid_commands", f"the timeout of step {command.step} has not fired", field="step")
    elif command.step > turn.run.step and not isinstance(turn.command_at_step(command.step), OpenConditionWait):
        raise Refused("invalid_commands", f"step {command.step} waits for no condition", field="step")


def satisfy(turn: Turn, command: SatisfyConditionWait) -> None:
    if command.step in turn.run.part(Conditions).open:  # otherwise an earlier completion has done it
        _satisfy(turn, command.step)


def time_out(turn: Turn, command: TimeOutConditionWait) -> None:
    opened = turn.run.part(Conditions).open.get(command.step)
    if opened is not None:
        turn.record(
            ConditionWaitTimedOut(timer_id=timer.timer_id(turn.run.run_id, command.step), **_wait_fields(opened))
        )


def _timed_out_in_selection(turn: Turn, step: int) -> None:
    opened = turn.run.part(Conditions).open.get(step)
    if opened is not None and opened.parallel_group_path:
        time_out(turn, TimeOutConditionWait(step=step))


def _satisfy_after_input(turn: Turn, task: Task) -> None:
    """Satisfy the waits in selections after a signal or update. A published worker cannot report that their predicate
    holds."""
    had_input = any(
        resume.resume_source_kind in ("workflow_signal", "workflow_update")
        for sequence, resume in turn.run.wake_events
        if task.seen is not None and sequence <= task.seen
    )
    for wait in list(turn.run.part(Conditions).open.values()) if had_input else ():
        if wait.parallel_group_path:
            _satisfy(turn, wait.sequence)


def give_up(turn: Turn, command: CancelConditionWait) -> None:
    opened = turn.run.part(Conditions).open.get(command.step)
    if opened is not None:
        turn.record(ConditionWaitCancelled(timer_id=timer.disarm(turn, command.step), **_wait_fields(opened)))


def _satisfy(turn: Turn, step: int) -> None:
    opened = turn.run.part(Conditions).open[step]
    turn.record(ConditionWaitSatisfied(timer_id=timer.disarm(turn, step), **_wait_fields(opened)))


def _wait_fields(opened: ConditionWaitOpened) -> dict[str, Any]:
    return {field: getattr(opened, field) for field in ConditionWait.__struct_fields__}


def infer(turn: Turn, task: Task, commands: list[Command]) -> list[Command]:
    """Add the commands that end open waits: a worker that does not number its steps ends a wait by going on.

    If it sends the same wait again, the wait is still open: nothing is recorded, and its timeout goes on. A timeout
    counts once the task has seen it.
    """
    open = [wait for wait in turn.run.part(Conditions).open.values() if not wait.parallel_group_path]
    if not open:
        return commands
    fired = {
        step for step, at in turn.run.part(timer.Timers).fired.items() if task.seen is not None and at <= task.seen
    }
    left: list[Command] = []
    for wait in open:
        again = next((command for command in commands if _is_same_wait(wait, command)), None)
        if wait.sequence in fired:
            left.append(TimeOutConditionWait(step=wait.sequence))
        elif again is not None:
            commands = [command for command in commands if command is not again]
        else:
            left.append(SatisfyConditionWait(step=wait.sequence))
    return [*left, *commands]


def _is_same_wait(wait: ConditionWaitOpened, command: Command) -> bool:
    return (
        isinstance(command, OpenConditionWait)
        and command.condition_key == wait.condition_key
        and command.condition_definition_fingerprint == wait.condition_definition_fingerprint
    )


def _opened(run: Run, event: ConditionWaitOpened, entry: Recorded) -> None:
    conditions = run.part(Conditions)
    conditions.open[event.sequence] = event
    conditions.since[event.sequence] = clock(entry)
    groups.join(run, event.sequence, event.parallel_group_path, _WAIT)


def _resolved(
    run: Run, event: ConditionWaitSatisfied | ConditionWaitTimedOut | ConditionWaitCancelled, entry: Recorded
) -> None:
    conditions = run.part(Conditions)
    conditions.open.pop(event.sequence, None)
    conditions.since.pop(event.sequence, None)
    cancelled = isinstance(event, ConditionWaitCancelled)
    groups.leave(run, event.sequence, event.parallel_group_path, not cancelled, clock(entry), cancelled=cancelled)


class _Wait:
    """The leaf of a wait in a group. A wait is open from the start."""

    def dispatched(self, run: Run, at: Micros) -> None:
        """A wait is never held back."""


_WAIT = _Wait()


def _waits_externally(run: Run) -> bool:
    return bool(run.part(Conditions).open)


def _wake(run: Run, event: ConditionWaitSatisfied, entry: Recorded) -> Resume | None:
    """Wake the code if the wait is in a selection: it has to learn whether the wait won. Otherwise the code goes on
    already."""
    if not event.parallel_group_path or not groups.wakes(run, event.sequence):
        return None
    return Resume(
        workflow_wait_kind="condition",
        open_wait_id=event.condition_wait_id,
        resume_source_kind="condition_wait",
        resume_source_id=event.condition_wait_id,
        condition_wait_id=event.condition_wait_id,
        condition_key=event.condition_key,
        condition_definition_fingerprint=event.condition_definition_fingerprint,
        workflow_sequence=entry.sequence,
        workflow_event_type="ConditionWaitSatisfied",
    )


def _shape(event: ConditionWait) -> Shape:
    return Shape("condition wait")


def _satisfied(event: ConditionWaitSatisfied) -> Outcome:
    return Plain(True)


def _timed_out(event: ConditionWaitTimedOut) -> Outcome:
    return Plain(False)


def _say_opened(story: Story, event: ConditionWaitOpened) -> Phrase:
    name = _named(event)
    story.begin(event.sequence, name, outside=True)
    return Phrase("◌", f"waits for {name}{story.at_most(event.timeout_seconds)}")


def _say_satisfied(story: Story, event: ConditionWaitSatisfied) -> Phrase:
    story.end(event.sequence)
    return Phrase("●", f"{_named(event)} holds", "good")


def _say_timed_out(story: Story, event: ConditionWaitTimedOut) -> Phrase:
    story.end(event.sequence)
    return Phrase("●", f"{_named(event)} timed out", "retry")


def _say_cancelled(story: Story, event: ConditionWaitCancelled) -> Phrase:
    story.end(event.sequence)
    return Phrase("●", f"no longer waits for {_named(event)}", "quiet")


def _named(event: ConditionWait) -> str:
    return "a condition" if event.condition_key is None else f"condition {event.condition_key}"


_ABOUT = About("condition", "condition_wait", "condition_wait_id", ("condition_key",))


FEATURE = Feature(
    name="condition",
    deciding=Deciding(
        commands={
            OpenConditionWait: CommandRule(check, open_wait),
            SatisfyConditionWait: CommandRule(check_open, satisfy),
            CancelConditionWait: CommandRule(nothing_to_check, give_up),
            TimeOutConditionWait: CommandRule(check_open, time_out),
        },
        on_wait_timeout=_timed_out_in_selection,
    ),
    history=History(
        evolve={
            ConditionWaitOpened: _opened,
            ConditionWaitSatisfied: _resolved,
            ConditionWaitTimedOut: _resolved,
            ConditionWaitCancelled: _resolved,
        },
        resume={ConditionWaitSatisfied: _wake},
        shapes={
            ConditionWaitOpened: _shape,
            ConditionWaitSatisfied: _shape,
            ConditionWaitTimedOut: _shape,
            ConditionWaitCancelled: _shape,
        },
        outcomes={ConditionWaitSatisfied: _satisfied, ConditionWaitTimedOut: _timed_out},
    ),
    lifecycle=Lifecycle(waits_externally=_waits_externally),
    compatibility=Compatibility(
        infer=infer,
        acknowledged=_satisfy_after_input,
    ),
    words={
        ConditionWaitOpened: Words(_ABOUT, _say_opened),
        ConditionWaitSatisfied: Words(_ABOUT, _say_satisfied),
        ConditionWaitTimedOut: Words(_ABOUT, _say_timed_out),
        ConditionWaitCancelled: Words(_ABOUT, _say_cancelled),
    },
)
