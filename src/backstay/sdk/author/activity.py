"""Activities as authors write them: `@activity` on a function or method. Calling one inside a workflow is a durable step.

Outside workflows a decorated function is just the function. Options sit on the decorator or on `.options(...)` at the call;
they become the retry policy that history records when the step is scheduled.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import cached_property, update_wrapper
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    Never,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from backstay.codec.arguments import Signature
from backstay.codec.class_names import Namespace, module_of
from backstay.codec.errors import PayloadError
from backstay.codec.values import loads
from backstay.kernel.call_options import ActivityCallOptions, CallOptions
from backstay.kernel.command import Command
from backstay.kernel.feature import Outcome, Plain, Value
from backstay.kernel.features.activity import CancelActivity, RetryPolicy, ScheduleActivity
from backstay.kernel.features.activity.schedule import check_policy
from backstay.kernel.message import Refused
from backstay.kernel.retry import CRASHES, FOREVER
from backstay.runtime_hooks import collector
from backstay.sdk.author.cancellation import in_saga
from backstay.sdk.author.durations import Duration, to_seconds
from backstay.sdk.author.options import CommonOptions, carried, check, expect
from backstay.sdk.author.step import Call, Step
from backstay.sdk.errors import DefinitionError, NotInWorkflow
from backstay.sdk.replay.failures import throw
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.operation import LocalActivityPlaceholder
from backstay.sdk.replay.workflow_greenlet import current_greenlet, current_run

P = ParamSpec("P")
P2 = ParamSpec("P2")
R = TypeVar("R")
R2 = TypeVar("R2")
T = TypeVar("T")
Coro = Coroutine[Any, Any, T]

_DOUBLING = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]


class ActivityOptions(CommonOptions, total=False):
    """Options of an activity, on the decorator or on `.options(...)`.

    `retries` counts the attempts after the first one, and `backoff` is the pause before each of them. `max_crashes` counts the
    attempts after one whose process died, in a row. `at_most_once` allows neither. `fatal` exceptions are not retried.

    `timeout` bounds one attempt, `start_timeout` the wait for a worker, and `schedule_timeout` everything together.
    `heartbeat_timeout` is the longest silence of a running attempt. `queue` is the task queue. A `local` activity runs in the worker
    of its workflow, within the workflow task. `thread=False`, only on the decorator of a `def` function, runs it on the thread of
    the engine or of the worker's link, for code that is short and never waits.
    """

    retries: int | Literal["forever"]
    max_crashes: int | Literal["forever"]
    at_most_once: bool
    backoff: Duration | Sequence[Duration]
    timeout: Duration
    start_timeout: Duration
    schedule_timeout: Duration
    heartbeat_timeout: Duration
    fatal: Sequence[type[BaseException] | str]
    queue: str
    local: bool
    thread: bool


class ActivityDefinition(Generic[P, R]):
    """The base class of decorated activities: the function, its durable type and its options."""

    __backstay_activity__ = True
    __name__: str

    def __init__(
        self, fn: Callable[..., Any], type: str, options: ActivityOptions, *, extern: bool, method: bool, is_async: bool
    ) -> None:
        update_wrapper(cast(Any, self), fn)
        self.fn = fn
        self.type = type
        self.named = True  # the author gave the type; a type map may not contradict it
        self.given = options
        self.extern = extern
        self.method = method
        self.is_async = is_async
        self.policy = policy_of(options)
        self.queue = options.get("queue")
        self.local = options.get("local", False)
        self.on_thread = options.get("thread", True)
        self.carried = carried(options, CallOptions if self.local else ActivityCallOptions)
        self.shape = "local activity" if self.local else "activity"

    @cached_property
    def signature(self) -> Signature:
        return Signature(self.fn, drop_self=self.method)

    @property
    def modules(self) -> Iterable[Namespace]:
        """The globals of the module that defines the function."""
        return filter(None, [module_of(self.fn)])

    def step(self, *args: P.args, **kwargs: P.kwargs) -> Step[R]:
        """Describe the call without making it, for `gather`, `race` or `await`."""
        # Outside workflows a call runs the plain function, so its arguments are not encoded.
        arguments = None if current_run() is None else self.signature.pack(args, kwargs)
        return Step(ActivityCall(self, args, kwargs, arguments))

    def _plainly(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call the plain function outside a workflow.

        While the garbage collector runs, the caller is a finalizer of something that workflow code left behind. Such a call
        ends like that of a closed generator.
        """
        if collector.collecting:
            raise GeneratorExit
        if self.method:
            raise NotInWorkflow(f"{self.type} without an instance")
        return self.fn(*args, **kwargs)

    def _with(self, options: ActivityOptions) -> Any:
        check(options, ActivityOptions, "activity option", DefinitionError)
        if "thread" in options:
            raise DefinitionError("thread is an option of the decorator: the worker that runs the activity goes by it")
        merged: ActivityOptions = {**self.given, **options}
        copy = type(self)(self.fn, self.type, merged, extern=self.extern, method=self.method, is_async=self.is_async)
        if (
            "signature" in self.__dict__
        ):  # computed when first needed: annotations may name things that are defined later
            copy.signature = self.signature
        copy.named = self.named
        return copy

    def __repr__(self) -> str:
        return f"<activity {self.type}>"


class Activity(ActivityDefinition[P, R]):
    __backstay_blocks__ = True  # for the source check

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        greenlet = current_greenlet()
        live_run = None if greenlet is None else greenlet.live_run
        if greenlet is None or live_run is None:
            return self._plainly(args, kwargs)
        call = ActivityCall(self, args, kwargs, self.signature.pack(args, kwargs))
        return call.finish(live_run, live_run.call(call, greenlet))

    def options(self, **options: Unpack[ActivityOptions]) -> Activity[P, R]:
        return self._with(options)

    @overload
    def __get__(self: Activity[Concatenate[Any, P2], R2], instance: None, owner: type, /) -> Activity[P2, R2]: ...
    @overload
    def __get__(self: Activity[Concatenate[Any, P2], R2], instance: object, owner: type, /) -> Activity[P2, R2]: ...
    def __get__(self, instance: object | None, owner: type, /) -> Any:
        return _bound(self, instance)


class AsyncActivity(ActivityDefinition[P, R]):
    __backstay_awaited__ = True  # for the source check

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        live_run = current_run()
        if live_run is None:
            return self._plainly(args, kwargs)
        if not in_async_code():
            raise TypeError(
                f"{self.type!r} is an async activity; in a `def` workflow write {self.__name__}.step(...).run()"
            )
        return self.step(*args, **kwargs)

    def options(self, **options: Unpack[ActivityOptions]) -> AsyncActivity[P, R]:
        return self._with(options)

    @overload
    def __get__(
        self: AsyncActivity[Concatenate[Any, P2], R2], instance: None, owner: type, /
    ) -> AsyncActivity[P2, R2]: ...
    @overload
    def __get__(
        self: AsyncActivity[Concatenate[Any, P2], R2], instance: object, owner: type, /
    ) -> AsyncActivity[P2, R2]: ...
    def __get__(self, instance: object | None, owner: type, /) -> Any:
        return _bound(self, instance)


class ActivityCall(Call[R]):
    """One durable call of an activity.

    In a workflow the arguments are encoded before the call takes a step, in every replay too. So a call whose arguments
    cannot be encoded takes no step.
    """

    def __init__(
        self,
        definition: ActivityDefinition[Any, R],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        arguments: bytes | None,
    ) -> None:
        self.definition = definition
        self.args = args
        self.kwargs = kwargs
        self.arguments = arguments
        self.name = self.detail = definition.type
        self.shape = definition.shape

    def command(self, step: int) -> Command:
        definition = self.definition
        arguments = self.arguments or self.packed()
        if definition.local:
            live_run = current_run()
            assert live_run is not None
            live_run.locals[step] = self
            return LocalActivityPlaceholder(step=step)
        return ScheduleActivity(
            sequence=step,
            activity_type=definition.type,
            arguments=arguments,
            queue=definition.queue,
            retry_policy=definition.policy,
            parallel_group_path=self.group,
            **definition.carried,
        )

    def packed(self) -> bytes:
        """Return the encoded arguments, as they were when the call was described."""
        if self.arguments is None:
            self.arguments = self.definition.signature.pack(self.args, self.kwargs)
        return self.arguments

    def describe(self) -> str:
        return f"{self.shape} {self.detail}"

    def finish(self, live_run: LiveRun, outcome: Outcome) -> R:
        if isinstance(outcome, Value):
            blob = outcome.blob
            try:
                return loads(blob, self.definition.signature.returns) if blob is not None else None  # type: ignore[return-value]
            except PayloadError as error:
                problem = f"what activity {self.definition.type!r} returned is not what it declares: {error.problem}"
                raise PayloadError(error.reason, problem, error.path) from None
        if isinstance(outcome, Plain):
            return outcome.value
        return throw(live_run, outcome)

    def cancel(self, live_run: LiveRun, step: int) -> None:
        if not self.definition.local:
            live_run.emit(CancelActivity(step=step))

    def spared(self, live_run: LiveRun, step: int) -> bool:
        if self.definition.local or not in_saga(live_run):
            return False
        live_run.emit(CancelActivity(step=step, awaited=True))
        return True

    def outside(self) -> R:
        if self.definition.is_async:
            raise NotInWorkflow(f"{self.name}.step(...).run() of an async activity")
        return self.definition._plainly(self.args, self.kwargs)  # pyright: ignore[reportPrivateUsage]


def in_async_code() -> bool:
    """Return whether the running workflow code is a coroutine on the run's event loop."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def policy_of(options: ActivityOptions) -> RetryPolicy:
    retries = options.get("retries", 0)
    crashes = options.get("max_crashes")
    once = options.get("at_most_once", False)
    if once and (retries or crashes):
        raise DefinitionError("an activity with at_most_once is never begun again: leave out retries and max_crashes")
    if options.get("local") and (once or crashes is not None):
        raise DefinitionError(
            "a local activity is begun again with its workflow task: at_most_once and max_crashes need local=False"
        )
    backoff = options.get("backoff")
    if backoff is None:
        pauses = _DOUBLING if retries else []
    elif isinstance(backoff, Sequence) and not isinstance(backoff, str):
        pauses = [to_seconds(pause) for pause in backoff]
    else:
        pauses = [to_seconds(backoff)]
    policy = RetryPolicy(
        max_attempts=None if retries == "forever" else retries + 1,
        backoff_seconds=pauses,
        non_retryable_error_types=[error_type(kind) for kind in options.get("fatal", ())],
        start_to_close_timeout=_optional(options.get("timeout")),
        schedule_to_start_timeout=_optional(options.get("start_timeout")),
        schedule_to_close_timeout=_optional(options.get("schedule_timeout")),
        heartbeat_timeout=_optional(options.get("heartbeat_timeout")),
        max_crashes=0 if once else CRASHES if crashes is None else FOREVER if crashes == "forever" else crashes,
    )
    try:
        check_policy(policy)
    except Refused as refusal:
        raise DefinitionError(f"these activity options do not fit together: {refusal.message}") from None
    return policy


def error_type(kind: type[BaseException] | str) -> str:
    """Return the name of a fatal exception in recorded failures: the text that was given, or the name of its class."""
    return kind if isinstance(kind, str) else f"{kind.__module__}:{kind.__qualname__}"


def _optional(duration: Duration | None) -> float | None:
    return None if duration is None else to_seconds(duration)


def _bound(definition: Any, instance: object | None) -> Any:
    """Return a method activity without `self`: workflows name it by its class, and the worker adds its registered instance."""
    copy = type(definition)(
        definition.fn if instance is None else definition.fn.__get__(instance),
        definition.type,
        definition.given,
        extern=definition.extern,
        method=instance is None,
        is_async=definition.is_async,
    )
    copy.signature = Signature(definition.fn, drop_self=True)
    copy.named = definition.named
    return copy


class ActivityDecorator(Protocol):
    # An `async def` also matches `Callable[P, R]`, so the order of the overloads matters. Only a `def` that returns `Any`
    # matches `Never`: without that overload it would count as async, since `Any` matches a coroutine as well.
    @overload
    def __call__(self, fn: Callable[P, Never], /) -> Activity[P, Any]: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def __call__(self, fn: Callable[P, Coro[R]], /) -> AsyncActivity[P, R]: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Activity[P, R]: ...


@overload
def activity(fn: Callable[P, Never], /) -> Activity[P, Any]: ...  # pyright: ignore[reportOverlappingOverload]
@overload
def activity(fn: Callable[P, Coro[R]], /) -> AsyncActivity[P, R]: ...  # pyright: ignore[reportOverlappingOverload]
@overload
def activity(fn: Callable[P, R], /) -> Activity[P, R]: ...
@overload
def activity(
    *, type: str | None = None, extern: bool = False, **options: Unpack[ActivityOptions]
) -> ActivityDecorator: ...
def activity(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    type: str | None = None,
    extern: bool = False,
    **options: Unpack[ActivityOptions],
) -> Any:
    """Make a function an activity: work that may fail, is retried, and whose result is recorded once.

    Called in a workflow, an activity is a durable step; called elsewhere, it is the plain function. `type` is its durable
    name, by default the function's qualified name. `extern` declares an activity whose code is in another worker. The other
    options are those of `ActivityOptions`. Raises `DefinitionError` if an option is unknown or the function is unsuitable.
    """

    def decorate(fn: Callable[..., Any]) -> Any:
        return _define(fn, type, extern, options)

    return decorate if fn is None else decorate(fn)


def _is_class(thing: object) -> bool:
    return isinstance(thing, type)


def _define(fn: Any, type: str | None, extern: bool, options: ActivityOptions) -> Any:
    if isinstance(fn, staticmethod | classmethod):
        raise DefinitionError("put @activity on a plain function or method, not on a staticmethod or classmethod")
    if not callable(fn) or _is_class(fn):
        raise DefinitionError(f"@activity needs a function, not {fn!r}")
    expect("type", type, DefinitionError)
    check(options, ActivityOptions, "activity option", DefinitionError)
    code = getattr(fn, "__code__", None)
    is_async = bool(code is not None and code.co_flags & 0x80)
    if code is not None and code.co_flags & 0x220:
        raise DefinitionError(f"activity {fn.__qualname__} is a generator; return its values instead")
    if is_async and "thread" in options:
        raise DefinitionError(f"activity {fn.__qualname__} is `async def` and never runs on a thread; leave out thread")
    name = fn.__qualname__.replace("<locals>.", "")
    method = "." in name and code is not None and code.co_varnames[:1] == ("self",)
    kind: Any = AsyncActivity if is_async else Activity
    made: Any = kind(fn, type or name, options, extern=extern, method=method, is_async=is_async)
    made.named = type is not None
    return made
