"""Reserve and start an instance. Reserved → Started. An instance is started once; continue as new opens its later runs.

An accepted start writes its command, `StartAccepted`, `WorkflowStarted` and the first workflow task in one decision.
`WorkflowStarted` is the authority for everything about a run that was fixed when it began.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from backstay.kernel.decision import CommandRecord
from backstay.kernel.event import Recorded
from backstay.kernel.feature import Deadline, Deciding, Feature, History
from backstay.kernel.features import memo, search
from backstay.kernel.features.instance_commands import fingerprint, has_route, refuse_conflict
from backstay.kernel.features.start import words
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
    definition_of,
    lineage,
    parent_of,
    valid_traceparent,
)
from backstay.kernel.limits import Breach, over_count
from backstay.kernel.message import Message, Refused
from backstay.kernel.state import Instance, Run
from backstay.kernel.task import START, Resume
from backstay.kernel.turn import Turn
from backstay.kernel.values import Micros, Routing, seconds, valid_id

__all__ = [
    "BACKGROUND",
    "FEATURE",
    "STANDALONE",
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
    "WorkflowStarted",
    "check_id",
    "check_limits",
    "check_options",
    "check_start",
    "definition_of",
    "open_run",
    "parent_of",
    "start",
    "start_now",
    "valid_traceparent",
]

DuplicatePolicy = Literal["reject_duplicate", "return_existing_active", "return_existing"]
"""What a start returns if the id is in use: a rejection, the run if it is open, or (ours) the run, open or closed."""

CLOSED = "returned_existing_closed"
"""The outcome of a start that returned a closed run."""

_POLICIES = get_args(DuplicatePolicy)


class Reserve(Message, frozen=True, kw_only=True):
    """Create an instance without a run."""

    namespace: str
    workflow_id: str
    workflow_type: str


class Start(Message, frozen=True, kw_only=True):
    namespace: str
    workflow_id: str
    workflow_type: str
    arguments: bytes | None = None
    routing: Routing = Routing()
    business_key: str | None = None
    visibility_labels: dict[str, str] = {}
    memo: dict[str, bytes] = {}
    search_attributes: dict[str, Any] = {}
    execution_timeout_seconds: float | None = None
    run_timeout_seconds: float | None = None
    duplicate_policy: DuplicatePolicy = "reject_duplicate"
    definition: RecordedDefinition | None = None
    source: str = "python"
    context: dict[str, Any] = {}
    request_id: str | None = None
    retained: CommandRecord | None = None
    parent: Parent | None = None
    delay: Micros = 0  # before the first task
    standalone: bool = False
    traceparent: str | None = None

    def intent(self) -> tuple[bytes, ...]:
        """The part of the request that must be the same under one request id."""
        return self.workflow_type.encode(), self.arguments or b""

    def idempotency_key(self) -> tuple[tuple[str, ...], str] | None:
        return None if self.request_id is None else (("start",), self.request_id)

    def with_record(self, record: CommandRecord | None) -> Message:
        return replace(self, retained=record)


class StartReply(Struct, frozen=True, kw_only=True):
    """The reply to a start."""

    workflow_id: str
    run_id: str
    outcome: str
    command_id: str | None
    accepted: bool = True
    rejection_reason: str | None = None


class ReserveReply(Struct, frozen=True, kw_only=True):
    """`reserved` False: the instance existed before. `run_id`: of its run, if it has been started."""

    workflow_id: str
    reserved: bool
    run_id: str | None = None


def check_id(workflow_id: str) -> None:
    """Refuse an id before anything is stored under it."""
    if not valid_id(workflow_id):
        raise Refused(
            "invalid_workflow_id",
            "a workflow id is 1 to 191 characters out of A-Z a-z 0-9 . _ : ~ -",
            field="workflow_id",
            value=workflow_id[:200],
        )


def reserve(turn: Turn, message: Reserve) -> None:
    instance = turn.instance
    check_id(message.workflow_id)
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
    has_definition = definition is not None
    d = definition or RecordedDefinition()
    turn.record(
        StartAccepted(
            workflow_command_id=command.id,
            workflow_instance_id=instance.workflow_id,
            workflow_run_id=run.run_id,
            workflow_type=message.workflow_type,
            workflow_class=d.workflow_class,
            business_key=message.business_key,
            visibility_labels=message.visibility_labels,
            outcome="started_new",
        )
    )
    started = WorkflowStarted(
        workflow_instance_id=instance.workflow_id,
        workflow_run_id=run.run_id,
        workflow_type=message.workflow_type,
        workflow_class=d.workflow_class,
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
        workflow_definition_fingerprint=d.fingerprint,
        declared_change_ids=d.change_ids,
        declared_queries=d.queries if has_definition else None,
        declared_query_contracts=d.query_contracts if has_definition else None,
        declared_signals=d.signals if has_definition else None,
        declared_signal_contracts=d.signal_contracts if has_definition else None,
        declared_updates=d.updates if has_definition else None,
        declared_update_contracts=d.update_contracts if has_definition else None,
        declared_entry_method=d.entry_method if has_definition else None,
        declared_entry_mode=d.entry_mode if has_definition else None,
        declared_entry_declaring_class=d.entry_declaring_class,
        declared_cleanup_seconds=d.cleanup_seconds,
        standalone=message.standalone,
        continued_from_run_id=continued_from_run_id,
        routing=message.routing,
        first_task_at=turn.now + message.delay if message.delay else None,
        retry_of_child_workflow_run_id=retry_of,
        open_children=open_children or [],
        traceparent=message.traceparent,
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


def check_options(message: Start) -> None:
    if not message.workflow_type:
        raise Refused("invalid_workflow_type", "a workflow type is needed", field="workflow_type")
    if (message.workflow_type == STANDALONE) is not message.standalone:
        raise Refused(
            "invalid_workflow_type",
            f"{STANDALONE!r} is the type of standalone activities: start an activity, or give the workflow another type",
            field="workflow_type",
        )
    if message.workflow_type == BACKGROUND:
        raise Refused(
            "invalid_workflow_type",
            f"{BACKGROUND!r} is the type of children that run a function: call background(function) in a workflow",
            field="workflow_type",
        )
    if message.duplicate_policy not in _POLICIES:
        raise Refused(
            "invalid_duplicate_policy",
            f"{message.duplicate_policy!r} is no duplicate policy; use one of {', '.join(_POLICIES)}",
            field="duplicate_policy",
        )
    for name, timeout in (
        ("execution_timeout_seconds", message.execution_timeout_seconds),
        ("run_timeout_seconds", message.run_timeout_seconds),
    ):
        if timeout is not None and not 0 < timeout < 1e10:
            raise Refused("invalid_timeout", f"{name} must be above 0 and below 10^10, not {timeout}", field=name)
    if message.business_key is not None and not 1 <= len(message.business_key) <= 191:
        raise Refused("invalid_business_key", "a business key is 1 to 191 characters", field="business_key")
    for label, value in message.visibility_labels.items():
        if not search.valid_key(label) or not 1 <= len(value) <= 191:
            raise Refused(
                "invalid_visibility_label",
                f"label {label!r}: keys are 1 to 64 of A-Z a-z 0-9 _ . : -, values 1 to 191 characters",
                field=f"visibility_labels.{label}",
            )
    if message.search_attributes:
        search.check(message.search_attributes)
    if message.memo:
        memo.check(message.memo)


def check_limits(turn: Turn, message: Start) -> None:
    breach = _breach(turn, message)
    if breach is not None:
        raise Refused(
            "structural_limit_exceeded",
            breach.message,
            limit_kind=breach.kind,
            current_value=breach.value,
            configured_limit=breach.configured,
        )


def _breach(turn: Turn, message: Start) -> Breach | None:
    limits = turn.features.limits
    if len(message.arguments or b"") <= limits.payload_size and not message.memo and not message.search_attributes:
        return None
    return (
        over_count("payload_size", len(message.arguments or b""), limits.payload_size)
        or (over_count("memo_size", memo.size(message.memo), limits.memo_size) if message.memo else None)
        or (
            over_count("search_attribute_size", search.size(message.search_attributes), limits.search_attribute_size)
            if message.search_attributes
            else None
        )
    )


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
        deadlines={"first_task": Deadline(_first_task_at, _offer_first_task, _pause)},
    ),
    history=History(
        evolve={StartAccepted: _accepted, StartRejected: _rejected, WorkflowStarted: _started},
        resume={WorkflowStarted: _wake},
    ),
    words=words.WORDS,
)
