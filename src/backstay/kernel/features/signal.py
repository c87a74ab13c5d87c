"""Signals. Received → Applied, or Rejected (`signal_rejection`). A signal is unapplied exactly while in `Signals.received`.

A signal with a handler is applied when an ordinary workflow task that has seen it closes. One without a handler goes to
a wait of its name: the worker pairs them in the order of history and reports the pairs. A signal without a wait stays
received.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from backstay.kernel import contract
from backstay.kernel.command import Command, StepCommand
from backstay.kernel.event import Context, Event, Recorded, StepEvent, clock
from backstay.kernel.feature import CommandRule, Deciding, Feature, History, Lifecycle, Shape, nothing_to_check
from backstay.kernel.features import timer
from backstay.kernel.features.condition import check_timeout
from backstay.kernel.features.instance_commands import (
    NamedCommand,
    Rejection,
    accept,
    answer_retry,
    cause,
    contract_rejection,
    limit_rejection,
    reject,
    target_rejection,
)
from backstay.kernel.features.start import Identity, WorkflowStarted
from backstay.kernel.limits import Breach, over_count
from backstay.kernel.message import Refused
from backstay.kernel.state import Instance, Run
from backstay.kernel.task import Resume, Task
from backstay.kernel.turn import Turn
from backstay.kernel.values import CODEC, Micros, signal_id, signal_wait_id
from backstay.kernel.words import About, Phrase, Story, Words


class DeliverSignal(NamedCommand, frozen=True, kw_only=True):
    command_type = "signal"


class OpenSignalWait(StepCommand, frozen=True, kw_only=True, omit_defaults=True, tag="open_signal_wait"):
    signal_name: str
    timeout_seconds: float | None = None


class ApplySignal(Command, frozen=True, kw_only=True, omit_defaults=True, tag="apply_signal"):
    """The wait at this step received this signal."""

    step: int
    signal_id: str
    value: bytes | None = None

    @property
    def ends_wait(self) -> bool:
        return True


class CancelSignalWait(Command, frozen=True, kw_only=True, omit_defaults=True, tag="cancel_signal_wait"):
    """The code no longer waits for this signal."""

    step: int


class SignalReceived(Event, frozen=True, kw_only=True, omit_defaults=True):
    workflow_command_id: str
    signal_id: str
    signal_name: str
    signal_wait_id: str
    arguments: bytes | None = None
    payload_codec: str = CODEC


class SignalWaitOpened(StepEvent, frozen=True, kw_only=True, omit_defaults=True):
    signal_name: str
    signal_wait_id: str
    timeout_seconds: float | None = None


class SignalWaitCancelled(StepEvent, frozen=True, kw_only=True, omit_defaults=True):
    signal_name: str
    signal_wait_id: str


class SignalApplied(Event, frozen=True, kw_only=True, omit_defaults=True):
    """`sequence` is the step of the wait that received it; a handler has none."""

    workflow_command_id: str
    signal_id: str
    signal_name: str
    signal_wait_id: str
    sequence: int | None = None
    value: bytes | None = None


class ReceivedSignal(Struct, frozen=True):
    event: SignalReceived
    sequence: int
    context: Context
    handler: bool


class Signals:
    __slots__ = ("received", "since", "waits")

    def __init__(self) -> None:
        self.since: dict[int, Micros] = {}  # when each wait was opened
        self.received: dict[str, ReceivedSignal] = {}  # not applied yet, oldest first
        self.waits: dict[int, SignalWaitOpened] = {}  # one whose timeout has fired is removed when the next opens


def open_waits(run: Run) -> list[SignalWaitOpened]:
    """The waits that a signal could still end, in the order of their steps."""
    waits = run.part(Signals).waits
    if not waits:
        return []
    fired = run.part(timer.Timers).fired
    return [wait for step, wait in waits.items() if step not in fired]


def unapplied(instance: Instance) -> Iterator[SignalReceived]:
    """The accepted signals that are not applied yet, in the order of their commands."""
    for entry in instance.current.part(Signals).received.values():
        yield entry.event
    yield from _buffered(instance)


def _buffered(instance: Instance) -> list[SignalReceived]:
    return [event for event, _ in instance.buffered_events if isinstance(event, SignalReceived)]


def signal(turn: Turn, message: DeliverSignal) -> None:
    if answer_retry(turn, message):
        return
    why = target_rejection(turn, message) or invalid(turn, message)
    if why is not None:
        reject(turn, message, why)
        return
    receive(turn, message)


def invalid(turn: Turn, message: DeliverSignal) -> Rejection | None:
    started = turn.run.part(Identity).started
    declared = None if started is None else started.declared_signals
    contracts = None if started is None else started.declared_signal_contracts
    return contract_rejection(message, declared, contracts) or _too_many(turn) or too_large(turn, message)


def receive(turn: Turn, message: DeliverSignal) -> None:
    """Record an accepted signal."""
    command = accept(turn, message, "signal_received")
    turn.record_or_buffer(
        SignalReceived(
            workflow_command_id=command.id,
            signal_id=signal_id(turn.run.run_id, command.sequence or 0),
            signal_name=message.name,
            signal_wait_id=_wait_for(turn, message.name) or f"signal-command:{command.id}",
            arguments=message.arguments,
        ),
        cause(command),
    )


def _wait_for(turn: Turn, name: str) -> str | None:
    """The id of the open wait that a new signal goes to, unless an earlier signal of that name is unapplied."""
    wait = next((wait for wait in open_waits(turn.run) if wait.signal_name == name), None)
    if wait is None:
        return None
    return None if any(event.signal_name == name for event in unapplied(turn.instance)) else wait.signal_wait_id


def _too_many(turn: Turn) -> Rejection | None:
    waiting = len(turn.run.part(Signals).received) + len(_buffered(turn.instance))
    return limit_rejection(over_count("pending_signal_count", waiting + 1, turn.features.limits.pending_signal_count))


def too_large(turn: Turn, message: DeliverSignal) -> Rejection | None:
    return limit_rejection(over_count("payload_size", len(message.arguments or b""), turn.features.limits.payload_size))


def pending(instance: Instance) -> bool:
    """Whether the code still has to handle a signal."""
    return next(outstanding(instance), None) is not None


def outstanding(instance: Instance) -> Iterator[SignalReceived]:
    """The accepted signals that the code still has to handle: no closed task has seen them, or a wait is open for
    them."""
    if instance.buffered_events:
        yield from _buffered(instance)
    signals = instance.current.part(Signals)
    if not signals.received:
        return
    wanted = {wait.signal_name for wait in open_waits(instance.current)}
    for entry in signals.received.values():
        if entry.sequence > instance.cursor or entry.event.signal_name in wanted:
            yield entry.event


# -- commands of workflow code


def check(turn: Turn, command: OpenSignalWait) -> None:
    if not command.signal_name:
        raise Refused("invalid_commands", "a signal wait needs the name of its signal", field="signal_name")
    check_timeout(command.timeout_seconds)


def open_wait(turn: Turn, command: OpenSignalWait) -> None:
    run = turn.run
    step = run.step + 1
    wait_id = signal_wait_id(run.run_id, step)
    taken_ids = {wait.signal_wait_id for wait in open_waits(run)}
    for event in unapplied(turn.instance):
        # A wait that opens after its signal was accepted takes the wait id of that signal.
        if event.signal_name == command.signal_name and event.signal_wait_id not in taken_ids:
            wait_id = event.signal_wait_id
            break
    turn.record(
        SignalWaitOpened(
            sequence=step,
            signal_name=command.signal_name,
            signal_wait_id=wait_id,
            timeout_seconds=command.timeout_seconds,
        )
    )
    if command.timeout_seconds is not None:
        timer.arm(
            turn,
            step,
            command.timeout_seconds,
            timer_kind="signal_timeout",
            signal_wait_id=wait_id,
            signal_name=command.signal_name,
        )


def check_apply(turn: Turn, command: ApplySignal) -> None:
    entry = turn.run.part(Signals).received.get(command.signal_id)
    if entry is None:
        return  # applied by an earlier completion whose reply was lost
    wait = turn.run.part(Signals).waits.get(command.step) or turn.command_at_step(command.step)
    if not isinstance(wait, SignalWaitOpened | OpenSignalWait):
        raise Refused("invalid_commands", f"step {command.step} waits for no signal", field="step")
    if wait.signal_name != entry.event.signal_name:
        raise Refused(
            "invalid_commands",
            f"step {command.step} waits for {wait.signal_name!r}, not for {entry.event.signal_name!r}",
            field="signal_id",
        )


def apply(turn: Turn, command: ApplySignal) -> None:
    entry = turn.run.part(Signals).received.get(command.signal_id)
    if entry is None:
        return
    timer.disarm(turn, command.step)
    _apply(turn, entry, command.step, command.value)


def give_up(turn: Turn, command: CancelSignalWait) -> None:
    wait = turn.run.part(Signals).waits.get(command.step)
    if wait is not None:
        timer.disarm(turn, command.step)
        turn.record(
            SignalWaitCancelled(sequence=command.step, signal_name=wait.signal_name, signal_wait_id=wait.signal_wait_id)
        )


def mark_seen(turn: Turn, task: Task) -> None:
    """Apply the signals with handlers that an ordinary task had seen: when it closes, the handlers have run."""
    signals = turn.run.parts.get(Signals)
    if signals is None or task.seen is None:
        return
    identity = turn.run.part(Identity)
    for entry in list(signals.received.values()):
        # A definition that was adopted later may say otherwise than the one of when the signal arrived.
        handler = _has_handler(identity.started, entry.event) if identity.adopted else entry.handler
        if handler and entry.sequence <= task.seen:
            _apply(turn, entry, None, None)


def _apply(turn: Turn, entry: ReceivedSignal, step: int | None, value: bytes | None) -> None:
    event = entry.event
    turn.record(
        SignalApplied(
            workflow_command_id=event.workflow_command_id,
            signal_id=event.signal_id,
            signal_name=event.signal_name,
            signal_wait_id=event.signal_wait_id,
            sequence=step,
            value=value,
        )
    )


# -- folds


def _received(run: Run, event: SignalReceived, entry: Recorded) -> None:
    handler = _has_handler(run.part(Identity).started, event)
    run.part(Signals).received[event.signal_id] = ReceivedSignal(event, entry.sequence, entry.context, handler)


def _has_handler(started: WorkflowStarted | None, event: SignalReceived) -> bool:
    """Whether the code handles the signal, rather than waiting for it. With an unknown contract, all are handled."""
    if started is None or started.declared_signals is None:
        return True
    found = contract.find(started.declared_signal_contracts, event.signal_name)
    return found is None or found.get("mode", "handler") == "handler"


def _opened(run: Run, event: SignalWaitOpened, entry: Recorded) -> None:
    signals = run.part(Signals)
    if signals.waits:
        signals.waits = {wait.sequence: wait for wait in open_waits(run)}
        signals.since = {step: at for step, at in signals.since.items() if step in signals.waits}
    signals.waits[event.sequence] = event
    signals.since[event.sequence] = clock(entry)


def _cancelled(run: Run, event: SignalWaitCancelled, entry: Recorded) -> None:
    run.part(Signals).waits.pop(event.sequence, None)


def _applied(run: Run, event: SignalApplied, entry: Recorded) -> None:
    signals = run.part(Signals)
    signals.received.pop(event.signal_id, None)
    if event.sequence is not None:
        signals.waits.pop(event.sequence, None)


def _wake(run: Run, event: SignalReceived, entry: Recorded) -> Resume:
    return Resume(
        workflow_wait_kind="signal",
        open_wait_id=f"signal-application:{event.signal_id}",
        resume_source_kind="workflow_signal",
        resume_source_id=event.signal_id,
        workflow_signal_id=event.signal_id,
        signal_name=event.signal_name,
        signal_wait_id=event.signal_wait_id,
        workflow_command_id=event.workflow_command_id,
        workflow_sequence=entry.sequence,
        workflow_event_type="SignalReceived",
    )


def _carry(run: Run) -> Iterable[tuple[int, Event, Context]]:
    for entry in run.part(Signals).received.values():
        yield entry.sequence, entry.event, entry.context


def _waits_externally(run: Run) -> bool:
    return bool(open_waits(run))


def _limits(turn: Turn, commands: list[Command]) -> Breach | None:
    sizes = [len(c.value or b"") for c in commands if isinstance(c, ApplySignal)]
    return over_count("payload_size", max(sizes), turn.features.limits.payload_size) if sizes else None


def _shape(event: SignalWaitOpened | SignalWaitCancelled) -> Shape:
    return Shape("signal wait", _name)


def _name(event: SignalWaitOpened | SignalWaitCancelled) -> object:
    return event.signal_name


def _say_received(story: Story, event: SignalReceived) -> Phrase:
    return Phrase("✉", f"signal {event.signal_name}({story.form.arguments(event.arguments)}) received")


def _say_waiting(story: Story, event: SignalWaitOpened) -> Phrase:
    story.begin(event.sequence, f"signal {event.signal_name}", outside=True)
    return Phrase("◌", f"waits for signal {event.signal_name}{story.at_most(event.timeout_seconds)}")


def _say_applied(story: Story, event: SignalApplied) -> Phrase:
    if event.sequence is not None:
        story.end(event.sequence)
    return Phrase("✉", f"signal {event.signal_name} applied", "good")


def _say_cancelled(story: Story, event: SignalWaitCancelled) -> Phrase:
    story.end(event.sequence)
    return Phrase("●", f"no longer waits for signal {event.signal_name}", "quiet")


ABOUT = About("signal", "workflow_signal", "signal_id", ("signal_name",))
_ABOUT_WAIT = About("signal", "signal_wait", "signal_wait_id", ("signal_name",))


FEATURE = Feature(
    name="signal",
    deciding=Deciding(
        messages={DeliverSignal: signal},
        commands={
            OpenSignalWait: CommandRule(check, open_wait),
            ApplySignal: CommandRule(check_apply, apply),
            CancelSignalWait: CommandRule(nothing_to_check, give_up),
        },
        limits=_limits,
        on_task_closing=mark_seen,
    ),
    history=History(
        evolve={
            SignalReceived: _received,
            SignalWaitOpened: _opened,
            SignalApplied: _applied,
            SignalWaitCancelled: _cancelled,
        },
        resume={SignalReceived: _wake},
        shapes={SignalWaitOpened: _shape, SignalWaitCancelled: _shape},
    ),
    lifecycle=Lifecycle(
        carry=_carry,
        waits_externally=_waits_externally,
    ),
    words={
        SignalReceived: Words(ABOUT, _say_received),
        SignalWaitOpened: Words(_ABOUT_WAIT, _say_waiting),
        SignalApplied: Words(ABOUT, _say_applied),
        SignalWaitCancelled: Words(_ABOUT_WAIT, _say_cancelled),
    },
)
