"""Doubles: what stands in for an activity or a child while a test runs, by its durable type.

A double takes the place of the registered code and nothing else. The call, its options, its retries, its timeouts and its history
are those of the real one. `Fake` is what a test sees of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import update_wrapper
from inspect import iscoroutinefunction
from threading import Lock
from typing import Any, Self, cast

from msgspec import Struct

from backstay.kernel.features.start import BACKGROUND
from backstay.sdk.author.activity import ActivityDefinition as ActivityDefinition
from backstay.sdk.author.attempt import activity_info
from backstay.sdk.author.handlers import Handlers
from backstay.sdk.author.primitives import info
from backstay.sdk.author.wait import wait
from backstay.sdk.author.workflow import WorkflowFn, definition_of
from backstay.sdk.author.workflow_definition import WorkflowDefinition
from backstay.sdk.errors import DefinitionError
from backstay.sdk.worker.registry import Registry


class MadeToFail(Exception):
    """The error of an attempt that `fail_next` made to fail."""


class FakeCall(Struct, frozen=True):
    """One call of a fake: its arguments, the workflow that made it, and the number of the attempt."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    workflow_id: str
    attempt: int


class Fake:
    """What a test sees of a double: the calls that it got. `restore()` puts the real code back."""

    def __init__(self, type: str, restore: Callable[[], None]) -> None:
        self.type = type
        self.calls: list[FakeCall] = []
        """Every attempt, in order."""
        self._restore = restore

    @property
    def count(self) -> int:
        """How often it was called, every attempt counted."""
        return len(self.calls)

    @property
    def arguments(self) -> list[tuple[Any, ...]]:
        """The positional arguments of each call, in order."""
        return [call.args for call in self.calls]

    def restore(self) -> None:
        """Put the real code back."""
        self._restore()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def __repr__(self) -> str:
        return f"<fake of {self.type!r}, called {self.count} times>"


class Behaviour:
    """What a double does: return a value, raise an error, call a function, or hang."""

    NOTHING: Any = object()

    def __init__(self, returns: Any, raises: Any, calls: Callable[..., Any] | None, hangs: bool) -> None:
        said = [
            name
            for name, given in (
                ("returns", returns is not self.NOTHING),
                ("raises", raises is not None),
                ("calls", calls is not None),
                ("hangs", hangs),
            )
            if given
        ]
        if len(said) > 1:
            raise TypeError(f"a fake does one thing: give one of {' and '.join(said)}")
        if calls is not None and not callable(calls):
            raise TypeError(f"calls= takes a function, not {calls!r}; for a value write returns={calls!r}")
        if raises is not None and not _is_error(raises):
            raise TypeError(f"raises= takes an exception or a class of one, not {raises!r}")
        self.value = None if returns is self.NOTHING else returns
        self.error = raises
        self.function = calls
        self.hangs = hangs

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.error is not None:
            raise afresh(self.error)
        return self.value if self.function is None else self.function(*args, **kwargs)


def afresh(error: Any) -> Any:
    """Return an error to raise, without the traceback of the last time that it was raised."""
    return error.with_traceback(None) if isinstance(error, BaseException) else error


def _is_error(thing: Any) -> bool:
    return isinstance(thing, BaseException) or (isinstance(thing, type) and issubclass(thing, BaseException))


DoublesState = tuple[
    dict[str, tuple[Behaviour | None, Fake | None, int, Any]],
    dict[str, tuple[WorkflowDefinition | None, WorkflowDefinition]],
]


class Doubles:
    """The doubles of one app. They are put into its registry, and taken out while the app registers other code."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._activities: dict[str, ActivityDouble] = {}
        self._children: dict[str, tuple[WorkflowDefinition | None, WorkflowDefinition]] = {}
        self.hanging: set[str] = set()
        """The ids of the attempts that hang."""

    def fake(self, target: Any, behaviour: Behaviour) -> Fake:
        kind, type, definition = self._find(target)
        if kind == "workflow":
            return self._fake_child(type, definition, behaviour)
        double = self._double(type, definition)
        fake = Fake(type, lambda: self._behave(double, None, None))
        self._behave(double, behaviour, fake)
        return fake

    def fail_next(self, target: Any, times: int, error: Any) -> None:
        kind, type, definition = self._find(target)
        if kind == "workflow":
            raise TypeError(f"{type!r} is a workflow: to let a child fail write app.fake(..., raises=...)")
        if not _is_error(error):
            raise TypeError(f"error= takes an exception or a class of one, not {error!r}")
        double = self._double(type, definition)
        double.failing = times
        double.error = error

    def take_out(self) -> None:
        """Put the real code back for a while."""
        for double in self._activities.values():
            double.take_out(self._registry)
        for type, (real, _) in self._children.items():
            if real is not None:
                self._registry.workflows[type] = real

    def put_in(self) -> None:
        """Let the doubles stand in for what is registered now."""
        for double in self._activities.values():
            double.put_in(self._registry)
        for type, (_, stand_in) in list(self._children.items()):
            self._children[type] = self._registry.workflows.get(type), stand_in
            self._registry.workflows[type] = stand_in

    def state(self) -> DoublesState:
        """Return what stands in for what, for `restore`."""
        return (
            {type: (one.behaviour, one.fake, one.failing, one.error) for type, one in self._activities.items()},
            dict(self._children),
        )

    def restore(self, state: DoublesState) -> None:
        """Let stand in what stood in then. No fake has been called yet."""
        activities, children = state
        self.take_out()
        for type in set(self._children) - set(children):
            if self._children[type][0] is None:
                del self._registry.workflows[type]
        self._children = dict(children)
        for type, double in self._activities.items():
            double.behaviour, double.fake, double.failing, double.error = activities.get(type, (None, None, 0, None))
            if double.fake is not None:
                double.fake.calls.clear()
        self.put_in()

    # -- activities

    def _double(self, type: str, definition: ActivityDefinition[Any, Any]) -> ActivityDouble:
        double = self._activities.get(type)
        if double is None:
            double = self._activities[type] = ActivityDouble(type, definition, self.hanging)
            double.put_in(self._registry)
        return double

    def _behave(self, double: ActivityDouble, behaviour: Behaviour | None, fake: Fake | None) -> None:
        double.behaviour, double.fake = behaviour, fake
        double.put_in(self._registry)

    # -- children

    def _fake_child(self, type: str, known: WorkflowDefinition, behaviour: Behaviour) -> Fake:
        real = self._children[type][0] if type in self._children else self._registry.workflows.get(type)

        def restore() -> None:
            self._children.pop(type, None)
            if real is None:
                self._registry.workflows.pop(type, None)
            else:
                self._registry.workflows[type] = real

        fake = Fake(type, restore)
        seen: set[tuple[str, int]] = set()

        def heard(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            run = info()
            if (run.run_id, run.attempt) not in seen:  # a replay is no other call
                seen.add((run.run_id, run.attempt))
                fake.calls.append(FakeCall(args, kwargs, run.workflow_id, run.attempt))

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            heard(args, kwargs)
            if behaviour.hangs:
                wait(_never)
            return behaviour(args, kwargs)

        async def async_stand_in(*args: Any, **kwargs: Any) -> Any:
            heard(args, kwargs)
            return await behaviour(args, kwargs)

        entry = async_stand_in if iscoroutinefunction(behaviour.function) else stand_in
        made = WorkflowDefinition(entry, entry, type, queue=known.queue, unchecked=True, is_class=False)
        # Arguments are decoded as those of the real one. What is derived from source has no meaning here.
        vars(made).update(signature=known.signature, handlers=Handlers(), fingerprint=f"fake-{type}")
        self._children[type] = real, made
        self._registry.workflows[type] = made
        return fake

    # -- what is there

    def _find(self, target: Any) -> tuple[str, str, Any]:
        workflows, activities = self._registry.workflows, self._registry.activities
        if isinstance(target, ActivityDefinition):
            found = cast("ActivityDefinition[Any, Any]", target)
            return "activity", found.type, activities.get(found.type, found)
        if isinstance(target, WorkflowFn) or (isinstance(target, type) and "__backstay_workflow__" in vars(target)):
            definition = definition_of(target)
            return "workflow", definition.type, workflows.get(definition.type, definition)
        if isinstance(target, str) and target in activities:
            return "activity", target, activities[target]
        if isinstance(target, str) and target in workflows:
            return "workflow", target, workflows[target]
        known = ", ".join(map(repr, sorted({*activities, *workflows} - {BACKGROUND})))
        raise DefinitionError(
            f"{target!r} is neither an activity nor a workflow that is known here;"
            f" known are: {known or 'none yet, register some first'}"
        )


class ActivityDouble:
    """The double of one activity: it fails as often as it was told to, then does what its fake says, or what the real one does."""

    def __init__(self, type: str, definition: ActivityDefinition[Any, Any], hanging: set[str]) -> None:
        self._type = type
        self._known = definition
        self._hanging = hanging
        self._real: ActivityDefinition[Any, Any] | None = None
        self._made: ActivityDefinition[Any, Any] | None = None
        self._instance: object | None = None
        self._lock = Lock()
        self.behaviour: Behaviour | None = None
        self.fake: Fake | None = None
        self.failing = 0
        self.error: Any = None

    def take_out(self, registry: Registry) -> None:
        if registry.activities.get(self._type) is not self._made:
            return
        if self._real is None:
            registry.activities.pop(self._type, None)
        else:
            registry.activities[self._type] = self._real
        if self._instance is not None:
            registry.instances[self._type] = self._instance
            self._instance = None

    def put_in(self, registry: Registry) -> None:
        self.take_out(registry)
        self._real = registry.activities.get(self._type)
        real = self._known = self._real or self._known
        self._instance = registry.instances.pop(self._type, None)
        behaviour = self.behaviour
        is_async = real.is_async if behaviour is None else behaviour.hangs or iscoroutinefunction(behaviour.function)
        double = self._async_stand_in if is_async else self._stand_in

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            return double(args, kwargs)

        # The place of the real function, so that a registry which gets that again takes it for a new definition of it.
        update_wrapper(stand_in, real.fn)
        made = type(real)(stand_in, real.type, real.given, extern=False, method=False, is_async=is_async)
        made.signature = real.signature
        made.named = real.named
        if behaviour is not None:  # it waits for nothing, unless its author's function does
            made.on_thread = behaviour.function is not None
        self._made = registry.activities[self._type] = made

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        attempt = activity_info()
        if self.fake is not None:
            self.fake.calls.append(FakeCall(args, kwargs, attempt.workflow_id, attempt.number))
        with self._lock:  # attempts run on many threads
            fails = self.failing > 0
            self.failing -= fails
        if fails:
            raise afresh(self.error)

    def _stand_in(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._begin(args, kwargs)
        return self._call(args, kwargs)

    async def _async_stand_in(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._begin(args, kwargs)
        if self.behaviour is not None and self.behaviour.hangs:
            await self._hang()
        return await self._call(args, kwargs)

    async def _hang(self) -> None:
        id = activity_info().attempt_id
        self._hanging.add(id)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._hanging.discard(id)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.behaviour is not None:
            return self.behaviour(args, kwargs)
        if self._real is None:
            raise DefinitionError(f"activity {self._type!r} is not registered, and its fake was taken away")
        fn = self._real.fn
        return (fn if self._instance is None else fn.__get__(self._instance))(*args, **kwargs)


def _never() -> bool:
    return False
