"""Queries and update validators: they run workflow code on committed history and write nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any, Literal

from backstay.engine.engine import Engine
from backstay.engine.instances import Instances
from backstay.engine.signal_barrier import SignalBarrier
from backstay.engine.workers import Executor, Inquirer
from backstay.kernel import contract
from backstay.kernel.decision import RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.features.signal import SignalApplied, SignalReceived
from backstay.kernel.features.start import WorkflowStarted
from backstay.kernel.features.update import PENDING
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
        started = next(entry.event for entry in history if isinstance(entry.event, WorkflowStarted))
        given = listed(started, request.query_name, request)
        self._judge(started, request.query_name, given)
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
                f"workflow {request.workflow_id!r} was sent signal {settled.left!r} before query {request.query_name!r}, and"
                f" its code has not had that signal after {tell.SIGNAL_WAIT:g} seconds; its worker is busy or away, ask again",
                signal_name=settled.left,
                query_name=request.query_name,
            )

    async def would_take(
        self, key: int, name: str, arguments: bytes | None, *, patient: bool
    ) -> tuple[bool, str | None]:
        """For an update of the current run: whether its definition is available, and the objection of its validator.

        `patient`: if an earlier signal was not handled yet, refuse instead of running the validator.
        """
        entry = self._engine.cache.get(key)
        instance = await self._instances.committed(key) if entry is None else entry.instance
        live = instance.run
        if live is None or not live.is_open:
            return True, None  # the kernel rejects the update for that
        routing = live.routing
        executor = await self._answerer(live.workflow_type, routing.namespace, routing.queue, routing.compatibility)
        if executor is None:
            return not self._engine.matching.is_served(routing.namespace, routing.queue), None
        if not executor.validates(live.workflow_type, name):
            return True, None
        loaded = await self._engine.store.load(key)
        if loaded is None or loaded.run is None:
            return True, None
        if patient and _unseen_signals(loaded, None):
            raise Refused(PENDING, f"the validator of update {name!r} has to see a signal that was accepted earlier")
        run = loaded.run
        objection = await executor.inquire(
            self._inquiry("validate", run, loaded.row.cursor, name, arguments),
            loaded.history,
            self._at_rest(key, loaded.history),
        )
        return True, objection

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
        found = matching.answerer(type, namespace, queue, compatibility)
        if found is None and matching.remote is not None and await matching.remote.look():
            return matching.answerer(type, namespace, queue, compatibility)
        return found

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
                f"no live worker knows workflow type {type!r}; register it and ask again",
                query_blocked_reason="workflow_definition_unavailable",
            )
        raise Refused(
            "query_worker_unavailable",
            f"no worker that runs {type!r} is alive on queue {queue!r}; a query needs the workflow's code",
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
        found = contract.find(started.declared_query_contracts, name)
        errors = given.errors or (contract.check(found, given.values) if found is not None else {})
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
            case SignalApplied(signal_id=id):
                applied.add(id)
            case SignalReceived(signal_id=id) if id not in applied:
                return True
            case _:
                pass
    return False


def _settled(instance: Instance, history: list[Recorded]) -> bool:
    run = instance.run
    return run is not None and bool(history) and run.length == history[-1].sequence and run.key == history[-1].run


def _said(errors: contract.Errors) -> str:
    return "; ".join(f"{name} {', '.join(what)}" for name, what in errors.items())
