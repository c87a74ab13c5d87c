"""The parent's side: it starts children, records their reports, and applies the parent-close policy to them."""

from __future__ import annotations

from typing import Any

from backstay.kernel import groups
from backstay.kernel.call_options import ChildCallOptions, check_options, options_of
from backstay.kernel.command import Command
from backstay.kernel.features.child import signalling
from backstay.kernel.features.child.messages import (
    ChildReport,
    Close,
    PolicyAnswer,
    StartFromParent,
    stop,
)
from backstay.kernel.features.child.records import (
    POLICIES,
    CancelChild,
    CarriedChildClosed,
    Child,
    Children,
    ChildRunCancelled,
    ChildRunCompleted,
    ChildRunFailed,
    ChildRunStarted,
    ChildRunTerminated,
    ChildWorkflowScheduled,
    ParentClosePolicyApplied,
    ParentClosePolicyFailed,
    StartChildWorkflow,
    TimeoutPolicy,
    child_of,
    identity,
)
from backstay.kernel.features.delivery import Deliver
from backstay.kernel.features.memo import Memo
from backstay.kernel.features.search import SearchAttributes
from backstay.kernel.features.start import Identity, OpenChild, Parent, RecordedDefinition
from backstay.kernel.limits import Breach, over_count
from backstay.kernel.message import Refused
from backstay.kernel.names import check_name
from backstay.kernel.state import Run
from backstay.kernel.turn import Turn
from backstay.kernel.values import child_call_id, failure_id, partition_of, reroute


def check(turn: Turn, command: StartChildWorkflow) -> None:
    if not command.workflow_type:
        raise Refused("invalid_commands", "a child needs a workflow type", field="workflow_type")
    for field in ("workflow_type", "queue", "connection"):
        check_name(getattr(command, field) or None, field)
    if command.parent_close_policy not in POLICIES:
        raise Refused(
            "invalid_commands",
            f"{command.parent_close_policy!r} is no parent-close policy; use one of {', '.join(POLICIES)}",
            field="parent_close_policy",
        )
    for name in ("execution_timeout_seconds", "run_timeout_seconds"):
        timeout: float | None = getattr(command, name)
        if timeout is not None and not 0 < timeout < 1e10:
            raise Refused("invalid_commands", f"{name} must be above 0 and below 10^10, not {timeout}", field=name)
    groups.check(command.parallel_group_path)
    check_options(command)


def start(turn: Turn, command: StartChildWorkflow) -> None:
    run = turn.run
    step = run.step + 1
    call = child_call_id(run.run_id, step)
    definition = command.definition
    held_back = groups.full(run, command.parallel_group_path)
    child = turn.ids.ulid()
    turn.record(
        ChildWorkflowScheduled(
            sequence=step,
            workflow_link_id=call,
            child_call_id=call,
            child_workflow_instance_id=child,
            child_workflow_run_id=turn.ids.run_id(partition_of(turn.instance.namespace, child)),
            child_workflow_type=command.workflow_type,
            child_workflow_class=None if definition is None else definition.workflow_class,
            parallel_group_path=command.parallel_group_path,
            retry_policy=command.retry_policy,
            timeout_policy=TimeoutPolicy(
                execution_timeout_seconds=command.execution_timeout_seconds,
                run_timeout_seconds=command.run_timeout_seconds,
            ),
            arguments=command.arguments,
            routing=reroute(run.routing, queue=command.queue, connection=command.connection),
            definition=definition if held_back else None,
            **options_of(ChildCallOptions, command),
        )
    )
    child = run.part(Children).open[step]
    turn.record(ChildRunStarted(**identity(child), child_workflow_run_id=child.run_id))
    if not held_back:
        send_start(turn, child, definition)


def send_start(turn: Turn, child: Child, definition: RecordedDefinition | None = None) -> None:
    """Send the start of a child, or ask after it: a child that has started answers with its state."""
    instance, run = turn.instance, turn.run
    scheduled = child.scheduled
    started = run.part(Identity).started
    turn.send(
        instance.namespace,
        scheduled.child_workflow_instance_id,
        StartFromParent(
            workflow_type=scheduled.child_workflow_type,
            run_id=scheduled.child_workflow_run_id,
            arguments=scheduled.arguments,
            routing=scheduled.routing,
            memo=dict(run.part(Memo).values),
            search_attributes=dict(run.part(SearchAttributes).values),
            execution_timeout_seconds=scheduled.timeout_policy.execution_timeout_seconds,
            run_timeout_seconds=scheduled.timeout_policy.run_timeout_seconds,
            definition=definition,
            known_run_number=child.run_number,
            traceparent=None if started is None else started.traceparent,
            parent=Parent(
                namespace=instance.namespace,
                workflow_instance_id=instance.workflow_id,
                workflow_run_id=run.run_id,
                sequence=scheduled.sequence,
                child_call_id=scheduled.child_call_id,
                retry_policy=scheduled.retry_policy,
            ),
        ),
    )


def dispatch(turn: Turn, step: int) -> bool:
    """Start the child of this step, which waited in a bounded group; then send the signals that waited for it."""
    child = turn.run.part(Children).open.get(step)
    if child is not None:
        send_start(turn, child, child.scheduled.definition)
        for signal in child.signals.values():
            signalling.send_signal(turn, child, signal)
    return child is not None


def ask_after(turn: Turn) -> None:
    """Ask after every child that owes an answer: send its start, or its stop, once more; and ask after its signals."""
    run = turn.run
    if not run.is_open:
        for open_child in unanswered(run):
            _enforce(turn, open_child)
        return
    for step, child in run.part(Children).open.items():
        if not groups.held_back(run, step):
            send_start(turn, child)
            signalling.ask_after(turn, child)


def cancel(turn: Turn, command: CancelChild) -> None:
    child = turn.run.part(Children).open.get(command.step)
    if child is not None and groups.held_back(turn.run, command.step):
        _cancel_unstarted(turn, child)
    elif child is not None:
        stop(
            turn,
            child.scheduled.child_call_id,
            child.scheduled.child_workflow_instance_id,
            "request_cancel",
            "the parent no longer waits for it",
            answer=False,
        )


def _cancel_unstarted(turn: Turn, child: Child) -> None:
    """Record a child as cancelled that a bounded group holds back. It was never started, so nothing is sent."""
    turn.record(
        ChildRunCancelled(
            **identity(child),
            child_workflow_run_id=child.run_id,
            child_run_number=child.run_number,
            child_status="cancelled",
            closed_reason="cancelled",
            closed_at=turn.now,
            failure_id=failure_id(turn.run.run_id, turn.run.length + 1),
            failure_category="cancelled",
            message="the parent no longer waits for it",
        )
    )


def cancel_open(turn: Turn) -> None:
    """Cancel the children that bounded groups hold back, because the run is being stopped.

    They come first: the end of another member of the group would start them. Children that have started are treated by
    their policy.
    """
    run = turn.run
    if Children not in run.parts:
        return
    for child in [child for step, child in run.part(Children).open.items() if groups.held_back(run, step)]:
        _cancel_unstarted(turn, child)


# -- reports of children


def receive_child_report(turn: Turn, delivery: Deliver) -> None:
    report = delivery.send.message
    assert isinstance(report, ChildReport)
    run = turn.instance.run
    if run is None or not run.is_open:
        return  # a closed run records nothing of its children
    if run.run_id != report.parent_run_id:
        _close_carried(turn, report)
        return
    child = child_of(run, report.child_call_id)
    if child is None:
        return  # its close is recorded already
    if report.run_number > child.run_number:
        turn.record(
            ChildRunStarted(
                **identity(child),
                child_workflow_run_id=report.run_id,
                child_run_number=report.run_number,
                retry_attempt=report.retry_attempt,
                retry_of_child_workflow_run_id=report.retry_of,
                retry_backoff_seconds=report.retry_backoff_seconds,
            )
        )
    if report.close is not None:
        _close(turn, child, report, report.close)


def _close_carried(turn: Turn, report: ChildReport) -> None:
    """Record that a child of an earlier run of the chain has closed. Its outcome is not used, but it is carried no
    further."""
    close = report.close
    if close is None:
        return
    for child in _inherited(turn.run):
        if child.child_call_id == report.child_call_id:
            turn.record(
                CarriedChildClosed(
                    child_call_id=report.child_call_id,
                    child_workflow_instance_id=child.child_workflow_instance_id,
                    child_workflow_run_id=report.run_id,
                    child_status=close.status,
                    closed_reason=close.closed_reason,
                )
            )


def _close(turn: Turn, child: Child, report: ChildReport, close: Close) -> None:
    fields: dict[str, Any] = {
        **identity(child),
        "child_workflow_run_id": report.run_id,
        "child_run_number": report.run_number,
        "child_status": close.status,
        "closed_reason": close.closed_reason,
        "closed_at": close.closed_at,
    }
    if close.status == "completed":
        turn.record(ChildRunCompleted(**fields, output=close.output))
        return
    kind = {"cancelled": ChildRunCancelled, "terminated": ChildRunTerminated}.get(close.status, ChildRunFailed)
    turn.record(
        kind(
            **fields,
            failure_id=failure_id(turn.run.run_id, turn.run.length + 1),
            failure_category=close.failure_category,
            message=close.message,
            exception_type=close.exception_type,
            exception_class=close.exception_class,
            exception=close.exception,
        )
    )


# -- closing


def run_closed(turn: Turn) -> None:
    """Apply the parent-close policy to every open child, unless the chain goes on."""
    run = turn.run
    if run.closed_reason == "continued":
        return
    for open_child in still_open(run):
        _enforce(turn, open_child)


def unanswered(run: Run) -> list[OpenChild]:
    """The children of a closed run that have not answered yet how they applied the parent-close policy."""
    if run.closed_reason is None or run.closed_reason == "continued":
        return []
    left = still_open(run)
    part = run.parts.get(Children)
    return left if part is None or not left else [child for child in left if child.child_call_id not in part.answered]


def _enforce(turn: Turn, child: OpenChild) -> None:
    policy = child.parent_close_policy
    reason = f"parent workflow {turn.instance.workflow_id} closed: {turn.run.closed_reason} (policy {policy})"
    stop(turn, child.child_call_id, child.child_workflow_instance_id, policy, reason, answer=True)


def still_open(run: Run) -> list[OpenChild]:
    """The open children whose policy is not `abandon`, those of earlier runs of the chain included."""
    inherited = _inherited(run)
    part = run.parts.get(Children)
    if part is None:
        return inherited
    own = [
        OpenChild(
            child_call_id=child.scheduled.child_call_id,
            namespace=child.scheduled.routing.namespace,
            child_workflow_instance_id=child.scheduled.child_workflow_instance_id,
            parent_close_policy=child.scheduled.parent_close_policy,
        )
        for step, child in part.open.items()
        if child.scheduled.parent_close_policy != "abandon" and not groups.held_back(run, step)
    ]
    return [*inherited, *own]


def _inherited(run: Run) -> list[OpenChild]:
    """The children that earlier runs of the chain left open and that have not closed since."""
    started = run.part(Identity).started
    left = [] if started is None else started.open_children
    part = run.parts.get(Children) if left else None
    return left if part is None else [child for child in left if child.child_call_id not in part.gone]


def receive_policy_answer(turn: Turn, delivery: Deliver) -> None:
    answer = delivery.send.message
    assert isinstance(answer, PolicyAnswer)
    run = turn.instance.run
    if run is None or all(child.child_call_id != answer.child_call_id for child in unanswered(run)):
        return
    fields: dict[str, Any] = {
        "child_call_id": answer.child_call_id,
        "child_instance_id": answer.child_instance_id,
        "child_run_id": answer.child_run_id,
        "policy": answer.policy,
        "reason": answer.reason,
    }
    if answer.outcome == "taken":
        turn.record(ParentClosePolicyApplied(**fields))
    elif answer.outcome == "rejected":
        turn.record(ParentClosePolicyFailed(**fields, error=answer.error or "rejected"))
    else:
        run.part(Children).answered.add(answer.child_call_id)  # it had closed by itself: nothing to record


def count_unanswered(run: Run) -> int:
    if run.closed_reason is not None:
        return len(unanswered(run))
    part = run.parts.get(Children)
    return 0 if part is None else len(part.open)


def waits_externally(run: Run) -> bool:
    part = run.parts.get(Children)
    return part is not None and bool(part.open)


def limits(turn: Turn, commands: list[Command]) -> Breach | None:
    starts = [command for command in commands if isinstance(command, StartChildWorkflow)]
    if not starts:
        return None
    bounds = turn.features.limits
    pending = len(turn.run.part(Children).open)
    return over_count("pending_child_count", pending + len(starts), bounds.pending_child_count) or over_count(
        "payload_size", max(len(c.arguments or b"") for c in starts), bounds.payload_size
    )
