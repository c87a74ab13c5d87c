"""Requests to running workflows: signals, updates, queries, and the operator's commands.

Arguments are the encoded list of positional arguments, or `named` plain values that the contract puts in order. A command
that was rejected is answered with its durable record, not with an error: the client decides what to raise.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar, cast

from msgspec import Struct, defstruct

from backstay.kernel.event import Recorded
from backstay.kernel.features.fork import ForkPlan
from backstay.kernel.features.instance_commands import CommandReply
from backstay.kernel.features.message_stream import MessageReply
from backstay.kernel.features.signal_with_start import SignalWithStartReply
from backstay.kernel.names import Name
from backstay.kernel.operator_command import OperatorCommand
from backstay.kernel.operators import OPERATOR_COMMANDS
from backstay.kernel.values import Micros
from backstay.protocol.requests import Request, StartWorkflow

R = TypeVar("R")

WaitFor = Literal["accepted", "completed"]
UPDATE_WAIT = 10.0
"""Seconds a caller waits for an update unless it says otherwise."""
SIGNAL_WAIT = 10.0
"""Seconds that a query or an update waits at most for signals that were accepted before it."""


class ToInstance(Request[R], frozen=True, kw_only=True):
    """A command to the current run of an instance; with `run_id` it must be that one."""

    workflow_id: str
    namespace: str = "default"
    run_id: str | None = None
    request_id: Name | None = None
    fresh: bool = False  # this request id is new, so no record of an earlier attempt has to be looked up
    source: str = "python"
    context: dict[str, Any] = {}


class AppendMessage(ToInstance[MessageReply], frozen=True, kw_only=True):
    """A message of this id is taken once; `request_id` is made from it."""

    stream_name: str
    message_id: Name
    arguments: bytes | None = None


class SignalWorkflow(ToInstance[CommandReply], frozen=True, kw_only=True):
    signal_name: Name
    arguments: bytes | None = None
    named: dict[str, Any] | None = None


class SignalWithStart(Request[SignalWithStartReply], frozen=True, kw_only=True):
    start: StartWorkflow
    signal_name: Name
    arguments: bytes | None = None
    request_id: Name | None = None
    fresh: bool = False


class UpdateStatus(Struct, frozen=True, kw_only=True):
    """The status of an update. `event` is its `UpdateCompleted`."""

    workflow_id: str
    run_id: str | None
    update_id: str | None
    update_name: str
    update_status: str  # accepted | completed | failed | rejected
    command: CommandReply | None = None
    event: Recorded | None = None
    wait_for: str = "status"
    wait_timed_out: bool = False
    wait_timeout_seconds: float | None = None


class UpdateWorkflow(ToInstance[UpdateStatus], frozen=True, kw_only=True):
    update_name: Name
    arguments: bytes | None = None
    named: dict[str, Any] | None = None
    wait_for: WaitFor = "completed"
    wait_seconds: float | None = UPDATE_WAIT
    after_signals: bool = False  # wait until signals accepted earlier have been applied, instead of being rejected


class GetUpdate(Request[UpdateStatus], frozen=True, kw_only=True):
    """Look an update up, and wait for its end for as long as `wait_seconds` says (None: for ever)."""

    workflow_id: str
    update_id: str
    namespace: str = "default"
    wait_seconds: float | None = 0


class QueryResult(Struct, frozen=True, kw_only=True):
    workflow_id: str
    run_id: str
    query_name: str
    result: bytes


class QueryWorkflow(Request[QueryResult], frozen=True, kw_only=True):
    workflow_id: str
    query_name: Name
    namespace: str = "default"
    run_id: str | None = None
    arguments: bytes | None = None
    named: dict[str, Any] | None = None
    after_signals: bool = False  # wait until signals accepted earlier have been applied, and show their effect


class OperatorRequest(ToInstance[Any], frozen=True, kw_only=True):
    """An operator command to an instance. `OPERATOR` has one class for each, with the fields of its declaration."""


def _request(command: OperatorCommand) -> type[OperatorRequest]:
    fields = [(field.name, str | None, None) for field in command.fields]
    made = defstruct(command.request, fields, bases=(OperatorRequest,), module=__name__, frozen=True, kw_only=True)
    made.__doc__ = command.about()
    return cast(type[OperatorRequest], made)


OPERATOR: dict[str, type[OperatorRequest]] = {name: _request(command) for name, command in OPERATOR_COMMANDS.items()}
"""The request of each operator command, by the name of the command. Its reply is that of the declaration."""


class PlanFork(Request[ForkPlan], frozen=True, kw_only=True):
    """What a fork or a rewind of a run would keep, and what it may do again. Nothing is changed."""

    workflow_id: str
    namespace: str = "default"
    run_id: str | None = None
    at: str | None = None
    set: str | None = None


class Inquiry(Struct, frozen=True, kw_only=True):
    """A query, or the validation of an update, for workflow code that has seen a run up to `cursor`."""

    kind: Literal["query", "validate"]
    namespace: str
    workflow_id: str
    run_id: str
    run_key: int
    run_number: int
    workflow_type: str
    cursor: int
    name: str
    arguments: bytes | None
    at: Micros
