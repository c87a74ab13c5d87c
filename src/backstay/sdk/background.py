"""Background callables: `background(fn, ...)` runs an importable function as a child of its own.

It is a child of the package's type `durable-workflow.async`. The function travels by name, so a lambda or a local one cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

from backstay.codec.arguments import Signature
from backstay.codec.values import loads
from backstay.sdk.child import ChildCall
from backstay.sdk.errors import DefinitionError
from backstay.sdk.fiber import Fiber
from backstay.sdk.step import Step
from backstay.sdk.workflow import workflow

P = ParamSpec("P")
R = TypeVar("R")

TYPE = "durable-workflow.async"


@workflow(type=TYPE, unchecked=True)
def run_in_background(reference: str, arguments: bytes) -> Any:
    """Run the function that a reference names; it is ordinary workflow code."""
    fn = _resolve(reference)
    args, kwargs = Signature(fn).unpack(arguments)
    return fn(*args, **kwargs)


def _resolve(reference: str) -> Any:
    module, _, name = reference.partition(":")
    fn: Any = import_module(module)
    for part in name.split("."):
        fn = getattr(fn, part)
    return fn


class BackgroundCall(ChildCall[R]):
    """A child whose result is that of the function."""

    def __init__(self, fn: Callable[..., R], args: Any, kwargs: Any) -> None:
        reference = _reference(fn)
        self.signature = Signature(fn)
        super().__init__(run_in_background, (reference, self.signature.pack_fitting(args, kwargs)), {}, {})

    def finish(self, fiber: Fiber, outcome: Any) -> R:
        blob = getattr(outcome, "blob", None)
        if blob is not None:
            return loads(blob, self.signature.returns)
        return super().finish(fiber, outcome)


def _reference(fn: Any) -> str:
    name = getattr(fn, "__qualname__", None)
    module = getattr(fn, "__module__", None)
    code = getattr(fn, "__code__", None)
    if name is None or module is None or code is None:
        raise DefinitionError(f"background() takes a function, not {fn!r}")
    if "<" in name:
        raise DefinitionError(
            f"background() cannot take {name}: it has no name that another process could import;"
            " define it at the top of a module"
        )
    if code.co_flags & 0x220:
        raise DefinitionError(f"background() cannot take {name}: it uses `yield`; write straight-line code")
    if code.co_flags & 0x80:
        raise DefinitionError(f"background() cannot take {name}: it is async; make it a workflow and call it")
    reference = f"{module}:{name}"
    try:
        found = _resolve(reference)
    except (ImportError, AttributeError):
        found = None
    if found is not fn:
        raise DefinitionError(f"background() cannot take {fn!r}: another process would not find it as {reference}")
    return reference


class Background:
    """`background(fn, ...)` waits for the result; `background.step(...)` describes the call."""

    def __call__(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.step(fn, *args, **kwargs).run()

    def step(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Step[R]:
        return Step(BackgroundCall(fn, args, kwargs))


background = Background()
