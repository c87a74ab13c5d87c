"""The definition of a workflow: what a client needs to start it, and how a worker runs its entry from beginning to end.

`main` is the first job of a live run. It decodes the arguments, calls the entry, and turns the result (a value, an exception,
a request to continue as new) into the one command that closes the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from inspect import CO_COROUTINE, isawaitable
from types import FunctionType
from typing import Any, TypeGuard, cast

from backstay.codec.arguments import Signature
from backstay.codec.class_names import Namespace, module_of
from backstay.codec.errors import PayloadError
from backstay.codec.values import dumps
from backstay.kernel.features.cancel import CancelWorkflow
from backstay.kernel.features.close import CompleteWorkflow, FailWorkflow
from backstay.kernel.features.continue_as_new import ContinueAsNew
from backstay.kernel.features.start import RecordedDefinition as Snapshot
from backstay.kernel.features.start import WorkflowStarted
from backstay.kernel.task import Block
from backstay.sdk.author.cancellation import Cancelled, was_requested
from backstay.sdk.author.durations import Duration, to_seconds
from backstay.sdk.author.handlers import Handlers, Signal
from backstay.sdk.author.primitives import patched, version
from backstay.sdk.author.step import Step
from backstay.sdk.errors import ContinueAsNewRequested, Evicted, NonDeterminismError
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.replay.loop import WorkflowLoop, for_the_process
from backstay.sdk.worker.failure_log import workflow_failed


class WorkflowDefinition:
    """A workflow as its decorator declared it. What is derived from its source is computed when first needed."""

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
        self.named = type is not None  # the author gave the type; a type map may not contradict it
        self.queue = queue
        self.unchecked = unchecked
        self.is_class = is_class
        self.is_async = bool(entry.__code__.co_flags & CO_COROUTINE)
        self.cleanup_seconds = None if handles_cancel is None else to_seconds(handles_cancel)
        self._handlers = Handlers()
        if is_class:
            self._handlers.collect(target)
        for channel in signals:
            self._handlers.channel(channel)

    @cached_property
    def handlers(self) -> Handlers:
        """Its handlers and channels. Signals that its source waits for by name are declared by that."""
        from backstay.sdk.author.wait import Wait, wait
        from backstay.sdk.replay.source import waited_signals

        # `wait.step` is found as a method, `pause = wait.step` as the same method bound.
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
        """The part of the definition that `WorkflowStarted` records."""
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
            update_validators=[name for name, update in handlers.updates.items() if update.check is not None],
            cleanup_seconds=self.cleanup_seconds,
        )

    @property
    def modules(self) -> Iterable[Namespace]:
        """The globals of the modules that define it: that of the entry, and that of the class if `handle` is inherited."""
        members = cast(dict[str, Any], vars(self.target)) if self.is_class else {}
        home = self.target.__module__
        own = [member for member in members.values() if getattr(member, "__module__", None) == home]
        return filter(None, map(module_of, [self.entry, *own]))

    @property
    def class_name(self) -> str:
        return f"{self.target.__module__}:{self.target.__qualname__}"

    def main(self, live_run: LiveRun, started: WorkflowStarted) -> None:
        """Run the entry from its arguments to its end, as the first job of a live run."""
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
            raise Evicted from None  # a CancelledError would leave the run's event loop and end the loop below it

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
            live_run.park(
                Block(message=str(error), type=type(error).__name__)
            )  # a bug of the code: the task fails, and the run stays open
        except BaseException as error:
            live_run.fatal = error
            live_run.closing = _failed(live_run, error)

    def _continue(self, request: ContinueAsNewRequested) -> ContinueAsNew:
        return ContinueAsNew(
            arguments=request.arguments,
            workflow_type=request.definition.type,
            definition=request.definition.snapshot,
        )


def _awaited_a_value(error: TypeError) -> bool:
    """Return whether this is the error of `await 3`, in the wording before or since Python 3.14."""
    return str(error).endswith(("can't be used in 'await' expression", "can't be awaited"))


def _keep_running(live_run: LiveRun, error: BaseException) -> None:
    """Fail the task if the code raised an exception that would end the process or the thread."""
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
