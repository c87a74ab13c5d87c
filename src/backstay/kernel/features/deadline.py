"""Deadlines: an instance has one wake, which arrives as `Due`. Also the run's own two: execution timeout and run
timeout.

A wake may be early and is never late. Each deadline that is due is decided by its feature.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop

from backstay.kernel.event import Event, Recorded
from backstay.kernel.feature import Deadline, Deciding, Feature, History
from backstay.kernel.features import close
from backstay.kernel.features.start import Identity, WorkflowStarted
from backstay.kernel.message import Message
from backstay.kernel.state import Instance, Run
from backstay.kernel.turn import Turn
from backstay.kernel.values import Micros, failure_id, seconds
from backstay.kernel.words import RUN, Phrase, Story, Words


class Due(Message, frozen=True, kw_only=True):
    """The clock has reached the next wake of the instance.

    `since`: no worker could reach the engine before then. `until`: the engine waits for their reports until then.
    """

    since: Micros = 0
    until: Micros = 0


class WorkflowTimedOut(Event, frozen=True, kw_only=True, omit_defaults=True):
    failure_id: str
    timeout_kind: str
    message: str
    failure_category: str = "timeout"
    exception_class: str | None = None
    execution_deadline_at: Micros | None = None
    run_deadline_at: Micros | None = None


def due(turn: Turn, message: Due) -> None:
    instance = turn.instance
    run = instance.run
    if run is None:
        return
    agenda = turn.features.agenda
    unreachable = turn.now < message.until
    while run.is_open and run.agenda and run.agenda[0][0] <= turn.now:
        at, kind, id = heappop(run.agenda)
        if agenda.armed(instance, kind, id) != at:
            continue
        if not (unreachable and agenda.postpone(instance, kind, id, message.since, message.until)):
            agenda.deadlines[kind].due(turn, id)


def _execution_deadline(instance: Instance, _: object) -> Micros | None:
    started = instance.current.part(Identity).started
    return None if started is None else started.execution_deadline_at


def _run_deadline(instance: Instance, _: object) -> Micros | None:
    started = instance.current.part(Identity).started
    return None if started is None else started.run_deadline_at


def _length(read: Callable[[WorkflowStarted], float | None]) -> Callable[[Instance, object], Micros]:
    def length(instance: Instance, _: object) -> Micros:
        started = instance.current.part(Identity).started
        return seconds((read(started) if started is not None else None) or 0)

    return length


def overrun(turn: Turn) -> bool:
    """Time the run out if its deadline has passed and its wake has not arrived yet. Returns whether it has."""
    started = turn.run.part(Identity).started
    if started is None:
        return False
    at = started.execution_deadline_at
    if at is not None and at <= turn.now:
        _execution_due(turn, 0)
        return True
    at = started.run_deadline_at
    if at is not None and at <= turn.now:
        _run_due(turn, 0)
        return True
    return False


def _time_out(turn: Turn, kind: str) -> None:
    run = turn.run
    turn.features.cancel_open(turn)
    turn.record(
        WorkflowTimedOut(
            failure_id=failure_id(run.run_id, run.length + 1),
            timeout_kind=kind,
            message=f"the run passed its {kind.replace('_', ' ')}",
            execution_deadline_at=_execution_deadline(turn.instance, 0),
            run_deadline_at=_run_deadline(turn.instance, 0),
        )
    )
    close.closed(turn)


def _execution_due(turn: Turn, _: object) -> None:
    _time_out(turn, "execution_timeout")


def _run_due(turn: Turn, _: object) -> None:
    execution = _execution_deadline(turn.instance, 0)
    late = execution is not None and execution <= turn.now
    _time_out(turn, "execution_timeout" if late else "run_timeout")


def _timed_out(run: Run, event: WorkflowTimedOut, entry: Recorded) -> None:
    close.shut(run, entry, "failed", "timed_out")


def _say_timed_out(story: Story, event: WorkflowTimedOut) -> Phrase:
    story.close()
    took = story.form.span(story.at - story.began)
    why = story.failure(None, event.message)
    return Phrase("✗", f"{story.workflow_type} timed out after {took}: {why}", "bad", news=True)


FEATURE = Feature(
    name="deadline",
    deciding=Deciding(
        messages={Due: due},
        deadlines={
            "execution_timeout": Deadline(
                _execution_deadline, _execution_due, _length(lambda started: started.execution_timeout_seconds)
            ),
            "run_timeout": Deadline(_run_deadline, _run_due, _length(lambda started: started.run_timeout_seconds)),
        },
    ),
    history=History(evolve={WorkflowTimedOut: _timed_out}),
    words={WorkflowTimedOut: Words(RUN, _say_timed_out)},
)
