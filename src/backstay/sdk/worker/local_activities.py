"""Local activities: they run beside the workflow task that called them, while its lease is held.

Several may run at once. The code gets their results in step order, which is the order of a replay.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from backstay.kernel.failure import Failure
from backstay.kernel.feature import Outcome, Thrown, Value
from backstay.kernel.features.activity import ActivityAssignment
from backstay.kernel.features.local_activity import LocalAttempt, RecordLocalActivity
from backstay.kernel.features.workflow_task import WorkflowAssignment
from backstay.kernel.values import attempt_id, execution_id
from backstay.sdk.author.attempt import Attempt
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.worker.host import TimerHandle

if TYPE_CHECKING:
    from backstay.sdk.author.activity import ActivityCall
    from backstay.sdk.worker.executor import WorkerExecutor


class LocalRunner:
    def __init__(self, executor: WorkerExecutor) -> None:
        self._executor = executor
        self._rounds: dict[str, _Round] = {}  # by run id: a run has one task at a time
        self._claims: set[str] = set()  # ids of tasks whose code has run and whose lease is being written

    def hold(self, live_run: LiveRun, assignment: WorkflowAssignment) -> Callable[[BaseException | None], None]:
        """Hold a task for the local activities its code waits for. Returns `start`, for when its lease is on disk."""
        self._claims.add(assignment.task.id)
        return partial(self.start, live_run, assignment)

    def is_claiming(self, task_id: str) -> bool:
        """Return whether the engine delivers this task only because it is held: its code has run already."""
        return task_id in self._claims

    def start(self, live_run: LiveRun, assignment: WorkflowAssignment, error: BaseException | None) -> None:
        """Run the local activities once the task's lease is on disk; with an error, the lease was not written."""
        self._claims.discard(assignment.task.id)
        if error is not None:
            self._executor.forget(assignment.run_key)
            self._executor.host.release_hold(assignment.task.workflow)
            return
        self._rounds[assignment.run_id] = round = _Round(self._executor, live_run, assignment, self._over)
        round.begin()

    def closed(self, run_id: str) -> None:
        """Stop the local activities of a run that is over, and release its task."""
        if run_id in self._rounds:
            self._rounds[run_id].stop()

    def given_up(self, live_run: LiveRun) -> None:
        """Stop the local activities of dropped code: attempts that run may end, but are not retried."""
        round = self._rounds.get(live_run.assignment.run_id)
        if round is not None and round.live_run is live_run:
            self._executor.host.later(0, round.stop_if_idle)

    def _over(self, round: _Round) -> None:
        if self._rounds.get(round.assignment.run_id) is round:
            del self._rounds[round.assignment.run_id]


class _Round:
    """The local activities of one held task."""

    def __init__(
        self,
        executor: WorkerExecutor,
        live_run: LiveRun,
        assignment: WorkflowAssignment,
        on_over: Callable[[_Round], None],
    ) -> None:
        self.executor = executor
        self.on_over = on_over
        self.over = False
        self.live_run = live_run
        self.assignment = assignment
        self.running: set[int] = set()
        self.attempts: dict[int, list[LocalAttempt]] = {}
        self.ended: dict[int, bytes | Failure] = {}
        self.trying: dict[int, Attempt] = {}
        self.alarms: dict[int, TimerHandle] = {}  # the timeout of an attempt, or the end of the backoff after it

    def begin(self) -> None:
        for step, call in list(self.live_run.locals.items()):
            if step not in self.running:
                self.running.add(step)
                self.attempts[step] = []
                self._try(step, call)

    def stop(self) -> None:
        """End the round and drop the live code."""
        if not self.over:
            if self._is_live():
                self.executor.forget(self.assignment.run_key)
            self._end()

    def _is_live(self) -> bool:
        return self.executor.live(self.assignment.run_key) is self.live_run

    def stop_if_idle(self) -> None:
        if not self.trying:
            self.stop()

    def _end(self) -> None:
        self.over = True
        self.on_over(self)
        for alarm in self.alarms.values():
            alarm.cancel()
        for attempt in self.trying.values():
            self.executor.activities.abort(attempt)
        self.executor.finish_held(self.live_run, self.assignment)

    def _try(self, step: int, call: ActivityCall[Any]) -> None:
        executor = self.executor
        number = len(self.attempts[step]) + 1
        timeout = call.definition.policy.start_to_close_timeout
        if timeout is not None:
            self.alarms[step] = executor.host.later(timeout, lambda: self._expire(step, call, number))
        assignment = self._assignment(step, call, number)
        # Its heartbeats need no engine: the task is held.
        attempt = Attempt(assignment, lambda assignment, attempt, progress: None)
        self.trying[step] = attempt

        def ended(result: bytes | Failure) -> None:
            try:
                self._tried(step, call, number, result)
            finally:  # the code has gone on by now
                executor.activities.over(attempt.attempt_id)

        executor.activities.start(assignment, attempt, ended)

    def _assignment(self, step: int, call: ActivityCall[Any], number: int) -> ActivityAssignment:
        task = self.assignment
        return ActivityAssignment(
            task=task.task,
            namespace=task.namespace,
            workflow_id=task.workflow_id,
            run_id=task.run_id,
            step=step,
            activity_execution_id=execution_id(task.run_id, step),
            activity_attempt_id=attempt_id(task.run_id, step, number),
            attempt_number=number,
            activity_type=call.definition.type,
            arguments=call.packed(),
            retry_policy=call.definition.policy,
            traceparent=task.started.traceparent or UNSET,
        )

    def _expire(self, step: int, call: ActivityCall[Any], number: int) -> None:
        message = f"local activity {call.definition.type!r} passed its start-to-close timeout"
        failure = Failure(message=message, exception_type="ActivityTimedOut")
        self.executor.activities.abort(self.trying[step])
        self._tried(step, call, number, failure, "start_to_close")

    def _tried(
        self,
        step: int,
        call: ActivityCall[Any],
        number: int,
        result: bytes | Failure,
        timeout_kind: str | None = None,
    ) -> None:
        policy = call.definition.policy
        tries = self.attempts.get(step)
        if self.over or tries is None or len(tries) + 1 != number:
            return  # too late: this attempt has timed out, or the round has ended
        del self.trying[step]
        if step in self.alarms:
            self.alarms.pop(step).cancel()
        if not self._is_live():
            self.stop_if_idle()
            return
        if isinstance(result, Failure):
            final = result.non_retryable or policy.fatal(result.exception_type, result.exception_class)
            if not final and policy.in_budget(number):
                pause = policy.backoff(number) / 1_000_000
                tries.append(LocalAttempt(failure=result, timeout_kind=timeout_kind, backoff_seconds=pause))
                self.alarms[step] = self.executor.host.later(pause, lambda: self._try(step, call))
                return
            tries.append(LocalAttempt(failure=result, timeout_kind=timeout_kind))
        else:
            tries.append(LocalAttempt())
        self.ended[step] = result
        self._settle()

    def _settle(self) -> None:
        """Give the results to the code, lowest step first; the code may call further local activities."""
        live_run = self.live_run
        if self.over:
            return  # the run was closed while its code was on another thread
        while live_run.locals and live_run.block is None and self._is_live():
            step = min(live_run.locals)
            if step not in self.ended:
                self.begin()
                return
            call = live_run.locals[step]
            record, outcome = self._record(step, call, self.ended.pop(step))
            if live_run.threaded:
                self._settle_on_thread(step, record, outcome)
                return
            try:
                self.executor.under_watch(live_run, partial(live_run.settle_local, step, record, outcome))
            except Exception as error:
                self.executor.broke(live_run, error)
        self._end()

    def _settle_on_thread(self, step: int, record: RecordLocalActivity, outcome: Outcome) -> None:
        def settle() -> None:
            try:
                self.executor.under_watch(self.live_run, partial(self.live_run.settle_local, step, record, outcome))
            except BaseException as error:  # an exception on this thread must not end the process
                self.executor.broke(self.live_run, error)

        self.executor.host.workflow_thread(settle, lambda _: self._settle())

    def _record(
        self, step: int, call: ActivityCall[Any], result: bytes | Failure
    ) -> tuple[RecordLocalActivity, Outcome]:
        definition = call.definition
        failed = isinstance(result, Failure)
        attempts = self.attempts.pop(step)
        timeout_kind = attempts[-1].timeout_kind
        record = RecordLocalActivity(
            sequence=step,
            activity_type=definition.type,
            outcome="timed_out" if timeout_kind else "failed" if failed else "completed",
            attempts=attempts,
            arguments=call.packed(),
            result=None if failed else result,
            retry_policy=definition.policy,
            **definition.carried,
        )
        if isinstance(result, Failure):
            return record, Thrown(
                result, self.live_run.delivered.add_local(step), "timeout" if timeout_kind else "activity", timeout_kind
            )
        return record, Value(result)
