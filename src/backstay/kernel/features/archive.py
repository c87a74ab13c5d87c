"""Archive: mark a closed run as archived. Its history, commands and exports stay.

Any closed run of an instance can be archived, not only the current one. The shell passes the history of an earlier run.
"""

from __future__ import annotations

from backstay.kernel.event import Event, Recorded
from backstay.kernel.feature import Deciding, Feature, History
from backstay.kernel.features.instance_commands import (
    NOT_STARTED,
    CommandReply,
    ReasonedCommand,
    Rejection,
    accept,
    answer_retry,
    cause,
    earlier_run,
    reject,
)
from backstay.kernel.message import EarlierRun
from backstay.kernel.operator_command import CommandOutcome, CommandRefusal, OperatorCommand
from backstay.kernel.state import Instance, Run
from backstay.kernel.turn import Turn
from backstay.kernel.values import Micros
from backstay.kernel.words import COMMAND, RUN, Phrase, Story, Words

NOT_CLOSED = Rejection("run_not_closed", "rejected_run_not_closed")


class Archive(ReasonedCommand, frozen=True, kw_only=True):
    """`earlier` comes with its history."""

    command_type = "archive"


class ArchiveRequested(Event, frozen=True, kw_only=True, omit_defaults=True):
    workflow_command_id: str
    command_type: str = "archive"
    outcome: str
    reason: str | None = None


class WorkflowArchived(Event, frozen=True, kw_only=True, omit_defaults=True):
    archive_command_id: str
    reason: str | None = None


class Archived:
    __slots__ = ("at", "command_id", "reason")

    def __init__(self) -> None:
        self.at: Micros | None = None
        self.command_id: str | None = None
        self.reason: str | None = None


def archive(turn: Turn, message: Archive) -> None:
    if answer_retry(turn, message):
        return
    earlier = earlier_run(turn, message)
    run = turn.instance.run if earlier is None else _folded(turn, earlier)
    if run is None or run.is_open:
        reject(turn, message, NOT_STARTED if run is None else NOT_CLOSED)
        return
    needed = run.part(Archived).at is None
    outcome = "archived" if needed else "archive_not_needed"
    command = accept(turn, message, outcome, resolved=run)
    current = turn.run
    turn.run = run
    turn.now = max(turn.now, run.last_at)
    turn.context = cause(command)
    turn.record(ArchiveRequested(workflow_command_id=command.id, outcome=outcome, reason=message.reason))
    if needed:
        turn.record(WorkflowArchived(archive_command_id=command.id, reason=message.reason))
    turn.indexed = (*turn.indexed, (False, turn.features.index(turn.instance, run)))
    turn.run = current


def _folded(turn: Turn, earlier: EarlierRun) -> Run:
    """Fold an earlier run for this decision only. Archiving changes its state, which a second decision must not see."""
    run = Run(earlier.key, earlier.run_id, earlier.number)
    turn.features.fold(turn.instance, run, earlier.history)
    return run


def _requested(run: Run, event: ArchiveRequested, entry: Recorded) -> None:
    """The request alone changes nothing."""


def _archived(run: Run, event: WorkflowArchived, entry: Recorded) -> None:
    part = run.part(Archived)
    part.at = entry.at
    part.command_id = event.archive_command_id
    part.reason = event.reason


def _say_requested(story: Story, event: ArchiveRequested) -> Phrase:
    # `WorkflowArchived` follows, unless the run was archived before.
    return Phrase("▤", f"archive requested{story.because(event.reason)}", "quiet", shown=False)


def _say_archived(story: Story, event: WorkflowArchived) -> Phrase:
    return Phrase("▤", f"archived{story.because(event.reason)}", "quiet")


def _blocked(instance: Instance, state: str, now: Micros) -> str | None:
    part = instance.current.parts.get(Archived)
    return None if part is None or part.at is None else "already_archived"


def _still_open(command: CommandReply) -> str:
    return f"run {command.run_id} is still open; cancel or terminate it first, or wait for its end"


ARCHIVE = OperatorCommand(
    message=Archive,
    request="ArchiveWorkflow",
    label="Archive",
    help="Mark {run} as archived.",
    more="The run must have ended. Its history stays.",
    examples=("order-1", "order-1 --run 01J8... --reason audited"),
    outcomes={
        "archived": CommandOutcome("archived; its history stays"),
        "archive_not_needed": CommandOutcome("archived already"),
    },
    refusals={NOT_CLOSED.reason: CommandRefusal(_still_open)},
    current_run=False,
    bulk_flags={"archived": False},
    blocked=_blocked,
    blocked_words={"already_archived": "It is archived already.", "run_not_closed": "It has not ended yet."},
)


FEATURE = Feature(
    name="archive",
    deciding=Deciding(messages={Archive: archive}),
    history=History(evolve={ArchiveRequested: _requested, WorkflowArchived: _archived}),
    words={ArchiveRequested: Words(COMMAND, _say_requested), WorkflowArchived: Words(RUN, _say_archived)},
    operator=(ARCHIVE,),
)
