"""Workflows as authors write them: `@workflow` on a function, or on a class with `handle()`.

The decorator only describes; a worker that registers the definition runs it. Use a class when a running workflow receives
signals, updates or queries. The entry is straight-line code: `def`, or `async def` on the run's own event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from functools import update_wrapper
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from typing import TYPE_CHECKING, Any, Generic, Never, NoReturn, ParamSpec, Protocol, TypeVar, Unpack, overload

from backstay.codec.arguments import Signature
from backstay.sdk.author.activity import in_async_code
from backstay.sdk.author.durations import Duration
from backstay.sdk.author.handlers import Signal
from backstay.sdk.author.options import expect
from backstay.sdk.author.step import Step
from backstay.sdk.author.workflow_definition import WorkflowDefinition
from backstay.sdk.errors import ContinueAsNewRequested, DefinitionError
from backstay.sdk.replay.workflow_greenlet import current_run, required_run

if TYPE_CHECKING:
    from backstay.sdk.author.child import ChildHandle, ChildOptions

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
Coro = Coroutine[Any, Any, T]

_GENERATORS = CO_GENERATOR | CO_ASYNC_GENERATOR


class HasHandle(Protocol):
    def handle(self, *args: Any, **kwargs: Any) -> Any: ...


class EntryPoint(Protocol[P, R_co]):
    """The type of a workflow class: a class whose entry method is `handle`."""

    def handle(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


W = TypeVar("W", bound=HasHandle)


class WorkflowFn(Generic[P, R]):
    """A decorated workflow function.

    Clients start it, workers register it, and workflows call it as a child. Called outside a workflow, it is the plain
    function.
    """

    __name__: str

    def __init__(self, fn: Callable[..., Any], type: str | None, **options: Any) -> None:
        update_wrapper(self, fn)
        self.definition = WorkflowDefinition(fn, fn, type, is_class=False, **options)

    @property
    def type(self) -> str:
        return self.definition.type

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the workflow as a child inside a workflow, and as the plain function outside."""
        if current_run() is None:
            return self.definition.entry(*args, **kwargs)
        step = self.step(*args, **kwargs)
        return step if self.definition.is_async and in_async_code() else step.run()

    def step(self, *args: P.args, **kwargs: P.kwargs) -> Step[R]:
        """Describe the child without starting it, for `gather`, `race` or `await`."""
        from backstay.sdk.author.child import child

        return child.step(self, *args, **kwargs)

    def options(self, **options: Unpack[ChildOptions]) -> ChildOf[P, R]:
        """Return the workflow with options for its call as a child: queue, retries, timeouts, parent_close."""
        return ChildOf(self, options)

    def __repr__(self) -> str:
        return f"<workflow {self.type}>"


class ChildOf(Generic[P, R]):
    """A workflow function with the options of a child: `fulfil.options(retries=2)(order)`."""

    def __init__(self, workflow: WorkflowFn[P, R], options: ChildOptions) -> None:
        from backstay.sdk.author.child import child

        self._workflow = workflow
        self._child = child.options(**options)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._child(self._workflow, *args, **kwargs)

    def step(self, *args: P.args, **kwargs: P.kwargs) -> Step[R]:
        return self._child.step(self._workflow, *args, **kwargs)

    def start(self, *args: P.args, **kwargs: P.kwargs) -> ChildHandle[R]:
        return self._child.start(self._workflow, *args, **kwargs)


class Workflow(WorkflowFn[P, R]):
    __backstay_blocks__ = True  # for the source check

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


class AsyncWorkflow(WorkflowFn[P, R]):
    __backstay_awaited__ = True  # for the source check

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...


class WorkflowDecorator(Protocol):
    # A class and an `async def` also match `Callable[P, R]`, so the order of the overloads matters. Only a `def` that
    # returns `Any` matches `Never`.
    @overload
    def __call__(self, cls: type[W], /) -> type[W]: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def __call__(self, fn: Callable[P, Never], /) -> Workflow[P, Any]: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def __call__(self, fn: Callable[P, Coro[R]], /) -> AsyncWorkflow[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Workflow[P, R]: ...


@overload
def workflow(cls: type[W], /) -> type[W]: ...  # pyright: ignore[reportOverlappingOverload]
@overload
def workflow(fn: Callable[P, Never], /) -> Workflow[P, Any]: ...  # pyright: ignore[reportOverlappingOverload]
@overload
def workflow(fn: Callable[P, Coro[R]], /) -> AsyncWorkflow[P, R]: ...
@overload
def workflow(fn: Callable[P, R], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *,
    type: str | None = None,
    queue: str | None = None,
    signals: Iterable[Signal[Any] | str] = (),
    handles_cancel: Duration | None = None,
    unchecked: bool = False,
) -> WorkflowDecorator: ...
def workflow(
    target: Any = None,
    /,
    *,
    type: str | None = None,
    queue: str | None = None,
    signals: Iterable[Signal[Any] | str] = (),
    handles_cancel: Duration | None = None,
    unchecked: bool = False,
) -> Any:
    """Make a function, or a class with a method `handle`, a workflow.

    `type` is the durable name, by default the qualified name, and `queue` the task queue of its runs. `signals` declares
    channels that the workflow waits for and that its source does not name. With `handles_cancel` a cancel request is raised
    in the code as `Cancelled`, and the code has this long to end. `unchecked` skips the source check at registration. Raises
    `DefinitionError` if the declaration is wrong.
    """
    expect("type", type, DefinitionError)
    expect("queue", queue, DefinitionError)
    options: dict[str, Any] = {
        "queue": queue,
        "unchecked": unchecked,
        "signals": tuple(signals),
        "handles_cancel": handles_cancel,
    }

    def decorate(target: Any) -> Any:
        return _decorate(target, type, options)

    return decorate if target is None else decorate(target)


def _decorate(target: Any, name: str | None, options: dict[str, Any]) -> Any:
    if isinstance(target, type):
        return _decorate_class(target, name, options)
    code = getattr(target, "__code__", None)
    if code is None:
        raise DefinitionError(f"@workflow needs a function or a class with handle(), not {target!r}")
    _refuse_generator(target)
    kind: Any = AsyncWorkflow if code.co_flags & CO_COROUTINE else Workflow
    return kind(target, name, **options)


def _decorate_class(cls: type[Any], name: str | None, options: dict[str, Any]) -> type[Any]:
    entry = getattr(cls, "handle", None)
    if entry is None or getattr(entry, "__code__", None) is None:
        raise DefinitionError(f"workflow class {cls.__qualname__} needs a method handle(self, ...)")
    if hasattr(cls, "execute"):
        raise DefinitionError(
            f"workflow class {cls.__qualname__} has two entry methods, handle() and execute(); keep one"
        )
    _refuse_generator(entry)
    for attribute, value in vars(cls).items():
        if not attribute.startswith("__") and isinstance(value, list | dict | set | bytearray):
            raise DefinitionError(
                f"{cls.__qualname__}.{attribute} is a mutable class attribute, shared by all runs of a worker;"
                " set it in __init__(self)"
            )
    definition = WorkflowDefinition(cls, entry, name, is_class=True, **options)
    cls.__backstay_workflow__ = definition
    return cls


def _refuse_generator(fn: Any) -> None:
    if fn.__code__.co_flags & _GENERATORS:
        raise DefinitionError(
            f"workflow {fn.__qualname__} uses `yield`; write straight-line code: durable calls return their value"
        )


class NamedWorkflow:
    """A workflow whose code is in another process: only its type is known."""

    queue = None
    snapshot = None  # the engine takes the one of a worker that has the code
    modules = ()

    def __init__(self, type: str) -> None:
        expect("type", type)
        self.type = type
        self.signature = Signature(_anything)


def _anything(*args: Any) -> Any: ...


def definition_of(target: Any) -> WorkflowDefinition:
    """Return the definition of a workflow function or class; `DefinitionError` if it is neither."""
    if isinstance(target, WorkflowFn):
        return target.definition  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    found = vars(target).get("__backstay_workflow__") if isinstance(target, type) else None
    if found is None:
        raise DefinitionError(f"{target!r} is not a workflow; decorate it with @workflow")
    return found


def continue_as_new(
    target: WorkflowFn[P, Any] | type[EntryPoint[P, Any]], /, *args: P.args, **kwargs: P.kwargs
) -> NoReturn:
    """Close this run and continue as a new one with an empty history and these arguments.

    The workflow itself, given first, is there for the types of the arguments. Does not return. Arguments that do not fit
    raise `TypeError`.
    """
    required_run("continue_as_new()")
    # Checked here, so that wrong arguments are a TypeError in the author's code and not a failed run.
    definition = definition_of(target)
    raise ContinueAsNewRequested(definition, definition.signature.pack_fitting(args, kwargs))
