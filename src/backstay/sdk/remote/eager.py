"""Eager resume: when the one step that a run's code waits for has ended on this worker, the code goes on at once.

It runs ahead of the server, on the event that the server is about to record, and what it did is reported together with the
result. If something else reached the run first the server says so, and the code is dropped: the run's next task replays it.
So code may only run ahead where it would do the same in that task. It must wait for this step and nothing else, no report
about it may be without an answer, and it must not look at the clock, since the time of the event is the server's to say.
Code that does is found out while it runs; its workflow type does not run ahead any more. Without these rules two histories
of one run would differ (`test_code_that_looks_at_the_clock_does_not_run_ahead`,
`test_code_that_ran_ahead_of_a_signal_is_dropped_and_replayed`). What the server checks is in `server/native/reports.py`.
"""

from __future__ import annotations

from msgspec.structs import replace

from backstay.kernel.event import NO_CONTEXT, Recorded
from backstay.kernel.features.activity import ActivityCompleted, CompleteActivity
from backstay.kernel.features.workflow_task import WorkflowAssignment
from backstay.kernel.task import START
from backstay.kernel.values import attempt_id, execution_id, workflow_task_id
from backstay.protocol.native import worker as wire
from backstay.sdk.remote.sticky import StickyCode, StickyRuns, advance
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.worker.executor import WorkerExecutor


class Ahead:
    def __init__(self, executor: WorkerExecutor, standings: StickyRuns) -> None:
        self._executor = executor
        self._standings = standings
        self._patient: set[str] = set()  # workflow types whose code does not run ahead

    def resume(self, run: int, message: CompleteActivity) -> wire.Resumed | None:
        """Let code that waits for this result alone go on with it; None if it does not, or must not."""
        live_run = self._executor.live(run)
        standing = self._standings.get(run)
        if standing is None or live_run is None or not self._may(run, live_run, message.step):
            return None
        self._standings.leave(run)
        after = standing.length
        live_run.clock_read = False
        events = [*standing.events, _completed(run, after + 1, message)]
        with self._executor.burst():
            self._executor.drive(live_run, events, _caused(live_run.assignment, after))
        if live_run.block is not None or live_run.locals or live_run.clock_read or live_run.answer:
            # It cannot be said here and now what it would do. The next task runs it again, from its history.
            self._patient.add(live_run.assignment.workflow_type)
            self._standings.forget(run)
            return None
        return self._done(run, live_run, standing)

    def _may(self, run: int, live_run: LiveRun, step: int) -> bool:
        workflow_type = live_run.assignment.workflow_type
        return (
            not live_run.threaded
            and not self._standings.in_doubt(run)
            and live_run.awaits_only(step)
            and workflow_type not in self._patient
            and self._executor.inline("workflow", workflow_type)
        )

    def _done(self, run: int, live_run: LiveRun, standing: StickyCode) -> wire.Resumed:
        advance(live_run, standing.unseen - len(standing.events), standing.length + 1)
        commands, handled = live_run.take_commands()
        met = live_run.ended_at
        if live_run.closing is not None:
            self._standings.forget(run)
        return wire.Resumed(standing.length, standing.checksum, commands, handled, met)


def _caused(assignment: WorkflowAssignment, after: int) -> WorkflowAssignment:
    """The task that this result will turn out to have caused."""
    task = replace(
        assignment.task, id=workflow_task_id(assignment.run_id, after + 1), attempt=1, history_limit=None, resume=START
    )
    return replace(assignment, task=task, last_sequence=after + 1, cursor=after)


def _completed(run: int, sequence: int, message: CompleteActivity) -> Recorded:
    """The event that the server is about to record, as far as code can see it."""
    event = ActivityCompleted(
        sequence=message.step,
        activity_execution_id=execution_id(message.run_id, message.step),
        activity_type="",
        activity_attempt_id=attempt_id(message.run_id, message.step, message.attempt),
        attempt_number=message.attempt,
        result=message.result,
    )
    return Recorded(run, sequence, 0, event, NO_CONTEXT, b"", b"", 0, "ActivityCompleted")
