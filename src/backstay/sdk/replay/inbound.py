"""What reaches live code from outside: signals, updates, and the conditions that may hold afterwards.

Every handler runs on a strand of its own, to its end, without durable calls. A signal takes effect at its place in history; an
update where its task had looked to; conditions are looked at once everything a task may see has been applied. Code that has
ended hears no more signals, but an update that was accepted before the run closed is still owed its answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from backstay.codec import avro
from backstay.codec.conversion import convert
from backstay.codec.values import dumps
from backstay.kernel.command import Command
from backstay.kernel.event import Recorded
from backstay.kernel.features.child import SignalChildFromUpdate
from backstay.kernel.features.condition import OpenConditionWait, SatisfyConditionWait, TimeOutConditionWait
from backstay.kernel.features.signal import ApplySignal, SignalReceived
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
from backstay.sdk.author.handlers import Handlers, Member
from backstay.sdk.errors import DurableCallRefused, Evicted
from backstay.sdk.replay import workflow_greenlet as greenlets
from backstay.sdk.replay.live_run import Fiber
from backstay.sdk.replay.workflow_greenlet import current_strand
from backstay.sdk.worker.failure_log import update_failed

# -- handlers


class Ran(NamedTuple):
    """How a handler ended."""

    value: Any
    error: BaseException | None


def run_handler(fiber: Fiber, what: str, call: Callable[[], Any]) -> Ran:
    """Run a piece of the author's code to its end, on a strand that may look at the run and not move it."""
    ended: list[Ran] = []

    def job() -> None:
        strand = current_strand()
        assert strand is not None
        strand.readonly = what
        try:
            ended.append(Ran(_to_its_end(what, call()), None))
        except Evicted:
            return
        except BaseException as error:
            ended.append(Ran(None, error))

    greenlets.run(fiber, job)
    if ended:
        return ended[0]
    return Ran(None, DurableCallRefused(f"{what} did not run to its end"))


def _to_its_end(what: str, result: Any) -> Any:
    if not asyncio.iscoroutine(result):
        return result
    try:
        result.send(None)
    except StopIteration as stop:
        return stop.value
    result.close()
    raise DurableCallRefused(
        f"{what} waits for something; a handler runs to its end, so do that in the workflow's body"
    )


def call_member(fiber: Fiber, member: Member[Any, Any], arguments: bytes | None) -> Ran:
    def call() -> Any:
        args, kwargs = member.unpack(arguments)
        return member.bind(fiber.instance)(*args, **kwargs)

    return run_handler(fiber, f"{member.kind} {member.name!r}", call)


def handlers_of(fiber: Fiber) -> Handlers:
    return fiber.handlers or _NONE


_NONE = Handlers()


# -- signals


class Mailbox:
    """Signals that nobody has asked for yet, and who asks, by name."""

    def __init__(self) -> None:
        self.letters: dict[str, deque[tuple[str, bytes | None]]] = {}
        self.readers: dict[str, deque[tuple[int, Callable[[Any], None]]]] = {}


def received(fiber: Fiber, entry: Recorded) -> None:
    event = entry.event
    assert isinstance(event, SignalReceived)
    if fiber.closing is not None:
        return
    member = handlers_of(fiber).signals.get(event.signal_name)
    if member is not None:
        ran = call_member(fiber, member, event.arguments)
        if ran.error is not None:
            # The run is not to blame for what it was told: the task fails and is tried again, with better code one day.
            fiber.block = Block(
                message=f"signal {event.signal_name!r} could not be applied: {type(ran.error).__name__}: {ran.error}",
                type=type(ran.error).__name__,
                reason="signal_handler_failed",
            )
            return
        fiber.drain()
        return
    mailbox = fiber.part(Mailbox)
    readers = mailbox.readers.get(event.signal_name)
    if not readers:
        mailbox.letters.setdefault(event.signal_name, deque()).append((event.signal_id, event.arguments))
        return
    step, answer = readers.popleft()
    answer(take(fiber, step, event.signal_id, event.arguments))
    fiber.drain()


def take(fiber: Fiber, step: int, signal_id: str, arguments: bytes | None) -> Any:
    """This wait gets this signal."""
    value = plain_value(arguments)
    fiber.emit(ApplySignal(step=step, signal_id=signal_id, value=dumps(value)))
    return value


def plain_value(arguments: bytes | None) -> Any:
    """What a wait gets: nothing sent is True, one argument is itself, several are a list."""
    values: Any = None if arguments is None else avro.decode(arguments)
    if values is None or values == []:
        return True
    several = cast(list[Any], values) if isinstance(values, list) else [values]
    return several[0] if len(several) == 1 else several


def typed(value: Any, annotation: Any) -> Any:
    return value if annotation is Any or value is None else convert(value, annotation)


# -- conditions


class Open(NamedTuple):
    predicate: Callable[[], object]
    answer: Callable[[Any], None]


class Conditions:
    """Predicates somebody waits for, by step; `fired` are those whose time is over."""

    def __init__(self) -> None:
        self.open: dict[int, Open] = {}
        self.fired: set[int] = set()


def fired(fiber: Fiber, entry: Recorded) -> None:
    """The timeout of a wait has fired."""
    event = entry.event
    assert isinstance(event, TimerFired)
    if fiber.closing is not None:
        return
    if event.timer_kind == "condition_timeout":
        fiber.part(Conditions).fired.add(event.sequence)
        return
    readers = fiber.part(Mailbox).readers.get(event.signal_name or "")
    for reader in readers or ():
        if reader[0] == event.sequence:
            assert readers is not None
            readers.remove(reader)
            reader[1](None)
            fiber.drain()
            return


def look_at_conditions(fiber: Fiber) -> None:
    """Let every wait end whose condition holds or whose time is over, until nothing moves any more."""
    conditions: Conditions | None = fiber.parts.get(Conditions)
    if conditions is None or not conditions.open:
        return
    conditions.open = {step: wait for step, wait in conditions.open.items() if fiber.awaits(step)}
    moved = True
    while moved and fiber.block is None and fiber.closing is None and not fiber.locals:
        moved = False
        for step, wait in sorted(conditions.open.items()):
            if step in conditions.fired:
                ended: Command = TimeOutConditionWait(step=step)
            elif _holds(fiber, wait.predicate):
                ended = SatisfyConditionWait(step=step)
            else:
                if fiber.block is not None:
                    return
                continue
            del conditions.open[step]
            _say(fiber, step, ended)
            wait.answer(isinstance(ended, SatisfyConditionWait))
            fiber.drain()
            moved = True
            break


def _say(fiber: Fiber, step: int, ended: Command) -> None:
    last = fiber.commands[-1] if fiber.commands else None
    if isinstance(ended, SatisfyConditionWait) and isinstance(last, OpenConditionWait) and last.sequence == step:
        fiber.commands[-1] = replace(last, satisfied=True)  # it held when it was reached: no clock need start
    else:
        fiber.commands.append(ended)


def _holds(fiber: Fiber, predicate: Callable[[], object]) -> bool:
    ran = run_handler(fiber, "a condition", predicate)
    if ran.error is not None:
        fiber.block = Block(
            message=f"a condition raised {type(ran.error).__name__}: {ran.error}",
            type=type(ran.error).__name__,
            reason="condition_failed",
        )
        return False
    return bool(ran.value)


# -- updates


class Asked:
    """Updates that were accepted, and those this code has applied itself. `outbox`: while a handler runs, its signals."""

    def __init__(self) -> None:
        self.accepted: dict[str, UpdateAccepted] = {}
        self.applied: set[str] = set()
        self.outbox: list[tuple[str, str, bytes | None]] | None = None


def outbox(fiber: Fiber, child_call_id: str, signal_name: str, arguments: bytes | None) -> bool:
    """Whether an update handler is running, whose signals to children go with its answer."""
    box = fiber.part(Asked).outbox
    if box is None:
        return False
    box.append((child_call_id, signal_name, arguments))
    return True


def _call_update(
    fiber: Fiber, member: Member[Any, Any], arguments: bytes | None
) -> tuple[Ran, list[tuple[str, str, bytes | None]]]:
    asked = fiber.part(Asked)
    sent: list[tuple[str, str, bytes | None]] = []
    asked.outbox = sent
    try:
        return call_member(fiber, member, arguments), sent
    finally:
        asked.outbox = None


def accepted(fiber: Fiber, entry: Recorded) -> None:
    event = entry.event
    assert isinstance(event, UpdateAccepted)
    fiber.part(Asked).accepted[event.update_id] = event


def applied(fiber: Fiber, entry: Recorded) -> None:
    """Replay: the handler ran here, and changed what it changed."""
    event = entry.event
    assert isinstance(event, UpdateApplied)
    asked = fiber.part(Asked)
    if event.update_id in asked.applied:
        asked.applied.discard(event.update_id)
        return
    member = handlers_of(fiber).updates.get(event.update_name)
    if member is None:
        fiber.block = _diverged(fiber, f"history has update {event.update_name!r}, which the code no longer has")
        return
    ran, _ = _call_update(fiber, member, event.arguments)  # what it sent was sent then
    if ran.error is not None:
        fiber.block = _diverged(fiber, f"update {event.update_name!r} was applied and now raises {ran.error!r}")
        return
    fiber.drain()


def completed(fiber: Fiber, entry: Recorded) -> None:
    event = entry.event
    assert isinstance(event, UpdateCompleted)
    fiber.part(Asked).accepted.pop(event.update_id, None)


def _fits(fiber: Fiber, result: bytes) -> None:
    breach = over_count("payload_size", len(result), fiber.machine.limits.payload_size)
    if breach is not None:
        raise ValueError(breach.message)


def apply_update(fiber: Fiber, update_id: str) -> list[Command]:
    """Run the handler of an accepted update; what it returns or raises is the answer."""
    event = fiber.part(Asked).accepted.get(update_id)
    if event is None:
        # Another process has committed meanwhile: what this task was decided on will not become fact, nor will its outcome.
        fiber.block = Block(message=f"update {update_id} is not in the history that this task was given")
        return []
    member = handlers_of(fiber).updates.get(event.update_name)
    if member is None:
        unknown = f"the code has no update {event.update_name!r}"
        return [FailUpdate(update_id=update_id, message=unknown, exception_type="UnknownUpdate")]
    ran, sent = _call_update(fiber, member, event.arguments)
    error = ran.error
    if error is None:
        try:
            result = dumps(ran.value)
            _fits(fiber, result)
        except Exception as unencodable:
            error = unencodable
        else:
            fiber.part(Asked).applied.add(update_id)
            fiber.drain()
            signals: list[Command] = [
                SignalChildFromUpdate(
                    update_id=update_id, number=number, child_call_id=call, signal_name=name, arguments=arguments
                )
                for number, (call, name, arguments) in enumerate(sent)
            ]
            return [*signals, CompleteUpdate(update_id=update_id, result=result)]
    failure = fiber.exceptions.failure(error)
    update_failed(fiber, event.update_name, error, failure.message)
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


def _diverged(fiber: Fiber, message: str) -> Block:
    return Block(
        message=message,
        type="NonDeterministicReplayError",
        replay_blocked=True,
        reason="history_shape_mismatch",
        workflow_sequence=fiber.step,
        fingerprint=fiber.fingerprint,
    )
