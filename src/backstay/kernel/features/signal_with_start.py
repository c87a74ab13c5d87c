"""Signal with start: one message, two commands. The signal is in history before the first task runs any code.

An open run is signalled; otherwise a run is started and signalled in one decision. The signal is checked first: if it
is not valid, nothing is started.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from backstay.kernel.decision import CommandRecord
from backstay.kernel.feature import Deciding, Feature
from backstay.kernel.features import signal as signals
from backstay.kernel.features.instance_commands import CommandReply, Rejection, answer_retry, contract_rejection, reject
from backstay.kernel.features.signal import DeliverSignal
from backstay.kernel.features.start import Start, StartReply, check_start, start, start_now
from backstay.kernel.message import Message, Refused
from backstay.kernel.turn import Turn


class SignalAndStart(Message, frozen=True, kw_only=True):
    start: Start
    signal: DeliverSignal

    def idempotency_key(self) -> tuple[tuple[str, ...], str] | None:
        return self.signal.idempotency_key()

    def with_record(self, record: CommandRecord | None) -> Message:
        return replace(self, signal=replace(self.signal, retained=record))


class SignalWithStartReply(Struct, frozen=True, kw_only=True):
    """`started` None: the signal was rejected, so nothing was started; or the reply repeats that of an earlier
    attempt."""

    started: StartReply | None
    signalled: CommandReply


def signal_with_start(turn: Turn, message: SignalAndStart) -> None:
    run = turn.instance.run
    if answer_retry(turn, message.signal):
        turn.reply = SignalWithStartReply(started=None, signalled=turn.reply)
        return
    intake = {"intake": {"mode": "signal_with_start", "group_id": turn.ids.ulid()}}
    start_message = replace(
        message.start, duplicate_policy="return_existing_active", context={**message.start.context, **intake}
    )
    signal = replace(message.signal, context={**message.signal.context, **intake})
    check_start(turn, start_message)
    active = run is not None and run.is_open
    definition = start_message.definition
    why = (
        signals.invalid(turn, signal)
        if active
        else contract_rejection(signal, definition and definition.signals, definition and definition.signal_contracts)
        or signals.too_large(turn, signal)
    )
    if why is not None:
        _reject_signal(turn, signal, why)
        return
    if active:
        start(turn, start_message)
    else:
        start_now(turn, start_message)
    started: StartReply = turn.reply
    signals.receive(turn, signal)
    turn.reply = SignalWithStartReply(started=started, signalled=turn.reply)


def _reject_signal(turn: Turn, signal: DeliverSignal, why: Rejection) -> None:
    """Reject the signal, with a record if there is an instance."""
    if not turn.instance.exists:  # there is no instance with an audit trail
        fields: dict[str, object] = {"validation_errors": why.errors, "outcome": why.outcome}
        raise Refused(why.reason, f"signal {signal.name!r} is not valid, so nothing was started", **fields)
    reject(turn, signal, why)
    turn.reply = SignalWithStartReply(started=None, signalled=turn.reply)


FEATURE = Feature(
    name="signal_with_start",
    deciding=Deciding(messages={SignalAndStart: signal_with_start}),
)
