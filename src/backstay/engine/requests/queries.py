"""Queries and update validators: they run workflow code on committed history and write nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any, Literal

from backstay.engine.core.engine import Engine
from backstay.engine.core.instances import Instances
from backstay.engine.requests.signal_barrier import SignalBarrier
from backstay.engine.tasks.workers import Executor, Inquirer
from backstay.kernel import contract
from backstay.kernel.decision import RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.features.signal import SignalApplied, SignalReceived
from backstay.kernel.features.signal_rejection import SignalRejected
from backstay.kernel.features.start import Identity, WorkflowStarted, started_of
from backstay.kernel.features.update import NOT_REPLAYED, PENDING, UNAVAILABLE
from backstay.kernel.features.workflow_task import REPLAY_BLOCKED, query_refusal
from backstay.kernel.message import Refused
from backstay.kernel.state import Instance
from backstay.protocol import commands as tell
from backstay.protocol import rejections
from backstay.store import Loaded

Listed = Callable[[WorkflowStarted, str, tell.QueryWorkflow], Any]


class Queries:
    def __init__(self, engine: Engine, instances: Instances, signals: SignalBarrier) -> None:
        self._engine = engine
        self._instances = instances
        self._signals = signals

    async def query(self, key: int, request: tell.QueryWorkflow, listed: Listed) -> tell.QueryResult:
        loaded = await self._engine.store.load(key)
        if request.after_signals and loaded is not None and _unseen_signals(loaded, request.run_id):
            await self._settle(key, request)
            loaded = await self._engine.store.load(key)
        if loaded is None or loaded.run is None:
            raise Refused("instance_not_started", f"workflow {request.workflow_id!r} has not been started yet")
        run, history, cursor = loaded.run, loaded.history, loaded.row.cursor
        if request.run_id is not None and request.run_id != run.run_id:
            selected = await self._engine.store.run(request.namespace, request.run_id)
            if selected is None or selected.workflow != key:
                raise Refused(
                    "run_not_found",
                    f"workflow {request.workflow_id!r} has no run {request.run_id!r}",
                    run_id=request.run_id,
                )
            run, cursor = selected, 0  # for an earlier run, the events of its tasks say how far they had seen
            history = await self._engine.store.history(run.key)
        started = started_of(history)
        assert started is not None, "a run that was loaded has started"
        given = listed(started, request.query_name, request)
        self._judge(started, request.query_name, given)
        block = next((task.block for task in loaded.tasks if task.run == run.key and task.is_blocked), None)
        if block is not None:
            raise query_refusal(block)
        executor = await self._who_answers(started.workflow_type, run.namespace, run.queue, run.compatibility)
        result = await executor.inquire(
            self._inquiry("query", run, cursor, request.query_name, given.blob), history, self._at_rest(key, history)
        )
        return tell.QueryResult(
            workflow_id=request.workflow_id, run_id=run.run_id, query_name=request.query_name, result=result
        )

    async def _settle(self, key: int, request: tell.QueryWorkflow) -> None:
        """Wait until the signals that were accepted before are handled, unless the code of the run does not run now."""
        settled = await self._signals.wait(key, tell.SIGNAL_WAIT)
        if settled.left is not None and not settled.stands:
            raise Refused(
                PENDING,
                f"workflow {request.workflow_id!r} has not applied signal {settled.left!r}, which was sent before query"
                f" {request.query_name!r}, within {tell.SIGNAL_WAIT:g} seconds; its worker is busy or gone, try again",
                signal_name=settled.left,
                query_name=request.query_name,
            )

    async def would_take(
        self, key: int, name: str, arguments: bytes | None, *, patient: bool
    ) -> tuple[str | None, str | None]:
        """For an update of the current run: the worker that is missing, in words, and the objection of the validator.

        An update is accepted without a worker only if the run has recorded that it has no validator. `patient`: if an
        earlier signal was not handled yet, refuse instead of running the validator.
        """
        entry = self._engine.cache.get(key)
        instance = await self._instances.committed(key) if entry is None else entry.instance
        live = instance.run
        if live is None or not live.is_open:
            return None, None  # the kernel rejects the update for that
        type, routing = live.workflow_type, live.routing
        executor = await self._answerer(type, routing.namespace, routing.queue, routing.compatibility)
        if executor is None:
            if self._engine.matching.is_served(routing.namespace, routing.queue):
                return (
                    f"no live worker of queue {routing.queue!r} runs workflow type {type!r}; start one and try again",
                    None,
                )
            if _needs_no_validator(live.part(Identity).started, name):
                return None, None
            executor = self._engine.matching.remote
            if executor is None:
                return _NOT_HERE.format(type), None
        elif not executor.validates(type, name):
            return None, None
        loaded = await self._engine.store.load(key)
        if loaded is None or loaded.run is None:
            return None, None
        if patient and _unseen_signals(loaded, None):
            raise Refused(PENDING, f"the validator of update {name!r} waits for a signal that was accepted earlier")
        inquiry = self._inquiry("validate", loaded.run, loaded.row.cursor, name, arguments)
        try:
            return None, await executor.inquire(inquiry, loaded.history, self._at_rest(key, loaded.history))
        except Refused as refusal:
            blocked = refusal.fields.get("query_blocked_reason") == REPLAY_BLOCKED
            if not blocked and refusal.reason != UNAVAILABLE:
                raise
            return NOT_REPLAYED if blocked else f"{refusal.message}; start one and try again", None

    def _inquiry(
        self, kind: Literal["query", "validate"], run: RunRow, cursor: int, name: str, arguments: bytes | None
    ) -> tell.Inquiry:
        return tell.Inquiry(
            kind=kind,
            namespace=run.namespace,
            workflow_id=run.workflow_id,
            run_id=run.run_id,
            run_key=run.key,
            run_number=run.number,
            workflow_type=run.workflow_type,
            cursor=cursor,
            name=name,
            arguments=arguments,
            at=self._engine.world.now(),
        )

    async def _answerer(
        self, type: str, namespace: str, queue: str, compatibility: str | None
    ) -> Executor | Inquirer | None:
        matching = self._engine.matching
        answerer = matching.answerer(type, namespace, queue, compatibility)
        if answerer is None and matching.remote is not None and await matching.remote.look():
            return matching.answerer(type, namespace, queue, compatibility)
        return answerer

    async def _who_answers(
        self, type: str, namespace: str, queue: str, compatibility: str | None
    ) -> Executor | Inquirer:
        matching = self._engine.matching
        executor = await self._answerer(type, namespace, queue, compatibility)
        if executor is not None:
            return executor
        if matching.is_served(namespace, queue):
            raise Refused(
                "workflow_definition_unavailable",
                f"no live worker knows workflow type {type!r}; register it and try again",
                query_blocked_reason="workflow_definition_unavailable",
            )
        raise Refused(
            "query_worker_unavailable",
            f"{missing_worker(type, queue)}; a query needs the workflow's code",
            query_blocked_reason="query_worker_unavailable",
        )

    def _judge(self, started: WorkflowStarted, name: str, given: Any) -> None:
        declared = started.declared_queries
        if declared is None:
            return
        if name not in declared:
            raise Refused(
                "query_not_found",
                f"there is no query {name!r}; {rejections.declared_names(name, declared)}",
                query_name=name,
            )
        declaration = contract.find(started.declared_query_contracts, name)
        errors = given.errors or (contract.check(declaration, given.values) if declaration is not None else {})
        if errors:
            raise Refused(
                "invalid_query_arguments",
                f"query {name!r}: {_said(errors)}",
                field="arguments",
                validation_errors=errors,
            )

    def _at_rest(self, key: int, history: list[Recorded]) -> bool:
        """Whether live code of this instance has seen exactly its committed history."""
        entry = self._engine.cache.get(key)
        return (
            entry is not None and entry.inflight == 0 and not entry.code_is_busy and _settled(entry.instance, history)
        )


def _unseen_signals(loaded: Loaded, run_id: str | None) -> bool:
    """Whether a signal was accepted that no workflow task has seen. With a `run_id`: of that run, if it is the current one."""
    if run_id is not None and (loaded.run is None or loaded.run.run_id != run_id):
        return False
    if any(isinstance(event, SignalReceived) for event, _ in loaded.row.buffered_events):
        return True
    cursor = loaded.row.cursor
    applied: set[str] = set()
    for entry in takewhile(lambda entry: entry.sequence > cursor, reversed(loaded.history)):
        match entry.event:
            case SignalApplied(signal_id=id) | SignalRejected(signal_id=id):
                applied.add(id)
            case SignalReceived(signal_id=id) if id not in applied:
                return True
            case _:
                pass
    return False


_NOT_HERE = (
    "its validator must run, and the code of workflow type {!r} is not in this process; register it here"
    " (with dw: --app FILE) and try again"
)


def _needs_no_validator(started: WorkflowStarted | None, update: str) -> bool:
    """Whether the run has recorded that its code accepts such an update unseen, or has no such update."""
    if started is None or started.declared_updates is None:
        return False
    validators = started.declared_update_validators
    return update not in started.declared_updates or (validators is not None and update not in validators)


def missing_worker(workflow_type: str, queue: str) -> str:
    return f"no worker that runs {workflow_type!r} is alive on queue {queue!r}"


def _settled(instance: Instance, history: list[Recorded]) -> bool:
    run = instance.run
    return run is not None and bool(history) and run.length == history[-1].sequence and run.key == history[-1].run


def _said(errors: contract.Errors) -> str:
    return "; ".join(f"{name} {', '.join(what)}" for name, what in errors.items())
