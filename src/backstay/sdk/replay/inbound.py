"""Signals and updates in live code, and the conditions that may hold after them.

Every handler runs on its own greenlet, to its end, without durable calls. A signal takes effect at its place in history, an
update after the last event that its task had seen. Conditions are evaluated when all events of a task have been applied. Code
that has ended gets no more signals, but an update that was accepted before the run closed still gets its answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from backstay.codec import avro
from backstay.codec.errors import PayloadError
from backstay.codec.from_plain import convert
from backstay.codec.typenames import allows_null
from backstay.codec.values import dumps
from backstay.kernel import contract
from backstay.kernel.command import Command
from backstay.kernel.event import Recorded
from backstay.kernel.features.child import SignalChildFromUpdate
from backstay.kernel.features.condition import OpenConditionWait, SatisfyConditionWait, TimeOutConditionWait
from backstay.kernel.features.signal import ApplySignal, SignalReceived
from backstay.kernel.features.signal_rejection import INVALID, UNKNOWN, RejectSignal, SignalRejected
from backstay.kernel.features.timer import TimerFired
from backstay.kernel.features.update import (
    CompleteUpdate,
    FailUpdate,
    UpdateAccepted,
    UpdateApplied,
    UpdateCompleted,
)
from backstay.kernel.limits import over_count
from backstay.kernel.task import Block
from backstay.sdk.author.handlers import HandlerMethod, Handlers, Signal
from backstay.sdk.errors import DurableCallRefused, Evicted
from backstay.sdk.replay import workflow_greenlet as greenlets
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.workflow_greenlet import Readonly, current_greenlet
from backstay.sdk.worker.failure_log import update_failed

# -- handlers


class HandlerOutcome(NamedTuple):
    """The value of a handler, or the exception that it raised."""

    value: Any
    error: BaseException | None


def run_handler(live_run: LiveRun, readonly: Readonly, call: Callable[[], Any]) -> HandlerOutcome:
    """Run a handler, condition or validator to its end, on a greenlet that may not make durable calls."""
    ended: list[HandlerOutcome] = []

    def job() -> None:
        greenlet = current_greenlet()
        assert greenlet is not None
        greenlet.readonly = readonly
        try:
            ended.append(HandlerOutcome(_to_its_end(readonly.code, call()), None))
        except Evicted:
            return
        except BaseException as error:
            ended.append(HandlerOutcome(None, error))

    greenlets.run(live_run, job)
    if ended:
        return ended[0]
    return HandlerOutcome(None, DurableCallRefused(f"{readonly.code} did not run to its end"))


def _to_its_end(what: str, result: Any) -> Any:
    if not asyncio.iscoroutine(result):
        return result
    try:
        result.send(None)
    except StopIteration as stop:
        return stop.value
    result.close()
    raise DurableCallRefused(f"{what} waits, which a handler must not do; wait in the workflow's body")


def call_member(
    live_run: LiveRun, member: HandlerMethod[Any, Any], arguments: bytes | None, replayed: bool = True
) -> HandlerOutcome:
    def call() -> Any:
        args, kwargs = member.unpack(arguments)
        return member.bind(live_run.instance)(*args, **kwargs)

    return run_handler(live_run, Readonly(f"{member.kind} {member.name!r}", replayed), call)


def handlers_of(live_run: LiveRun) -> Handlers:
    return live_run.handlers or _NONE


_NONE = Handlers()


# -- signals


class Mailbox:
    """Signals that no wait has consumed yet (`letters`), and open waits for signals (`readers`), by signal name.

    `rejected`: the signals that the events `looked_at` reject.
    """

    def __init__(self) -> None:
        self.letters: dict[str, deque[tuple[str, bytes | None]]] = {}
        self.readers: dict[str, deque[tuple[int, Callable[[Any], None]]]] = {}
        self.rejected: frozenset[str] = frozenset()
        self.looked_at: object = None

    def rejects(self, live_run: LiveRun, event: SignalReceived) -> bool:
        """Return whether history says, further on, that this signal did not fit the code. Code never sees such a signal."""
        ahead = live_run.ahead
        if self.looked_at is not ahead:
            rejections = (entry.event for entry in copy(ahead) if isinstance(entry.event, SignalRejected))
            self.looked_at, self.rejected = ahead, frozenset(one.signal_id for one in rejections)
        return event.signal_id in self.rejected


def on_signal(live_run: LiveRun, entry: Recorded) -> None:
    event = entry.event
    assert isinstance(event, SignalReceived)
    mailbox = live_run.part(Mailbox)
    if live_run.closing is not None or mailbox.rejects(live_run, event):
        return
    handlers = handlers_of(live_run)
    member = handlers.signals.get(event.signal_name)
    if member is not None:
        _handle(live_run, member, event)
        return
    channel = handlers.channels.get(event.signal_name)
    if not live_run.replaying and (misfit := _misfit(live_run, channel, event)) is not None:
        live_run.leading = [*live_run.leading, misfit]
        return
    arguments = event.arguments if channel is None else delivered(channel, event.arguments)
    readers = mailbox.readers.get(event.signal_name)
    if not readers:
        mailbox.letters.setdefault(event.signal_name, deque()).append((event.signal_id, arguments))
        return
    step, answer = readers.popleft()
    answer(consume_signal(live_run, step, event.signal_id, arguments))
    live_run.drain()


def _handle(live_run: LiveRun, member: HandlerMethod[Any, Any], event: SignalReceived) -> None:
    fits = False

    def call() -> Any:
        nonlocal fits
        args, kwargs = member.unpack(event.arguments or _NO_ARGUMENTS)
        fits = True
        return member.bind(live_run.instance)(*args, **kwargs)

    ran = run_handler(live_run, Readonly(f"signal {event.signal_name!r}"), call)
    if ran.error is None:
        live_run.drain()
    elif not fits and not live_run.replaying:
        live_run.leading = [*live_run.leading, _invalid(event, member.contract(), ran.error)]
    else:
        # The run did nothing wrong. The task fails and is tried again, in the end with corrected code.
        live_run.block = Block(
            message=f"signal {event.signal_name!r} could not be applied: {type(ran.error).__name__}: {ran.error}",
            type=type(ran.error).__name__,
            reason="signal_handler_failed",
        )


_NO_ARGUMENTS = avro.encode([])
_NULL = avro.encode([None])


def delivered(channel: Signal[Any], arguments: bytes | None) -> bytes | None:
    """Return the value that a wait for this channel reads. Without a value it is null if the type has null, as the
    contract says."""
    if arguments not in (None, _NO_ARGUMENTS) or channel.type is Any or not allows_null(channel.type):
        return arguments
    return _NULL


def _misfit(live_run: LiveRun, channel: Signal[Any] | None, event: SignalReceived) -> RejectSignal | None:
    """Return the rejection of a signal without a handler that no wait of the code can take.

    Such a signal was accepted because the run had no contract then, or that of other code; or because a class in the code
    wants more than a contract can say.
    """
    if channel is None:
        adopts = live_run.adopts
        declared = live_run.assignment.started.declared_signals if adopts is None else adopts.signals
        if declared is None or event.signal_name in declared:
            return None
        return RejectSignal(signal_id=event.signal_id, rejection_reason=UNKNOWN)
    wanted = channel.type
    if wanted is Any:
        return None
    values = _positional(event.arguments)
    if len(values) == 1 and type(values[0]) is wanted:
        return None  # as mostly: it is already what the channel wants
    # The contract is stricter than the conversion: `Signal[int]` takes no null, and one value only.
    if errors := contract.check(channel.contract(), values):
        return RejectSignal(signal_id=event.signal_id, rejection_reason=INVALID, validation_errors=errors)
    value = delivered(channel, event.arguments)
    ran = run_handler(live_run, Readonly(f"signal {channel.name!r}"), lambda: typed(plain_value(value), wanted))
    return None if ran.error is None else _invalid(event, channel.contract(), ran.error)


def _positional(arguments: bytes | None) -> list[Any]:
    values: Any = [] if arguments is None else avro.decode(arguments)
    return cast(list[Any], values) if isinstance(values, list) else [values]


def _invalid(event: SignalReceived, declared: contract.Contract, error: BaseException) -> RejectSignal:
    errors = contract.check(declared, _positional(event.arguments))
    said = error.problem if isinstance(error, PayloadError) else str(error)
    return RejectSignal(
        signal_id=event.signal_id, rejection_reason=INVALID, validation_errors=errors or {contract.SURPLUS: [said]}
    )


def consume_signal(live_run: LiveRun, step: int, signal_id: str, arguments: bytes | None) -> Any:
    """Answer a wait with a signal, and record that. Returns the signal's value."""
    value = plain_value(arguments)
    live_run.emit(ApplySignal(step=step, signal_id=signal_id, value=dumps(value)))
    return value


def plain_value(arguments: bytes | None) -> Any:
    """Return the value of a signal: True without arguments, one argument itself, several as a list."""
    values: Any = None if arguments is None else avro.decode(arguments)
    if values is None or values == []:
        return True
    several = cast(list[Any], values) if isinstance(values, list) else [values]
    return several[0] if len(several) == 1 else several


def typed(value: Any, annotation: Any) -> Any:
    return value if annotation is Any or value is None else convert(value, annotation)


# -- conditions


class OpenCondition(NamedTuple):
    predicate: Callable[[], object]
    answer: Callable[[Any], None]


_CONDITION = Readonly("a condition")


class OpenConditions:
    """The conditions that code waits for, by step; `fired` are the steps whose timeout has expired."""

    def __init__(self) -> None:
        self.open: dict[int, OpenCondition] = {}
        self.fired: set[int] = set()


def on_wait_timeout(live_run: LiveRun, entry: Recorded) -> None:
    """Apply the timeout of a wait for a signal or a condition."""
    event = entry.event
    assert isinstance(event, TimerFired)
    if live_run.closing is not None:
        return
    if event.timer_kind == "condition_timeout":
        live_run.part(OpenConditions).fired.add(event.sequence)
        return
    readers = live_run.part(Mailbox).readers.get(event.signal_name or "")
    for reader in readers or ():
        if reader[0] == event.sequence:
            assert readers is not None
            readers.remove(reader)
            reader[1](None)
            live_run.drain()
            return


def look_at_conditions(live_run: LiveRun) -> None:
    """End every wait whose condition holds or whose timeout expired, until no further wait ends."""
    conditions: OpenConditions | None = live_run.parts.get(OpenConditions)
    if conditions is None or not conditions.open:
        return
    conditions.open = {step: wait for step, wait in conditions.open.items() if live_run.awaits(step)}
    moved = True
    while moved and live_run.block is None and live_run.closing is None and not live_run.locals:
        moved = False
        for step, wait in sorted(conditions.open.items()):
            if step in conditions.fired:
                ended: Command = TimeOutConditionWait(step=step)
            elif _holds(live_run, wait.predicate):
                ended = SatisfyConditionWait(step=step)
            else:
                if live_run.block is not None:
                    return
                continue
            del conditions.open[step]
            _say(live_run, step, ended)
            wait.answer(isinstance(ended, SatisfyConditionWait))
            live_run.drain()
            moved = True
            break


def _say(live_run: LiveRun, step: int, ended: Command) -> None:
    last = live_run.commands[-1] if live_run.commands else None
    if isinstance(ended, SatisfyConditionWait) and isinstance(last, OpenConditionWait) and last.sequence == step:
        live_run.commands[-1] = replace(last, satisfied=True)  # it held when it was reached, so no timer is started
    else:
        live_run.commands.append(ended)


def _holds(live_run: LiveRun, predicate: Callable[[], object]) -> bool:
    ran = run_handler(live_run, _CONDITION, predicate)
    if ran.error is not None:
        live_run.block = Block(
            message=f"a condition raised {type(ran.error).__name__}: {ran.error}",
            type=type(ran.error).__name__,
            reason="condition_failed",
        )
        return False
    return bool(ran.value)


# -- updates


class UpdatesInHand:
    """Accepted updates, and the ids of those that this code has applied. `outbox`: the signals to children of a running handler."""

    def __init__(self) -> None:
        self.accepted: dict[str, UpdateAccepted] = {}
        self.applied: set[str] = set()
        self.outbox: list[tuple[str, str, bytes | None]] | None = None


def outbox(live_run: LiveRun, child_call_id: str, signal_name: str, arguments: bytes | None) -> bool:
    """Keep a signal to a child if an update handler is running, to send it with the answer. Returns whether one is."""
    box = live_run.part(UpdatesInHand).outbox
    if box is None:
        return False
    box.append((child_call_id, signal_name, arguments))
    return True


def _call_update(
    live_run: LiveRun, member: HandlerMethod[Any, Any], arguments: bytes | None
) -> tuple[HandlerOutcome, list[tuple[str, str, bytes | None]]]:
    asked = live_run.part(UpdatesInHand)
    sent: list[tuple[str, str, bytes | None]] = []
    asked.outbox = sent
    try:
        return call_member(live_run, member, arguments), sent
    finally:
        asked.outbox = None


def accepted(live_run: LiveRun, entry: Recorded) -> None:
    event = entry.event
    assert isinstance(event, UpdateAccepted)
    live_run.part(UpdatesInHand).accepted[event.update_id] = event


def applied(live_run: LiveRun, entry: Recorded) -> None:
    """Run the handler of a recorded update in a replay, for its effect on the state."""
    event = entry.event
    assert isinstance(event, UpdateApplied)
    asked = live_run.part(UpdatesInHand)
    if event.update_id in asked.applied:
        asked.applied.discard(event.update_id)
        return
    if live_run.closing is not None:
        # Other code took the update while it waited for something. The answer is given, so the effect must not be lost.
        ended = f"history has update {event.update_name!r}, which the code does not take before it ends"
        live_run.block = _diverged(live_run, ended)
        return
    member = handlers_of(live_run).updates.get(event.update_name)
    if member is None:
        live_run.block = _diverged(live_run, f"history has update {event.update_name!r}, which the code no longer has")
        return
    ran, _ = _call_update(live_run, member, event.arguments)  # its signals were sent when it was live
    if ran.error is not None:
        live_run.block = _diverged(live_run, f"update {event.update_name!r} was applied and now raises {ran.error!r}")
        return
    live_run.drain()


def completed(live_run: LiveRun, entry: Recorded) -> None:
    event = entry.event
    assert isinstance(event, UpdateCompleted)
    live_run.part(UpdatesInHand).accepted.pop(event.update_id, None)


def _fits(live_run: LiveRun, result: bytes) -> None:
    breach = over_count("payload_size", len(result), live_run.machine.limits.payload_size)
    if breach is not None:
        raise ValueError(breach.message)


def apply_update(live_run: LiveRun, update_id: str) -> list[Command]:
    """Run the handler of an accepted update and make its result or exception the answer."""
    event = live_run.part(UpdatesInHand).accepted.get(update_id)
    if event is None:
        # Another process has committed meanwhile: the acceptance that this task is for was not written, nor will its outcome be.
        live_run.block = Block(message=f"update {update_id} is not in the history that this task was given")
        return []
    member = handlers_of(live_run).updates.get(event.update_name)
    if member is None:
        unknown = f"the code has no update {event.update_name!r}"
        return [FailUpdate(update_id=update_id, message=unknown, exception_type="UnknownUpdate")]
    ran, sent = _call_update(live_run, member, event.arguments)
    error = ran.error
    if error is None:
        try:
            result = dumps(ran.value)
            _fits(live_run, result)
        except Exception as unencodable:
            error = unencodable
        else:
            live_run.part(UpdatesInHand).applied.add(update_id)
            live_run.drain()
            signals: list[Command] = [
                SignalChildFromUpdate(
                    update_id=update_id, number=number, child_call_id=call, signal_name=name, arguments=arguments
                )
                for number, (call, name, arguments) in enumerate(sent)
            ]
            return [*signals, CompleteUpdate(update_id=update_id, result=result)]
    failure = live_run.exceptions.failure(error)
    update_failed(live_run, event.update_name, error, failure.message)
    return [
        FailUpdate(
            update_id=update_id,
            message=failure.message,
            exception_type=failure.exception_type,
            exception_class=failure.exception_class,
            exception=failure,
            non_retryable=failure.non_retryable,
        )
    ]


def _diverged(live_run: LiveRun, message: str) -> Block:
    return Block(
        message=message,
        type="NonDeterministicReplayError",
        replay_blocked=True,
        reason="history_shape_mismatch",
        workflow_sequence=live_run.step,
        fingerprint=live_run.fingerprint,
    )
