"""Reports of our own workers: each is decided by the engine and answered when it is on disk.

A report goes straight to its cached instance. One that may have been sent before, or whose instance is not in memory, goes
through the worker API, which looks it up in history. Both ways submit the same message.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from backstay.engine.core.cache import CachedInstance
from backstay.engine.tasks.refused_completions import note_refusal
from backstay.kernel.command import Command
from backstay.kernel.features import pause
from backstay.kernel.features.activity import HeartbeatReply
from backstay.kernel.message import Refused
from backstay.kernel.state import Run
from backstay.kernel.task import Task
from backstay.kernel.values import run_of
from backstay.protocol import requests as ask
from backstay.protocol.native import worker as wire
from backstay.protocol.native.client import Refusal
from backstay.protocol.worker_messages import TaskReport, message_of_report, message_of_resumed
from backstay.server.native.pending_exchange import PendingExchange
from backstay.server.native.worker_link import WorkerLink
from backstay.server.published.worker.workflow_tasks import described
from backstay.store.errors import StoreError

if TYPE_CHECKING:
    from backstay.server.server import Server


class ReportBatch:
    """The reports of one exchange."""

    def __init__(self, server: Server, link: WorkerLink, reply: PendingExchange, again: bool) -> None:
        self._server = server
        self._engine = server.engine
        self._link = link
        self._owner = link.station.owner
        self._reply = reply
        self._again = again
        self._keys: dict[int, int] = {}  # the instances of the reports, by their places

    def take(self, reports: list[wire.Report]) -> None:
        for place, report in enumerate(reports):
            try:
                self._take(place, report)
            except Refused as refusal:
                self._answer(place, _refusal(refusal))

    def _take(self, place: int, report: wire.Report) -> None:
        if isinstance(report, wire.QueryAnswer):
            self._query_answered(place, report)
            return
        if isinstance(report, wire.GivenBack):
            self._link.take_back(report.task_id, report.attempt)
            self._answer(place, wire.Answered())
            return
        self._keys[place] = report.key
        entry = self._engine.cache.get(report.key)
        if self._again or entry is None or entry.instance.namespace != self._link.worker.namespace:
            self._engine.world.spawn(self._through_api(place, report), "backstay-report")
            return
        if isinstance(report, wire.TaskDone):
            self._task_done(place, entry, report)
        elif isinstance(report, wire.AttemptDone) and report.resumed is not None:
            self._resumed(place, entry, report, report.resumed)
        else:
            self._engine.submit(report.key, message_of_report(report, self._owner, []), partial(self._answered, place))

    # -- reports to a cached instance

    def _task_done(self, place: int, entry: CachedInstance, report: wire.TaskDone) -> None:
        instance = entry.instance
        task = instance.tasks.get(report.task_id)
        run, seen = (0, 0) if task is None else (task.run, task.seen or 0)
        message = message_of_report(report, self._owner, self._described(report.commands, task))
        apart = task is not None and task.history_limit is not None
        stand: wire.StickyState | None = None

        def recorded(_: Any, error: BaseException | None) -> None:
            if error is None and not entry.dead:
                self._answer(place, wire.Answered(stand=stand))
            else:
                self._link.histories.unstick(run)
                note_refusal(self._engine, report.key, message, error)
                self._recorded(place, error)

        self._engine.submit(report.key, message, recorded)
        if apart:
            self._link.histories.unstick(run)  # this task was shown a part of the history only
        else:
            stand = self._link.histories.sticky_state(entry, run, seen, len(self._reply.answers))

    def _resumed(self, place: int, entry: CachedInstance, report: wire.AttemptDone, resumed: wire.Resumed) -> None:
        """Eager resume: decide a result and the commands that code made of it in one commit, if nothing came in between.

        A worker whose code waits for just this result does not wait for the server's task: it runs the code at once, on
        the event that it expects the server to record, and reports both. That saves a round trip and a commit a step. It is
        safe because the guess is checked twice. Here: the run must be exactly as long as the code saw it, with the same
        checksum, and nothing else may be due (`_stands`). In the kernel: the completion claims the task that the result
        causes, and is refused unless history has this very result in that place (`CompleteWorkflowTask.seen`, `result_of`).
        If either fails the result alone is recorded, the worker drops that code (`eager_refused`), and the run's next task
        replays it. Without the checks, commands of code would be recorded that has not seen an earlier signal
        (`test_code_that_ran_ahead_of_a_signal_is_dropped_and_replayed`), or that went on with a result which was refused
        (`tests/remote/test_eager.py`).
        """
        engine = self._engine
        run = entry.instance.run
        completed = message_of_report(report, self._owner, [])
        if run is None or not _stands(entry, report, resumed):
            refused = wire.Answered(eager_refused="moved_on")
            engine.submit(report.key, completed, lambda _, e: self._recorded(place, e, refused))
            return
        failed: BaseException | None = None
        decided = False  # the outcome of the result is known
        early: list[BaseException | None] = []  # the outcome of the commands, if it came first

        def ended(_: Any, error: BaseException | None) -> None:
            nonlocal failed, decided
            failed, decided = error, True
            if early:
                advanced(None, early[0])

        engine.submit(report.key, completed, ended, code_ran=True)
        message = message_of_resumed(report, resumed, self._owner, self._described(resumed.commands, run))
        stand: wire.StickyState | None = None

        def advanced(_: Any, error: BaseException | None) -> None:
            if not decided:
                # When a commit fails, refusals of later decisions on top of it arrive first. The worker gets one answer
                # for both, since the result is not recorded yet.
                early.append(error)
            elif failed is not None:
                self._link.histories.unstick(run.key)
                self._recorded(place, failed)
            elif error is not None or entry.dead:
                self._link.histories.unstick(run.key)
                reason = error.reason if isinstance(error, Refused) else "not_recorded"
                self._answer(place, wire.Answered(eager_refused=reason))
            else:
                self._answer(place, wire.Answered(stand=stand))

        engine.submit(report.key, message, advanced)
        stand = self._link.histories.sticky_state(entry, run.key, resumed.after + 1, len(self._reply.answers))

    def _described(self, commands: list[Command], of: Task | Run | None) -> list[Command]:
        """The commands with the definitions of the runs that they start. `of`: the task or run that they are from."""
        namespace = self._link.worker.namespace
        queue = self._link.worker.task_queue if of is None else of.routing.queue
        return [described(self._server, namespace, queue, command) for command in commands]

    def _query_answered(self, place: int, answer: wire.QueryAnswer) -> None:
        questions = self._server.questions
        question = questions.leased(self._link.worker.namespace, answer.question, self._owner, answer.attempt)
        if question is not None:
            if answer.refused is not None:
                refused = answer.refused
                questions.refuse(question, Refused(refused.reason, refused.message, **refused.fields))
            else:
                questions.answer(question, answer.value if question.inquiry.kind == "query" else answer.objection)
        self._answer(place, wire.Answered())

    # -- reports through the worker API

    async def _through_api(self, place: int, report: TaskReport) -> None:
        namespace = self._link.worker.namespace
        commands: list[Command] = []
        try:
            if isinstance(report, wire.TaskDone):
                commands = self._described(report.commands, self._engine.leases.get(namespace, report.task_id))
            message = message_of_report(report, self._owner, commands)
            reply = await self._server.api.call(ask.ReportTask(namespace=namespace, message=message))
        except (Refused, StoreError) as error:
            self._recorded(place, error)
        else:
            self._answered(place, reply, None)

    # -- answers

    def _answered(self, place: int, reply: Any, error: BaseException | None) -> None:
        if isinstance(reply, HeartbeatReply) and not reply.can_continue:
            self._answer(place, wire.Answered(goes_on=False, cancel_requested=reply.cancel_requested))
        else:
            self._recorded(place, error)

    def _recorded(self, place: int, error: BaseException | None, answer: wire.Answered | None = None) -> None:
        if error is None:
            self._answer(place, answer or wire.Answered())
        elif isinstance(error, Refused):
            self._link.held.report_refused(self._keys[place])
            self._answer(place, _refusal(error))
        else:
            self._answer(place, wire.Answered(refused=Refusal(UNAVAILABLE, str(error))))

    def _answer(self, place: int, answer: wire.Answered) -> None:
        reply = self._reply
        reply.answers[place] = answer
        reply.left -= 1
        if not reply.left:
            self._link.complete(reply)


UNAVAILABLE = "storage_unavailable"


def _refusal(refusal: Refused) -> wire.Answered:
    return wire.Answered(refused=Refusal(refusal.reason, refusal.message, refusal.fields))


def _stands(entry: CachedInstance, report: wire.AttemptDone, resumed: wire.Resumed) -> bool:
    """Whether the run is exactly as the code saw it, and no other task of it is due."""
    instance = entry.instance
    run = instance.run
    return (
        run is not None
        and run.is_open
        and run.run_id == run_of(report.run_id)
        and (run.length, run.checksum) == (resumed.after, resumed.checksum)
        and instance.running_task is None
        and not (instance.buffered_events or run.wake_events or run.own_task_events)
        and pause.allows(run)
    )
