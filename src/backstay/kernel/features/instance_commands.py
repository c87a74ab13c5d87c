"""The common part of all commands to an instance: a target, a record, and a request id.

An accepted or rejected command leaves a durable record with a number in its run. A retry with the same `request_id`
gets the first outcome, unless that was a temporary rejection. The shell looks up the earlier record and passes it as
`retained`, because it may belong to an earlier run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, ClassVar, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from backstay.kernel import contract
from backstay.kernel.contract import Errors
from backstay.kernel.decision import CommandRecord
from backstay.kernel.event import Context
from backstay.kernel.limits import Breach
from backstay.kernel.message import EarlierRun, Message, Refused
from backstay.kernel.state import Run
from backstay.kernel.turn import Turn
from backstay.kernel.values import run_of, signal_id, update_id


class InstanceCommand(Message, frozen=True, kw_only=True):
    """A command to an instance, or with `run_id` to exactly that run of it. `earlier`: that run, if it is not the current
    one."""

    run_id: str | None = None
    earlier: EarlierRun | None = None
    request_id: str | None = None
    source: str = "python"
    context: dict[str, Any] = {}
    retained: CommandRecord | None = None

    command_type: ClassVar[str]

    def intent(self) -> bytes:
        """The content of the command, beside its type and target."""
        return b""

    def idempotency_key(self) -> tuple[tuple[str, ...], str] | None:
        return None if self.request_id is None else ((self.command_type,), self.request_id)

    def with_record(self, record: CommandRecord | None) -> Message:
        return replace(self, retained=record)


class ReasonedCommand(InstanceCommand, frozen=True, kw_only=True):
    """A command that a person may explain."""

    reason: str | None = None

    def intent(self) -> bytes:
        return (self.reason or "").encode()


class NamedCommand(InstanceCommand, frozen=True, kw_only=True):
    """A command to something that the workflow declares by name.

    `arguments` is the encoded list of `values` (None: they were not decoded); `errors` are those found while decoding
    them.
    """

    name: str
    arguments: bytes | None = None
    values: list[Any] | None = []
    errors: Errors = {}

    def intent(self) -> bytes:
        return self.name.encode() + b"\0" + (self.arguments or b"")


class CommandReply(Struct, frozen=True, kw_only=True):
    """The reply to a command, accepted or rejected."""

    workflow_id: str
    run_id: str | None
    command_id: str
    command_type: str
    command_sequence: int | None
    outcome: str | None
    accepted: bool = True
    rejection_reason: str | None = None
    validation_errors: dict[str, list[str]] = {}
    target_name: str | None = None
    requested_run_id: str | None = None
    signal_id: str | None = None
    update_id: str | None = None
    declared: list[str] = []  # the declared names, if the target is not one of them
    repeated: bool = False  # answered from the record of an earlier request with the same id


class Rejection(NamedTuple):
    """Why a command is rejected. `temporary`: the caller may try again, so it is not recorded under the request id."""

    reason: str
    outcome: str | None
    errors: Errors = {}
    declared: Sequence[str] = ()
    temporary: bool = False


NOT_STARTED = Rejection("instance_not_started", "rejected_not_started")
NOT_CURRENT = Rejection("selected_run_not_current", "rejected_not_current")
NOT_ACTIVE = Rejection("run_not_active", "rejected_not_active")


NOT_LOOKED_AT = "run_not_looked_at"


def earlier_run(turn: Turn, message: InstanceCommand) -> EarlierRun | None:
    """The run before the current one that a command names. The record of the command belongs to it."""
    instance = turn.instance
    if message.run_id is None or instance.run is None or message.run_id == instance.run.run_id:
        return None
    earlier, given = message.earlier, instance.earlier_commands
    if (
        earlier is None
        or earlier.loaded_from != instance.loaded_from
        or (given is not None and given.get(earlier.key, 0) > earlier.commands)
    ):
        raise Refused(NOT_LOOKED_AT, f"run {message.run_id} is no longer the current run; try again")
    return earlier


def target_rejection(turn: Turn, message: InstanceCommand) -> Rejection | None:
    """Why a command cannot reach an open run; None if it can."""
    run = turn.instance.run
    if run is None:
        return NOT_STARTED
    if message.run_id is not None and earlier_run(turn, message) is not None:
        return NOT_CURRENT
    if not run.is_open:
        return NOT_ACTIVE
    return None


def contract_rejection(
    message: NamedCommand, declared: Sequence[str] | None, contracts: Sequence[contract.Contract] | None
) -> Rejection | None:
    """Why the definition that the run was started with does not accept this command. An unknown definition accepts
    any."""
    if declared is None:
        return None
    kind = message.command_type
    if message.name not in declared:
        return Rejection(f"unknown_{kind}", f"rejected_unknown_{kind}", declared=declared)
    errors = message.errors
    found = contract.find(contracts, message.name)
    if not errors and found is not None and message.values is not None:
        errors = contract.check(found, message.values)
    return Rejection(f"invalid_{kind}_arguments", "rejected_invalid_arguments", errors) if errors else None


def limit_rejection(breach: Breach | None) -> Rejection | None:
    """The rejection of a command that would pass a limit."""
    return None if breach is None else Rejection("structural_limit_exceeded", None, {breach.kind: [breach.message]})


def may_accept(turn: Turn, message: InstanceCommand) -> bool:
    """Whether a command may be accepted. If not, this replies: from the record of its first attempt, or with a
    rejection."""
    if answer_retry(turn, message):
        return False
    why = target_rejection(turn, message)
    if why is not None:
        reject(turn, message, why)
    return why is None


def answer_retry(turn: Turn, message: InstanceCommand) -> bool:
    """Reply to a retry from the record of its first attempt. Returns whether it was a retry."""
    before = message.retained
    if before is None:
        return False
    refuse_conflict(before, message.request_id, _fingerprint(message))
    turn.reply = _reply(turn, before, repeated=True)
    return True


def refuse_conflict(before: CommandRecord, request_id: str | None, fingerprint: str | None) -> None:
    """Refuse a request id that was used for another command, or whose record cannot be read."""
    if before.unreadable is not None:
        raise Refused(
            "command_unreadable",
            f"request id {request_id!r} was used for {before.command_type} command {before.sequence} of this workflow,"
            f" whose record cannot be read ({before.unreadable}); describe the workflow to see what became of it,"
            " or ask again with another request id",
            field="request_id",
            retained_command_type=before.command_type,
            retained_command_id=before.id,
        )
    if before.fingerprint != fingerprint:
        raise Refused(
            "request_id_conflict",
            f"request id {request_id!r} was used for another {before.command_type} of this workflow",
            field="request_id",
            retained_command_type=before.command_type,
            retained_command_id=before.id,
        )


def has_route(context: Mapping[str, Any]) -> bool:
    """Whether a command came over HTTP."""
    return bool(context) and "route" in context.get("request", ())


def fingerprint(request_id: str | None, context: Mapping[str, Any], *parts: bytes) -> str | None:
    """A hash of a request, for the record of its command and to compare retries with. None for a command of workflow
    code, of a schedule or of the engine's own process, which has no client that could retry it."""
    if request_id is None and not has_route(context):
        return None
    joined = b"\0".join(parts)
    return f"sha256:{sha256(joined).hexdigest()}"


def _fingerprint(message: InstanceCommand) -> str | None:
    run_id = (message.run_id or "").encode()
    return fingerprint(message.request_id, message.context, message.command_type.encode(), run_id, message.intent())


def reject(turn: Turn, message: InstanceCommand, why: Rejection, **more: Any) -> CommandRecord:
    """Record a rejected command. The run does not change."""
    command = _record(turn, message, outcome=why.outcome, status="rejected", why=why, **more)
    if why.declared:
        turn.reply = replace(turn.reply, declared=list(why.declared))
    return command


def accept(turn: Turn, message: InstanceCommand, outcome: str | None, **more: Any) -> CommandRecord:
    return _record(turn, message, outcome=outcome, status="accepted", why=None, **more)


def cause(command: CommandRecord) -> Context:
    """The context of events that a command causes."""
    return Context(command_id=command.id, command_sequence=command.sequence, source=command.source)


def update_of(command: CommandRecord) -> str:
    """The id of the update of a command."""
    return update_id(run_of(command.id), command.sequence or 0, command.history_length)


def _record(
    turn: Turn,
    message: InstanceCommand,
    *,
    outcome: str | None,
    status: str,
    why: Rejection | None,
    resolved: Run | None = None,
    history_length: int | None = None,
) -> CommandRecord:
    run = resolved or turn.instance.run
    named = message if isinstance(message, NamedCommand) else None
    temporary = why is not None and why.temporary
    command = turn.command(
        message.command_type,
        outcome=outcome,
        source=message.source,
        status=status,
        of=earlier_run(turn, message),
        target_scope="instance" if message.run_id is None else "run",
        target_name=named.name if named is not None else None,
        requested_run_id=message.run_id,
        resolved_run_id=None if run is None else run.run_id,
        request_id=None if temporary else message.request_id,
        fingerprint=_fingerprint(message),
        rejection_reason=None if why is None else why.reason,
        validation_errors={} if why is None else why.errors,
        context=message.context,
        payload=None if named is None else named.arguments,
        history_length=history_length,
    )
    turn.reply = _reply(turn, command)
    return command


def _reply(turn: Turn, command: CommandRecord, *, repeated: bool = False) -> CommandReply:
    numbered = command.sequence is not None and command.resolved_run_id is not None
    kind = command.command_type
    return CommandReply(
        workflow_id=turn.instance.workflow_id,
        run_id=command.resolved_run_id,
        command_id=command.id,
        command_type=command.command_type,
        command_sequence=command.sequence,
        outcome=command.outcome,
        accepted=command.status == "accepted",
        rejection_reason=command.rejection_reason,
        validation_errors=command.validation_errors,
        target_name=command.target_name,
        requested_run_id=command.requested_run_id,
        signal_id=signal_id(run_of(command.id), command.sequence or 0) if numbered and kind == "signal" else None,
        update_id=update_of(command) if numbered and kind == "update" else None,
        repeated=repeated,
    )
