"""What every command to an instance has in common: its target, its record, and its request id.

An accepted or rejected command is a durable record with its place in the run's order. A `request_id` makes a retry return
the first outcome; the shell looks the earlier record up and hands it in as `retained`, because it may be of an earlier run.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, ClassVar, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from holdfast.kernel.contract import Errors
from holdfast.kernel.decision import CommandRecord
from holdfast.kernel.event import Context
from holdfast.kernel.limits import Breach
from holdfast.kernel.message import Message, Refused
from holdfast.kernel.state import Run
from holdfast.kernel.turn import Turn
from holdfast.kernel.values import signal_id, update_id


class Commanding(Message, frozen=True, kw_only=True):
    """A command to an instance, or with `run_id` to exactly that run of it."""

    run_id: str | None = None
    request_id: str | None = None
    source: str = "python"
    context: dict[str, Any] = {}
    retained: CommandRecord | None = None

    command_type: ClassVar[str]

    def repeats(self) -> tuple[tuple[str, ...], str] | None:
        return None if self.request_id is None else ((self.command_type,), self.request_id)

    def recalling(self, record: CommandRecord | None) -> Message:
        return replace(self, retained=record)


class Commanded(Struct, frozen=True, kw_only=True):
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
    repeated: bool = False  # answered from the record of an earlier request with the same id


class Rejection(NamedTuple):
    reason: str
    outcome: str | None
    errors: Errors = {}


NOT_STARTED = Rejection("instance_not_started", "rejected_not_started")
NOT_CURRENT = Rejection("selected_run_not_current", "rejected_not_current")
NOT_ACTIVE = Rejection("run_not_active", "rejected_not_active")


def misdirected(turn: Turn, message: Commanding) -> Rejection | None:
    """Why a command cannot reach the current, open run it needs."""
    run = turn.flow.run
    if run is None:
        return NOT_STARTED
    if message.run_id is not None and message.run_id != run.run_id:
        return NOT_CURRENT
    if not run.open:
        return NOT_ACTIVE
    return None


def beyond(breach: Breach | None) -> Rejection | None:
    """What would pass a limit is not accepted."""
    return None if breach is None else Rejection("structural_limit_exceeded", None, {breach.kind: [breach.message]})


def repeated(turn: Turn, message: Commanding, command_type: str, intent: bytes = b"") -> bool:
    """Answer a retry from the record of its first try. The same id for something else is a conflict."""
    before = message.retained
    if before is None:
        return False
    if before.fingerprint != fingerprint(message, command_type, intent):
        raise Refused(
            "request_id_conflict",
            f"request id {message.request_id!r} was used for another {before.command_type} of this workflow",
            field="request_id",
            retained_command_type=before.command_type,
            retained_command_id=before.id,
        )
    turn.reply = _reply(turn, before, repeated=True)
    return True


def fingerprint(message: Commanding, command_type: str, intent: bytes) -> str | None:
    """What was asked, so that one request id cannot mean two things."""
    if message.request_id is None:
        return None
    asked = b"\0".join((command_type.encode(), (message.run_id or "").encode(), intent))
    return f"sha256:{sha256(asked).hexdigest()}"


def reject(turn: Turn, message: Commanding, command_type: str, why: Rejection, **more: Any) -> CommandRecord:
    """Record a rejected command; the run it was meant for does not move."""
    return _record(turn, message, command_type, outcome=why.outcome, status="rejected", why=why, **more)


def accept(turn: Turn, message: Commanding, command_type: str, outcome: str | None, **more: Any) -> CommandRecord:
    return _record(turn, message, command_type, outcome=outcome, status="accepted", why=None, **more)


def cause(command: CommandRecord) -> Context:
    """What events that a command causes remember of it."""
    return Context(command_id=command.id, command_sequence=command.sequence, source=command.source)


def _record(
    turn: Turn,
    message: Commanding,
    command_type: str,
    *,
    outcome: str | None,
    status: str,
    why: Rejection | None,
    target_name: str | None = None,
    payload: bytes | None = None,
    intent: bytes = b"",
    resolved: Run | None = None,
) -> CommandRecord:
    run = resolved or turn.flow.run
    command = turn.command(
        command_type,
        outcome=outcome,
        source=message.source,
        status=status,
        target_scope="instance" if message.run_id is None else "run",
        target_name=target_name,
        requested_run_id=message.run_id,
        resolved_run_id=None if run is None else run.run_id,
        request_id=message.request_id,
        fingerprint=fingerprint(message, command_type, intent),
        rejection_reason=None if why is None else why.reason,
        validation_errors={} if why is None else why.errors,
        context=message.context,
        payload=payload,
    )
    turn.reply = _reply(turn, command)
    return command


def _reply(turn: Turn, command: CommandRecord, *, repeated: bool = False) -> Commanded:
    run_id = command.resolved_run_id
    numbered = command.sequence is not None and run_id is not None
    kind = command.command_type
    return Commanded(
        workflow_id=turn.flow.workflow_id,
        run_id=run_id,
        command_id=command.id,
        command_type=command.command_type,
        command_sequence=command.sequence,
        outcome=command.outcome,
        accepted=command.status == "accepted",
        rejection_reason=command.rejection_reason,
        validation_errors=command.validation_errors,
        target_name=command.target_name,
        requested_run_id=command.requested_run_id,
        signal_id=signal_id(run_id or "", command.sequence or 0) if numbered and kind == "signal" else None,
        update_id=update_id(run_id or "", command.sequence or 0) if numbered and kind == "update" else None,
        repeated=repeated,
    )
