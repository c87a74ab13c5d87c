"""The engine's API: one handler for each request of the protocol, from clients and workers alike.

Nothing is decided here: requests become messages to instances, or reads. Reads answer from committed state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sized
from functools import partial
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from backstay.engine.core.cache import Reply
from backstay.engine.core.deliveries import take
from backstay.engine.core.engine import Engine
from backstay.engine.core.instances import Instances, resolver, start_message
from backstay.engine.core.waiters import ENDED, Waiter
from backstay.engine.reading.describe import brief
from backstay.engine.reading.explain import Explainer
from backstay.engine.reading.exports import Exporter, Exports
from backstay.engine.reading.history_news import HistoryNews
from backstay.engine.reading.looking import Looked, Looking
from backstay.engine.reading.outlines import Outlines
from backstay.engine.reading.run_search import RunSearch
from backstay.engine.reading.slices import Slices
from backstay.engine.requests.forks import Forks
from backstay.engine.requests.schedules import ScheduleApi
from backstay.engine.requests.streams import StreamApi
from backstay.engine.requests.worker_api import WorkerApi
from backstay.engine.requests.workflow_commands import Payloads, WorkflowCommands
from backstay.engine.views.projector import Projector
from backstay.kernel.decision import ChainEnd, RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.features.start import CLOSED, Reserve, ReserveReply, Start, StartReply, check_id
from backstay.kernel.message import Refused
from backstay.kernel.task import Task
from backstay.kernel.values import PARTITIONS, instance_kind
from backstay.kernel.views.run_query import RunPlace, RunQuery, Value
from backstay.protocol import requests as ask
from backstay.protocol import run_lists
from backstay.protocol.native import nodes
from backstay.store import RunFilter, StoredReads

R = TypeVar("R")
T = TypeVar("T")

BLOCKED = "blocked"


class OtherNodes(Protocol):
    """The nodes that own the other shards (`engine/cluster/peers.py`)."""

    def call(self, request: ask.Request[R], here: Callable[[Any], Awaitable[R]]) -> Awaitable[R]: ...

    def owner(self, partition: int) -> nodes.Owner | None: ...

    def stop(self) -> None: ...


class Api:
    """One method, `call`, for every request. `guest`: this process never becomes the engine; `unoffered`: see `Sweep`.

    `peers`: the other nodes, if any can be called. A request about an instance of theirs is handed to them. `is_alone`: see
    `WorkerApi`.
    """

    def __init__(
        self,
        engine: Engine,
        payloads: Payloads,
        exporter: Exporter,
        *,
        guest: bool,
        unoffered: Callable[[Task], bool],
        projector: Projector,
        peers: OtherNodes | None = None,
        is_alone: Callable[[], bool] = lambda: True,
        new_id: Callable[[str], str] | None = None,
    ) -> None:
        self._engine = engine
        self.stored: StoredReads = (
            engine.store
        )  # the committed state, for callers that need more than the requests offer
        self._peers = peers
        self._new_id = new_id
        self._instances = Instances(engine)
        self.committed = self._instances.committed
        self.streams = StreamApi(engine, self._instances)
        self.slices = Slices(engine.world, engine.store)
        self.outlines = Outlines(self.slices, engine.store)
        self.news = HistoryNews(engine, self._is_elsewhere, self.call)
        self.looking = Looking(engine, self._instances)
        self._search = RunSearch(engine, projector)
        self.workers = WorkerApi(engine, self._instances, is_alone)
        self.exports = Exports(engine, self._instances, self.looking, exporter)
        self._table: dict[type[ask.Request[Any]], Callable[[Any], Awaitable[Any]]] = {
            ask.StartWorkflow: self.start,
            ask.ReserveWorkflow: self.reserve,
            ask.RunWorkflow: self.run,
            ask.AwaitResult: self.result,
            ask.DescribeWorkflow: self.describe,
            ask.ListWorkflows: self.list,
            ask.GetHistory: self.history,
            ask.ExportHistory: self.export,
            ask.ExplainWorkflow: Explainer(engine, projector).explain,
            run_lists.SearchRuns: self._search.search,
            run_lists.CountRuns: self._search.count,
            nodes.AwaitEvents: self.news.await_events,
            nodes.DeliverSend: self.deliver,
            **WorkflowCommands(engine, self._instances, payloads, guest=guest, unoffered=unoffered).table,
            **Forks(engine, self._instances, payloads).table,
            **ScheduleApi(engine, self._instances).table,
            **self.streams.table,
            **self.workers.table,
        }

    def call(self, request: ask.Request[R]) -> Awaitable[R]:
        """Returns an awaitable; handlers that need no coroutine return a future directly, which saves a task."""
        if self._peers is not None:
            return self._peers.call(request, self.here)
        return self._table[type(request)](request)

    def here(self, request: ask.Request[R]) -> Awaitable[R]:
        """The same, by this node, whichever owns the instance."""
        return self._table[type(request)](request)

    def stop_waiting(self, why: Callable[[], Exception]) -> None:
        """End all waits now. `why` makes the error for a caller that cannot be answered with the present state."""
        self._engine.waiters.stop(why)
        if self._peers is not None:
            self._peers.stop()

    # -- clients

    def start(self, request: ask.StartWorkflow) -> asyncio.Future[StartReply]:
        future: asyncio.Future[StartReply] = self._engine.world.future()

        def started(reply: StartReply | None, error: BaseException | None) -> None:
            if future.done():
                return
            if reply is None:
                future.set_exception(error or RuntimeError("no answer"))
            elif not reply.accepted:
                future.set_exception(_duplicate(reply, request))
            else:
                future.set_result(reply)

        self._start(request, started)
        return future

    def run(self, request: ask.RunWorkflow) -> Awaitable[ask.Result]:
        if request.start.request_id is not None and not request.start.fresh:
            return self._run_once(request.start)
        future: asyncio.Future[ask.Result] = self._engine.world.future()
        self._start(request.start, partial(self._started, future, request.start))
        return future

    def _started(
        self,
        future: asyncio.Future[ask.Result],
        start: ask.StartWorkflow,
        reply: StartReply | None,
        error: BaseException | None,
    ) -> None:
        """The start of a caller that waits for the result is committed or refused: wait for the end of the workflow."""
        if future.done():
            return
        if reply is None:
            future.set_exception(error or RuntimeError("no answer"))
            return
        if not reply.accepted:
            future.set_exception(_duplicate(reply, start))
            return
        workflow_id, namespace = reply.workflow_id, start.namespace
        key = self._engine.cache.named(namespace, workflow_id) if reply.outcome != CLOSED else None
        if key is None or not self._engine.owns(key):
            self._engine.world.spawn(self._follow(namespace, workflow_id, future), "backstay-follow")
        else:
            # The start has just been committed, so the end is not on disk yet.
            look = partial(self._ended, key, workflow_id)
            self._engine.waiters.add(key, ENDED, Waiter(partial(_result, workflow_id), look, future))
            future.add_done_callback(partial(self._left, key))

    def _left(self, key: int, future: asyncio.Future[ask.Result]) -> None:
        """Take a caller that gave up off the list of waiters. One that got its result is not on it any more."""
        if future.cancelled():
            self._engine.waiters.remove(key, ENDED, future)

    async def _follow(self, namespace: str, workflow_id: str, future: asyncio.Future[ask.Result]) -> None:
        """Wait for the result of a workflow that another process runs, or that may have ended already."""
        resolve = resolver(future)
        try:
            resolve(await self.result(ask.AwaitResult(workflow_id=workflow_id, namespace=namespace)), None)
        except Exception as error:
            resolve(None, error)

    async def _run_once(self, start: ask.StartWorkflow) -> ask.Result:
        """Start and wait, for a request that may be a repetition: its workflow may have ended already."""
        started = await self.start(start)
        return await self.result(ask.AwaitResult(workflow_id=started.workflow_id, namespace=start.namespace))

    def _start(self, request: ask.StartWorkflow, reply: Reply) -> None:
        message = start_message(request, self._engine, self._new_id)
        if request.workflow_id is None:  # no other caller knows the new id, so no instance has it
            self._engine.create(request.namespace, message.workflow_id, message, reply)
        elif request.request_id is not None and not request.fresh:
            self._engine.world.spawn(self._start_once(message, reply), "backstay-start")
        else:
            self._engine.address(request.namespace, message.workflow_id, message, reply)

    async def _start_once(self, message: Start, reply: Reply) -> None:
        """Submit a start that may be a repetition, with the record of the first one."""
        try:
            message = replace(message, retained=await self._instances.retained_start(message))
        except Exception as error:
            reply(None, error)
            return
        self._engine.address(message.namespace, message.workflow_id, message, reply)

    def reserve(self, request: ask.ReserveWorkflow) -> asyncio.Future[ReserveReply]:
        check_id(request.workflow_id)
        message = Reserve(
            namespace=request.namespace, workflow_id=request.workflow_id, workflow_type=request.workflow_type
        )
        return self._instances.address(request.namespace, request.workflow_id, message)

    async def result(self, request: ask.AwaitResult) -> ask.Result:
        workflow_id = request.workflow_id
        key = await self._instances.key(request.namespace, workflow_id)
        entry = self._engine.cache.get(key) if self._engine.owns(key) else None
        ended = await self._engine.waiters.wait(
            key,
            ENDED,
            partial(_result, workflow_id),
            partial(self._ended, key, workflow_id),
            request.wait_seconds,
            to_come=entry is not None and entry.instance.run is not None and entry.instance.run.is_open,
        )
        return ask.Result(workflow_id=workflow_id, run_id="", status=None) if ended is None else ended

    async def describe(self, request: ask.DescribeWorkflow) -> ask.Description:
        return brief((await self.look(request)).found)

    def look(self, request: ask.DescribeWorkflow) -> Awaitable[Looked]:
        """Describe the current run of an instance, with everything from its history."""
        return self.looking.current(request.namespace, request.workflow_id)

    def look_at(self, row: RunRow, *, views: bool = True) -> Awaitable[Looked]:
        """Describe any run, with everything from its history. Without `views`: by its state only."""
        return self.looking.of_run(row, views=views)

    def glance(self, namespace: str, workflow_id: str) -> Awaitable[Looked]:
        """Describe the current run of an instance by its state, with its first and last events only."""
        return self.looking.current(namespace, workflow_id, views=False)

    def turn(self) -> Awaitable[None]:
        """Let the event loop run other work."""
        return self.looking.turn()

    async def list(self, request: ask.ListWorkflows) -> list[RunRow]:
        if instance_kind(request.namespace) != "workflow":
            return await self._engine.store.runs(_filter(request))
        blocked: set[int] = set()
        if request.tells_blocked:
            failed = await self._engine.store.failed()
            blocked = {task.run for task in failed if task.is_blocked}
            if request.status == BLOCKED:
                return await self._blocked(_filter(request), blocked)
        query = _query(request)
        after = None if request.before is None else RunPlace(request.before, request.before)
        rows: list[RunRow] = []
        while len(rows) < request.limit:
            search = run_lists.SearchRuns(query=query, after=after, limit=request.limit - len(rows), rows_only=True)
            page = await self._search.search(search)
            rows += [
                replace(run.row, status=BLOCKED) if run.row.key in blocked else run.row
                for run in page.runs
                if request.status is None or run.row.key not in blocked
            ]
            after = page.end
            if after is None:
                break
        return rows

    async def _blocked(self, where: RunFilter, blocked: set[int]) -> list[RunRow]:
        """The blocked runs that match the filter. Each is read by its key, since no index has them."""
        rows: list[RunRow] = []
        for key in sorted(blocked, reverse=True):
            if len(rows) < where.limit and (where.before is None or key < where.before):
                newest = await self._engine.store.runs(replace(where, status=None, before=key + 1, limit=1))
                rows += [replace(row, status=BLOCKED) for row in newest if row.key == key]
        return rows

    async def export(self, request: ask.ExportHistory) -> str:
        parts: list[bytes] = []
        await self.write(request, parts.append)
        return b"".join(parts).decode()

    async def write(self, request: ask.ExportHistory, into: Callable[[bytes], object]) -> None:
        """Write an export part by part."""
        made = await self.exports.of(request.namespace, request.workflow_id, request.run_id)
        try:
            for piece in made.file.pieces():
                into(piece)
        finally:
            made.close()

    def whole(self, row: RunRow) -> Awaitable[list[Recorded]]:
        """Read a whole history. The event loop runs other work between its pages."""
        return self.looking.whole(row)

    def aside(self, history: Sized, make: Callable[[], T]) -> Awaitable[T]:
        """Call `make`. For a long history on a thread, so that other requests do not wait."""
        return self.looking.aside(history, make)

    async def history(self, request: ask.GetHistory) -> list[Recorded]:
        if request.run_id is not None:
            row = await self._engine.store.run(request.namespace, request.run_id)
            if row is None or row.workflow_id != request.workflow_id:
                raise Refused(
                    "run_not_found",
                    f"workflow {request.workflow_id!r} has no run {request.run_id!r}",
                    run_id=request.run_id,
                )
            run = row.key
        else:
            key = await self._instances.key(request.namespace, request.workflow_id)
            opening = await self._engine.store.opening(key)
            if opening is None or opening.row.run is None:
                return []
            run = opening.row.run
        return await self._engine.store.history(run, request.after, request.limit)

    async def deliver(self, request: nodes.DeliverSend) -> None:
        """Take a send of an instance that another node owns."""
        await take(self._engine, request.send(self._engine.machine))

    # -- inside

    def _is_elsewhere(self, key: int) -> bool:
        return self._peers is not None and self._peers.owner(key % PARTITIONS) is not None

    async def _ended(self, key: int, workflow_id: str) -> ask.Result | None:
        """The result of an instance, if its current run has ended. It is read from history, never from the index."""
        loaded = await self._engine.store.load(key)
        if loaded is None or loaded.run is None:
            return None
        run = self._engine.loading.restore(loaded).current
        if run.is_open:
            return None
        return ask.Result(
            workflow_id=workflow_id,
            run_id=run.run_id,
            status=run.status,
            closed_reason=run.closed_reason,
            event=next(entry for entry in loaded.history if entry.event is run.ended_by),
        )


def _query(request: ask.ListWorkflows) -> RunQuery:
    statuses = request.statuses if request.status is None else (request.status,)
    fields: dict[str, tuple[str, ...] | None] = {
        "instance_id": _one(request.workflow_id),
        "workflow_type": _one(request.workflow_type),
        "status": statuses,
        "queue": _one(request.queue),
        "business_key": _one(request.business_key),
        "run_id": _one(request.run_id),
        "compatibility": _one(request.compatibility),
        "state": request.states,
        "attention": request.attention,
    }
    labels = [*request.labels.items(), *([] if request.label is None else [request.label])]
    searches = [*request.searches, *([] if request.search is None else [request.search])]
    attributes: dict[str, tuple[Value, ...]] = {}
    for name, value in searches:
        # Two values of one attribute exclude each other.
        attributes[name] = (value,) if attributes.get(name, (value,)) == (value,) else ()
    return RunQuery(
        namespace=request.namespace,
        fields={name: values for name, values in fields.items() if values is not None},
        flags={"is_current_run": True} if request.current else {},
        labels={name: (value,) for name, value in labels},
        attributes=attributes,
        started_after=request.started_after,
        started_before=request.started_before,
        closed_after=request.closed_after,
        closed_before=request.closed_before,
    )


def _one(value: str | None) -> tuple[str, ...] | None:
    return None if value is None else (value,)


def _filter(request: ask.ListWorkflows) -> RunFilter:
    return RunFilter(
        namespace=request.namespace,
        workflow_id=request.workflow_id,
        workflow_type=request.workflow_type,
        status=request.status,
        statuses=request.statuses,
        current=request.current,
        queue=request.queue,
        business_key=request.business_key,
        label=request.label,
        search=request.search,
        searches=request.searches,
        run_id=request.run_id,
        compatibility=request.compatibility,
        before=request.before,
        limit=request.limit,
    )


def _result(workflow_id: str, end: ChainEnd) -> ask.Result:
    return ask.Result(
        workflow_id=workflow_id, run_id=end.run_id, status=end.status, closed_reason=end.closed_reason, event=end.event
    )


def _duplicate(reply: StartReply, start: ask.StartWorkflow) -> Refused:
    name = f"workflow {reply.workflow_id!r}"
    if start.duplicate_policy == "return_existing_active":
        reason = f"{name} was started before and has ended (run {reply.run_id}), so there is no running one to return."
    else:
        reason = f"{name} has already been started (run {reply.run_id}); ids are used once."
    return Refused(
        reply.rejection_reason or "rejected",
        f"{reason} To get the existing one and its result, start with options(if_exists='return_existing')",
        workflow_id=reply.workflow_id,
        run_id=reply.run_id,
    )
