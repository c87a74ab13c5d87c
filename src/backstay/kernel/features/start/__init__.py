"""Reserve and start an instance. Reserved → Started. An instance is started once; continue as new opens its later runs.

An accepted start writes its command, `StartAccepted`, `WorkflowStarted` and the first workflow task in one decision.
`WorkflowStarted` is the authority for everything about a run that was fixed when it began.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from backstay.kernel.decision import CommandRecord
from backstay.kernel.event import Recorded
from backstay.kernel.feature import CommandRule, Deadline, Deciding, Feature, History
from backstay.kernel.features import memo, search
from backstay.kernel.features.instance_commands import fingerprint, has_route, refuse_conflict
from backstay.kernel.features.start import definition as definitions
from backstay.kernel.features.start import words
from backstay.kernel.features.start.checks import check_id, check_limits, check_options
from backstay.kernel.features.start.definition import (
    AdoptDefinition,
    WorkflowDefinitionAdopted,
    definition_of,
    differs,
    started_of,
    undecided,
)
from backstay.kernel.features.start.messages import DuplicatePolicy, Reserve, ReserveReply, Start, StartReply
from backstay.kernel.features.start.records import (
    BACKGROUND,
    STANDALONE,
    Identity,
    OpenChild,
    Parent,
    RecordedDefinition,
    StartAccepted,
    StartRejected,
    WorkflowStarted,
    lineage,
    parent_of,
    valid_traceparent,
)
from backstay.kernel.message import Refused
from backstay.kernel.names import check_name
from backstay.kernel.state import Instance, Run
from backstay.kernel.task import START, Resume
from backstay.kernel.turn import Turn
from backstay.kernel.values import Micros, seconds

__all__ = [
    "BACKGROUND",
    "FEATURE",
    "STANDALONE",
    "AdoptDefinition",
    "DuplicatePolicy",
    "Identity",
    "OpenChild",
    "Parent",
    "RecordedDefinition",
    "Reserve",
    "ReserveReply",
    "Start",
    "StartAccepted",
    "StartRejected",
    "StartReply",
    "WorkflowDefinitionAdopted",
    "WorkflowStarted",
    "check_id",
    "check_limits",
    "check_options",
    "check_start",
    "definition_of",
    "differs",
    "open_run",
    "parent_of",
    "start",
    "start_now",
    "started_of",
    "undecided",
    "valid_traceparent",
]

CLOSED = "returned_existing_closed"
"""The outcome of a start that returned a closed run."""


def reserve(turn: Turn, message: Reserve) -> None:
    instance = turn.instance
    check_id(message.workflow_id)
    check_name(message.workflow_type, "workflow_type", "invalid_workflow_type")
    if instance.exists and instance.workflow_type != message.workflow_type:
        raise Refused(
            "workflow_type_mismatch",
            f"workflow {instance.workflow_id!r} is reserved for type {instance.workflow_type!r}",
            field="workflow_type",
        )
    run_id = None if instance.run is None else instance.run.run_id
    turn.reply = ReserveReply(workflow_id=instance.workflow_id, reserved=not instance.exists, run_id=run_id)
    if not instance.exists:
        instance.workflow_type = message.workflow_type
        instance.reserved_at = turn.now


def start(turn: Turn, message: Start) -> None:
    check_start(turn, message)
    if turn.instance.run is not None:
        _already_started(turn, message)
    else:
        start_now(turn, message)


def check_start(turn: Turn, message: Start) -> None:
    """Refuse an invalid start, or one of another type than the instance is reserved for."""
    check_id(message.workflow_id)
    check_options(message)
    instance = turn.instance
    if instance.run is None and instance.exists and instance.workflow_type != message.workflow_type:
        raise Refused(
            "workflow_type_mismatch",
            f"workflow {instance.workflow_id!r} is reserved for type {instance.workflow_type!r}",
            field="workflow_type",
        )


def start_now(turn: Turn, message: Start, run_id: str | None = None) -> None:
    """Open the first run of a chain; refused if it would pass a limit."""
    check_limits(turn, message)
    instance = turn.instance
    instance.workflow_type = message.workflow_type
    open_run(
        turn,
        turn.new_run(run_id),
        message,
        execution_deadline_at=_deadline(turn.now, message.execution_timeout_seconds),
        continued_from_run_id=None,
    )


def open_run(
    turn: Turn,
    run: Run,
    message: Start,
    *,
    execution_deadline_at: Micros | None,
    continued_from_run_id: str | None,
    retry_of: str | None = None,
    open_children: list[OpenChild] | None = None,
) -> None:
    """Open a run: record its command and its two opening events. The first task follows from those."""
    instance = turn.instance
    turn.begin_run(run)
    command = turn.command(
        "start",
        outcome="started_new",
        source=message.source,
        request_id=message.request_id,
        fingerprint=_fingerprint(message),
        resolved_run_id=run.run_id,
        context=message.context,
        payload=message.arguments,
    )
    definition = message.definition
    turn.record(
        StartAccepted(
            workflow_command_id=command.id,
            workflow_instance_id=instance.workflow_id,
            workflow_run_id=run.run_id,
            workflow_type=message.workflow_type,
            workflow_class=None if definition is None else definition.workflow_class,
            business_key=message.business_key,
            visibility_labels=message.visibility_labels,
            outcome="started_new",
        )
    )
    started = WorkflowStarted(
        workflow_instance_id=instance.workflow_id,
        workflow_run_id=run.run_id,
        workflow_type=message.workflow_type,
        workflow_command_id=command.id,
        business_key=message.business_key,
        visibility_labels=message.visibility_labels,
        memo=message.memo,
        search_attributes=message.search_attributes,
        arguments=message.arguments,
        execution_timeout_seconds=message.execution_timeout_seconds,
        run_timeout_seconds=message.run_timeout_seconds,
        execution_deadline_at=execution_deadline_at,
        run_deadline_at=_deadline(turn.now, message.run_timeout_seconds),
        standalone=message.standalone,
        continued_from_run_id=continued_from_run_id,
        routing=message.routing,
        first_task_at=turn.now + message.delay if message.delay else None,
        retry_of_child_workflow_run_id=retry_of,
        open_children=open_children or [],
        traceparent=message.traceparent,
        **({} if definition is None else definitions.declare(definition)),
    )
    if message.parent is not None:
        started = replace(started, **lineage(message.parent))
    turn.record(started)
    turn.reply = StartReply(
        workflow_id=instance.workflow_id, run_id=run.run_id, outcome="started_new", command_id=command.id
    )


def _already_started(turn: Turn, message: Start) -> None:
    run = turn.run
    if message.retained is not None:
        turn.reply = _repeated_reply(turn, message, message.retained)
        return
    policy = message.duplicate_policy
    returned = policy == "return_existing" or (policy == "return_existing_active" and run.is_open)
    outcome = ("returned_existing_active" if run.is_open else CLOSED) if returned else "rejected_duplicate"
    reason = None if returned else "instance_already_started"
    command = turn.command(
        "start",
        outcome=outcome,
        source=message.source,
        status="accepted" if returned else "rejected",
        rejection_reason=reason,
        request_id=message.request_id,
        fingerprint=_fingerprint(message),
        resolved_run_id=run.run_id,
        context=message.context,
    )
    if run.is_open:  # no event may follow a terminal one: then only the command record says that there was this start
        identity: dict[str, Any] = {
            "workflow_command_id": command.id,
            "workflow_instance_id": turn.instance.workflow_id,
            "workflow_run_id": run.run_id,
            "workflow_type": message.workflow_type,
            "outcome": outcome,
        }
        turn.record(StartAccepted(**identity) if returned else StartRejected(rejection_reason=str(reason), **identity))
    turn.reply = StartReply(
        workflow_id=turn.instance.workflow_id,
        run_id=run.run_id,
        outcome=outcome,
        command_id=command.id,
        accepted=returned,
        rejection_reason=reason,
    )


def _repeated_reply(turn: Turn, message: Start, before: CommandRecord) -> StartReply:
    """The reply to the first attempt of a start, for its retry."""
    refuse_conflict(before, message.request_id, _fingerprint(message))
    return StartReply(
        workflow_id=turn.instance.workflow_id,
        run_id=before.resolved_run_id or turn.run.run_id,
        outcome=before.outcome or "",
        command_id=before.id,
        accepted=before.status == "accepted",
        rejection_reason=before.rejection_reason,
    )


def _fingerprint(message: Start) -> str | None:
    if message.request_id is None and not has_route(message.context):
        return None  # before the intent is encoded
    return fingerprint(message.request_id, message.context, b"start", *message.intent())


def _deadline(now: Micros, timeout: float | None) -> Micros | None:
    return None if timeout is None else now + seconds(timeout)


def _accepted(run: Run, event: StartAccepted, entry: Recorded) -> None:
    """`WorkflowStarted`, which follows, says everything about the run."""


def _rejected(run: Run, event: StartRejected, entry: Recorded) -> None:
    """A rejected start does not change the run."""


def _started(run: Run, event: WorkflowStarted, entry: Recorded) -> None:
    run.workflow_type = event.workflow_type
    run.routing = event.routing
    run.started_at = entry.at
    identity = run.part(Identity)
    identity.business_key = event.business_key
    identity.visibility_labels = event.visibility_labels
    identity.started = event
    if event.memo:
        run.part(memo.Memo).values.update(event.memo)
    if event.search_attributes:
        values = {key: value for key, value in event.search_attributes.items() if value is not None}
        run.part(search.SearchAttributes).values.update(values)
    if event.execution_deadline_at is not None:
        run.add_deadline(event.execution_deadline_at, "execution_timeout", 0)
    if event.run_deadline_at is not None:
        run.add_deadline(event.run_deadline_at, "run_timeout", 0)
    if event.first_task_at is not None:
        run.not_before = event.first_task_at
        run.add_deadline(event.first_task_at, "first_task", 0)


def _wake(run: Run, event: WorkflowStarted, entry: Recorded) -> Resume:
    return START


def _first_task_at(instance: Instance, _: object) -> Micros | None:
    return instance.current.not_before or None if instance.cursor == 0 else None


def _offer_first_task(turn: Turn, _: object) -> None:
    """Offer the first task of a retry whose pause is over."""
    for task in list(turn.instance.tasks.values()):
        if task.state == "ready" and task.available_at > turn.now:
            turn.put_task(replace(task, available_at=turn.now))
        else:
            turn.to_offer.append(task.id)


def _pause(instance: Instance, _: object) -> Micros:
    run = instance.current
    return run.not_before - run.started_at


FEATURE = Feature(
    name="start",
    deciding=Deciding(
        messages={Reserve: reserve, Start: start},
        commands={AdoptDefinition: CommandRule(definitions.check, definitions.adopt)},
        deadlines={"first_task": Deadline(_first_task_at, _offer_first_task, _pause)},
    ),
    history=History(
        evolve={
            StartAccepted: _accepted,
            StartRejected: _rejected,
            WorkflowStarted: _started,
            WorkflowDefinitionAdopted: definitions.evolve,
        },
        resume={WorkflowStarted: _wake},
    ),
    words=words.WORDS | definitions.WORDS,
)
