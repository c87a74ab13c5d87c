"""The child's side: it is started by a parent, reports its state, is retried, and receives signals and stops.

A child is an ordinary instance. Its `WorkflowStarted` makes it a child, also after continue as new.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from backstay.kernel.features.cancel import Cancel, Stopped, Terminate
from backstay.kernel.features.cancel import cancel as cancel_run
from backstay.kernel.features.cancel import terminate as terminate_run
from backstay.kernel.features.child.messages import (
    AskAfterSignals,
    ChildReport,
    Close,
    PolicyAnswer,
    SignalFromParent,
    SignalsArrived,
    StartFromParent,
    StopFromParent,
)
from backstay.kernel.features.close import WorkflowCompleted, WorkflowFailed
from backstay.kernel.features.deadline import WorkflowTimedOut
from backstay.kernel.features.delivery import Deliver
from backstay.kernel.features.instance_commands import CommandReply
from backstay.kernel.features.memo import Memo
from backstay.kernel.features.search import SearchAttributes
from backstay.kernel.features.signal import DeliverSignal
from backstay.kernel.features.signal import signal as signal_run
from backstay.kernel.features.start import (
    Identity,
    Parent,
    Start,
    WorkflowStarted,
    definition_of,
    open_run,
    parent_of,
    start_now,
)
from backstay.kernel.features.update import UpdateAccepted, UpdateRejected
from backstay.kernel.message import Refused
from backstay.kernel.state import Run
from backstay.kernel.turn import Turn
from backstay.kernel.values import SECOND


def receive_start(turn: Turn, delivery: Deliver) -> None:
    message = delivery.send.message
    assert isinstance(message, StartFromParent)
    start_once(turn, delivery, start_of(turn, message))


def start_once(turn: Turn, delivery: Deliver, start: Start) -> bool:
    """Start the run of a call, unless it has started before. Returns whether it was started now."""
    message = delivery.send.message
    assert isinstance(message, StartFromParent)
    instance = turn.instance
    if instance.run is not None:
        own = _parent(instance.run)
        if own is not None and own.child_call_id == message.parent.child_call_id:
            _report_state(turn, own, message.known_run_number)
        else:
            _reject_start(turn, message, f"workflow {instance.workflow_id} belongs to another call")
        return False
    if delivery.unwritable is not None:
        _reject_start(turn, message, f"its rows could not be written: {delivery.unwritable}")
        return False
    try:
        start_now(turn, start, message.run_id)
    except Refused as refusal:
        _reject_start(turn, message, refusal.message)
        return False
    return True


def start_of(turn: Turn, message: StartFromParent) -> Start:
    parent = message.parent
    return Start(
        namespace=turn.instance.namespace,
        workflow_id=turn.instance.workflow_id,
        workflow_type=message.workflow_type,
        arguments=message.arguments,
        routing=message.routing,
        memo=message.memo,
        search_attributes=message.search_attributes,
        execution_timeout_seconds=message.execution_timeout_seconds,
        run_timeout_seconds=message.run_timeout_seconds,
        definition=message.definition,
        source="workflow",
        context=_called_by(parent),
        parent=parent,
        traceparent=message.traceparent,
    )


def _called_by(parent: Parent) -> dict[str, Any]:
    """The context of the start of a child: the run and step of its parent."""
    return {
        "workflow": {
            "parent_instance_id": parent.workflow_instance_id,
            "parent_run_id": parent.workflow_run_id,
            "sequence": parent.sequence,
            "child_call_id": parent.child_call_id,
        }
    }


def _reject_start(turn: Turn, message: StartFromParent, why: str) -> None:
    """Report to the parent that the run it named has failed: the call cannot be started."""
    parent = message.parent
    close = Close(
        status="failed",
        closed_reason="failed",
        closed_at=turn.now,
        message=f"the child was not started: {why}",
        started=False,
        exception_type="ChildNotStarted",
        non_retryable=True,
    )
    turn.send(
        parent.namespace,
        parent.workflow_instance_id,
        ChildReport(
            child_call_id=parent.child_call_id,
            parent_run_id=parent.workflow_run_id,
            run_id=message.run_id,
            run_number=1,
            close=close,
        ),
    )


def _report_state(turn: Turn, parent: Parent, known_run_number: int) -> None:
    run = turn.run
    if not run.is_open:
        _report(turn, parent, run, close_of(run))
    elif run.number > known_run_number:
        _report(turn, parent, run, None)


def _parent(run: Run) -> Parent | None:
    found = run.part(Identity).started
    return None if found is None else parent_of(found)


def run_closed(turn: Turn) -> None:
    """Retry a child's run that has closed, if its policy says so; otherwise report the close to the parent."""
    run = turn.run
    before = run.part(Identity).started
    parent = None if before is None else parent_of(before)
    if before is None or parent is None:
        return
    if run.closed_reason in ("continued", "rewound"):
        return  # the next run reports when it opens (`run_continued`)
    close = close_of(run)
    if run.status == "failed" and _may_retry(parent, close):
        _retry(turn, run, before, parent)
    else:
        _report(turn, parent, run, close)


def _may_retry(parent: Parent, close: Close) -> bool:
    policy = parent.retry_policy
    if policy is None or close.non_retryable:
        return False  # the execution timeout, which is for all attempts together, is not retryable either
    if policy.max_attempts is not None and parent.retry_attempt >= policy.max_attempts:
        return False
    return not {close.exception_type, close.exception_class} & set(policy.non_retryable_error_types)


def _retry(turn: Turn, old: Run, before: WorkflowStarted, parent: Parent) -> None:
    """Open the next run in the commit that failed the last one. The parent records the run, which does not wake its
    code."""
    policy = parent.retry_policy
    assert policy is not None
    pause = policy.backoff(parent.retry_attempt)
    # The next run receives the events that this one had not handled. Updates have failed with this run.
    buffered = [
        entry for entry in turn.instance.buffered_events if not isinstance(entry[0], UpdateAccepted | UpdateRejected)
    ]
    turn.instance.buffered_events = [*turn.features.carried(old), *buffered]
    for task_id in list(turn.instance.tasks):
        turn.drop_task(task_id)
    next_try = replace(parent, retry_attempt=parent.retry_attempt + 1)
    new = turn.new_run()
    open_run(
        turn,
        new,
        Start(
            namespace=turn.instance.namespace,
            workflow_id=turn.instance.workflow_id,
            workflow_type=before.workflow_type,
            arguments=before.arguments,
            routing=before.routing,
            memo=old.part(Memo).values,
            search_attributes=old.part(SearchAttributes).values,
            execution_timeout_seconds=before.execution_timeout_seconds,
            run_timeout_seconds=before.run_timeout_seconds,
            definition=definition_of(before),
            source="workflow",
            context=_called_by(next_try),
            parent=next_try,
            delay=pause,
            traceparent=before.traceparent,
        ),
        execution_deadline_at=before.execution_deadline_at,
        continued_from_run_id=None,
        retry_of=old.run_id,
    )
    _report(turn, next_try, new, None, retry_of=old.run_id, backoff=pause / SECOND)


def run_continued(turn: Turn) -> None:
    """Report to the parent the next run of a child that has continued as new."""
    parent = _parent(turn.run)
    if parent is not None:
        _report(turn, parent, turn.run, None)


def _report(
    turn: Turn,
    parent: Parent,
    run: Run,
    close: Close | None,
    *,
    retry_of: str | None = None,
    backoff: float | None = None,
) -> None:
    turn.send(
        parent.namespace,
        parent.workflow_instance_id,
        ChildReport(
            child_call_id=parent.child_call_id,
            parent_run_id=parent.workflow_run_id,
            run_id=run.run_id,
            run_number=run.number,
            retry_attempt=parent.retry_attempt if retry_of is not None else None,
            retry_of=retry_of,
            retry_backoff_seconds=backoff,
            close=close,
        ),
    )


# -- messages from the parent


def receive_signal(turn: Turn, delivery: Deliver) -> None:
    message = delivery.send.message
    assert isinstance(message, SignalFromParent)
    if delivery.retained is None and _belongs_to_call(turn, message.child_call_id):  # a record: it has arrived before
        signal_run(
            turn,
            DeliverSignal(
                name=message.signal_name,
                arguments=message.arguments,
                request_id=message.request_id,
                source="workflow",
                context={"workflow": {"parent_run_id": message.parent_run_id, "child_call_id": message.child_call_id}},
                values=None,
            ),
        )


def receive_ask_after_signals(turn: Turn, delivery: Deliver) -> None:
    message = delivery.send.message
    assert isinstance(message, AskAfterSignals)
    if not _belongs_to_call(turn, message.child_call_id):
        return
    missing = [sequence for sequence, request_id in message.request_ids.items() if request_id not in delivery.known]
    last = max(message.request_ids)
    turn.send(
        message.parent_namespace,
        message.parent_instance_id,
        SignalsArrived(
            child_call_id=message.child_call_id,
            parent_run_id=message.parent_run_id,
            asked=len(message.request_ids),
            last=last,
            through=missing[0] - 1 if missing else last,
            missing=missing,
        ),
    )


def receive_stop(turn: Turn, delivery: Deliver) -> None:
    message = delivery.send.message
    assert isinstance(message, StopFromParent)
    outcome, error = "already_closed", None
    if not _belongs_to_call(turn, message.child_call_id):
        outcome, error = "rejected", "the child belongs to another call"
    elif delivery.retained is not None:
        before = delivery.retained
        outcome, error = ("rejected", before.rejection_reason) if before.status == "rejected" else ("taken", None)
    elif turn.run.is_open:
        stop = Cancel if message.policy == "request_cancel" else Terminate
        command = stop(
            reason=message.reason,
            request_id=message.request_id,
            source="workflow",
            context={"workflow": {"parent_run_id": message.parent_run_id, "child_call_id": message.child_call_id}},
        )
        if isinstance(command, Cancel):
            cancel_run(turn, command)
        else:
            terminate_run(turn, command)
        reply: CommandReply = turn.reply
        outcome, error = ("taken", None) if reply.accepted else ("rejected", reply.rejection_reason)
    if message.answer:
        turn.send(
            message.parent_namespace,
            message.parent_instance_id,
            PolicyAnswer(
                child_call_id=message.child_call_id,
                child_instance_id=turn.instance.workflow_id,
                child_run_id=None if turn.instance.run is None else turn.run.run_id,
                policy=message.policy,
                reason=message.reason,
                outcome=outcome,
                error=error,
            ),
        )


def _belongs_to_call(turn: Turn, call: str) -> bool:
    run = turn.instance.run
    parent = None if run is None else _parent(run)
    return parent is not None and parent.child_call_id == call


def close_of(run: Run) -> Close:
    """How a run closed, from its terminal event."""
    base = Close(status=run.status, closed_reason=run.closed_reason or "", closed_at=run.closed_at or 0)
    match run.ended_by:
        case WorkflowCompleted(output=output):
            return replace(base, output=output)
        case WorkflowFailed() as failed:
            return replace(
                base,
                message=failed.message,
                exception_type=failed.exception_type,
                exception_class=failed.exception_class,
                exception=failed.exception,
                non_retryable=failed.non_retryable,
            )
        case WorkflowTimedOut(message=message, timeout_kind=kind):
            return replace(
                base,
                failure_category="timeout",
                message=message,
                exception_type="WorkflowTimedOut",
                non_retryable=kind == "execution_timeout",
            )
        case Stopped(message=message):
            return replace(base, failure_category=base.closed_reason, message=message)
        case _:
            return base
