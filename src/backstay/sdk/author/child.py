"""Children: workflows that workflows call. `fulfil(order)` inside a workflow, or `child(Approval, "doc")` for a class.

A child is a workflow of its own, with its own history. The parent waits for its result or its exception. `child.start(...)`
does not wait and returns a handle. `child()` and `children()` return handles of children that the parent has started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, Generic, Literal, ParamSpec, TypeVar, Unpack, cast, overload

from backstay.codec.errors import PayloadError
from backstay.codec.values import dumps, loads
from backstay.kernel.call_options import ChildCallOptions
from backstay.kernel.command import Command
from backstay.kernel.event import Recorded
from backstay.kernel.feature import Outcome, Thrown, Value
from backstay.kernel.features.child import CancelChild, ChildRunStarted, ChildWorkflowScheduled, SignalChild
from backstay.kernel.groups import GroupEntry
from backstay.kernel.retry import RetryPolicy
from backstay.kernel.values import child_call_id
from backstay.sdk.author.activity import policy_of
from backstay.sdk.author.cancellation import in_saga
from backstay.sdk.author.durations import Duration, to_seconds
from backstay.sdk.author.handlers import Signal, SignalMethod, packed
from backstay.sdk.author.options import CommonOptions, carried, check
from backstay.sdk.author.primitives import Immediate
from backstay.sdk.author.step import Call, Step
from backstay.sdk.author.workflow import EntryPoint, WorkflowFn, definition_of
from backstay.sdk.author.workflow_definition import WorkflowDefinition
from backstay.sdk.errors import ChildStopped, ChildTimedOut, DefinitionError, NotInWorkflow
from backstay.sdk.replay.failures import remember, throw
from backstay.sdk.replay.inbound import delivered, outbox, plain_value, typed
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.workflow_greenlet import WorkflowGreenlet, current_greenlet, required_run

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Coro = Coroutine[Any, Any, T]

ParentClose = Literal["abandon", "request_cancel", "terminate"]


class ChildOptions(CommonOptions, total=False):
    """Options of a child, on `.options(...)` of a workflow.

    `retries` counts the runs after the first one that failed, `backoff` is the pause before each of them, and `fatal`
    exceptions are not retried. `timeout` bounds all runs together, `run_timeout` each one. `parent_close` is the policy
    for the child when its parent closes; by default it is abandoned and keeps running.
    """

    queue: str
    connection: str
    retries: int | Literal["forever"]
    backoff: Duration | Sequence[Duration]
    fatal: Sequence[type[BaseException] | str]
    timeout: Duration
    run_timeout: Duration
    parent_close: ParentClose


class ChildCall(Call[R]):
    shape = "child workflow"
    hears = True

    def __init__(self, target: Any, args: Sequence[Any], kwargs: dict[str, Any], options: ChildOptions) -> None:
        definition = None if isinstance(target, str) else definition_of(target)
        if definition is None and kwargs:
            raise TypeError("a workflow named by its type takes positional arguments only")
        if target == "":
            raise DefinitionError("a child is named by its workflow or by the type of one, and '' is none")
        self.definition: WorkflowDefinition | None = definition
        self.options = options
        self.type: str = target if definition is None else definition.type
        self.detail = self.type
        self.name = f"child {self.type}"
        self.group: list[GroupEntry] = []
        self.arguments = dumps(list(args)) if definition is None else definition.signature.pack_fitting(args, kwargs)

    def command(self, step: int) -> Command:
        o = self.options
        timeout, run_timeout = o.get("timeout"), o.get("run_timeout")
        definition = self.definition
        return _start(
            sequence=step,
            workflow_type=self.type,
            arguments=self.arguments,
            queue=o.get("queue") or (None if definition is None else definition.queue),
            connection=o.get("connection"),
            parent_close_policy=o.get("parent_close", "abandon"),
            retry_policy=_policy(o),
            execution_timeout_seconds=None if timeout is None else to_seconds(timeout),
            run_timeout_seconds=None if run_timeout is None else to_seconds(run_timeout),
            definition=None if definition is None else definition.snapshot,
            parallel_group_path=self.group,
            **carried(o, ChildCallOptions),
        )

    def asked(self, live_run: LiveRun, step: int, answer: Callable[[Outcome], None]) -> Outcome | None:
        """Keep the definition of the child for handles that are looked up later."""
        if self.definition is not None:
            live_run.part(Family).definitions[step] = self.definition
        return None

    def describe(self) -> str:
        return f"child workflow {self.detail}"

    def finish(self, live_run: LiveRun, outcome: Outcome) -> R:
        match outcome:
            case Value(blob):
                returns = Any if self.definition is None else self.definition.signature.returns
                return loads(blob, returns) if blob is not None else None  # type: ignore[return-value]
            case Thrown(category="cancelled" | "terminated"):
                raise remember(live_run, outcome, ChildStopped(outcome.failure.message, outcome.category))
            case Thrown(category="timeout"):
                raise remember(live_run, outcome, ChildTimedOut(outcome.failure.message))
            case Thrown():
                return throw(live_run, outcome)
            case _:
                raise AssertionError(f"a child does not end with {outcome!r}")

    def cancel(self, live_run: LiveRun, step: int) -> None:
        live_run.emit(CancelChild(step=step))

    def spared(self, live_run: LiveRun, step: int) -> bool:
        if not in_saga(live_run):
            return False
        self.cancel(live_run, step)
        return True


def _start(**fields: Any) -> Command:
    from backstay.kernel.features.child import StartChildWorkflow

    return StartChildWorkflow(**fields)


def _policy(options: ChildOptions) -> RetryPolicy | None:
    if not options.get("retries"):
        return None
    return policy_of(
        {
            "retries": options.get("retries", 0),
            "backoff": options.get("backoff", []),
            "fatal": options.get("fatal", ()),
        }
    )


# -- children in the parent's history


class ScheduledChild:
    """A child as the parent's history recorded it."""

    def __init__(self, event: ChildWorkflowScheduled) -> None:
        self.call_id = event.child_call_id
        self.id = event.child_workflow_instance_id
        self.run_id = event.child_workflow_run_id
        self.type = event.child_workflow_type


class Family:
    """Children by the step that called them."""

    def __init__(self) -> None:
        self.known: dict[int, ScheduledChild] = {}
        self.definitions: dict[int, WorkflowDefinition] = {}


def scheduled(live_run: LiveRun, entry: Recorded) -> None:
    event = entry.event
    assert isinstance(event, ChildWorkflowScheduled)
    live_run.part(Family).known[event.sequence] = ScheduledChild(event)


def run_started(live_run: LiveRun, entry: Recorded) -> None:
    event = entry.event
    assert isinstance(event, ChildRunStarted)
    known = live_run.part(Family).known.get(event.sequence)
    if known is not None:
        known.run_id = event.child_workflow_run_id


@contextmanager
def shown(live_run: LiveRun, history: Iterable[Recorded]) -> Generator[None]:
    """Show these events of children to the code for the time of a query; its next task will apply them."""
    family = live_run.part(Family)
    before = family.known
    family.known = {step: copy(known) for step, known in before.items()}
    try:
        for entry in history:
            if isinstance(entry.event, ChildWorkflowScheduled):
                scheduled(live_run, entry)
            elif isinstance(entry.event, ChildRunStarted):
                run_started(live_run, entry)
        yield
    finally:
        family.known = before


class ChildHandle(Generic[R]):
    """A child workflow that this workflow started: wait for it with `join()` or `await`, or send it signals.

    `id` and `run_id` are None until the parent's code has waited for something, because its history records them.
    """

    def __init__(self, live_run: LiveRun, step: int, call: ChildCall[R] | None) -> None:
        self._live_run = live_run
        self._step = step
        self._call = call
        self._outcome: Outcome | None = None
        self._waiting: list[Callable[[], None]] = []

    @property
    def call_id(self) -> str:
        return child_call_id(self._live_run.assignment.run_id, self._step)

    @property
    def id(self) -> str | None:
        """The workflow id of the child; None until the parent's code has waited for something since the start."""
        known = self._live_run.part(Family).known.get(self._step)
        return None if known is None else known.id

    @property
    def run_id(self) -> str | None:
        """The newest run of the child that the parent knows of; None as long as `id` is. Changes on continue-as-new."""
        known = self._live_run.part(Family).known.get(self._step)
        return None if known is None else known.run_id

    def join(self) -> R:
        """Wait for the child and return its result, or raise its exception.

        Raises `ChildTimedOut` or `ChildStopped` if the child did not end by its own code, and `DefinitionError` on a handle
        that was looked up.
        """
        call = self._waited()
        if self._outcome is None:
            greenlet = current_greenlet()
            if greenlet is None:
                raise NotInWorkflow("join()")
            self._suspend(greenlet)
        assert self._outcome is not None
        return call.finish(self._live_run, self._outcome)

    def _suspend(self, greenlet: WorkflowGreenlet) -> None:
        def wake() -> None:
            self._live_run.wake(greenlet, None)

        self._waiting.append(wake)
        try:
            self._live_run.suspend(greenlet)
        except asyncio.CancelledError:
            self._waiting.remove(wake)
            raise

    def __await__(self) -> Generator[Any, Any, R]:
        call = self._waited()
        if self._outcome is None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(lambda: None if future.done() else future.set_result(None))
            yield from future
        assert self._outcome is not None
        return call.finish(self._live_run, self._outcome)

    def _waited(self) -> ChildCall[R]:
        if self._call is None:
            raise DefinitionError(
                "this handle was looked up by id; wait for the result with the handle that child.start() returned"
            )
        return self._call

    def answered(self, outcome: Outcome) -> None:
        self._outcome = outcome
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()

    @overload
    def signal(self, signal: SignalMethod[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    @overload
    def signal(self, signal: Signal[T], value: T, /) -> None: ...
    @overload
    def signal(self, signal: str, /, *args: Any) -> None: ...
    def signal(self, signal: Any, /, *args: Any, **kwargs: Any) -> None:
        """Send the child a signal, exactly once. Also allowed in an update handler.

        Raises `TypeError` if the arguments do not fit the handler, where its declaration is known.
        """
        member = self._declared().get(signal, signal) if isinstance(signal, str) else signal
        name, arguments, named = packed(member, args, kwargs)
        if named is not None:
            raise TypeError("a signal given by name takes positional arguments only")
        _refuse_unfit(member, arguments)
        if outbox(self._live_run, self.call_id, name, arguments):
            return
        self._live_run.immediate(
            Immediate("child signal", name),
            lambda step: SignalChild(sequence=step, child_call_id=self.call_id, signal_name=name, arguments=arguments),
        )

    def _declared(self) -> dict[str, SignalMethod[Any, Any] | Signal[Any]]:
        """Return the signals that the child declares, if its class or function is known here."""
        definition = self._live_run.part(Family).definitions.get(self._step)
        return {} if definition is None else {**definition.handlers.signals, **definition.handlers.channels}

    def __getattr__(self, name: str) -> Callable[..., None]:
        """`handle.approved_by("Taylor")` signals `approved-by` or `approved_by`, whichever the child declares."""
        definition = None if name.startswith("_") else self._live_run.part(Family).definitions.get(self._step)
        if definition is None:
            raise AttributeError(name)
        declared = self._declared()
        for candidate in (name, name.replace("_", "-")):
            if candidate in declared:
                return lambda *args: self.signal(candidate, *args)
        raise AttributeError(f"child {definition.type!r} declares no signal {name!r}")

    def __repr__(self) -> str:
        return f"<child {self.call_id}>"


def _refuse_unfit(member: Any, arguments: bytes | None) -> None:
    """Raise if the child could not decode the arguments of a signal."""
    try:
        match member:
            case SignalMethod():
                member.unpack(arguments)
            case Signal():
                channel = cast(Signal[Any], member)
                typed(plain_value(delivered(channel, arguments)), channel.type)
            case _:
                pass  # only its name is known
    except PayloadError as error:
        raise TypeError(f"signal {member.name!r}: {error.problem} (at {error.path} of its arguments)") from None


class ChildCaller:
    """The type of `child`: `child(...)` waits, `child.step(...)` describes the call, `child.start(...)` returns a handle.

    `child()` without arguments returns a handle of the latest child.
    """

    def __init__(self, options: ChildOptions) -> None:
        self._options = options

    def options(self, **options: Unpack[ChildOptions]) -> ChildCaller:
        check(options, ChildOptions, "child option", DefinitionError)
        for name in ("timeout", "run_timeout"):
            timeout = options.get(name)
            if timeout is not None and to_seconds(timeout) == 0:
                raise DefinitionError(f"{name} of a child must be above 0, not {timeout!r}")
        return ChildCaller({**self._options, **options})

    @overload
    def __call__(self) -> ChildHandle[Any] | None: ...
    @overload
    def __call__(self, workflow: WorkflowFn[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, workflow: type[EntryPoint[P, Coro[R]]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, workflow: type[EntryPoint[P, R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, workflow: str, /, *args: Any) -> Any: ...
    def __call__(self, *call: Any, **kwargs: Any) -> Any:
        if not call:
            known = children()
            return known[-1] if known else None
        return self.step(call[0], *call[1:], **kwargs).run()

    @overload
    def step(self, workflow: WorkflowFn[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Step[R]: ...
    @overload
    def step(self, workflow: type[EntryPoint[P, Coro[R]]], /, *args: P.args, **kwargs: P.kwargs) -> Step[R]: ...
    @overload
    def step(self, workflow: type[EntryPoint[P, R]], /, *args: P.args, **kwargs: P.kwargs) -> Step[R]: ...
    @overload
    def step(self, workflow: str, /, *args: Any) -> Step[Any]: ...
    def step(self, workflow: Any, /, *args: Any, **kwargs: Any) -> Step[Any]:
        call: ChildCall[Any] = ChildCall(workflow, args, kwargs, self._options)
        return Step(call)

    @overload
    def start(self, workflow: WorkflowFn[P, R], /, *args: P.args, **kwargs: P.kwargs) -> ChildHandle[R]: ...
    @overload
    def start(self, workflow: type[EntryPoint[P, Coro[R]]], /, *args: P.args, **kwargs: P.kwargs) -> ChildHandle[R]: ...
    @overload
    def start(self, workflow: type[EntryPoint[P, R]], /, *args: P.args, **kwargs: P.kwargs) -> ChildHandle[R]: ...
    @overload
    def start(self, workflow: str, /, *args: Any) -> ChildHandle[Any]: ...
    def start(self, workflow: Any, /, *args: Any, **kwargs: Any) -> ChildHandle[Any]:
        """Start a child and return its handle without waiting for it."""
        live_run = required_run("child.start()")
        call: ChildCall[Any] = ChildCall(workflow, args, kwargs, self._options)
        handle: ChildHandle[Any] = ChildHandle(live_run, live_run.step + 1, call)
        live_run.ask(call, handle.answered)
        return handle


child = ChildCaller({})
"""Call another workflow as a child: `child(Order, ...)` waits for its result, `child.start(...)` returns a handle.

`child()` without arguments returns a handle of the latest child.
"""


def children() -> list[ChildHandle[Any]]:
    """Return handles of all children that this run has started, in the order of their steps."""
    live_run = required_run("children()")
    return [ChildHandle(live_run, step, None) for step in sorted(live_run.part(Family).known)]
