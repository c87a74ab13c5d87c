"""The engine's operations: each request of the protocol answered, for clients and for the workers' bridge alike.

Nothing here decides anything about workflows: requests become messages or reads. Reads answer from committed state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from holdfast.engine.access import Access
from holdfast.engine.bridge import Bridge
from holdfast.engine.cache import Reply
from holdfast.engine.engine import Engine
from holdfast.engine.recovery import Recovery
from holdfast.engine.summary import describe
from holdfast.kernel.decision import Ended, RunRow
from holdfast.kernel.event import Recorded
from holdfast.kernel.features.reconcile import Reconcile, Reconciled
from holdfast.kernel.features.start import Reserve, Reserved, Start, Started, check_id
from holdfast.kernel.message import Refused
from holdfast.kernel.values import SECOND
from holdfast.protocol import requests as ask
from holdfast.store import RunFilter

R = TypeVar("R")


class Operations:
    """One method, `call`, for every request."""

    def __init__(self, engine: Engine, recovery: Recovery) -> None:
        self._engine = engine
        self._recovery = recovery
        self._access = Access(engine)
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
            **Bridge(engine, self._access).table,
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
        return self._access.address(request.namespace, request.workflow_id, message)

    async def result(self, request: ask.AwaitResult) -> ask.Result:
        key = await self._access.key(request.namespace, request.workflow_id)
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
        key = await self._access.key(request.namespace, request.workflow_id)
        flow = await self._access.committed(key)
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
            loaded = await self._engine.store.load(await self._access.key(request.namespace, request.workflow_id))
            if loaded is None or loaded.row.run is None:
                return []
            run = loaded.row.run
        return await self._engine.store.history(run, request.after, request.limit)

    async def repair(self, request: ask.RepairWorkflow) -> Reconciled:
        key = await self._access.key(request.namespace, request.workflow_id)
        message = Reconcile(incarnation=await self._living(key), fingerprints=self._recovery.fingerprints, force=True)
        return await self._access.submit(key, message)

    async def _living(self, key: int) -> str:
        """Whose in-process leases count. Beside another engine, its own: it ended those of its predecessors."""
        if not self._engine.holder:
            flow = await self._access.committed(key)
            for task in (*flow.tasks.values(), *self._engine.machine.expect(flow).tasks.values()):
                if task.owner is not None and task.until is None:
                    return task.owner.partition("/")[0]
        return self._engine.incarnation

    # -- inside

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
