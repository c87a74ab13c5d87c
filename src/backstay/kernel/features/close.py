"""Close a run: completed or failed. After its terminal event nothing of a run changes."""

from __future__ import annotations

from backstay.kernel.command import Command, TerminalCommand
from backstay.kernel.event import Event, Recorded
from backstay.kernel.failure import Failure
from backstay.kernel.feature import CommandRule, Deciding, Feature, History, nothing_to_check
from backstay.kernel.limits import Breach, over_count
from backstay.kernel.state import Run
from backstay.kernel.turn import Turn
from backstay.kernel.values import CODEC, failure_id
from backstay.kernel.words import RUN, Phrase, Story, Words


class CompleteWorkflow(TerminalCommand, frozen=True, kw_only=True, omit_defaults=True, tag="complete_workflow"):
    result: bytes | None = None


class FailWorkflow(TerminalCommand, frozen=True, kw_only=True, omit_defaults=True, tag="fail_workflow"):
    message: str
    exception_type: str | None = None
    exception_class: str | None = None
    exception: Failure | None = None
    non_retryable: bool = False
    failure_category: str = "application"


class WorkflowCompleted(Event, frozen=True, kw_only=True, omit_defaults=True):
    output: bytes | None = None
    payload_codec: str = CODEC


class WorkflowFailed(Event, frozen=True, kw_only=True, omit_defaults=True):
    failure_id: str
    source_kind: str
    source_id: str
    failure_category: str
    message: str
    non_retryable: bool = False
    exception_type: str | None = None
    exception_class: str | None = None
    exception: Failure | None = None
    structural_limit_kind: str | None = None
    structural_limit_value: int | None = None
    structural_limit_configured: int | None = None


def closed(turn: Turn) -> None:
    """Do what every kind of close has in common, right after the terminal event."""
    turn.closed = (*turn.closed, turn.run.run_id)
    turn.reindex = True
    turn.features.run_closed(turn)


def complete(turn: Turn, command: CompleteWorkflow) -> None:
    turn.record(WorkflowCompleted(output=command.result))
    closed(turn)


def fail(turn: Turn, command: FailWorkflow) -> None:
    run = turn.run
    turn.record(
        WorkflowFailed(
            failure_id=failure_id(run.run_id, run.length + 1),
            source_kind="workflow_run",
            source_id=run.run_id,
            failure_category=command.failure_category,
            message=command.message,
            non_retryable=command.non_retryable,
            exception_type=command.exception_type,
            exception_class=command.exception_class,
            exception=command.exception,
        )
    )
    closed(turn)


def fail_by_limit(turn: Turn, breach: Breach) -> None:
    """Fail a run that would pass a structural limit."""
    run = turn.run
    turn.record(
        WorkflowFailed(
            failure_id=failure_id(run.run_id, run.length + 1),
            source_kind="workflow_run",
            source_id=run.run_id,
            failure_category="structural_limit",
            message=breach.message,
            non_retryable=True,
            exception_type="StructuralLimitExceeded",
            structural_limit_kind=breach.kind,
            structural_limit_value=breach.value,
            structural_limit_configured=breach.configured,
        )
    )
    closed(turn)


def _limits(turn: Turn, commands: list[Command]) -> Breach | None:
    last = commands[-1] if commands else None
    if not isinstance(last, CompleteWorkflow) or last.result is None:
        return None
    size, bound = len(last.result), turn.features.limits.payload_size
    return over_count("payload_size", size, bound) if size > bound else None


def shut(run: Run, entry: Recorded, status: str, reason: str) -> None:
    """Fold a terminal event: no task, no wake and no step may follow."""
    run.status = status
    run.closed_reason = reason
    run.closed_at = entry.at
    run.ended_by = entry.event
    run.agenda.clear()
    run.wake_events.clear()
    run.own_task_events.clear()


def _completed(run: Run, event: WorkflowCompleted, entry: Recorded) -> None:
    shut(run, entry, "completed", "completed")


def _failed(run: Run, event: WorkflowFailed, entry: Recorded) -> None:
    shut(run, entry, "failed", "failed")


def _say_completed(story: Story, event: WorkflowCompleted) -> Phrase:
    story.close()
    took = story.form.span(story.at - story.began)
    return Phrase("✓", f"{story.workflow_type} completed in {took}{story.result(event.output)}", "success", news=True)


def _say_failed(story: Story, event: WorkflowFailed) -> Phrase:
    story.close()
    took = story.form.span(story.at - story.began)
    why = story.failure(event.exception_type, event.message)
    return Phrase("✗", f"{story.workflow_type} failed after {took}: {why}", "bad", news=True)


FEATURE = Feature(
    name="close",
    deciding=Deciding(
        commands={
            CompleteWorkflow: CommandRule(nothing_to_check, complete),
            FailWorkflow: CommandRule(nothing_to_check, fail),
        },
        limits=_limits,
    ),
    history=History(evolve={WorkflowCompleted: _completed, WorkflowFailed: _failed}),
    words={WorkflowCompleted: Words(RUN, _say_completed), WorkflowFailed: Words(RUN, _say_failed)},
)
