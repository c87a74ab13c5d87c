"""Pause and unpause. The tasks of a paused run are not given to workers; events are recorded and deadlines keep running."""

from __future__ import annotations

from collections.abc import Iterable

from backstay.kernel.event import Context, Event, Recorded
from backstay.kernel.feature import Deciding, Feature, History, Lifecycle
from backstay.kernel.features.instance_commands import ReasonedCommand, accept, cause, may_accept
from backstay.kernel.operator_command import CommandOutcome, OperatorCommand
from backstay.kernel.state import Instance, Run
from backstay.kernel.turn import Turn
from backstay.kernel.values import Micros
from backstay.kernel.words import RUN, Phrase, Story, Words


class Pause(ReasonedCommand, frozen=True, kw_only=True):
    command_type = "pause"


class Unpause(ReasonedCommand, frozen=True, kw_only=True):
    command_type = "unpause"


class WorkflowPaused(Event, frozen=True, kw_only=True, omit_defaults=True):
    workflow_command_id: str
    reason: str | None = None


class WorkflowUnpaused(Event, frozen=True, kw_only=True, omit_defaults=True):
    workflow_command_id: str
    reason: str | None = None


class Paused:
    __slots__ = ("entry",)

    def __init__(self) -> None:
        self.entry: Recorded | None = None  # of its `WorkflowPaused`


def allows(run: Run) -> bool:
    """Whether tasks of this run may be given to workers."""
    part = run.parts.get(Paused)
    return part is None or part.entry is None


def pause(turn: Turn, message: Pause) -> None:
    if not may_accept(turn, message):
        return
    paused = not allows(turn.run)
    command = accept(turn, message, "pause_not_needed" if paused else "paused")
    if not paused:
        turn.record_with_context(WorkflowPaused(workflow_command_id=command.id, reason=message.reason), cause(command))


def unpause(turn: Turn, message: Unpause) -> None:
    if not may_accept(turn, message):
        return
    paused = not allows(turn.run)
    command = accept(turn, message, "unpaused" if paused else "unpause_not_needed")
    if paused:
        turn.record_with_context(
            WorkflowUnpaused(workflow_command_id=command.id, reason=message.reason), cause(command)
        )
        for task_id in turn.instance.tasks:
            turn.to_offer.append(task_id)


def _paused(run: Run, event: WorkflowPaused, entry: Recorded) -> None:
    run.part(Paused).entry = entry


def _unpaused(run: Run, event: WorkflowUnpaused, entry: Recorded) -> None:
    run.part(Paused).entry = None


def _carry(run: Run) -> Iterable[tuple[int, Event, Context]]:
    part = run.parts.get(Paused)
    if part is not None and part.entry is not None:
        yield part.entry.sequence, part.entry.event, part.entry.context


def _say_paused(story: Story, event: WorkflowPaused) -> Phrase:
    return Phrase("‖", f"paused{story.because(event.reason)}", "retry")


def _say_unpaused(story: Story, event: WorkflowUnpaused) -> Phrase:
    return Phrase("▶", f"unpaused{story.because(event.reason)}")


def _pause_blocked(instance: Instance, state: str, now: Micros) -> str | None:
    return None if allows(instance.current) else "already_paused"


def _unpause_blocked(instance: Instance, state: str, now: Micros) -> str | None:
    return "not_paused" if allows(instance.current) else None


PAUSE = OperatorCommand(
    message=Pause,
    request="PauseWorkflow",
    label="Pause",
    help="Pause {run}: hand out no more of its tasks.",
    more="Results, timers and signals are still recorded, and deadlines keep running.",
    examples=('order-1 --reason "the warehouse is closed"',),
    outcomes={
        "paused": CommandOutcome("paused; events are still recorded, and unpause resumes it"),
        "pause_not_needed": CommandOutcome("paused already"),
    },
    blocked=_pause_blocked,
    blocked_words={"already_paused": "It is paused already."},
    hidden=frozenset({"already_paused"}),
)
UNPAUSE = OperatorCommand(
    message=Unpause,
    request="UnpauseWorkflow",
    label="Resume",
    help="Resume {run} after a pause.",
    examples=("order-1",),
    outcomes={
        "unpaused": CommandOutcome("resumed", goes_on=True),
        "unpause_not_needed": CommandOutcome("was not paused"),
    },
    blocked=_unpause_blocked,
    blocked_words={"not_paused": "It is not paused."},
    hidden=frozenset({"not_paused", "run_closed", "selected_run_not_current"}),
)


FEATURE = Feature(
    name="pause",
    deciding=Deciding(messages={Pause: pause, Unpause: unpause}),
    history=History(evolve={WorkflowPaused: _paused, WorkflowUnpaused: _unpaused}),
    lifecycle=Lifecycle(carry=_carry, allows_tasks=allows),
    words={WorkflowPaused: Words(RUN, _say_paused), WorkflowUnpaused: Words(RUN, _say_unpaused)},
    operator=(PAUSE, UNPAUSE),
)
