"""Assertions about a history that explain themselves: `assert_history(app, "o-1").did(charge, 42).slept("3d").completed("ok")`.

A chain goes through the history in order. `did`, `slept` and `got` look for the next such step, and others may stand before it.
`then` wants the very next one. When a link fails, both columns are shown: what has happened, and what the test expects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, cast

from msgspec import Struct

from backstay.codec.values import dumps, loads
from backstay.kernel.event import Event, Recorded
from backstay.kernel.features.activity import ActivityScheduled
from backstay.kernel.features.cancel import Stopped
from backstay.kernel.features.child import ChildWorkflowScheduled
from backstay.kernel.features.close import WorkflowCompleted, WorkflowFailed
from backstay.kernel.features.continue_as_new import WorkflowContinuedAsNew
from backstay.kernel.features.deadline import WorkflowTimedOut
from backstay.kernel.features.fork import WorkflowRewound
from backstay.kernel.features.signal import SignalReceived
from backstay.kernel.features.timer import TimerScheduled
from backstay.kernel.features.update import UpdateAccepted
from backstay.kernel.values import SECOND
from backstay.protocol import format
from backstay.sdk.author.activity import ActivityCall
from backstay.sdk.author.activity import ActivityDefinition as ActivityDefinition
from backstay.sdk.author.child import ChildCall
from backstay.sdk.author.durations import Duration, to_seconds
from backstay.sdk.author.handlers import HandlerMethod, Signal, packed
from backstay.sdk.author.step import Step
from backstay.sdk.author.timer import TimerCall
from backstay.sdk.author.workflow import definition_of
from backstay.sdk.client.sync import Client

ANY: Any = object()
"""An argument or result that may be anything."""


class HistoryEntry(Struct, frozen=True):
    """One thing that happened in a run, or that a test expects. `value`: its arguments, length or result, decoded."""

    kind: str
    name: str
    value: Any
    text: str

    def fits(self, happened: HistoryEntry) -> bool:
        """Whether this expected entry is the one that happened."""
        kinds = (self.kind,) if self.kind != "call" else ("activity", "child")
        return (
            happened.kind in kinds
            and self.name in (happened.name, "")
            and (self.value is ANY or self.value == happened.value)
        )


def assert_history(source: Client | Sequence[Recorded], id: str | None = None, /) -> HistoryAssertion:
    """Begin an assertion about a run: `assert_history(app, "order-1")`, or `assert_history(await app.history("order-1"))`."""
    if isinstance(source, Client):
        if id is None:
            raise TypeError("assert_history(app, id) needs the id of a workflow")
        return HistoryAssertion(source.history(id), id)
    if not isinstance(source, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]  # an async app is easily passed
        raise TypeError("with an async app write assert_history(await app.history(id))")
    return HistoryAssertion(source, id or "the workflow")


class HistoryAssertion:
    """A chain of assertions about a history. Each link raises `AssertionError` if it does not hold, else returns the chain."""

    def __init__(self, history: Sequence[Recorded], id: str) -> None:
        self._id = id
        self._entries = [found for entry in history if (found := entry_of(entry.event)) is not None]
        self._next = 0
        self._found: dict[int, str] = {}  # expectations that hold, by the entry that they hold for

    def did(self, target: Any, *args: Any, **kwargs: Any) -> Self:
        """An activity or child was called later on: with these arguments, if any are given."""
        return self._later(_call(target, args, kwargs))

    def slept(self, duration: Duration) -> Self:
        """A `sleep` of this length was begun later on."""
        return self._later(_sleep(to_seconds(duration)))

    def got(self, message: Any, *args: Any, **kwargs: Any) -> Self:
        """A signal or update came later on: with these arguments, if any are given."""
        return self._later(_message(message, args, kwargs))

    def then(self, target: Any, *args: Any, **kwargs: Any) -> Self:
        """The very next thing: a call, a message, or a step, as in `then(sleep.step("3d"))`."""
        expected = _any(target, args, kwargs)
        if self._next < len(self._entries) and expected.fits(self._entries[self._next]):
            return self._hold(self._next, f"then {expected.text}")
        return self._fail(f"then {expected.text}", self._next)

    def never(self, target: Any, *args: Any, **kwargs: Any) -> Self:
        """This is nowhere in the history, neither before nor later."""
        expected = _any(target, args, kwargs)
        for at, entry in enumerate(self._entries):
            if expected.fits(entry):
                return self._fail(f"never {expected.text}", at)
        return self

    def completed(self, result: Any = ANY) -> Self:
        """The run has completed: with this result, if one is given."""
        value, text = (ANY, "completed") if result is ANY else _shown("completed → ", dumps(result))
        return self._ends(HistoryEntry("completed", "", value, text))

    def failed(self, error: type[BaseException] | str | None = None) -> Self:
        """The run has failed: with this exception, or with a message that has this text, if one is given."""
        if error is None:
            return self._ends(HistoryEntry("failed", "", ANY, "failed"))
        name = error if isinstance(error, str) else error.__name__
        last = self._entries[-1] if self._entries else None
        if last is not None and last.kind == "failed" and name in last.text:
            return self._hold(len(self._entries) - 1, f"failed: {name}")
        return self._fail(f"failed: {name}", len(self._entries) - 1)

    def ended(self, how: str) -> Self:
        """The run has ended like this: `cancelled`, `terminated`, `timed out` or `continued as new`."""
        return self._ends(HistoryEntry(how, "", ANY, how))

    def _later(self, expected: HistoryEntry) -> Self:
        for at in range(self._next, len(self._entries)):
            if expected.fits(self._entries[at]):
                return self._hold(at, expected.text)
        return self._fail(expected.text, self._next)

    def _ends(self, expected: HistoryEntry) -> Self:
        at = len(self._entries) - 1
        if at >= self._next and expected.fits(self._entries[at]):
            return self._hold(at, expected.text)
        return self._fail(expected.text, max(at, self._next))

    def _hold(self, at: int, said: str) -> Self:
        self._found[at] = said
        self._next = at + 1
        return self

    def _fail(self, said: str, at: int) -> Self:
        rows = [("what has happened", "what the test expects", " ")]
        for index, entry in enumerate(self._entries):
            expected, mark = self._found.get(index, ""), "✓" if index in self._found else " "
            if index == at:
                rows.append((entry.text, said, "✗") if not expected else (entry.text, f"{expected}; {said}", "✗"))
            else:
                rows.append((entry.text, expected, mark))
        if at not in range(len(self._entries)):
            rows.append(("(nothing more)", said, "✗"))
        width = max(len(left) for left, _, _ in rows)
        table = "\n".join(f"{mark} {left:<{width}} | {right}".rstrip() for left, right, mark in rows)
        raise AssertionError(f"the history of {self._id!r} is not as expected: {said}\n{table}")


# -- what has happened


def entry_of(event: Event) -> HistoryEntry | None:
    """Return what an event says that a test may ask about; None for all others."""
    match event:
        case ActivityScheduled(activity_type=type, activity=activity):
            return HistoryEntry(
                "activity", type, _value(activity.arguments), f"{type}({format.arguments(activity.arguments)})"
            )
        case ChildWorkflowScheduled(child_workflow_type=type, arguments=blob):
            return HistoryEntry("child", type, _value(blob), f"{type}({format.arguments(blob)})")
        case TimerScheduled(timer_kind=None, delay_seconds=seconds):
            return _sleep(seconds)
        case SignalReceived(signal_name=name, arguments=blob):
            return HistoryEntry("signal", name, _value(blob), f"signal {name}({format.arguments(blob)})")
        case UpdateAccepted(update_name=name, arguments=blob):
            return HistoryEntry("update", name, _value(blob), f"update {name}({format.arguments(blob)})")
        case WorkflowCompleted(output=blob):
            value, text = _shown("completed → ", blob)
            return HistoryEntry("completed", "", value, text)
        case WorkflowFailed(message=message, exception_type=type):
            return HistoryEntry("failed", "", ANY, f"failed: {type or 'error'}: {message}")
        case WorkflowTimedOut():
            return HistoryEntry("timed out", "", ANY, "timed out")
        case WorkflowContinuedAsNew():
            return HistoryEntry("continued as new", "", ANY, "continued as new")
        case WorkflowRewound():
            return HistoryEntry("rewound", "", ANY, "rewound")
        case Stopped(closed_reason=reason):
            return HistoryEntry(reason, "", ANY, reason)
        case _:
            return None


def _value(blob: bytes | None) -> Any:
    return [] if blob is None else loads(blob)


def _shown(words: str, blob: bytes | None) -> tuple[Any, str]:
    return (None if blob is None else loads(blob)), f"{words}{format.value(blob)}"


# -- what is expected


def _any(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> HistoryEntry:
    """What `then` and `never` take: a step that describes itself, a message, or what is called."""
    if isinstance(target, Step):
        return _step(target)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(target, Signal | HandlerMethod):
        return _message(target, args, kwargs)
    return _call(target, args, kwargs)


def _step(step: Step[Any]) -> HistoryEntry:
    match step._call:  # pyright: ignore[reportPrivateUsage]  # only tests look into steps
        case TimerCall(seconds=seconds):
            return _sleep(seconds)
        case ActivityCall(definition=definition, args=args, kwargs=kwargs):
            return _expected("activity", definition.type, definition.signature.pack(args, kwargs))
        case ChildCall(type=type, arguments=arguments):
            return _expected("child", type, arguments)
        case _:
            raise TypeError(f"{step!r} is no call of an activity, of a child or of sleep")


def _call(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> HistoryEntry:
    if isinstance(target, str):
        kind, name, pack = "call", target, _packed
    elif isinstance(target, ActivityDefinition):
        activity = cast("ActivityDefinition[Any, Any]", target)
        kind, name, pack = "activity", activity.type, activity.signature.pack
    else:
        definition = definition_of(target)
        kind, name, pack = "child", definition.type, definition.signature.pack
    return _expected(kind, name, pack(args, kwargs) if args or kwargs else None)


def _packed(args: Sequence[Any], kwargs: Any) -> bytes:
    if kwargs:
        raise TypeError("what is named by its type takes positional arguments only")
    return dumps(list(args))


def _message(message: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> HistoryEntry:
    if not args and not kwargs:
        name = message if isinstance(message, str) else message.name
        return HistoryEntry(_kind_of(message), name, ANY, f"{_kind_of(message)} {name}")
    name, blob, _ = packed(message, args, kwargs)
    return HistoryEntry(_kind_of(message), name, _value(blob), f"{_kind_of(message)} {name}({format.arguments(blob)})")


def _kind_of(message: Any) -> str:
    from backstay.sdk.author.handlers import UpdateMethod

    return "update" if isinstance(message, UpdateMethod) else "signal"


def _expected(kind: str, name: str, blob: bytes | None) -> HistoryEntry:
    text = f"{name}(...)" if blob is None else f"{name}({format.arguments(blob)})"
    return HistoryEntry(kind, name, ANY if blob is None else _value(blob), text)


def _sleep(seconds: float) -> HistoryEntry:
    return HistoryEntry("sleep", "", seconds, f"sleep {format.span(round(seconds * SECOND))}")
