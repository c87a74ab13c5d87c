"""What a worker has done, as reports to its server, and what becomes of their answers."""

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
from backstay.protocol.native import worker as wire
from backstay.protocol.native.client import Refusal
from backstay.sdk.remote.bounds import Bounds
from backstay.sdk.remote.eager import Ahead
from backstay.sdk.remote.outgoing import Pending
from backstay.sdk.remote.sticky import StickyRuns, advance
from backstay.sdk.remote.tasks import Tasks
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
        standings: StickyRuns,
        tasks: Tasks,
        bounds: Bounds,
        send: Callable[[Pending], None],
    ) -> None:
        self._executor = executor
        self._standings = standings
        self._tasks = tasks
        self._bounds = bounds
        self._send = send
        self._ahead = Ahead(executor, standings)
        self._attempts: dict[str, str] = {}  # attempt -> its task

    def attempting(self, activity_attempt_id: str, task_id: str) -> None:
        """An attempt begins; its outcome will spend the lease of this task."""
        self._attempts[activity_attempt_id] = task_id

    def make(self, key: int, message: Message, reply: Reply | None) -> None:
        match message:
            case CompleteWorkflowTask():
                self._task_done(key, message, reply)
            case FailWorkflowTask():
                shown = self._tasks.shown(message.task_id)
                self._standings.forget(shown.assignment.run_key)
                failed = wire.TaskFailed(key, message.task_id, message.attempt, message.block)
                self._queue(Pending(failed, message.task_id, None, lambda answer: _told(answer, reply)))
            case CompleteActivity():
                self._activity_done(key, message)
            case FailActivity():
                ended = wire.AttemptFailed(
                    key, message.run_id, message.step, message.attempt, message.failure, message.gave_up
                )
                self._queue(Pending(ended, self._task_of(message), None, _ended))
            case _:
                raise TypeError(f"a worker does not report {type(message).__name__}")

    def beat(self, key: int, message: HeartbeatActivity, heard: Callable[[host.HeartbeatAnswer], None]) -> None:
        beat = wire.Heartbeat(key, message.run_id, message.step, message.attempt, message.progress)

        def answered(answer: wire.Answered) -> None:
            heard(ServerHeartbeatAnswer(answer.goes_on and answer.refused is None, answer.cancel_requested))

        self._send(Pending(beat, None, None, answered))

    def cannot_run(self, key: int, task_id: str, attempt: int, error: Exception) -> None:
        """A workflow task could not even be begun. It is offered again, later each time, to whoever is there."""
        block = Block(message=f"the worker failed: {error}", type=type(error).__name__)
        self._queue(Pending(wire.TaskFailed(key, task_id, attempt, block), task_id, None, _ended))

    def give_back(self, task_id: str, attempt: int) -> None:
        """Nothing is being done for this lease, and nothing will be reported."""
        self._send(Pending(wire.GivenBack(task_id, attempt), None, None, _ended))

    def tell(self, told: wire.QueryAnswer) -> None:
        """Answer a question."""
        self._send(Pending(told, None, None, lambda answer: None))

    def doubt(self, pending: Pending) -> Pending:
        """A report may have arrived, or not. It is sent again, without what code did ahead, and that code is given up."""
        pending.again = True
        if pending.run is not None:
            self._standings.forget(pending.run)
        if isinstance(pending.report, wire.AttemptDone) and pending.report.resumed is not None:
            pending.report = replace(pending.report, resumed=None)
        return pending

    def _task_of(self, message: CompleteActivity | FailActivity) -> str | None:
        return self._attempts.pop(attempt_id(message.run_id, message.step, message.attempt), None)

    def _queue(self, pending: Pending) -> None:
        if pending.run is not None:
            self._standings.reported(pending.run)
        self._send(pending)

    def _task_done(self, key: int, message: CompleteWorkflowTask, reply: Reply | None) -> None:
        shown = self._tasks.shown(message.task_id)
        assignment = shown.assignment
        run = assignment.run_key
        live_run = self._executor.live(run)
        if live_run is not None:
            advance(live_run, shown.untold, shown.reaches)
            if live_run.consumed != live_run.position:
                self._standings.forget(run)  # something was left out, and nobody keeps it
        done = wire.TaskDone(
            key, message.task_id, message.attempt, message.commands, message.handled_failures, message.seen_until
        )

        def answered(answer: wire.Answered) -> None:
            self._stands(run, assignment.run_id, answer)
            _told(answer, reply)
            if answer.refused is not None:
                log.warning("workflow %s: completion refused: %s", assignment.workflow_id, answer.refused.message)

        self._queue(Pending(done, message.task_id, run, answered))

    def _activity_done(self, key: int, message: CompleteActivity) -> None:
        breach = self._bounds.over(message.result)
        if breach is not None:
            over = wire.AttemptDone(key, message.run_id, message.step, message.attempt, None, breach=breach)
            self._queue(Pending(over, self._task_of(message), None, _ended))
            return
        run = self._standings.run_of(message.run_id)
        resumed = None if run is None else self._ahead.resume(run, message)
        done = wire.AttemptDone(key, message.run_id, message.step, message.attempt, message.result, resumed)
        if resumed is None or run is None:
            self._queue(Pending(done, self._task_of(message), None, _ended))
            return
        ahead = run

        def answered(answer: wire.Answered) -> None:
            self._stands(ahead, message.run_id, answer)
            _ended(answer)

        self._queue(Pending(done, self._task_of(message), ahead, answered))

    def _stands(self, run: int, run_id: str, answer: wire.Answered) -> None:
        try:
            self._standings.answered(run, run_id, answer.stand)
        finally:
            self._tasks.settled(run)


def _told(answer: wire.Answered, reply: Reply | None) -> None:
    if reply is not None:
        reply(None, None if answer.refused is None else _refused(answer.refused))


def _ended(answer: wire.Answered) -> None:
    if answer.refused is not None:
        log.info("a report was not taken: %s", answer.refused.message)


def _refused(refusal: Refusal) -> Refused:
    return Refused(refusal.reason, refusal.message, **refusal.fields)
