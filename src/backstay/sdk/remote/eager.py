"""Eager resume: when the only step that a run's code waits for ends on this worker, the code goes on at once.

The code runs ahead of the server, on the event that the server is about to record, and its commands are reported
together with the result. If another event reached the run first, the server says so and the code is dropped: the next
task replays it. So code may run ahead only where it would do the same in that task. It must wait for this step and
nothing else, every report about it must have its answer, and it must not read the clock, because the server sets the
time of the event. Code that reads the clock is noticed while it runs; its workflow type does not run ahead any more.
Without these rules the code could make decisions that the recorded history does not lead to
(`test_code_that_looks_at_the_clock_does_not_run_ahead`,
`test_code_that_ran_ahead_of_a_signal_is_dropped_and_replayed`). The checks of the server are in
`server/native/reports.py`.
"""

from __future__ import annotations

from msgspec.structs import replace

from backstay.kernel.event import NO_CONTEXT, Recorded
from backstay.kernel.features.activity import ActivityCompleted, CompleteActivity
from backstay.kernel.features.workflow_task import WorkflowAssignment
from backstay.kernel.task import START
from backstay.kernel.values import attempt_id, execution_id, workflow_task_id
from backstay.protocol.native import worker as wire
from backstay.sdk.remote.sticky import StickyCode, StickyRuns, count_skipped
from backstay.sdk.replay.live_run import LiveRun
from backstay.sdk.worker.executor import WorkerExecutor


class EagerResume:
    def __init__(self, executor: WorkerExecutor, sticky: StickyRuns) -> None:
        self._executor = executor
        self._sticky = sticky
        self._not_eager: set[str] = set()  # workflow types whose code does not run ahead

    def resume(self, run: int, message: CompleteActivity) -> wire.Resumed | None:
        """Resume code that waits for this result alone. Return its commands, or None if it may not run ahead."""
        live_run = self._executor.live(run)
        code = self._sticky.get(run)
        if code is None or live_run is None or not self._may_resume(run, live_run, message.step):
            return None
        self._sticky.remove(run)
        after = code.length
        live_run.clock_read = False
        events = [*code.events, _expected_event(run, after + 1, message)]
        with self._executor.burst():
            self._executor.drive(live_run, events, _next_task(live_run.assignment, after))
        if live_run.block is not None or live_run.locals or live_run.clock_read or live_run.answer:
            # The commands of the code in its next task are not known here. That task replays it.
            self._not_eager.add(live_run.assignment.workflow_type)
            self._sticky.forget(run)
            return None
        return self._resumed(run, live_run, code)

    def _may_resume(self, run: int, live_run: LiveRun, step: int) -> bool:
        workflow_type = live_run.assignment.workflow_type
        return (
            not live_run.threaded
            and not self._sticky.awaits_answer(run)
            and live_run.awaits_only(step)
            and workflow_type not in self._not_eager
            and self._executor.inline("workflow", workflow_type)
        )

    def _resumed(self, run: int, live_run: LiveRun, code: StickyCode) -> wire.Resumed:
        count_skipped(live_run, code.unseen - len(code.events), code.length + 1)
        commands, handled = live_run.take_commands()
        met = live_run.ended_at
        if live_run.closing is not None:
            self._sticky.forget(run)
        return wire.Resumed(code.length, code.checksum, commands, handled, met)


def _next_task(assignment: WorkflowAssignment, after: int) -> WorkflowAssignment:
    """Return the workflow task that the server will create for this result."""
    task = replace(
        assignment.task, id=workflow_task_id(assignment.run_id, after + 1), attempt=1, history_limit=None, resume=START
    )
    return replace(assignment, task=task, last_sequence=after + 1, cursor=after)


def _expected_event(run: int, sequence: int, message: CompleteActivity) -> Recorded:
    """Return the event that the server is about to record, as far as code can see it."""
    event = ActivityCompleted(
        sequence=message.step,
        activity_execution_id=execution_id(message.run_id, message.step),
        activity_type="",
        activity_attempt_id=attempt_id(message.run_id, message.step, message.attempt),
        attempt_number=message.attempt,
        result=message.result,
    )
    return Recorded(run, sequence, 0, event, NO_CONTEXT, b"", b"", 0, "ActivityCompleted")
