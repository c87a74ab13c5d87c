"""The engine's operations: each request of the protocol answered, for clients and for the workers' bridge alike.

Nothing here decides anything about workflows: requests become messages or reads. Reads answer from committed state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from holdfast.engine.cache import Reply
from holdfast.engine.engine import Engine
from holdfast.engine.matching import Waiter
from holdfast.engine.recovery import Recovery
from holdfast.engine.summary import describe
from holdfast.kernel.decision import Ended, RunRow
from holdfast.kernel.event import Recorded
from holdfast.kernel.features.activity import (
    ActivityAssignment,
    AttemptOutcome,
    CompleteActivity,
    FailActivity,
    HeartbeatActivity,
    HeartbeatReply,
)
from holdfast.kernel.features.activity import status as activity_status
from holdfast.kernel.features.lease import Claim
from holdfast.kernel.features.lease import claim_status as claim_status_of
from holdfast.kernel.features.reconcile import Reconcile, Reconciled
from holdfast.kernel.features.start import Reserve, Reserved, Start, Started, check_id
from holdfast.kernel.features.workflow_task import (
    CompleteWorkflowTask,
    FailWorkflowTask,
    HeartbeatWorkflowTask,
    TaskOutcome,
    WorkflowAssignment,
)
from holdfast.kernel.message import Message, Refused
from holdfast.kernel.state import Workflow
from holdfast.kernel.task import Lease
from holdfast.kernel.values import LEASE, SECOND, run_of
from holdfast.protocol import requests as ask
from holdfast.store import RunFilter

R = TypeVar("R")


class Operations:
    """One method, `call`, for every request."""

    def __init__(self, engine: Engine, recovery: Recovery) -> None:
        self._engine = engine
        self._recovery = recovery
        self._foreign_waits: dict[int, None] = {}
        recovery.on_foreign.append(self._foreign_commit)
        self._table: dict[type[ask.Request[Any]], Callable[[Any], Awaitable[Any]]] = {
            ask.StartWorkflow: self.start,
            ask.ReserveWorkflow: self.reserve,
            ask.RunWorkflow: self.run,
            ask.AwaitResult: self.result,
            ask.DescribeWorkflow: self.describe,
            ask.ListWorkflows: self.list,
            ask.GetHistory: self.history,
            ask.RepairWorkflow: self.repair,
            ask.PollWorkflowTask: self.poll_workflow_task,
            ask.ClaimWorkflowTask: self.claim_task,
            ask.GetClaimStatus: self.claim_status,
            ask.GetTaskHistory: self.task_history,
            ask.ExecuteWorkflowTask: self.execute,
            ask.CompleteTask: self.complete_task,
            ask.FailTask: self.fail_task,
            ask.HeartbeatTask: self.heartbeat_task,
            ask.PollActivityTask: self.poll_activity_task,
            ask.ClaimActivityTask: self.claim_task,
            ask.CompleteActivityTask: self.complete_activity,
            ask.FailActivityTask: self.fail_activity,
            ask.HeartbeatActivityTask: self.heartbeat_activity,
            ask.GetActivityStatus: self.activity_status,
        }

    async def call(self, request: ask.Request[R]) -> R:
        return await self._table[type(request)](request)

    # -- clients

    def start(self, request: ask.StartWorkflow) -> asyncio.Future[Started]:
        future: asyncio.Future[Started] = self._engine.world.future()

        def started(reply: Started | None, error: BaseException | None) -> None:
            if future.done():
                return
            if reply is None:
                future.set_exception(error or RuntimeError("no answer"))
            elif not reply.accepted:
                future.set_exception(_duplicate(reply))
            else:
                future.set_result(reply)

        self._start(request, started)
        return future

    def run(self, request: ask.RunWorkflow) -> asyncio.Future[ask.Result]:
        future: asyncio.Future[ask.Result] = self._engine.world.future()
        namespace = request.start.namespace

        def started(reply: Started | None, error: BaseException | None) -> None:
            if future.done():
                return
            if reply is None:
                future.set_exception(error or RuntimeError("no answer"))
            elif not reply.accepted:
                future.set_exception(_duplicate(reply))
            elif (key := self._engine.cache.named(namespace, reply.workflow_id)) is not None:
                # Its own start has just been committed, so whatever ends it comes later than this.
                self._watch(key, reply.workflow_id, future)

        self._start(request.start, started)
        return future

    def _start(self, request: ask.StartWorkflow, reply: Reply) -> None:
        workflow_id = request.workflow_id if request.workflow_id is not None else self._engine.world.ids.ulid()
        check_id(workflow_id)
        message = Start(
            namespace=request.namespace,
            workflow_id=workflow_id,
            workflow_type=request.workflow_type,
            arguments=request.arguments,
            routing=request.routing,
            business_key=request.business_key,
            visibility_labels=request.visibility_labels,
            memo=request.memo,
            search_attributes=request.search_attributes,
            execution_timeout_seconds=request.execution_timeout_seconds,
            run_timeout_seconds=request.run_timeout_seconds,
            duplicate_policy=request.duplicate_policy,
            definition=request.definition,
            request_id=request.request_id,
            source=request.source,
        )
        self._engine.address(request.namespace, workflow_id, message, reply)

    def reserve(self, request: ask.ReserveWorkflow) -> asyncio.Future[Reserved]:
        check_id(request.workflow_id)
        message = Reserve(
            namespace=request.namespace, workflow_id=request.workflow_id, workflow_type=request.workflow_type
        )
        return self._address(request.namespace, request.workflow_id, message)

    async def result(self, request: ask.AwaitResult) -> ask.Result:
        key = await self._key(request.namespace, request.workflow_id)
        entry = self._engine.cache.get(key)
        if entry is None or entry.flow.run is None or not entry.flow.run.open:
            ended = await self._ended(key, request.workflow_id)
            if ended is not None:
                return ended
        future: asyncio.Future[ask.Result] = self._engine.world.future()
        self._watch(key, request.workflow_id, future)
        if request.wait_seconds is None:
            try:
                return await future
            except asyncio.CancelledError:
                self._engine.watching.unwatch(key, future)
                raise
        timer = self._engine.world.at(
            self._engine.world.now() + round(request.wait_seconds * SECOND),
            lambda: (
                None
                if future.done()
                else future.set_result(ask.Result(workflow_id=request.workflow_id, run_id="", status=None))
            ),
        )
        try:
            return await future
        finally:
            timer.cancel()
            self._engine.watching.unwatch(key, future)

    async def describe(self, request: ask.DescribeWorkflow) -> ask.Description:
        key = await self._key(request.namespace, request.workflow_id)
        flow = await self._committed(key)
        return describe(self._engine.machine, flow, await self._engine.store.commands(key), self._engine.world.now())

    async def list(self, request: ask.ListWorkflows) -> list[RunRow]:
        return await self._engine.store.runs(
            RunFilter(
                namespace=request.namespace,
                workflow_id=request.workflow_id,
                workflow_type=request.workflow_type,
                status=request.status,
                business_key=request.business_key,
                label=request.label,
                search=request.search,
                before=request.before,
                limit=request.limit,
            )
        )

    async def history(self, request: ask.GetHistory) -> list[Recorded]:
        if request.run_id is not None:
            found = await self._engine.store.locate(request.run_id)
            if found is None:
                raise Refused("run_not_found", f"there is no run {request.run_id!r}", run_id=request.run_id)
            run = found[1]
        else:
            loaded = await self._engine.store.load(await self._key(request.namespace, request.workflow_id))
            if loaded is None or loaded.row.run is None:
                return []
            run = loaded.row.run
        return await self._engine.store.history(run, request.after, request.limit)

    async def repair(self, request: ask.RepairWorkflow) -> Reconciled:
        key = await self._key(request.namespace, request.workflow_id)
        message = Reconcile(incarnation=await self._living(key), fingerprints=self._recovery.fingerprints, force=True)
        return await self._submit(key, message)

    async def _living(self, key: int) -> str:
        """Whose in-process leases count. Beside another engine, its own: it ended those of its predecessors."""
        if not self._engine.holder:
            flow = await self._committed(key)
            for task in (*flow.tasks.values(), *self._engine.machine.expect(flow).tasks.values()):
                if task.owner is not None and task.until is None:
                    return task.owner.partition("/")[0]
        return self._engine.incarnation

    # -- workflow tasks

    async def poll_workflow_task(self, request: ask.PollWorkflowTask) -> WorkflowAssignment | None:
        return await self._poll(
            "workflow",
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
        key = await self._key_of(request.task_id)
        lease = Lease(owner=request.worker_id, until=self._engine.world.now() + LEASE)
        future: asyncio.Future[Any] = self._engine.world.future()

        def claimed(task: Any, error: BaseException | None) -> None:
            if future.done():
                return
            entry = self._engine.cache.get(key)
            if error is not None or entry is None:
                future.set_exception(error or Refused("task_not_found", "the task is gone"))
            else:
                future.set_result(self._engine.machine.assign(entry.flow, task))

        self._engine.submit(key, Claim(task_id=request.task_id, lease=lease, kind=kind), claimed)
        return await future

    async def claim_status(self, request: ask.GetClaimStatus) -> ask.ClaimStatus:
        try:
            flow = await self._committed(await self._key_of(request.task_id))
        except Refused:
            return ask.ClaimStatus(task_id=request.task_id, claimable=False, reason="task_not_found")
        reason = claim_status_of(flow, request.task_id, request.kind, self._engine.world.now())
        return ask.ClaimStatus(task_id=request.task_id, claimable=reason is None, reason=reason)

    async def task_history(self, request: ask.GetTaskHistory) -> ask.HistoryPage:
        key = await self._key_of(request.task_id)
        outcome: TaskOutcome = await self._submit(
            key,
            HeartbeatWorkflowTask(
                task_id=request.task_id, owner=request.lease_owner, attempt=request.workflow_task_attempt, renew=False
            ),
        )
        flow = await self._committed(key)
        run = flow.current
        size = None if request.page_size is None else max(1, min(request.page_size, ask.PAGE_MAX))
        seen = outcome.seen or run.length
        found = await self._engine.store.history(run.key, request.after_sequence, size)
        events = [entry for entry in found if entry.sequence <= seen]
        last = events[-1].sequence if events else request.after_sequence
        more = last < seen
        return ask.HistoryPage(
            history_events=events,
            has_more=more,
            next_after_sequence=last if more else None,
            total_history_events=seen,
        )

    async def execute(self, request: ask.ExecuteWorkflowTask) -> TaskOutcome:
        """Claim and run one task on this engine's own executor."""
        key = await self._key_of(request.task_id)
        flow = await self._committed(key)
        reason = claim_status_of(flow, request.task_id, "workflow", self._engine.world.now())
        if reason is not None:
            raise Refused(reason, f"task {request.task_id} cannot be claimed: {reason}")
        return await self._engine.inline.execute(key, request.task_id)

    def complete_task(self, request: ask.CompleteTask) -> Awaitable[TaskOutcome]:
        if not request.commands:
            raise Refused("invalid_commands", "a completion needs at least one command", field="commands")
        return self._task_verb(
            request.task_id,
            CompleteWorkflowTask(
                task_id=request.task_id,
                owner=request.lease_owner,
                attempt=request.workflow_task_attempt,
                commands=request.commands,
                handled_failures=request.handled_failures,
            ),
        )

    def fail_task(self, request: ask.FailTask) -> Awaitable[TaskOutcome]:
        if not request.failure.message:
            raise Refused("invalid_failure", "a failure needs a message", field="failure.message")
        return self._task_verb(
            request.task_id,
            FailWorkflowTask(
                task_id=request.task_id,
                owner=request.lease_owner,
                attempt=request.workflow_task_attempt,
                block=request.failure,
            ),
        )

    def heartbeat_task(self, request: ask.HeartbeatTask) -> Awaitable[TaskOutcome]:
        return self._task_verb(
            request.task_id,
            HeartbeatWorkflowTask(
                task_id=request.task_id, owner=request.lease_owner, attempt=request.workflow_task_attempt
            ),
        )

    # -- activity tasks

    async def poll_activity_task(self, request: ask.PollActivityTask) -> ActivityAssignment | None:
        return await self._poll(
            "activity",
            request.namespace,
            request.queue,
            request.activity_types,
            request.worker_id,
            request.wait_seconds,
            request.poll_request_id,
            request.compatibility,
            request.connection,
        )

    def complete_activity(self, request: ask.CompleteActivityTask) -> Awaitable[AttemptOutcome]:
        run_id, step, attempt = _parse_attempt(request.activity_attempt_id)
        return self._run_verb(
            run_id,
            CompleteActivity(
                step=step, attempt=attempt, owner=request.lease_owner, run_id=run_id, result=request.result
            ),
        )

    def fail_activity(self, request: ask.FailActivityTask) -> Awaitable[AttemptOutcome]:
        run_id, step, attempt = _parse_attempt(request.activity_attempt_id)
        return self._run_verb(
            run_id,
            FailActivity(step=step, attempt=attempt, owner=request.lease_owner, run_id=run_id, failure=request.failure),
        )

    def heartbeat_activity(self, request: ask.HeartbeatActivityTask) -> Awaitable[HeartbeatReply]:
        run_id, step, attempt = _parse_attempt(request.activity_attempt_id)
        return self._run_verb(
            run_id,
            HeartbeatActivity(
                step=step, attempt=attempt, owner=request.lease_owner, run_id=run_id, progress=request.progress
            ),
        )

    async def activity_status(self, request: ask.GetActivityStatus) -> HeartbeatReply:
        run_id, step, attempt = _parse_attempt(request.activity_attempt_id)
        flow = await self._committed(await self._key_of(run_id))
        return activity_status(flow, run_id, step, attempt, request.lease_owner, self._engine.world.now())

    # -- inside

    async def _key(self, namespace: str, workflow_id: str) -> int:
        key = self._engine.cache.named(namespace, workflow_id)
        if key is None:
            key = await self._engine.store.find(namespace, workflow_id)
        if key is None:
            raise Refused(
                "workflow_not_found",
                f"there is no workflow {workflow_id!r} in namespace {namespace!r}",
                workflow_id=workflow_id,
            )
        return key

    async def _key_of(self, derived_id: str) -> int:
        found = await self._engine.store.locate(run_of(derived_id))
        if found is None:
            raise Refused("task_not_found", f"nothing is known of {derived_id!r}", task_id=derived_id)
        return found[0]

    async def _committed(self, key: int) -> Workflow:
        loaded = await self._engine.store.load(key)
        if loaded is None:
            raise Refused("workflow_not_found", "no such workflow", key=key)
        return self._engine.loading.restore(loaded)

    def _submit(self, key: int, message: Message) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._engine.world.future()
        self._engine.submit(key, message, resolver(future))
        return future

    def _address(self, namespace: str, workflow_id: str, message: Message) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._engine.world.future()
        self._engine.address(namespace, workflow_id, message, resolver(future))
        return future

    async def _task_verb(self, task_id: str, message: Message) -> Any:
        return await self._submit(await self._key_of(task_id), message)

    async def _run_verb(self, run_id: str, message: Message) -> Any:
        return await self._submit(await self._key_of(run_id), message)

    async def _poll(
        self,
        kind: str,
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
        if call is not None:
            again = await self._leased_by(call, worker_id, kind)
            if again is not None:
                return again
        future: asyncio.Future[Any] = engine.world.future()

        def lease() -> Lease:
            return Lease(owner=worker_id, until=engine.world.now() + LEASE, call=call)

        waiter = Waiter(kind, namespace, queue, types, lease, future, compatibility, connection)
        engine.matching.park(waiter)
        engine.serve(waiter)
        alarm = engine.world.at(
            engine.world.now() + round(wait_seconds * SECOND), lambda: engine.give_up_waiting(waiter)
        )
        try:
            return await future
        finally:
            alarm.cancel()
            engine.matching.unpark(waiter)

    async def _leased_by(self, call: str, worker_id: str, kind: str) -> Any:
        """The task that an earlier poll with this id was given: a reply may be lost, its lease is not."""
        for task in await self._engine.store.leased():
            if task.call == call and task.owner == worker_id and task.kind == kind:
                if task.until is not None and task.until <= self._engine.world.now():
                    return None
                return self._engine.machine.assign(await self._committed(task.workflow), task)
        return None

    async def _ended(self, key: int, workflow_id: str) -> ask.Result | None:
        """The outcome of an instance whose current run is closed on disk."""
        loaded = await self._engine.store.load(key)
        run = None if loaded is None else loaded.run
        if run is None or run.closed_reason is None:
            return None
        last = await self._engine.store.last_event(run.key)
        return ask.Result(
            workflow_id=workflow_id, run_id=run.run_id, status=run.status, closed_reason=run.closed_reason, event=last
        )

    def _watch(self, key: int, workflow_id: str, future: asyncio.Future[ask.Result]) -> None:
        """Resolve this future when the chain of runs of the instance ends."""

        def closed(end: Ended) -> None:
            if not future.done():
                future.set_result(
                    ask.Result(
                        workflow_id=workflow_id,
                        run_id=end.run_id,
                        status=end.status,
                        closed_reason=end.closed_reason,
                        event=end.event,
                    )
                )

        self._engine.watching.watch(key, closed, future, workflow_id)

    def _foreign_commit(self) -> None:
        """Another process committed: a run somebody waits for here may have closed there."""
        for key, watchers in self._engine.watching:
            self._engine.world.spawn(self._look_whether_closed(key, watchers), "holdfast-watch")

    async def _look_whether_closed(self, key: int, watchers: list[Any]) -> None:
        ended = await self._ended(key, watchers[0].workflow_id if watchers else "")
        if ended is not None:
            for watcher in self._engine.watching.pop(key):
                if not watcher.future.done():
                    watcher.future.set_result(ended)


def _duplicate(reply: Started) -> Refused:
    return Refused(
        reply.rejection_reason or "rejected",
        f"workflow {reply.workflow_id!r} has already been started (run {reply.run_id}); ids are used once."
        " To get the running one instead, start with options(existing='return_existing_active')",
        workflow_id=reply.workflow_id,
        run_id=reply.run_id,
    )


def resolver(future: asyncio.Future[Any]) -> Callable[[Any, BaseException | None], None]:
    def resolve(value: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    return resolve


def _parse_attempt(attempt_id: str) -> tuple[str, int, int]:
    run_id, _, rest = attempt_id.partition("-")
    step, _, attempt = rest.partition("-")
    if not (step.isdigit() and attempt.isdigit()):
        raise Refused("attempt_not_found", f"{attempt_id!r} is not an attempt id", field="activity_attempt_id")
    return run_id, int(step), int(attempt)
