"""Continue as new: this run closes as `continued` and the next one opens in the same decision.

The instance id stays; identity, labels, memo, search attributes, routing, compatibility and the execution deadline go
along.
"""

from __future__ import annotations

from typing import Any

from backstay.kernel.command import Command, TerminalCommand
from backstay.kernel.event import NO_CONTEXT, Recorded, StepEvent
from backstay.kernel.feature import CommandRule, Deciding, Feature, History, Shape
from backstay.kernel.features import close, memo, search
from backstay.kernel.features.child.child_side import run_continued
from backstay.kernel.features.child.parent_side import still_open
from backstay.kernel.features.start import (
    Identity,
    Parent,
    RecordedDefinition,
    Start,
    definition_of,
    open_run,
    parent_of,
)
from backstay.kernel.limits import Breach, over_count
from backstay.kernel.names import check_name
from backstay.kernel.state import Instance, Run
from backstay.kernel.turn import Turn
from backstay.kernel.values import instance_kind, reroute
from backstay.kernel.words import RUN, Phrase, Story, Words


class ContinueAsNew(TerminalCommand, frozen=True, kw_only=True, omit_defaults=True, tag="continue_as_new"):
    arguments: bytes | None = None
    workflow_type: str | None = None
    queue: str | None = None
    definition: RecordedDefinition | None = None


class WorkflowContinuedAsNew(StepEvent, frozen=True, kw_only=True, omit_defaults=True):
    continued_to_run_id: str
    continued_to_run_number: int
    workflow_link_id: str
    closed_reason: str = "continued"


def _check(turn: Turn, command: ContinueAsNew) -> None:
    check_name(command.workflow_type or None, "workflow_type")
    check_name(command.queue or None, "queue")


def apply(turn: Turn, command: ContinueAsNew) -> None:
    old = turn.run
    identity = old.part(Identity)
    before = identity.started
    assert before is not None, "a run that continues has started"
    new = turn.new_run()
    turn.record(
        WorkflowContinuedAsNew(
            sequence=old.step + 1,
            continued_to_run_id=new.run_id,
            continued_to_run_number=new.number,
            workflow_link_id=f"{old.run_id}-n{new.number}",
        )
    )
    called_by = parent_of(before)
    carried = turn.features.carried(old)
    left_open = still_open(old)
    close.closed(turn)
    for task_id in list(turn.instance.tasks):
        turn.drop_task(task_id)
    # The next run receives the events that this one has not handled, before those that arrived during its last task.
    turn.instance.buffered_events = [*carried, *turn.instance.buffered_events]
    turn.context = NO_CONTEXT
    turn.instance.workflow_type = command.workflow_type or before.workflow_type
    open_run(
        turn,
        new,
        Start(
            namespace=turn.instance.namespace,
            workflow_id=turn.instance.workflow_id,
            workflow_type=turn.instance.workflow_type,
            arguments=before.arguments if command.arguments is None else command.arguments,
            routing=reroute(old.routing, queue=command.queue),
            business_key=identity.business_key,
            visibility_labels=identity.visibility_labels,
            memo=old.part(memo.Memo).values,
            search_attributes=old.part(search.SearchAttributes).values,
            execution_timeout_seconds=before.execution_timeout_seconds,
            run_timeout_seconds=before.run_timeout_seconds,
            definition=command.definition or definition_of(before),
            source="workflow",
            context=_continued_by(turn.instance, old, called_by),
            parent=called_by,
            traceparent=before.traceparent,
        ),
        execution_deadline_at=before.execution_deadline_at,
        continued_from_run_id=old.run_id,
        open_children=left_open,
    )
    run_continued(turn)


def _continued_by(instance: Instance, old: Run, called_by: Parent | None) -> dict[str, Any]:
    """The context of the start of the next run: the step that continued, and the call that the chain of runs belongs to."""
    step = {"parent_instance_id": instance.workflow_id, "parent_run_id": old.run_id, "sequence": old.step}
    if called_by is None or instance_kind(called_by.namespace) == "schedule":  # a schedule is no parent workflow
        return {"workflow": step}
    return {"workflow": {**step, "child_call_id": called_by.child_call_id}}


def _limits(turn: Turn, commands: list[Command]) -> Breach | None:
    last = commands[-1] if commands else None
    if not isinstance(last, ContinueAsNew) or last.arguments is None:
        return None
    return over_count("payload_size", len(last.arguments), turn.features.limits.payload_size)


def _continued(run: Run, event: WorkflowContinuedAsNew, entry: Recorded) -> None:
    close.shut(run, entry, "completed", "continued")


def _shape(event: WorkflowContinuedAsNew) -> Shape:
    return Shape("continue as new")


def _say_continued(story: Story, event: WorkflowContinuedAsNew) -> Phrase:
    story.close()
    next_run = f"run {event.continued_to_run_number} ({event.continued_to_run_id})"
    return Phrase("↪", f"{story.workflow_type} continued as {next_run}", "success", news=True)


FEATURE = Feature(
    name="continue_as_new",
    deciding=Deciding(
        commands={ContinueAsNew: CommandRule(_check, apply)},
        limits=_limits,
    ),
    history=History(
        evolve={WorkflowContinuedAsNew: _continued},
        shapes={WorkflowContinuedAsNew: _shape},
    ),
    words={WorkflowContinuedAsNew: Words(RUN, _say_continued)},
)
