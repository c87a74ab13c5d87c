"""Reports: results of tasks and attempts as messages to the server, and the handling of its answers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from backstay.kernel.features.activity import CompleteActivity, FailActivity, HeartbeatActivity
from backstay.kernel.features.workflow_task import CompleteWorkflowTask, FailWorkflowTask
from backstay.kernel.message import Message, Refused
from backstay.kernel.task import Block
from backstay.kernel.values import attempt_id
from backstay.kernel.views import log_ids
from backstay.protocol.native import worker as wire
from backstay.protocol.native.client import Refusal
from backstay.sdk.remote.bounds import Bounds
from backstay.sdk.remote.eager import EagerResume
from backstay.sdk.remote.report_queue import PendingReport
from backstay.sdk.remote.sticky import StickyRuns, count_skipped
from backstay.sdk.remote.tasks import WorkflowTasks
from backstay.sdk.worker import host
from backstay.sdk.worker.executor import WorkerExecutor
from backstay.sdk.worker.host import Reply

log = logging.getLogger("backstay.worker")


class ServerHeartbeatAnswer(NamedTuple):
    """The answer to a heartbeat."""

    can_continue: bool
    cancel_requested: bool


class Reports:
    def __init__(
        self,
        executor: WorkerExecutor,
        sticky: StickyRuns,
        tasks: WorkflowTasks,
        bounds: Bounds,
        send: Callable[[PendingReport], None],
        link_of: Callable[[str | None], object],
    ) -> None:
        """`link_of`: the link that a task came from, to which it is reported."""
        self._executor = executor
        self._sticky = sticky
        self._tasks = tasks
        self._bounds = bounds
        self._send = send
        self._link_of = link_of
        self._eager = EagerResume(executor, sticky)
        self._attempts: dict[str, str] = {}  # attempt id -> task id

    def on_attempt(self, activity_attempt_id: str, task_id: str) -> None:
        """Remember the task of an attempt that starts: the report of the attempt ends the lease of the task."""
        self._attempts[activity_attempt_id] = task_id

    def report(self, key: int, message: Message, reply: Reply | None) -> None:
        """Send the result of a workflow task or an activity attempt. `reply` is called with the server's answer."""
        match message:
            case CompleteWorkflowTask():
                self._task_done(key, message, reply)
            case FailWorkflowTask():
                shown = self._tasks.take_shown(message.task_id)
                self._sticky.forget(shown.assignment.run_key)
                failed = wire.TaskFailed(key, message.task_id, message.attempt, message.block)
                self._queue(PendingReport(failed, message.task_id, None, lambda answer: _reply(answer, reply)))
            case CompleteActivity():
                self._activity_done(key, message)
            case FailActivity():
                ended = wire.AttemptFailed(
                    key, message.run_id, message.step, message.attempt, message.failure, message.gave_up
                )
                self._queue(PendingReport(ended, self._task_of(message), None, _log_refusal))
            case _:
                raise TypeError(f"a worker does not report {type(message).__name__}")

    def heartbeat(self, key: int, message: HeartbeatActivity, heard: Callable[[host.HeartbeatAnswer], None]) -> None:
        """Send a heartbeat of an attempt. `heard` is called with the answer, if one comes."""
        beat = wire.Heartbeat(key, message.run_id, message.step, message.attempt, message.progress)

        def answered(answer: wire.Answered) -> None:
            heard(ServerHeartbeatAnswer(answer.goes_on and answer.refused is None, answer.cancel_requested))

        pending = PendingReport(beat, None, None, answered)
        pending.link = self._link_of(self._attempts.get(attempt_id(message.run_id, message.step, message.attempt)))
        self._send(pending)

    def cannot_run(self, key: int, task_id: str, attempt: int, error: Exception) -> None:
        """Fail a workflow task that could not start. The server offers it again, with growing pauses."""
        block = Block(message=f"the worker failed: {error}", type=type(error).__name__)
        self._queue(PendingReport(wire.TaskFailed(key, task_id, attempt, block), task_id, None, _log_refusal))

    def give_back(self, task_id: str, attempt: int, link: object) -> None:
        """Return a lease that this worker does not work on and will not report, to where it came from."""
        pending = PendingReport(wire.GivenBack(task_id, attempt), None, None, _log_refusal)
        pending.link = link
        self._send(pending)

    def answer_query(self, query_answer: wire.QueryAnswer, link: object) -> None:
        """Send the answer to a query or the result of a validator."""
        pending = PendingReport(query_answer, None, None, lambda answer: None)
        pending.link = link
        self._send(pending)

    def prepare_resend(self, pending: PendingReport) -> PendingReport:
        """Prepare a report for being sent again, because it may not have arrived.

        The part about code that ran ahead is left out, and that code is dropped (see `worker_link.py`).
        """
        pending.again = True
        if pending.run is not None:
            self._sticky.forget(pending.run)
        if isinstance(pending.report, wire.AttemptDone) and pending.report.resumed is not None:
            pending.report = replace(pending.report, resumed=None)
        return pending

    def _task_of(self, message: CompleteActivity | FailActivity) -> str | None:
        return self._attempts.pop(attempt_id(message.run_id, message.step, message.attempt), None)

    def _queue(self, pending: PendingReport) -> None:
        pending.link = self._link_of(pending.task_id)
        if pending.run is not None:
            self._sticky.on_report(pending.run)
        self._send(pending)

    def _task_done(self, key: int, message: CompleteWorkflowTask, reply: Reply | None) -> None:
        shown = self._tasks.take_shown(message.task_id)
        assignment = shown.assignment
        run = assignment.run_key
        live_run = self._executor.live(run)
        if live_run is not None:
            count_skipped(live_run, shown.skipped, shown.reaches)
            if live_run.consumed != live_run.position:
                self._sticky.forget(run)  # the code left out events that this worker does not keep
        done = wire.TaskDone(
            key, message.task_id, message.attempt, message.commands, list(message.handled_failures), message.seen_until
        )

        def answered(answer: wire.Answered) -> None:
            self._on_sticky_state(run, assignment.run_id, answer, pending)
            _reply(answer, reply)
            if answer.refused is not None:
                log.warning(
                    "workflow %s: completion refused: %s",
                    assignment.workflow_id,
                    answer.refused.message,
                    extra=log_ids.of_task(assignment),
                )

        pending = PendingReport(done, message.task_id, run, answered)
        self._queue(pending)

    def _activity_done(self, key: int, message: CompleteActivity) -> None:
        breach = self._bounds.breach(message.result)
        if breach is not None:
            over = wire.AttemptDone(key, message.run_id, message.step, message.attempt, None, breach=breach)
            self._queue(PendingReport(over, self._task_of(message), None, _log_refusal))
            return
        run = self._sticky.run_of(message.run_id)
        resumed = None if run is None else self._eager.resume(run, message)
        done = wire.AttemptDone(key, message.run_id, message.step, message.attempt, message.result, resumed)
        if resumed is None or run is None:
            self._queue(PendingReport(done, self._task_of(message), None, _log_refusal))
            return
        ahead = run

        def answered(answer: wire.Answered) -> None:
            self._on_sticky_state(ahead, message.run_id, answer, pending)
            _log_refusal(answer)

        pending = PendingReport(done, self._task_of(message), ahead, answered)
        self._queue(pending)

    def _on_sticky_state(self, run: int, run_id: str, answer: wire.Answered, pending: PendingReport) -> None:
        try:
            self._sticky.on_answer(run, run_id, answer.stand, pending.link)
        finally:
            self._tasks.on_report_answered(run)


def _reply(answer: wire.Answered, reply: Reply | None) -> None:
    if reply is not None:
        reply(None, None if answer.refused is None else _refused(answer.refused))


def _log_refusal(answer: wire.Answered) -> None:
    if answer.refused is not None:
        log.info("the server refused a report: %s", answer.refused.message)


def _refused(refusal: Refusal) -> Refused:
    return Refused(refusal.reason, refusal.message, **refusal.fields)
