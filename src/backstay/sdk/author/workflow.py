"""Workflows as authors write them: `@workflow` on a function, or on a class with `handle()`.

The decorator only describes; a worker that registers the definition runs it. A class is what a workflow becomes when others
talk to it while it runs. The entry is straight-line code: `def`, or `async def` on the run's own event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from functools import cached_property, update_wrapper
from inspect import isawaitable
from types import FunctionType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeGuard,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from backstay.codec.arguments import Signature
from backstay.codec.class_names import Namespace, module_of
from backstay.codec.errors import PayloadError
from backstay.codec.values import dumps
from backstay.kernel.features.cancel import CancelWorkflow
from backstay.kernel.features.close import CompleteWorkflow, FailWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.start import Definition as Snapshot
from backstay.kernel.features.start import WorkflowStarted
from backstay.kernel.task import Block
from backstay.sdk.author.activity import in_async_code
from backstay.sdk.author.cancellation import Cancelled, was_requested
from backstay.sdk.author.durations import Duration, to_seconds
from backstay.sdk.author.handlers import Handlers, Signal
from backstay.sdk.author.options import expect
from backstay.sdk.author.primitives import patched, version
from backstay.sdk.author.step import Step
from backstay.sdk.errors import ContinueAsNewRequested, DefinitionError, Evicted, NonDeterminismError
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.loop import WorkflowLoop, for_the_process
from backstay.sdk.replay.workflow_greenlet import current_run, required_run
from backstay.sdk.worker.failure_log import workflow_failed

if TYPE_CHECKING:
    from backstay.sdk.author.child import ChildHandle, ChildOptions

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
Coro = Coroutine[Any, Any, T]

_GENERATOR = 0x20 | 0x200  # plain and async generators
_COROUTINE = 0x80


class HasHandle(Protocol):
    def handle(self, *args: Any, **kwargs: Any) -> Any: ...


class Entry(Protocol[P, R_co]):
    """A workflow class, seen through its entry method."""

    def handle(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


W = TypeVar("W", bound=HasHandle)


class WorkflowDefinition:
    """What a worker needs to run a workflow and a client to start it."""

    def __init__(
        self,
        target: Any,
        entry: Callable[..., Any],
        type: str | None,
        *,
        queue: str | None,
        unchecked: bool,
        is_class: bool,
        signals: Iterable[Signal[Any] | str] = (),
        handles_cancel: Duration | None = None,
    ) -> None:
        self.target = target
        self.entry = entry
        self.type: str = type or target.__name__
        self.named = type is not None  # a name of its own, which a type map may not contradict
        self.queue = queue
        self.unchecked = unchecked
        self.is_class = is_class
        self.is_async = bool(entry.__code__.co_flags & _COROUTINE)
        self.cleanup_seconds = None if handles_cancel is None else to_seconds(handles_cancel)
        self._handlers = Handlers()
        if is_class:
            self._handlers.collect(target)
        for channel in signals:
            self._handlers.channel(channel)

    @cached_property
    def handlers(self) -> Handlers:
        """What others may say to it; names that its source waits for need no other declaration."""
        from backstay.sdk.author.wait import Wait, wait
        from backstay.sdk.replay.source import waited_signals

        # `wait.step` is found as the method it is, `aio.wait` as the same one bound.
        for channel in waited_signals(self.target, (wait, Wait.step, wait.step), Signal):
            self._handlers.channel(channel)
        return self._handlers

    @cached_property
    def signature(self) -> Signature:
        return Signature(self.entry, drop_self=self.is_class)

    @cached_property
    def fingerprint(self) -> str | None:
        from backstay.sdk.replay.source import definition_fingerprint

        return definition_fingerprint(self.target)

    @cached_property
    def snapshot(self) -> Snapshot:
        """What a start records of this definition."""
        from backstay.sdk.replay.source import change_ids

        handlers = self.handlers
        signals = {**handlers.signals, **handlers.channels}
        return Snapshot(
            workflow_class=self.class_name,
            fingerprint=self.fingerprint,
            change_ids=change_ids(self.target, (version, patched)),
            entry_method="handle" if self.is_class else self.entry.__name__,
            entry_declaring_class=self.class_name if self.is_class else None,
            signals=list(signals),
            signal_contracts=[signal.contract() for signal in signals.values()],
            queries=list(handlers.queries),
            query_contracts=[query.contract() for query in handlers.queries.values()],
            updates=list(handlers.updates),
            update_contracts=[update.contract() for update in handlers.updates.values()],
            cleanup_seconds=self.cleanup_seconds,
        )

    @property
    def modules(self) -> Iterable[Namespace]:
        """The globals of the modules that its code stands in: of a class also that of its own, where `handle` is inherited."""
        members = cast(dict[str, Any], vars(self.target)) if self.is_class else {}
        home = self.target.__module__
        own = [member for member in members.values() if getattr(member, "__module__", None) == home]
        return filter(None, map(module_of, [self.entry, *own]))

    @property
    def class_name(self) -> str:
        return f"{self.target.__module__}:{self.target.__qualname__}"

    def main(self, live_run: LiveRun, started: WorkflowStarted) -> None:
        """The first job of a live run: run the entry from its arguments to its end."""
        try:
            args, kwargs = self.signature.unpack(started.arguments) if started.arguments is not None else ([], {})
        except PayloadError as error:
            live_run.park(
                Block(
                    message=f"the recorded arguments do not fit {self.type!r}: {error}",
                    type="WorkflowEntryArgumentsMismatch",
                    replay_blocked=True,
                    reason="workflow_entry_arguments_mismatch",
                    fingerprint=self.fingerprint,
                )
            )
            return
        except (KeyboardInterrupt, SystemExit) as error:
            _keep_running(live_run, error)
            return
        if self.is_async:
            self._start_async(live_run, args, kwargs)
        else:
            self._conclude(live_run, lambda: self._run(live_run, args, kwargs))

    def _enter(self, live_run: LiveRun, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if self.is_class:
            live_run.instance = self.target()
            return self.entry(live_run.instance, *args, **kwargs)
        return self.entry(*args, **kwargs)

    def _run(self, live_run: LiveRun, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = self._enter(live_run, args, kwargs)
        return _done(result) if isinstance(result, _UNDONE) else result

    async def _entered(self, live_run: LiveRun, args: list[Any], kwargs: dict[str, Any]) -> Any:
        try:
            return await _awaited(await self._enter(live_run, args, kwargs))
        except TypeError as error:
            if _awaited_a_value(error):
                raise TypeError(
                    f"{error}: in a workflow, an activity or child that is a `def` returns its value when it is called;"
                    " drop the await, or await its .step(...)"
                ) from error
            raise
        except KeyboardInterrupt as error:
            _keep_running(live_run, error)
            raise Evicted from None  # as itself it would leave the run's event loop, and end the one below it

    def _start_async(self, live_run: LiveRun, args: list[Any], kwargs: dict[str, Any]) -> None:
        loop = WorkflowLoop(live_run)
        live_run.loop = loop
        task = live_run.main_task = loop.create_task(self._entered(live_run, args, kwargs), name="main")
        task.add_done_callback(lambda done: self._conclude(live_run, done.result))

    def _conclude(self, live_run: LiveRun, end: Callable[[], Any]) -> None:
        """Turn the end of the code into the command that closes the run."""
        try:
            result = end()
            if live_run.broken is not None:
                raise live_run.broken
            for branch in live_run.branches:
                if branch.error is not None:
                    raise branch.error
            live_run.closing = CompleteWorkflow(result=dumps(result))
        except Evicted:
            return
        except ContinueAsNewRequested as request:
            live_run.closing = self._continue(request)
        except Cancelled as error:
            live_run.fatal = error
            live_run.closing = CancelWorkflow() if was_requested(live_run) else _failed(live_run, error)
        except KeyboardInterrupt as error:
            _keep_running(live_run, error)
        except NonDeterminismError as error:
            live_run.park(Block(message=str(error), type=type(error).__name__))  # the code's fault, not the run's
        except BaseException as error:
            live_run.fatal = error
            live_run.closing = _failed(live_run, error)

    def _continue(self, request: ContinueAsNewRequested) -> ContinueAsNew:
        definition = definition_of(request.target)
        return ContinueAsNew(
            arguments=request.arguments,
            workflow_type=definition.type,
            definition=definition.snapshot,
        )


def _awaited_a_value(error: TypeError) -> bool:
    """Whether this is what Python says of `await 3`, before and since 3.14."""
    return str(error).endswith(("can't be used in 'await' expression", "can't be awaited"))


def _keep_running(live_run: LiveRun, error: BaseException) -> None:
    """Code has raised what ends a process, or a thread: it fails its task instead."""
    if for_the_process(error):
        raise error  # the code runs again after a restart
    kind = type(error).__name__
    live_run.block = Block(
        message=f"workflow code raised {kind}, but does not decide when its process ends; raise another exception",
        type=kind,
        reason="workflow_raised_exit",
    )


def _failed(live_run: LiveRun, error: BaseException) -> FailWorkflow:
    failure = live_run.exceptions.failure(error)
    workflow_failed(live_run, error, failure.message)
    return FailWorkflow(
        message=failure.message,
        exception_type=failure.exception_type,
        exception_class=failure.exception_class,
        exception=failure,
        non_retryable=failure.non_retryable,
    )


# -- results: a workflow may end with `return [charge(), lambda: gather(pack.step(i) for i in items)]`. Lambdas in its result,
# or in the list that it is, are called before the run ends. A step that is returned by itself is a call that was forgotten,
# and a named function is a value without a payload form.

_UNDONE = (list, FunctionType)  # what a result must be for anything in it to be left undone


def _done(result: Any) -> Any:
    """The result after every lambda in it was called, in order."""
    if _is_list(result):
        return [_called(item) for item in result] if any(map(_is_lambda, result)) else result
    return _called(result)


async def _awaited(result: Any) -> Any:
    """The same in `async def`."""
    if _is_list(result):
        return [await _called_async(item) for item in result] if any(map(_is_lambda, result)) else result
    return await _called_async(result)


def _is_list(result: Any) -> TypeGuard[list[Any]]:
    return isinstance(result, list)


def _is_lambda(value: object) -> bool:
    return isinstance(value, FunctionType) and value.__name__ == "<lambda>"


def _is_step(value: Any) -> TypeGuard[Step[Any]]:
    return isinstance(value, Step)


def _called(value: Any) -> Any:
    while _is_lambda(value):
        value = value()
        if _is_step(value):
            value = value.run()
    return value


async def _called_async(value: Any) -> Any:
    while _is_lambda(value):
        value = value()
        if isawaitable(value):
            value = await value
    return value


class WorkflowFn(Generic[P, R]):
    """A decorated workflow function: handed to clients and workers, and still the function when called outside."""

    def __init__(self, fn: Callable[..., Any], type: str | None, **options: Any) -> None:
        update_wrapper(self, fn)
        self.definition = WorkflowDefinition(fn, fn, type, is_class=False, **options)

    @property
    def type(self) -> str:
        return self.definition.type

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Inside a workflow this is a child; outside it is the function."""
        if current_run() is None:
            return self.definition.entry(*args, **kwargs)
        step = self.step(*args, **kwargs)
        return step if self.definition.is_async and in_async_code() else step.run()

    def step(self, *args: P.args, **kwargs: P.kwargs) -> Step[R]:
        """Describe the child without starting it."""
        from backstay.sdk.author.child import child

        return child.step(self, *args, **kwargs)

    def options(self, **options: Unpack[ChildOptions]) -> ChildOf[P, R]:
        """The same workflow as a child with options: queue, retries, timeouts, parent_close."""
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
    # A class is also a callable, and so is an `async def`; the first overload that fits is the meant one.
    @overload
    def __call__(self, cls: type[W], /) -> type[W]: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def __call__(self, fn: Callable[P, Coro[R]], /) -> AsyncWorkflow[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Workflow[P, R]: ...


@overload
def workflow(cls: type[W], /) -> type[W]: ...  # pyright: ignore[reportOverlappingOverload]
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
    """Make a function or class a workflow.

    `signals` declares channels it waits for that its source does not name. With `handles_cancel` its code gets to see a
    cancel request, and has this long to deal with it. `unchecked` skips the source check at registration.
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
    kind: Any = AsyncWorkflow if code.co_flags & _COROUTINE else Workflow
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
    if fn.__code__.co_flags & _GENERATOR:
        raise DefinitionError(
            f"workflow {fn.__qualname__} uses `yield`; write straight-line code: durable calls return their value"
        )


class NamedWorkflow:
    """A workflow whose code is elsewhere: nothing is known of it but its type."""

    queue = None
    snapshot = None  # the engine takes that of whoever has the code
    modules = ()

    def __init__(self, type: str) -> None:
        expect("type", type)
        self.type = type
        self.signature = Signature(_anything)


def _anything(*args: Any) -> Any: ...


def definition_of(target: Any) -> WorkflowDefinition:
    """The definition behind anything an author can name a workflow by."""
    if isinstance(target, WorkflowFn):
        return target.definition  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    found = vars(target).get("__backstay_workflow__") if isinstance(target, type) else None
    if found is None:
        raise DefinitionError(f"{target!r} is not a workflow; decorate it with @workflow")
    return found


def continue_as_new(target: WorkflowFn[P, Any] | type[Entry[P, Any]], /, *args: P.args, **kwargs: P.kwargs) -> NoReturn:
    """Close this run and go on as a new one with a fresh history. The first argument gives the types."""
    required_run("continue_as_new()")
    # Wrong arguments are a TypeError here, not a broken run.
    raise ContinueAsNewRequested(target, definition_of(target).signature.pack_fitting(args, kwargs))
