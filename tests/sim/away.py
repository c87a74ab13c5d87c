"""Workers elsewhere: processes that run workflow code and activities over the verbs of the worker protocol.

Each has the real executor with its live code, on a host that turns its reports into requests. Requests and replies get lost,
late and doubled on the way; a worker may be killed between any two of its calls, stall until its leases have run out, or be
drained while the next one of its name is already at work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from backstay.engine.core.world import Alarm
from backstay.engine.tasks.workers import COLD
from backstay.kernel.event import HistoryDamaged, Recorded
from backstay.kernel.features.activity import CompleteActivity, FailActivity, HeartbeatActivity
from backstay.kernel.features.workflow_task import (
    WAITING_FOR_HISTORY,
    CompleteWorkflowTask,
    FailWorkflowTask,
    WorkflowAssignment,
    events_shown,
)
from backstay.kernel.machine import Machine
from backstay.kernel.message import Message, Refused
from backstay.kernel.task import Block, Task
from backstay.kernel.values import SECOND, attempt_id
from backstay.protocol import requests as ask
from backstay.sdk.worker.executor import WorkerExecutor
from backstay.sdk.worker.host import HeartbeatAnswer
from backstay.sdk.worker.registry import Registry
from backstay.store.errors import StoreError

from .clients import Lost, Wire
from .fleet import deployed
from .programs import ACTIVITIES, AWAY, BUILDS, HELPERS
from .workers import left
from .world import Life, NodeWorld

if TYPE_CHECKING:
    from .simulation import Simulation

NOT_NOW = (Lost, StoreError)
Reply = Callable[[Any, BaseException | None], None]


class Host:
    """What an executor needs, when its engine is somewhere else."""

    cold = COLD

    def __init__(self, worker: AwayWorker) -> None:
        self._worker = worker
        self._world = worker.world
        self._pool = worker.world.pool(1, "backstay-activity")
        self._code = worker.world.pool(1, "backstay-workflow")
        self.shown: list[Recorded] = []

    def hold(self, start: Callable[[BaseException | None], None]) -> object:
        raise AssertionError("code of a worker elsewhere never runs inline")

    def report(self, key: int, message: Message, reply: Reply | None) -> None:
        self._world.spawn(self._worker.report(message, reply or _unheard), "report")

    def heartbeat(self, key: int, message: HeartbeatActivity, heard: Callable[[HeartbeatAnswer], None]) -> None:
        self.report(key, message, lambda reply, _: None if reply is None else heard(reply))

    def on_slot_free(self) -> None:
        pass

    def events(
        self, after: int, assignment: WorkflowAssignment, then: Callable[[list[Recorded] | Exception], None]
    ) -> None:
        then(events_shown(assignment, [entry for entry in self.shown if entry.sequence > after]))

    def release_hold(self, key: int) -> None:
        pass

    def on_given_up(self, task: Task) -> None:
        pass

    def thread(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._pool.submit(call, done)

    def here(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._pool.submit_here(call, done)

    def workflow_thread(self, call: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._code.submit(call, done)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self._world.spawn(work, name)

    def post(self, call: Callable[[], None]) -> None:
        self._world.post(call)

    def later(self, seconds: float, call: Callable[[], None]) -> Alarm:
        return self._world.at(self._world.now() + round(seconds * SECOND), call)


class AwayWorker:
    """One process. Whoever comes back under its name is another."""

    def __init__(self, sim: Simulation, number: int, generation: int, build: str) -> None:
        self.sim = sim
        self.number = number
        self.name = f"away-{number}"
        self.queue = AWAY
        self.label = f"{self.name}.{generation}{build}"
        self.build = build
        self.draining = False
        self.random = Random(f"{sim.seed}:{self.label}")
        self.life = Life(sim.faults, self._died)
        self.world = NodeWorld(sim.loop, f"{sim.seed}:{self.label}:world", 0, self.life, sim.faults)
        self.wire = Wire(sim, self.random)
        self.wire.patience = 40
        registry = Registry(None, "off")
        registry.register([*BUILDS[build], *ACTIVITIES, *HELPERS])
        self.host = Host(self)
        self.executor = WorkerExecutor(
            self.host,
            Machine(),
            registry,
            self.name,
            namespace="default",
            queues=frozenset({AWAY}),
            threads=10,
            tasks=10,
            compatibility=None,
        )
        self.executor._slow.update(registry.workflows)  # all its code runs under leases of its own
        self._types = (frozenset(registry.workflows), frozenset(registry.activities))
        self._polls = 0
        self._done: asyncio.Future[None] | None = None
        self._busy = 0
        self._reported: dict[int, str] = {}  # run -> the task of it that this worker had last
        self._stood: dict[int, int] = {}  # run -> the checksum of the last event that its code was shown
        self._recorded: set[str] = set()  # tasks whose decisions are in history, as this worker was told
        sim.log(f"{self.label} begins")
        for poller in (self._code(), self._activities(), self._activities()):
            self.world.spawn(poller, "poll")
        for node in sim.nodes:
            if node.serving:
                node.world.spawn(deployed(node), "deployed")

    def _died(self, why: str) -> None:
        self.sim.log(f"{self.label} dies: {why}")
        self.sim.worker_died(self)

    def drain(self) -> None:
        """No new task; what it has it ends, while the next of its name has begun."""
        self.sim.log(f"{self.label} drains")
        self.draining = True

    def bury(self) -> None:
        self.world.bury()
        for run in list(self.executor._live_runs):
            self.executor._live_runs.pop(run).abandon()

    # -- polling

    async def _poll(self, make: Callable[[str, float], Any]) -> Any:
        """The same poll again after a lost reply gives the same task."""
        self._polls += 1
        call = f"{self.label}.{self._polls}"
        for _ in range(3):
            try:
                return await self.wire.call(make(call, self.random.choice([0, 20, 35])))
            except Lost:
                continue
            except (StoreError, Refused, HistoryDamaged):
                break
        await asyncio.sleep(2)
        return None

    async def _code(self) -> None:
        while not self.draining:
            task = await self._poll(
                lambda call, wait: ask.PollWorkflowTask(
                    worker_id=self.name,
                    queue=AWAY,
                    workflow_types=self._types[0],
                    wait_seconds=wait,
                    poll_request_id=call,
                )
            )
            if task is None:
                await asyncio.sleep(1)
            elif not self.sim.faults.fires("worker dies"):  # or it forgets what it was given
                await self._run(task)
        self._leave()

    async def _activities(self) -> None:
        while not self.draining:
            task = await self._poll(
                lambda call, wait: ask.PollActivityTask(
                    worker_id=self.name,
                    activity_types=self._types[1],
                    queue=AWAY,
                    wait_seconds=wait,
                    poll_request_id=call,
                )
            )
            if task is None:
                await asyncio.sleep(1)
            elif not self.sim.faults.fires("worker dies"):
                self.sim.operation(f"{self.label} works on {task.activity_attempt_id[-8:]}")
                self._busy += 1
                self.executor.take(task.task)
                self.executor.deliver(task)

    async def _run(self, task: WorkflowAssignment) -> None:
        self.sim.operation(f"{self.label} runs {task.task.id[-8:]} of {task.workflow_id}")
        history = await self._history(task)
        if history is None:
            return
        if self.sim.faults.fires("lease runs out"):
            if not self.draining and self.random.random() < 0.5:
                self.sim.succeed(self)  # it hangs, and another of its name takes its place
            await asyncio.sleep(self.random.choice([left(self.sim, task.task), 301, 700]))
        self._forget_what_others_moved(task, history)
        self.host.shown = history
        self._busy += 1
        self._done = self.sim.loop.create_future()
        self.executor.deliver(task)
        await self._done

    def _forget_what_others_moved(self, task: WorkflowAssignment, history: list[Recorded]) -> None:
        """Live code goes on only from where it stands: what code elsewhere has decided meanwhile it did not decide itself, and
        what it has decided is in history, unless the database has forgotten that."""
        live_run = self.executor._live_runs.get(task.run_key)
        mine = self._reported.pop(task.run_key, None)
        since = [] if live_run is None else [entry for entry in history if entry.sequence > live_run.position]
        gone = self._stood.get(task.run_key) not in [None, *(entry.checksum for entry in history)]
        self._stood[task.run_key] = history[-1].checksum
        decided = {entry.context.task_id for entry in since if entry.context.decided_after is not None}
        gone = gone or (mine in self._recorded and mine not in decided)
        if live_run is not None and (gone or decided - {mine}):
            self.executor.forget(task.run_key)
        self._reported[task.run_key] = task.task.id

    async def _history(self, task: WorkflowAssignment) -> list[Recorded] | None:
        """Page by page, under the lease."""
        found: list[Recorded] = []
        size = self.random.choice([1, 7, 500])
        tries = 0
        while tries < 4:
            request = ask.GetTaskHistory(
                task_id=task.task.id,
                lease_owner=self.name,
                workflow_task_attempt=task.task.attempt,
                after_sequence=found[-1].sequence if found else 0,
                page_size=size,
            )
            try:
                page = await self.wire.call(request)
            except NOT_NOW:
                tries += 1
                continue
            except (Refused, HistoryDamaged) as refusal:
                self.sim.log(f"{self.label} gets no history: {refusal}")
                return None
            found += page.history_events
            if not page.has_more:
                return found
        return None

    # -- reporting

    async def report(self, message: Message, reply: Reply) -> None:
        request = self._request(message)
        heartbeat = isinstance(message, HeartbeatActivity)
        value, error = None, None
        for attempt in range(1 if heartbeat else 5):
            try:
                value, error = await self.wire.call(request), None
                break
            except NOT_NOW as lost:
                error = lost
                await asyncio.sleep(attempt)
            except (Refused, HistoryDamaged) as refusal:
                self.sim.log(f"{self.label} is told: {refusal}"[:200])
                if isinstance(refusal, Refused) and isinstance(message, CompleteActivity | FailActivity):
                    id = attempt_id(message.run_id, message.step, message.attempt)
                    self.sim.auditor.told_over(id, self.name)
                error = refusal
                break
        if heartbeat and value is not None and self.sim.faults.fires("false stop"):
            value = replace(value, can_continue=False, reason="stale_attempt")
        if error is None and not heartbeat:
            self.sim.done("task elsewhere" if isinstance(request, ask.CompleteTask) else "activity elsewhere")
            if isinstance(request, ask.CompleteTask):
                mine = value is not None and value.workflow_task_attempt == request.workflow_task_attempt
                self.sim.auditor.must(mine, "I4 whose attempt counts is in history", (request.task_id, value))
                self._recorded.add(request.task_id)
            elif (
                isinstance(request, ask.CompleteActivityTask | ask.FailActivityTask)
                and value is not None
                and value.recorded
            ):
                self.sim.auditor.thanked(request.activity_attempt_id, self.name)
        reply(value, None if heartbeat else error)
        if not heartbeat:
            self._busy -= 1
        if isinstance(message, CompleteWorkflowTask | FailWorkflowTask) and self._done is not None:
            self._done.set_result(None)
            self._done = None
        self._leave()

    def _leave(self) -> None:
        if self.draining and not self._busy:
            self.life.die("drained")

    def _request(self, message: Message) -> ask.Request[Any]:
        match message:
            case CompleteWorkflowTask() if message.commands:
                return ask.CompleteTask(
                    task_id=message.task_id,
                    lease_owner=self.name,
                    workflow_task_attempt=message.attempt,
                    commands=message.commands,
                    handled_failures=[
                        one if isinstance(one, str) else one.failure_id for one in message.handled_failures
                    ],
                    met=message.seen_until,
                )
            case CompleteWorkflowTask():
                block = Block(message="nothing to decide yet", type=WAITING_FOR_HISTORY)
                return self._fail(message, block)
            case FailWorkflowTask():
                return self._fail(message, message.block)
            case CompleteActivity():
                return ask.CompleteActivityTask(
                    activity_attempt_id=attempt_id(message.run_id, message.step, message.attempt),
                    lease_owner=self.name,
                    result=message.result,
                )
            case FailActivity():
                return ask.FailActivityTask(
                    activity_attempt_id=attempt_id(message.run_id, message.step, message.attempt),
                    lease_owner=self.name,
                    failure=message.failure,
                    gave_up=message.gave_up,
                )
            case HeartbeatActivity():
                return ask.HeartbeatActivityTask(
                    activity_attempt_id=attempt_id(message.run_id, message.step, message.attempt),
                    lease_owner=self.name,
                    progress=message.progress,
                )
            case _:
                raise AssertionError(message)

    def _fail(self, message: CompleteWorkflowTask | FailWorkflowTask, block: Block) -> ask.FailTask:
        return ask.FailTask(
            task_id=message.task_id, lease_owner=self.name, workflow_task_attempt=message.attempt, failure=block
        )


def _unheard(value: Any, error: BaseException | None) -> None:
    """Nobody waits for the answer: an activity's outcome is history, or its lease runs out."""
