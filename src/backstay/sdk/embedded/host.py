"""The host of the embedded executor: the engine in this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from backstay.engine.core.engine import Engine
from backstay.engine.core.world import Alarm, World
from backstay.engine.tasks.workers import COLD, TaskHeld
from backstay.kernel.event import Recorded
from backstay.kernel.features.activity import HeartbeatActivity, HeartbeatReply
from backstay.kernel.features.workflow_task import WorkflowAssignment, events_shown
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND
from backstay.sdk.worker.executor import WorkerExecutor
from backstay.sdk.worker.host import HeartbeatAnswer
from backstay.store import Ready


class EngineHost:
    cold = COLD

    def __init__(self, engine: Engine, world: World, threads: int) -> None:
        self._engine = engine
        self._world = world
        self._pool = world.pool(threads, "backstay-activity")
        self._workflows = world.pool(1, "backstay-workflow")
        self._closed = False
        # Hot path, called for every activity: bound methods instead of methods that only pass on.
        self.report = engine.inline.report
        self.thread = self._pool.submit
        self.here = self._pool.submit_here
        self.workflow_thread = self._workflows.submit
        self.spawn = world.spawn
        self.post = world.post
        self.release_hold = engine.inline.release_hold
        self.executor: WorkerExecutor | None = None

    def on_slot_free(self) -> None:
        if self._closed:
            return
        assert self.executor is not None
        self._engine.dispatcher.serve_executor(self.executor)

    def heartbeat(self, key: int, message: HeartbeatActivity, heard: Callable[[HeartbeatAnswer], None]) -> None:
        def replied(reply: HeartbeatReply | None, error: BaseException | None) -> None:
            if reply is not None:
                heard(reply)

        self.report(key, message, replied)

    def on_given_up(self, task: Task) -> None:
        if not self._closed:
            self._engine.inline.given_up(task.workflow)

    def hold(self, start: Callable[[BaseException | None], None]) -> object:
        return TaskHeld(start)

    def events(
        self, after: int, assignment: WorkflowAssignment, then: Callable[[list[Recorded] | Exception], None]
    ) -> None:
        try:
            found = self._engine.store.history(assignment.run_key, after)
        except Exception as error:  # a local database raises at once
            then(error)
            return
        if isinstance(found, Ready):
            then(events_shown(assignment, found.value))
        else:
            self._world.spawn(_fetched(found, assignment, then), "backstay-history")

    def later(self, seconds: float, call: Callable[[], None]) -> Alarm:
        due = self._world.now() + round(seconds * SECOND)
        return self._world.at(due, lambda: None if self._closed else call())

    def close(self) -> None:
        """Stop reporting: the leases end with this engine, and the next one delivers their tasks again."""
        self._closed = True
        self._engine.inline.stop_reports()
        self._pool.close()
        self._workflows.close()


async def _fetched(
    found: Awaitable[list[Recorded]],
    assignment: WorkflowAssignment,
    then: Callable[[list[Recorded] | Exception], None],
) -> None:
    try:
        events = await found
    except Exception as error:
        then(error)
    else:
        then(events_shown(assignment, events))
