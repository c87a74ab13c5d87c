"""`wait`: `wait(lambda: self.by)` waits until a condition holds, `wait(approved)` for the next signal of a channel.

When a timeout expires, the first returns False and the second None.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, overload

from backstay.kernel.command import Command
from backstay.kernel.feature import Outcome, Plain
from backstay.kernel.features.condition import CancelConditionWait, OpenConditionWait, valid_key
from backstay.kernel.features.signal import CancelSignalWait, OpenSignalWait
from backstay.kernel.task import Block
from backstay.sdk.author.durations import Duration, until
from backstay.sdk.author.handlers import Signal, SignalMethod
from backstay.sdk.author.step import Call, Step
from backstay.sdk.errors import DefinitionError
from backstay.sdk.replay.inbound import Mailbox, OpenCondition, OpenConditions, consume_signal, handlers_of, typed
from backstay.sdk.replay.live_run import LiveRun

T = TypeVar("T")


class ConditionCall(Call[bool]):
    name = "wait()"
    hears = True
    shape = "condition wait"
    detail = None

    def __init__(self, predicate: Callable[[], object], key: str | None, timeout: float | None) -> None:
        if key is not None and not (isinstance(key, str) and valid_key(key)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"condition key {key!r}: use 1 to 128 of A-Z a-z 0-9 . _ : -")
        self.predicate = predicate
        self.key = key
        self.timeout = timeout

    @property
    def fingerprint(self) -> str | None:
        from backstay.sdk.replay.source import predicate_fingerprint

        return predicate_fingerprint(self.predicate)

    def command(self, step: int) -> Command:
        return OpenConditionWait(
            sequence=step,
            condition_key=self.key,
            condition_definition_fingerprint=self.fingerprint,
            timeout_seconds=self.timeout,
        )

    def asked(self, live_run: LiveRun, step: int, answer: Callable[[Outcome], None]) -> Outcome | None:
        def say(value: bool) -> None:
            answer(Plain(value))

        live_run.part(OpenConditions).open[step] = OpenCondition(self.predicate, say)
        return None

    def differs(self, event: Any) -> str | None:
        """Return how the recorded wait differs from that of the code, if it does."""
        if event.condition_key != self.key:
            return f"its key was {event.condition_key!r} and is {self.key!r}"
        recorded, current = event.condition_definition_fingerprint, self.fingerprint
        if recorded is not None and current is not None and recorded != current:
            return "its predicate has changed"
        return None

    def describe(self) -> str:
        return "condition wait" if self.key is None else f"condition wait {self.key}"

    def finish(self, live_run: LiveRun, outcome: Outcome) -> bool:
        assert isinstance(outcome, Plain)
        return bool(outcome.value)

    def cancel(self, live_run: LiveRun, step: int) -> None:
        live_run.part(OpenConditions).open.pop(step, None)
        live_run.emit(CancelConditionWait(step=step))


class SignalCall(Call[Any]):
    hears = True
    shape = "signal wait"

    def __init__(self, signal: Signal[Any], timeout: float | None) -> None:
        self.signal = signal
        self.timeout = timeout
        self.name = f"wait({signal.name!r})"
        self.detail = signal.name

    def command(self, step: int) -> Command:
        return OpenSignalWait(sequence=step, signal_name=self.signal.name, timeout_seconds=self.timeout)

    def asked(self, live_run: LiveRun, step: int, answer: Callable[[Outcome], None]) -> Outcome | None:
        mailbox = live_run.part(Mailbox)
        letters = mailbox.letters.get(self.signal.name)
        if letters:
            return Plain(consume_signal(live_run, step, *letters.popleft()))

        def say(value: Any) -> None:
            answer(Plain(value))

        mailbox.readers.setdefault(self.signal.name, deque()).append((step, say))
        return None

    def describe(self) -> str:
        return f"signal wait {self.signal.name}"

    def finish(self, live_run: LiveRun, outcome: Outcome) -> Any:
        assert isinstance(outcome, Plain)
        try:
            return typed(outcome.value, self.signal.type)
        except Exception as error:
            # As in a handler: the sender is to blame, not the run, so the task fails and the run stays open.
            type_ = getattr(self.signal.type, "__qualname__", self.signal.type)
            block = Block(
                message=f"the value of signal {self.signal.name!r} cannot be read as {type_}: {error}",
                type=type(error).__name__,
                reason="signal_value_unreadable",
            )
        live_run.park(block)
        raise AssertionError("a parked greenlet never continues")

    def cancel(self, live_run: LiveRun, step: int) -> None:
        mailbox = live_run.part(Mailbox)
        readers = mailbox.readers.get(self.signal.name, deque())
        mailbox.readers[self.signal.name] = deque(reader for reader in readers if reader[0] != step)
        live_run.emit(CancelSignalWait(step=step))

    def check(self, live_run: LiveRun) -> None:
        """Refuse a wait for a signal that the workflow does not declare: it could never arrive."""
        handlers = handlers_of(live_run)
        name = self.signal.name
        if name in handlers.signals:
            raise DefinitionError(f"signal {name!r} has a method; wait for what the method changes: wait(lambda: ...)")
        if name not in handlers.channels:
            raise DefinitionError(
                f"signal {name!r} is not declared; name it with @workflow(signals=[...]), or as a class attribute"
                f" {name.replace('-', '_')} = Signal[...]({name!r})"
            )


class Wait:
    """The type of `wait`: `wait(...)` waits; `wait.step(...)` describes the wait."""

    @overload
    def __call__(
        self, predicate: Callable[[], object], /, *, key: str | None = None, timeout: Duration | None = None
    ) -> bool: ...
    @overload
    def __call__(self, signal: Signal[T], /) -> T: ...
    @overload
    def __call__(self, signal: Signal[T], /, *, timeout: Duration) -> T | None: ...
    @overload
    def __call__(self, signal: str, /, *, timeout: Duration | None = None) -> Any: ...
    def __call__(self, what: Any, /, *, key: str | None = None, timeout: Duration | None = None) -> Any:
        return Step(_call(what, key, timeout)).run()

    @overload
    def step(
        self, predicate: Callable[[], object], /, *, key: str | None = None, timeout: Duration | None = None
    ) -> Step[bool]: ...
    @overload
    def step(self, signal: Signal[T], /) -> Step[T]: ...
    @overload
    def step(self, signal: Signal[T], /, *, timeout: Duration) -> Step[T | None]: ...
    @overload
    def step(self, signal: str, /, *, timeout: Duration | None = None) -> Step[Any]: ...
    def step(self, what: Any, /, *, key: str | None = None, timeout: Duration | None = None) -> Step[Any]:
        return Step(_call(what, key, timeout))


def _call(what: Any, key: str | None, timeout: Duration | None) -> Call[Any]:
    seconds = None if timeout is None else until(timeout)
    if isinstance(what, SignalMethod):
        raise TypeError("a signal with a method is waited for by what the method changes: wait(lambda: ...)")
    if isinstance(what, str | Signal):
        if key is not None:
            raise TypeError("key= belongs to a condition; a signal wait goes by the name of its signal")
        return SignalCall(Signal[Any](what) if isinstance(what, str) else what, seconds)  # pyright: ignore[reportUnknownArgumentType]
    if not callable(what):
        raise TypeError(f"wait() takes a function, a Signal or the name of a signal, not {what!r}")
    return ConditionCall(what, key, seconds)


wait = Wait()
"""Wait for a condition (`wait(lambda: self.paid)`) or for the next value of a channel (`wait(letters)`).

When `timeout` expires, a condition gives False and a channel None; otherwise True and the value. `key` is recorded as
the condition's name.
"""
