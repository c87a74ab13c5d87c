"""The worker API: the verbs of workflow and activity workers, the same over any transport.

Poll, claim, claim status, history, execute, complete, fail, heartbeat; for activities also status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, Protocol

from backstay.engine.core.engine import Engine
from backstay.engine.core.idempotency import completed_task, ended_attempt
from backstay.engine.core.instances import Instances
from backstay.engine.core.world import Alarm
from backstay.engine.reading.history_pages import fitting, read_page
from backstay.engine.tasks.doubted_polls import DoubtedPolls
from backstay.engine.tasks.parked_polls import ParkedPoll
from backstay.engine.tasks.refused_completions import note_refusal
from backstay.kernel.event import HistoryDamaged
from backstay.kernel.features.activity import (
    ActivityAssignment,
    AttemptReply,
    CompleteActivity,
    FailActivity,
    HeartbeatActivity,
    HeartbeatReply,
)
from backstay.kernel.features.activity import status as activity_status
from backstay.kernel.features.lease import Claim, Claimant, Renew, never_heard_of
from backstay.kernel.features.lease import claim_status as claim_status_of
from backstay.kernel.features.workflow_task import (
    CompleteWorkflowTask,
    FailWorkflowTask,
    HeartbeatWorkflowTask,
    TaskReply,
    WorkflowAssignment,
    replay_position,
)
from backstay.kernel.message import Message, Refused
from backstay.kernel.task import Lease, Task
from backstay.kernel.values import LEASE, SECOND, attempt_id, run_of
from backstay.protocol import requests as ask
from backstay.protocol.native import nodes
from backstay.protocol.worker_messages import attempt_of, message_of
from backstay.store import Located


class FetchesTasks(Protocol):
    """Brings tasks of other nodes to polls that are parked here (`engine/cluster/fetching.py`)."""

    def heard(self, news: nodes.TellWaiting) -> Awaitable[list[int]]: ...

    def parked(self, poll: ParkedPoll) -> None: ...

    def look_soon(self, poll: ParkedPoll) -> Alarm: ...

    def stop(self) -> None: ...


class WorkerApi:
    """`is_alone`: whether no other process serves workers."""

    def __init__(self, engine: Engine, instances: Instances, is_alone: Callable[[], bool]) -> None:
        self._is_alone = is_alone
        self._engine = engine
        self._instances = instances
        self._polls_by_call: dict[
            tuple[str, str, str, str | None], ParkedPoll
        ] = {}  # polls that have an id, while they wait
        self.doubted = DoubtedPolls(engine, self.got_by)
        self.fetching: FetchesTasks | None = None  # if other nodes can be called
        self.table: dict[type[ask.Request[Any]], Callable[[Any], Awaitable[Any]]] = {
            ask.PollWorkflowTask: self.poll_workflow_task,
            ask.ClaimWorkflowTask: self.claim_task,
            ask.GetClaimStatus: self.claim_status,
            ask.GetTaskHistory: self.task_history,
            ask.ExecuteWorkflowTask: self.execute,
            ask.CompleteTask: self.complete_task,
            ask.FailTask: self.fail_task,
            ask.ReportTask: self.report,
            ask.HeartbeatTask: self.heartbeat_task,
            ask.PollActivityTask: self.poll_activity_task,
            ask.ClaimActivityTask: self.claim_task,
            ask.CompleteActivityTask: self.complete_activity,
            ask.FailActivityTask: self.fail_activity,
            ask.HeartbeatActivityTask: self.heartbeat_activity,
            ask.GetActivityStatus: self.activity_status,
            nodes.FetchWorkflowTask: self.poll_workflow_task,
            nodes.FetchActivityTask: self.poll_activity_task,
            nodes.TellWaiting: self.tell_waiting,
        }

    async def tell_waiting(self, news: nodes.TellWaiting) -> list[int]:
        return [0] * len(news.waiting) if self.fetching is None else await self.fetching.heard(news)

    async def poll_workflow_task(self, request: ask.PollWorkflowTask) -> WorkflowAssignment | None:
        return await self._poll(
            "workflow",
            isinstance(request, nodes.FetchWorkflowTask),
            request.namespace,
            request.queue,
            request.workflow_types,
            request.worker_id,
            request.wait_seconds,
            request.poll_request_id,
            request.compatibility,
            request.connection,
        )

    async def claim_task(self, request: ask.ClaimWorkflowTask | ask.ClaimActivityTask) -> Any:
        kind = "workflow" if isinstance(request, ask.ClaimWorkflowTask) else "activity"
        key = await self._instances.key_of(request.namespace, request.task_id)
        lease = Lease(owner=request.worker_id, until=self._engine.world.now() + LEASE)
        future: asyncio.Future[Any] = self._engine.world.future()

        def claimed(task: Any, error: BaseException | None) -> None:
            if future.done():
                return
            entry = self._engine.cache.get(key)
            if error is not None or entry is None:
                future.set_exception(error or Refused("task_not_found", "the task is gone"))
            else:
                future.set_result(self._engine.machine.assign(entry.instance, task))

        claim = Claim(task_id=request.task_id, lease=lease, kind=kind, by=_claimant(request))
        self._engine.submit(key, claim, claimed)
        return await future

    async def claim_status(self, request: ask.GetClaimStatus) -> ask.ClaimStatus:
        try:
            instance = await self._instances.committed(await self._instances.key_of(request.namespace, request.task_id))
        except Refused:
            return ask.ClaimStatus(task_id=request.task_id, claimable=False, reason="task_not_found")
        now = self._engine.world.now()
        reason = claim_status_of(instance, request.task_id, request.kind, now, _claimant(request))
        return ask.ClaimStatus(task_id=request.task_id, claimable=reason is None, reason=reason)

    async def task_history(self, request: ask.GetTaskHistory) -> ask.HistoryPage:
        located = await self._instances.located(request.namespace, request.task_id)
        outcome: TaskReply = await self._instances.submit(
            located.workflow,
            HeartbeatWorkflowTask(
                task_id=request.task_id, owner=request.lease_owner, attempt=request.workflow_task_attempt, renew=False
            ),
        )
        assert outcome.seen is not None, "a leased workflow task knows what it has seen"
        after, store = request.after_sequence, self._engine.store
        size = None if request.page_size is None else max(1, min(request.page_size, ask.PAGE_MAX))
        if outcome.for_update:
            # The events that it may see are not a prefix of history: the answer to an earlier update may be recorded much later.
            whole = [entry for entry in await store.history(located.run) if replay_position(entry) <= outcome.seen]
            last = whole[-1].sequence
            rest = [entry for entry in whole if entry.sequence > after]
            events = rest[:size] if request.page_bytes is None else fitting(rest, request.page_bytes)
        else:
            last = outcome.seen
            if request.page_bytes is None:
                entries = await store.history(located.run, after, size)
                events = [entry for entry in entries if entry.sequence <= last]
            else:
                events = await read_page(store, located.run, after, last, request.page_bytes)
        reached = events[-1].sequence if events else after
        more = reached < last
        return ask.HistoryPage(
            history_events=events,
            has_more=more,
            next_after_sequence=reached if more else None,
            total_history_events=last,
        )

    async def execute(self, request: ask.ExecuteWorkflowTask) -> TaskReply:
        """Claim and run one task on this engine's own executor."""
        key = await self._instances.key_of(request.namespace, request.task_id)
        instance = await self._instances.committed(key)
        reason = claim_status_of(instance, request.task_id, "workflow", self._engine.world.now())
        if reason is not None:
            raise Refused(reason, f"task {request.task_id} cannot be claimed: {reason}")
        return await self._engine.inline.execute(key, request.task_id)

    async def complete_task(self, request: ask.CompleteTask) -> TaskReply:
        if not request.commands:
            raise Refused("invalid_commands", "a completion needs at least one command", field="commands")
        return await self._complete(request.namespace, message_of(request), keep=True)

    async def fail_task(self, request: ask.FailTask) -> TaskReply:
        if not request.failure.message:
            raise Refused("invalid_failure", "a failure needs a message", field="failure.message")
        return await self._fail(request.namespace, message_of(request))

    def heartbeat_task(self, request: ask.HeartbeatTask) -> Awaitable[TaskReply]:
        return self._verb(request.namespace, request.task_id, message_of(request))

    async def report(self, request: ask.ReportTask) -> Any:
        """Submit the report of a native worker. A repeated report is answered from history."""
        match request.message:
            case CompleteWorkflowTask() as message:
                return await self._complete(request.namespace, message, keep=False)
            case FailWorkflowTask() as message:
                return await self._fail(request.namespace, message)
            case CompleteActivity() | FailActivity() as message:
                return await self._end_attempt(request.namespace, message)
            case HeartbeatActivity() as message:
                return await self._verb(request.namespace, message.run_id, message)
            case Renew() as message:
                return await self._verb(request.namespace, message.task_id, message)
            case _:
                raise TypeError(f"a worker does not report {type(request.message).__name__}")

    async def _complete(self, namespace: str, message: CompleteWorkflowTask, *, keep: bool) -> TaskReply:
        """Submit a completion. `keep`: a worker whose completion is refused may correct itself under its lease."""
        located = await self._instances.located(namespace, message.task_id)
        try:
            return await self._instances.submit(located.workflow, message)
        except Refused as refusal:
            before = await self._completed_before(namespace, located, message)
            if before is not None:
                return before
            note_refusal(self._engine, located.workflow, message, refusal, keep=keep)
            raise

    async def _fail(self, namespace: str, message: FailWorkflowTask) -> TaskReply:
        located = await self._instances.located(namespace, message.task_id)
        try:
            return await self._instances.submit(located.workflow, message)
        except Refused as refusal:
            return (
                await self._failed_before(located, message)
                or await self._completed_before(namespace, located, message)
                or _raise(refusal)
            )

    async def _completed_before(
        self, namespace: str, located: Located, message: CompleteWorkflowTask | FailWorkflowTask
    ) -> TaskReply | None:
        run_id = run_of(message.task_id)
        run = await self._engine.store.run(namespace, run_id)
        return completed_task(
            await self._engine.store.history(located.run),
            message.task_id,
            message.owner,
            message.attempt,
            run_id,
            "closed" if run is None else run.status,
        )

    async def _failed_before(self, located: Located, message: FailWorkflowTask) -> TaskReply | None:
        instance = await self._instances.committed(located.workflow)
        task = instance.tasks.get(message.task_id)
        if task is None or task.state != "failed" or task.attempt != message.attempt:
            return None
        return TaskReply(
            task_id=task.id,
            workflow_task_attempt=task.attempt,
            outcome="failed",
            run_id=instance.current.run_id,
            run_status=instance.current.status,
            reason="already_recorded",
            next_task_id=task.id,
        )

    # -- activity tasks

    async def poll_activity_task(self, request: ask.PollActivityTask) -> ActivityAssignment | None:
        return await self._poll(
            "activity",
            isinstance(request, nodes.FetchActivityTask),
            request.namespace,
            request.queue,
            request.activity_types,
            request.worker_id,
            request.wait_seconds,
            request.poll_request_id,
            request.compatibility,
            request.connection,
        )

    async def complete_activity(self, request: ask.CompleteActivityTask) -> AttemptReply:
        return await self._end_attempt(request.namespace, message_of(request))

    async def fail_activity(self, request: ask.FailActivityTask) -> AttemptReply:
        return await self._end_attempt(request.namespace, message_of(request))

    async def _end_attempt(self, namespace: str, message: CompleteActivity | FailActivity) -> AttemptReply:
        located = await self._instances.located(namespace, message.run_id)
        try:
            return await self._instances.submit(located.workflow, message)
        except Refused as refusal:
            history = await self._engine.store.history(located.run)
            attempt = attempt_id(message.run_id, message.step, message.attempt)
            return ended_attempt(history, attempt, message.owner) or _raise(refusal)

    def heartbeat_activity(self, request: ask.HeartbeatActivityTask) -> Awaitable[HeartbeatReply]:
        message = message_of(request)
        return self._verb(request.namespace, message.run_id, message)

    async def activity_status(self, request: ask.GetActivityStatus) -> HeartbeatReply:
        run_id, step, attempt = attempt_of(request.activity_attempt_id)
        instance = await self._instances.committed(await self._instances.key_of(request.namespace, run_id))
        return activity_status(instance, run_id, step, attempt, request.lease_owner, self._engine.world.now())

    async def _verb(self, namespace: str, derived_id: str, message: Message) -> Any:
        return await self._instances.submit(await self._instances.key_of(namespace, derived_id), message)

    async def _poll(
        self,
        kind: str,
        is_fetch: bool,
        namespace: str,
        queue: str,
        types: frozenset[str] | None,
        worker_id: str,
        wait_seconds: float,
        call: str | None,
        compatibility: frozenset[str] | None,
        connection: str | None,
    ) -> Any:
        engine = self._engine
        # Leases are read again after an outage; until then the task that the poll got before it is not known.
        doubted = call is not None and self.doubted.leases_are_unread
        if call is not None and not doubted:
            again = await self._leased_by(namespace, worker_id, call, kind, on_disk=not is_fetch)
            if again is not None:
                return again
        future: asyncio.Future[Any] = engine.world.future()

        def lease() -> Lease:
            return Lease(owner=worker_id, until=engine.world.now() + LEASE, call=poll.call)

        worker = Claimant(connection=connection, compatibility=compatibility)
        poll = ParkedPoll(kind, namespace, queue, types, lease, future, worker, worker_id, call)
        id = (kind, namespace, worker_id, call)
        before = None
        if call is not None:
            before = self._polls_by_call.get(id)
            self._polls_by_call[id] = poll
        replaced = before is not None and engine.dispatcher.replace_poll(before, poll)
        if doubted and not replaced:
            engine.matching.polls.doubt(poll)
        elif not replaced:
            engine.matching.polls.park(poll)
            engine.dispatcher.serve_poll(poll)
            if self.fetching is not None and not is_fetch:
                self.fetching.parked(poll)
        alarm = engine.world.at(
            engine.world.now() + round(wait_seconds * SECOND), lambda: engine.dispatcher.end_poll(poll)
        )
        twin: Alarm | None = None
        if self.fetching is not None and call is not None and not is_fetch and not self._knows_all:
            twin = self.fetching.look_soon(poll)
        try:
            assigned = await future
            if assigned is None and call is not None and not is_fetch and not self._knows_all:
                # The same poll may be parked at another node, which has not noticed yet that its worker is gone.
                return await self._leased_by(namespace, worker_id, call, kind)
            return assigned if assigned is None or await self._may_have(poll, assigned.task) else None
        except asyncio.CancelledError:
            # The worker hung up, perhaps just when the poll got a task: then its lease must be released here.
            task = poll.got()
            if task is not None:
                self._release(task)
            raise
        finally:
            alarm.cancel()
            if twin is not None:
                twin.cancel()
            engine.matching.polls.unpark(poll)
            if self._polls_by_call.get(id) is poll:
                del self._polls_by_call[id]

    async def _may_have(self, poll: ParkedPoll, task: Task) -> bool:
        """Whether the session of a task is the poll's worker's, or it has none. If not, the task is released."""
        sessions = self._engine.matching.sessions
        if task.session is None or sessions is None or poll.fetched:
            return True
        if await sessions.holds(poll.namespace, task.session, poll.owner):
            return True
        self._release(task)
        return False

    def _release(self, task: Task) -> None:
        """End a lease whose worker has never heard of it."""
        self._engine.submit(task.workflow, never_heard_of(task))

    @property
    def _knows_all(self) -> bool:
        """Whether all leases are those of this process."""
        return self._engine.store.exclusive or (self._engine.leases.read and self._is_alone())

    async def got_by(self, poll: ParkedPoll) -> Any:
        return None if poll.call is None else await self._leased_by(poll.namespace, poll.owner, poll.call, poll.kind)

    async def _leased_by(self, namespace: str, worker_id: str, call: str, kind: str, *, on_disk: bool = True) -> Any:
        """The task that an earlier poll with this id got, here or at another node: its reply may be lost, but its lease is on
        disk. It is renewed: the node that has given it may release it, having noticed that its caller is gone.
        `on_disk` False: only leases in memory count, since the fetching node has read the disk."""
        leased = self._engine.leases.by_call(namespace, worker_id, call)
        if leased is None and on_disk and not self._knows_all:
            leased = next(iter(await self._engine.store.leased_by(namespace, worker_id, call)), None)
        if leased is None or leased.kind != kind:
            return None
        try:
            return await self._renewed(leased, worker_id, call)
        except HistoryDamaged:
            return None  # no worker can go on with it

    async def _renewed(self, leased: Task, worker_id: str, call: str) -> Any:
        instance = await self._instances.committed(leased.workflow)
        task = instance.tasks.get(leased.id)
        if task is None or (task.call, task.owner, task.state) != (call, worker_id, "leased"):
            return None
        if task.until is not None and task.until <= self._engine.world.now():
            return None
        try:
            await self._instances.submit(leased.workflow, Renew(task_id=task.id, owner=worker_id, attempt=task.attempt))
        except Refused:
            return None
        instance = await self._instances.committed(leased.workflow)
        renewed = instance.tasks.get(task.id)
        if renewed is None or (renewed.state, renewed.attempt) != ("leased", task.attempt):
            return None
        return self._engine.machine.assign(instance, renewed)


def _raise(refusal: Refused) -> NoReturn:
    raise refusal


def _claimant(request: ask.ClaimWorkflowTask | ask.ClaimActivityTask | ask.GetClaimStatus) -> Claimant:
    return Claimant(connection=request.connection, compatibility=request.compatibility)
