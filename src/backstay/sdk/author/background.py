"""Background callables: `background(fn, ...)` runs a function of a module as a child of its own.

The child has the type `durable-workflow.async`. The function is sent by name, so it cannot be a lambda or a local function. The
worker that runs the child looks the name up among the functions of the modules that define its workflows, and those that were
registered one by one. A name from a payload is never imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

from backstay.codec.arguments import Signature
from backstay.codec.class_names import Namespace, module_of
from backstay.codec.values import loads
from backstay.kernel.features.start import BACKGROUND
from backstay.sdk.author.child import ChildCall
from backstay.sdk.author.step import Step
from backstay.sdk.author.workflow import WorkflowFn, workflow
from backstay.sdk.errors import DefinitionError, FunctionNotRegistered
from backstay.sdk.replay.live_run import LiveRun

P = ParamSpec("P")
R = TypeVar("R")


class Functions:
    """The functions that this worker can run in the background, by name."""

    def __init__(self) -> None:
        self._added: dict[str, Callable[..., Any]] = {}
        self._modules: dict[str, Namespace] = {}

    def add(self, fn: Callable[..., Any]) -> None:
        self._added[reference(fn)] = fn

    def include(self, module: Namespace) -> None:
        """Add the functions that a module defines; `module` is its globals."""
        self._modules[module["__name__"]] = module

    def find(self, name: str) -> Callable[..., Any]:
        found = self._added.get(name)
        if found is None:
            module = self._modules.get(name.partition(":")[0])
            found = None if module is None else _defined_in(module).get(name)
        if found is None:
            raise FunctionNotRegistered(name)
        return found


def runner(functions: Functions) -> WorkflowFn[[str, bytes], Any]:
    """Return the workflow that runs one of these functions; it is ordinary workflow code."""

    @workflow(type=BACKGROUND, unchecked=True)
    def run_in_background(reference: str, arguments: bytes) -> Any:
        fn = functions.find(reference)
        args, kwargs = Signature(fn).unpack(arguments)
        return fn(*args, **kwargs)

    return run_in_background


_CHILD = runner(Functions())  # only names the type in a call; the worker of the child runs the one in its registry


def _defined_in(module: Namespace) -> Mapping[str, Callable[..., Any]]:
    """Return the functions and static methods that a module defines, by name, without imported and double-underscore names."""
    name = module["__name__"]
    found: dict[str, Callable[..., Any]] = {}
    for value in list(module.values()):
        members: list[Any] = [value]
        if isinstance(value, type) and value.__module__ == name:
            members = [member.__func__ for member in vars(value).values() if isinstance(member, staticmethod)]
        for fn in members:
            if isinstance(fn, FunctionType) and fn.__module__ == name and _is_public(fn.__qualname__):
                found[f"{name}:{fn.__qualname__}"] = fn
    return found


def _is_public(qualname: str) -> bool:
    return "<" not in qualname and not any(part.startswith("__") for part in qualname.split("."))


class BackgroundCall(ChildCall[R]):
    """The call of a background function: a child whose result is the function's."""

    def __init__(self, fn: Callable[..., R], args: Any, kwargs: Any) -> None:
        name = reference(fn)
        self.signature = Signature(fn)
        super().__init__(_CHILD, (name, self.signature.pack_fitting(args, kwargs)), {}, {})

    def finish(self, live_run: LiveRun, outcome: Any) -> R:
        blob = getattr(outcome, "blob", None)
        if blob is not None:
            return loads(blob, self.signature.returns)
        return super().finish(live_run, outcome)


def reference(fn: Any) -> str:
    """Return the name that a function is sent by; `DefinitionError` if it has none."""
    name = getattr(fn, "__qualname__", None)
    code = getattr(fn, "__code__", None)
    if name is None or code is None:
        raise DefinitionError(f"background() takes a function, not {fn!r}")
    if "<" in name:
        raise DefinitionError(
            f"background() cannot take {name}: another process cannot import it by name;"
            " define it at the top of a module"
        )
    if code.co_flags & 0x220:
        raise DefinitionError(f"background() cannot take {name}: it uses `yield`; write straight-line code")
    if code.co_flags & 0x80:
        raise DefinitionError(f"background() cannot take {name}: it is async; make it a workflow and call it")
    found = f"{fn.__module__}:{name}"
    module = module_of(fn)
    if module is None or _defined_in(module).get(found) is not fn:
        raise DefinitionError(f"background() cannot take {fn!r}: another process cannot import it as {found}")
    return found


class Background:
    """The type of `background`: `background(fn, ...)` waits for the result; `background.step(...)` describes the call."""

    def __call__(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.step(fn, *args, **kwargs).run()

    def step(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Step[R]:
        return Step(BackgroundCall(fn, args, kwargs))


background = Background()
"""Run a function of a module as a child workflow and wait for its result, without declaring a workflow.

Raises `DefinitionError` for a lambda or a local function, and `FunctionNotRegistered` if the worker does not know it.
"""
