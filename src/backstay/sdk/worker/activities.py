"""Activities in a worker's process: sync ones on a pool of threads, async ones as tasks of its loop.

`start` decodes the arguments of an attempt, runs it and encodes its result. It serves the engine (`run`, which counts free
slots and reports the outcome) and workflow tasks with local activities.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate
from time import perf_counter
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from backstay.codec.values import dumps
from backstay.kernel.failure import Failure
from backstay.kernel.features.activity import (
    ActivityAssignment,
    CompleteActivity,
    FailActivity,
    HeartbeatActivity,
    Progress,
)
from backstay.kernel.message import Message
from backstay.kernel.views import log_ids
from backstay.sdk import tracing
from backstay.sdk.author.activity import error_type
from backstay.sdk.author.attempt import Attempt, set_current
from backstay.sdk.errors import ActivityCancelled
from backstay.sdk.worker.failure_log import attempt_failed
from backstay.sdk.worker.host import HeartbeatAnswer, Host
from backstay.sdk.worker.registry import Registry

log = logging.getLogger("backstay.worker")

CANCELLED = "ActivityCancelled"
_UNASKED = (
    "activity {!r} was cancelled, but not by Backstay: its code cancelled its own task, or did not catch the"
    " asyncio.CancelledError of another task"
)
SLOW = 0.02  # seconds: an activity that holds the loop for so long once runs on threads from then on
LOOP_ENDS = 0.05  # seconds after which a loop that is being closed runs nothing more


class ActivityRunner:
    def __init__(
        self, host: Host, registry: Registry, owner: str, holding: set[str], *, threads: int, tasks: int
    ) -> None:
        self._host = host
        self._registry = registry
        self._owner = owner
        self._holding = holding
        self._free = {False: threads, True: tasks}  # free slots, by whether the activity is async
        self._running: dict[str, tuple[Attempt, asyncio.Task[Any] | None]] = {}
        self._slow: set[str] = set()  # activities that were to run on the loop, and held it
        self._leaving = False
        self._stopped = False
        self._last: asyncio.Future[None] | None = None  # resolved when no attempt runs any more

    # -- slots

    def has_room(self, type: str) -> bool:
        return not self._leaving and self._free[self._registry.activities[type].is_async] > 0

    def take(self, type: str) -> bool:
        lane = self._registry.activities[type].is_async
        free = self._free[lane]
        if self._leaving or free <= 0:
            return False
        self._free[lane] = free - 1
        return True

    def give_back(self, type: str) -> None:
        self._free[self._registry.activities[type].is_async] += 1

    # -- attempts

    def run(self, assignment: ActivityAssignment) -> None:
        """Run an attempt that the engine has handed out; its slot is taken."""
        attempt = Attempt(assignment, self._beat)
        self.start(assignment, attempt, partial(self._ended, assignment, attempt))

    def start(self, assignment: ActivityAssignment, attempt: Attempt, done: Callable[[bytes | Failure], None]) -> None:
        """Start an attempt. `done` is called with the outcome on the engine's thread, unless the process stops first.

        The callback must call `over`.
        """
        type = assignment.activity_type
        id = assignment.activity_attempt_id
        self._running[id] = attempt, None
        definition = self._registry.activities[type]
        if not definition.is_async:
            # In its own context, so that context variables of an earlier attempt do not reach it.
            run = self._attempt if assignment.traceparent is UNSET else self._traced_attempt
            call = partial(Context().run, partial(run, assignment, attempt))
            if definition.on_thread or type in self._slow:
                self._host.thread(call, done)
            else:
                self._host.here(partial(self._measured, type, call), done)
            return
        run_async = self._async_attempt if assignment.traceparent is UNSET else self._traced_async_attempt

        async def work() -> None:
            done(await run_async(assignment, attempt))

        task = self._host.spawn(work(), f"activity-{type}")
        task.add_done_callback(partial(self._broken_off, assignment, done))
        self._running[id] = attempt, task

    def _measured(self, type: str, call: Callable[[], bytes | Failure]) -> bytes | Failure:
        """Run an attempt on the loop. If it holds the loop, the next ones run on threads."""
        began = perf_counter()
        try:
            return call()
        finally:
            took = perf_counter() - began
            if took > SLOW and type not in self._slow:
                self._slow.add(type)
                log.warning(
                    "activity %r is declared with thread=False and held the engine's thread for %.0f ms; it runs on threads"
                    " from now on. Leave out thread=False if it computes for long or waits for anything",
                    type,
                    took * 1000,
                )

    def _broken_off(
        self, assignment: ActivityAssignment, done: Callable[[bytes | Failure], None], task: asyncio.Task[None]
    ) -> None:
        """Fail an attempt whose task was cancelled, unless the process stops: then its lease ends, and it is delivered again.

        A loop that is closed without `stop` cancels its tasks too. That looks the same, except that the loop runs nothing a
        moment later. So the failure is reported after that moment.
        """
        if task.cancelled() and not self._stopped:
            try:
                task.result()
            except asyncio.CancelledError as error:
                if not str(error):
                    error.args = (_UNASKED.format(assignment.activity_type),)
                self._host.later(LOOP_ENDS, partial(self._fail_broken_off, assignment, done, error))

    def _fail_broken_off(
        self, assignment: ActivityAssignment, done: Callable[[bytes | Failure], None], error: BaseException
    ) -> None:
        if not self._stopped:
            done(self._failure(assignment, error))

    def over(self, attempt_id: str) -> None:
        self._running.pop(attempt_id, None)
        if self._last is not None and not self._running and not self._last.done():
            self._last.set_result(None)

    def at_work(self) -> set[str]:
        """Return the tasks of the attempts that run or wait for a thread."""
        return {attempt.task_id for attempt, _ in self._running.values()}

    def busy(self) -> int:
        """Return how many attempts run: those on threads, and the async ones whose task has not ended."""
        return sum(task is None or not task.done() for _, task in self._running.values())

    def cancel(self, run_id: str) -> None:
        """Cancel the attempts of a run that is over."""
        if self._running:
            self._cancel(lambda attempt: attempt.run_id == run_id)

    def abort(self, one: Attempt) -> None:
        """Cancel an attempt that timed out; another one may take its place."""
        self._cancel(lambda attempt: attempt is one, stale=True)

    def withdraw(self, task_id: str) -> None:
        """Cancel the attempt of a task that is not wanted any more, though its run goes on."""
        self._cancel(lambda attempt: attempt.task_id == task_id, stale=True)

    def _cancel(self, meant: Callable[[Attempt], bool], *, stale: bool = False) -> None:
        for attempt, task in list(self._running.values()):
            if meant(attempt):
                attempt.cancel(stale=stale)
                if task is not None and _has_begun(task):
                    task.cancel()  # an attempt that has not begun checks first, and reports its end

    def take_no_more(self) -> None:
        self._leaving = True

    async def leave(self, grace: float) -> None:
        """Take no more attempts, and give those that run this many seconds to end."""
        self.take_no_more()
        if self._running:
            self._last = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._last], timeout=grace)

    def stop(self) -> None:
        """Stop the async attempts; those on threads cannot be stopped from outside."""
        self._stopped = True
        for _, task in list(self._running.values()):
            if task is not None:
                task.cancel()

    def _traced_attempt(self, assignment: ActivityAssignment, attempt: Attempt) -> bytes | Failure:
        with tracing.attempt_span(assignment) as span:
            result = self._attempt(assignment, attempt)
            tracing.say_outcome(span, result)
        return result

    async def _traced_async_attempt(self, assignment: ActivityAssignment, attempt: Attempt) -> bytes | Failure:
        with tracing.attempt_span(assignment) as span:
            result = await self._async_attempt(assignment, attempt)
            tracing.say_outcome(span, result)
        return result

    def _attempt(self, assignment: ActivityAssignment, attempt: Attempt) -> bytes | Failure:
        set_current(attempt)
        try:
            return self._kept(assignment, self._call(assignment))
        except BaseException as error:
            return self._failure(assignment, error)
        finally:
            set_current(None)

    async def _async_attempt(self, assignment: ActivityAssignment, attempt: Attempt) -> bytes | Failure:
        set_current(attempt)
        try:
            if attempt.cancelled:
                raise _unwanted(attempt)
            return self._kept(assignment, await self._call(assignment))
        except GeneratorExit:
            raise  # its loop is gone, so nothing can be reported
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                if not attempt.cancelled:
                    raise  # cancelled by others: see `_broken_off`
                error = _unwanted(attempt)  # report the reason for the cancellation instead of asyncio's error
            return self._failure(assignment, error)

    def _call(self, assignment: ActivityAssignment) -> Any:
        """Call the author's function and return its result, or the coroutine of an async one."""
        type, arguments = assignment.activity_type, assignment.arguments
        definition = self._registry.activities[type]
        fn = definition.fn
        if type in self._registry.instances:
            fn = fn.__get__(self._registry.instances[type])
        if arguments is None:
            return fn()
        args, kwargs = definition.signature.unpack(arguments)
        return fn(*args, **kwargs)

    def _kept(self, assignment: ActivityAssignment, result: Any) -> bytes | Failure:
        try:
            return dumps(result)
        except Exception as error:  # not retried: another attempt would return the same
            return self._failure(assignment, error, unencodable=True)

    def _failure(self, assignment: ActivityAssignment, error: BaseException, *, unencodable: bool = False) -> Failure:
        if isinstance(error, ActivityCancelled):
            return Failure(message=str(error), exception_type=CANCELLED, non_retryable=True)
        try:
            failure = self._registry.exceptions.failure(error)
        except BaseException as worse:  # the attempt has ended anyway, and must be reported
            name = type(error).__qualname__
            log.error(
                "activity %r raised %s, which cannot be recorded",
                assignment.activity_type,
                name,
                exc_info=worse,
                extra=log_ids.of_attempt(assignment),
            )
            failure = Failure(message=f"<{name} that cannot be recorded>", exception_type=error_type(type(error)))
        fatal = assignment.retry_policy.non_retryable_error_types
        if unencodable or (fatal and any(error_type(kind) in fatal for kind in type(error).__mro__)):
            failure = replace(failure, non_retryable=True)  # as with `except`, a subclass counts
        attempt_failed(assignment, error, failure)
        return failure

    def _ended(self, assignment: ActivityAssignment, attempt: Attempt, result: bytes | Failure) -> None:
        self.over(assignment.activity_attempt_id)
        self._holding.discard(assignment.task.id)
        self.give_back(assignment.activity_type)
        self._host.report(assignment.task.workflow, self._outcome(assignment, result, attempt.stale), None)
        self._host.on_slot_free()

    def _outcome(self, assignment: ActivityAssignment, result: bytes | Failure, stale: bool) -> Message:
        if not isinstance(result, Failure):
            return CompleteActivity(
                step=assignment.step,
                attempt=assignment.attempt_number,
                owner=self._owner,
                run_id=assignment.run_id,
                result=result,
            )
        return FailActivity(
            step=assignment.step,
            attempt=assignment.attempt_number,
            owner=self._owner,
            run_id=assignment.run_id,
            failure=result,
            gave_up=stale and result.exception_type == CANCELLED,
        )

    def _beat(self, assignment: ActivityAssignment, attempt: Attempt, progress: Progress | None) -> None:
        """Pass a heartbeat to the engine's thread without waiting. Called on the activity's own thread."""
        message = HeartbeatActivity(
            step=assignment.step,
            attempt=assignment.attempt_number,
            owner=self._owner,
            run_id=assignment.run_id,
            progress=progress,
        )

        def heard(reply: HeartbeatAnswer) -> None:
            if not reply.can_continue:
                attempt.cancel(stale=not reply.cancel_requested)

        self._host.post(lambda: self._host.heartbeat(assignment.task.workflow, message, heard))


def _unwanted(attempt: Attempt) -> ActivityCancelled:
    return ActivityCancelled(f"activity {attempt.type!r} is no longer wanted")


def _has_begun(task: asyncio.Task[Any]) -> bool:
    work = task.get_coro()
    return not isinstance(work, Coroutine) or getcoroutinestate(work) != CORO_CREATED
