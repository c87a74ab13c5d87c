"""Archive: a closed run is marked as dealt with. Its history, commands and exports stay.

Any closed run of an instance can be archived, not only the current one; the shell folds an earlier one and hands it in.
"""

from __future__ import annotations

from typing import Any

from holdfast.kernel.event import Event, Recorded
from holdfast.kernel.feature import Feature
from holdfast.kernel.features.intake import (
    NOT_CURRENT,
    NOT_STARTED,
    Commanding,
    Rejection,
    accept,
    cause,
    reject,
    repeated,
)
from holdfast.kernel.state import Run
from holdfast.kernel.turn import Turn
from holdfast.kernel.values import Micros

NOT_CLOSED = Rejection("run_not_closed", "rejected_run_not_closed")


class Archive(Commanding, frozen=True, kw_only=True):
    """`selected`: the earlier run that is meant, folded from its history. Without it the current one is."""

    command_type = "archive"

    reason: str | None = None
    selected: Any = None


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
    intent = (message.reason or "").encode()
    if repeated(turn, message, "archive", intent):
        return
    run: Run | None = message.selected or turn.flow.run
    why = _unfit(run, message)
    if run is None or why is not None:
        reject(turn, message, "archive", why or NOT_STARTED, intent=intent)
        return
    needed = run.part(Archived).at is None
    outcome = "archived" if needed else "archive_not_needed"
    command = accept(turn, message, "archive", outcome, intent=intent, resolved=run)
    current = turn.run
    turn.run = run
    turn.now = max(turn.now, run.last_at)
    turn.act_for(cause(command))
    turn.record(ArchiveRequested(workflow_command_id=command.id, outcome=outcome, reason=message.reason))
    if needed:
        turn.record(WorkflowArchived(archive_command_id=command.id, reason=message.reason))
    turn.indexed = (*turn.indexed, (False, turn.machine.index(turn.flow, run)))
    turn.run = current


def _unfit(run: Run | None, message: Archive) -> Rejection | None:
    if run is None:
        return NOT_STARTED
    if message.run_id not in (None, run.run_id):
        return NOT_CURRENT  # it was the current run when the shell looked
    return NOT_CLOSED if run.open else None


def _requested(run: Run, event: ArchiveRequested, entry: Recorded) -> None:
    """The request alone changes nothing."""


def _archived(run: Run, event: WorkflowArchived, entry: Recorded) -> None:
    part = run.part(Archived)
    part.at = entry.at
    part.command_id = event.archive_command_id
    part.reason = event.reason


FEATURE = Feature(
    name="archive",
    decide={Archive: archive},
    evolve={ArchiveRequested: _requested, WorkflowArchived: _archived},
)
