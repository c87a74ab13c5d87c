"""Selections: several steps of which the first to end wins. Opened by its members; resolved once; the others go on.

The members are ordinary steps that say in their group path which member of which selection they are. The event that
ends the first of them is followed by `SelectionResolved`, in the same commit, so the winner is never computed again. A
member that lost may still be waited for, or cancelled.
"""

from __future__ import annotations

from typing import Any

from backstay.kernel.command import Command
from backstay.kernel.event import Event, Recorded
from backstay.kernel.feature import CommandRule, Deciding, Feature, History
from backstay.kernel.features.activity import CancelActivity
from backstay.kernel.features.child import CancelChild
from backstay.kernel.features.condition import CancelConditionWait
from backstay.kernel.features.timer import CancelTimer
from backstay.kernel.groups import GroupEntry, Groups
from backstay.kernel.message import Refused
from backstay.kernel.state import Run
from backstay.kernel.task import Resume
from backstay.kernel.turn import Turn
from backstay.kernel.values import condition_wait_id, event_id, execution_id, timer_id
from backstay.kernel.words import RUN, Phrase, Story, Words

_CANCEL = (CancelActivity, CancelTimer, CancelChild, CancelConditionWait)


class CancelSelectionOperation(
    Command, frozen=True, kw_only=True, omit_defaults=True, tag="cancel_selection_operation"
):
    """The code no longer waits for this member. It is no error if the member has ended already."""

    selection_group_id: str
    member_key: str | int
    member_index: int
    member_base_sequence: int
    member_size: int
    operation_kind: str
    operation_identity: str


class _Member(Event, frozen=True, kw_only=True, omit_defaults=True):
    selection_group_id: str
    member_key: str | int
    member_index: int
    member_base_sequence: int
    member_size: int
    operation_kind: str
    operation_identity: str


class SelectionResolved(_Member, frozen=True, kw_only=True, omit_defaults=True):
    selection_group_base_sequence: int
    selection_group_size: int
    outcome: str  # completed | failed
    resolution_event_id: str
    resolution_event_type: str


class SelectionOperationCancelled(_Member, frozen=True, kw_only=True, omit_defaults=True):
    pass


def resolve(turn: Turn, entry: Recorded) -> None:
    """Record the winner of a selection, right after the event that ended it."""
    groups = turn.run.part(Groups)
    assert groups.won is not None, "a member has won"
    member, ok = groups.won
    groups.won = None
    turn.record(
        SelectionResolved(
            **_same(member),
            operation_identity=_identity(turn.run, member, entry.event),
            selection_group_base_sequence=member.parallel_group_base_sequence,
            selection_group_size=member.parallel_group_size,
            outcome="completed" if ok else "failed",
            resolution_event_id=event_id(turn.run.run_id, entry.sequence),
            resolution_event_type=entry.type,
        )
    )


def _same(member: GroupEntry) -> dict[str, Any]:
    return {
        "selection_group_id": member.parallel_group_id,
        "member_key": member.selection_member_key,
        "member_index": member.selection_member_index,
        "member_base_sequence": member.selection_member_base_sequence,
        "member_size": member.selection_member_size,
        "operation_kind": member.selection_member_kind,
    }


def _identity(run: Run, member: GroupEntry, end: Event) -> str:
    base, kind = member.selection_member_base_sequence or 0, member.selection_member_kind
    match kind:
        case "activity":
            return execution_id(run.run_id, base)
        case "timer":
            return timer_id(run.run_id, base)
        case "condition":
            return condition_wait_id(run.run_id, base)
        case "child":
            return str(getattr(end, "child_workflow_run_id", ""))
        case _:
            return f"group:{base}:{member.selection_member_size}"


def check_cancel(turn: Turn, command: CancelSelectionOperation) -> None:
    groups = turn.run.parts.get(Groups)
    group = None if groups is None else groups.groups.get(command.selection_group_id)
    if group is None or group.members is None or command.member_base_sequence not in group.members:
        raise Refused(
            "invalid_commands",
            f"there is no selection {command.selection_group_id!r} with a member at step"
            f" {command.member_base_sequence}",
            field="selection_group_id",
        )


def cancel(turn: Turn, command: CancelSelectionOperation) -> None:
    steps = range(command.member_base_sequence, command.member_base_sequence + command.member_size)
    groups = turn.run.part(Groups)
    members = groups.groups[command.selection_group_id].members
    if members is None or members[command.member_base_sequence].over:
        return
    for step in steps:
        if step in groups.paths:
            for kind in _CANCEL:
                turn.features.commands[kind].apply(turn, kind(step=step))
    turn.record(
        SelectionOperationCancelled(
            selection_group_id=command.selection_group_id,
            member_key=command.member_key,
            member_index=command.member_index,
            member_base_sequence=command.member_base_sequence,
            member_size=command.member_size,
            operation_kind=command.operation_kind,
            operation_identity=command.operation_identity,
        )
    )


def _resolved(run: Run, event: SelectionResolved, entry: Recorded) -> None:
    groups = run.part(Groups)
    groups.won = None
    groups.groups[event.selection_group_id].resolved = True


def _cancelled(run: Run, event: SelectionOperationCancelled, entry: Recorded) -> None:
    members = run.part(Groups).groups[event.selection_group_id].members
    if members is not None:
        members[event.member_base_sequence].over = True


def _wake(run: Run, event: SelectionOperationCancelled, entry: Recorded) -> Resume:
    """Wake the code: it may wait for the member that it has cancelled."""
    return Resume(
        resume_source_kind="selection_operation",
        resume_source_id=event.operation_identity,
        workflow_sequence=entry.sequence,
        workflow_event_type="SelectionOperationCancelled",
    )


def _say_resolved(story: Story, event: SelectionResolved) -> Phrase:
    return Phrase("◆", f"{_member(event)} {event.outcome} first of {event.selection_group_size}")


def _say_cancelled(story: Story, event: SelectionOperationCancelled) -> Phrase:
    return Phrase("◆", f"{_member(event)} came too late and was cancelled", "quiet")


def _member(event: _Member) -> str:
    return f"branch {event.member_key} ({event.operation_kind.replace('_', ' ')})"


FEATURE = Feature(
    name="select",
    deciding=Deciding(commands={CancelSelectionOperation: CommandRule(check_cancel, cancel)}, on_group_won=resolve),
    history=History(
        evolve={SelectionResolved: _resolved, SelectionOperationCancelled: _cancelled},
        resume={SelectionOperationCancelled: _wake},
    ),
    words={SelectionResolved: Words(RUN, _say_resolved), SelectionOperationCancelled: Words(RUN, _say_cancelled)},
)
