"""The outbox messages of parents and children."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from backstay.kernel.failure import Failure
from backstay.kernel.features.start import Parent, RecordedDefinition
from backstay.kernel.send import OutboxMessage
from backstay.kernel.turn import Turn
from backstay.kernel.values import Micros, Routing, base_namespace


class StartFromParent(OutboxMessage, frozen=True, kw_only=True, omit_defaults=True):
    """Start a child. A child that has started before reports its state, unless the parent knows its newest run."""

    creates = True
    workflow_type: str
    run_id: str
    parent: Parent
    arguments: bytes | None = None
    routing: Routing = Routing()
    memo: dict[str, bytes] = {}
    search_attributes: dict[str, Any] = {}
    execution_timeout_seconds: float | None = None
    run_timeout_seconds: float | None = None
    definition: RecordedDefinition | None = None
    known_run_number: int = 1
    traceparent: str | None = None

    def with_definition(self, define: Callable[[Any, str], Any]) -> OutboxMessage:
        """With the definition of the live workers of its type, if there are any; else that of the parent's worker."""
        _, definition = define(self.routing, self.workflow_type)
        return self if definition is None or definition is self.definition else replace(self, definition=definition)


class SignalFromParent(OutboxMessage, frozen=True, kw_only=True, omit_defaults=True):
    child_call_id: str
    signal_name: str
    request_id: str
    parent_run_id: str
    arguments: bytes | None = None


class AskAfterSignals(OutboxMessage, frozen=True, kw_only=True, omit_defaults=True):
    """Ask which of these signals have arrived: their request ids by their sequence in the parent's history, oldest
    first."""

    child_call_id: str
    request_ids: dict[int, str] = field(name="sent")
    parent_namespace: str
    parent_instance_id: str
    parent_run_id: str

    @property
    def asked_request_ids(self) -> Collection[str]:
        return self.request_ids.values()


class SignalsArrived(OutboxMessage, frozen=True, kw_only=True, omit_defaults=True):
    """The answer: all signals have arrived except the `missing` ones, by their sequence in the parent's history.

    `asked`: the number of signals in the request. `last`: the newest of them. `through`: no signal up to here is
    missing.
    """

    child_call_id: str
    parent_run_id: str
    asked: int
    last: int
    through: int
    missing: list[int] = []


class StopFromParent(OutboxMessage, frozen=True, kw_only=True, omit_defaults=True):
    child_call_id: str
    policy: str
    reason: str
    request_id: str
    parent_namespace: str
    parent_instance_id: str
    parent_run_id: str
    answer: bool


def stop(turn: Turn, call: str, instance: str, policy: str, reason: str, *, answer: bool) -> None:
    """Send a stop to a workflow that this instance has started. A schedule is in another namespace than its
    workflows."""
    turn.send(
        base_namespace(turn.instance.namespace),
        instance,
        StopFromParent(
            child_call_id=call,
            policy=policy,
            reason=reason,
            request_id=f"parent-stop:{call}:{policy}",
            parent_namespace=turn.instance.namespace,
            parent_instance_id=turn.instance.workflow_id,
            parent_run_id=turn.run.run_id,
            answer=answer,
        ),
    )


class PolicyAnswer(OutboxMessage, frozen=True, kw_only=True, omit_defaults=True):
    child_call_id: str
    child_instance_id: str
    policy: str
    reason: str
    outcome: str  # taken | rejected | already_closed
    child_run_id: str | None = None
    error: str | None = None


class Close(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a child ended. `started` False: it never existed, because its start was rejected."""

    status: str
    closed_reason: str
    closed_at: Micros
    output: bytes | None = None
    failure_category: str = "child_workflow"
    message: str = ""
    exception_type: str | None = None
    exception_class: str | None = None
    exception: Failure | None = None
    non_retryable: bool = False
    started: bool = True


class ChildReport(OutboxMessage, frozen=True, kw_only=True, omit_defaults=True):
    """The newest run of a child, and if it is over, how it ended."""

    child_call_id: str
    parent_run_id: str
    run_id: str
    run_number: int
    retry_attempt: int | None = None
    retry_of: str | None = None
    retry_backoff_seconds: float | None = None
    close: Close | None = None
