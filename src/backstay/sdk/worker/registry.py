"""The registry of a worker: workflows and activities by durable type, exceptions by alias. Conflicts fail at registration.

It also bounds what a name from outside can reach: functions for `background()` and exception classes of the modules that
define registered code. A name from history, a payload or a request is looked up here and nowhere else.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any, cast

from msgspec import Struct

from backstay.codec.exceptions import Exceptions
from backstay.kernel.features.start import BACKGROUND
from backstay.sdk import errors
from backstay.sdk.author.activity import ActivityDefinition as ActivityDefinition
from backstay.sdk.author.background import Functions, runner
from backstay.sdk.author.options import expect
from backstay.sdk.author.workflow import WorkflowFn, definition_of
from backstay.sdk.author.workflow_definition import WorkflowDefinition
from backstay.sdk.errors import DefinitionError, NonDeterminismWarning
from backstay.sdk.replay.guard import Guard, guard_of, watch

__all__ = ["Guard", "Registry", "Types"]


class Types(Struct, frozen=True, kw_only=True):
    """The type map: durable keys for code that was renamed or moved, or that carries no decorator name of its own."""

    workflows: Mapping[str, Any] = {}
    activities: Mapping[str, Any] = {}
    exceptions: Mapping[str, type[BaseException] | str] = {}
    exception_class_aliases: Mapping[str, type[BaseException]] = {}


def code_of(definition: WorkflowDefinition | ActivityDefinition[Any, Any]) -> Any:
    return definition.target if isinstance(definition, WorkflowDefinition) else definition.fn


def redefines(code: Any, before: Any) -> bool:
    """Return whether this is a new definition of the same function or class: from a notebook cell or a reloaded module."""
    return _place(code) == _place(before) and code.__name__ != "<lambda>"


def _place(code: Any) -> tuple[Any, Any]:
    return getattr(code, "__module__", None), getattr(code, "__qualname__", code)


def activity_methods(cls: type[Any]) -> list[ActivityDefinition[Any, Any]]:
    """Return the activities of a class, each once: methods, and activities kept as static methods."""
    found: dict[str, ActivityDefinition[Any, Any]] = {}
    for base in cls.__mro__:
        for value in vars(base).values():
            made = value.__func__ if isinstance(value, staticmethod) else value  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            if isinstance(made, ActivityDefinition):
                found.setdefault(made.type, made)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return list(found.values())


class Registry:
    def __init__(self, types: Types | None = None, guard: Guard = "warn", diagnostics: bool = True) -> None:
        expect("guard", guard)
        types = types or Types()
        self.guard: Guard = guard
        self.workflows: dict[str, WorkflowDefinition] = {}
        self.activities: dict[str, ActivityDefinition[Any, Any]] = {}
        self.instances: dict[str, object] = {}
        self.exceptions = Exceptions(
            types.exceptions, {**errors.MOVED, **types.exception_class_aliases}, [vars(errors)], diagnostics
        )
        self.functions = Functions()
        self._types = types
        self._keys: dict[int, str] = {}
        self._together: set[tuple[str, str]] = set()  # kinds and types registered by the current call
        for key in (*types.workflows, *types.activities):
            expect("type", key, DefinitionError)
        for key, target in types.workflows.items():
            self._workflow(target, key)
        for key, target in types.activities.items():
            self._activity(target, key)

    def register(self, things: Iterable[Any]) -> None:
        """Register definitions. A new definition replaces an earlier one, but not one of the same call."""
        self._together = set()
        if BACKGROUND not in self.workflows:
            self.workflows[BACKGROUND] = definition_of(runner(self.functions))
        for thing in things:
            self._one(thing)

    def _one(self, thing: Any) -> None:
        if isinstance(thing, WorkflowFn) or (isinstance(thing, type) and "__backstay_workflow__" in vars(thing)):
            self._workflow(thing, None)
        elif isinstance(thing, ActivityDefinition):
            self._activity(thing, None)
        elif isinstance(thing, type) and issubclass(thing, Exception):
            self.exceptions.register(thing)
        elif isinstance(thing, FunctionType) and "<" not in thing.__qualname__:
            self.functions.add(thing)
        elif not isinstance(thing, type) and not callable(thing):
            self._methods(thing)
        else:
            raise DefinitionError(
                f"cannot register {thing!r}: it is neither a workflow, an activity, an exception class,"
                " an object with activity methods, nor a function of a module for background()"
            )

    def _methods(self, instance: Any) -> None:
        """Register every activity method of an object; calls run on this instance."""
        methods = activity_methods(cast(type[Any], type(instance)))
        if not methods:
            raise DefinitionError(f"{instance!r} has no methods decorated with @activity")
        for method in methods:
            other = self.instances.get(method.type)
            if other is not None and other is not instance and ("activity", method.type) in self._together:
                raise DefinitionError(
                    f"activity {method.type!r} is a method of {other!r} and of {instance!r}; keep one"
                )
            self._activity(method, None)
            if method.method:
                self.instances[method.type] = instance

    def _workflow(self, target: Any, key: str | None) -> None:
        definition = definition_of(target)
        if key is not None and not definition.named:
            definition.type = key
        self._claim("workflow", key, definition.type, definition.target, self.workflows)
        if self.workflows.get(definition.type) is not definition:
            self._check(definition)
        self.workflows[definition.type] = definition
        for module in definition.modules:
            self.functions.include(module)
            self.exceptions.include(module)

    def _activity(self, target: Any, key: str | None) -> None:
        if not isinstance(target, ActivityDefinition):
            raise DefinitionError(f"{target!r} is not an activity; decorate it with @activity")
        if target.extern:
            return
        if key is not None and not target.named:
            target.type = key
        self._claim("activity", key, target.type, target.fn, self.activities)
        self.activities[target.type] = target
        for module in target.modules:
            self.exceptions.include(module)
        for kind in target.given.get("fatal", ()):
            if isinstance(kind, type) and issubclass(kind, Exception):
                self.exceptions.add(kind)

    def _claim(self, kind: str, key: str | None, own: str, code: object, table: Mapping[str, Any]) -> None:
        """Raise unless the type is free or a new definition replaces it, and the type map agrees with the decorator."""
        name = getattr(code, "__qualname__", repr(code))
        if key is not None and key != own:
            raise DefinitionError(
                f"the type map names {kind} {name} {key!r}, its decorator says {own!r}; make them agree"
            )
        before = self._keys.get(id(code))
        if before is not None and before != own:
            raise DefinitionError(f"{kind} {name} is registered as {before!r} and as {own!r}; use one type key")
        other = table.get(own)
        holder = None if other is None else code_of(other)
        if holder is not None and holder is not code:
            if not redefines(code, holder) or (kind, own) in self._together:
                raise DefinitionError(
                    f"{kind} type {own!r} is claimed by {getattr(holder, '__qualname__', holder)} and by {name};"
                    " give one of them another type"
                )
            self._keys.pop(id(holder), None)
        self._keys[id(code)] = own
        self._together.add((kind, own))

    def _check(self, definition: WorkflowDefinition) -> None:
        if guard_of(definition, self.guard) == "off":
            return
        watch(definition.target)
        from backstay.sdk.author.child import child
        from backstay.sdk.author.gather import gather
        from backstay.sdk.author.primitives import side_effect
        from backstay.sdk.author.race import race
        from backstay.sdk.author.spawn import spawn
        from backstay.sdk.author.timer import sleep
        from backstay.sdk.author.wait import wait
        from backstay.sdk.replay.source import check

        findings = check(
            definition.target,
            name=definition.type,
            blocking=(sleep, wait, gather, race, child),
            recording=(side_effect,),
            deferring=(spawn, wait),
        )
        for finding in findings:
            if finding.severity == "error" or self.guard == "error":
                raise DefinitionError(str(finding))
            # At the place of the finding, not of the registration, for links in editors and filters by module.
            module = definition.entry.__globals__
            warnings.warn_explicit(
                finding.message,
                NonDeterminismWarning,
                finding.file,
                finding.line,
                module.get("__name__"),
                module.setdefault("__warningregistry__", {}),
            )
