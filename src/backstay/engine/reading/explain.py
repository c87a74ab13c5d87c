"""Explains runs: reads the summary, the facts of this moment, and as much of the history as the causes need.

A long history is not read: its causes are found in its last pages (`PAGE`, at most `MOST` events), or around the event
in question.
"""

from __future__ import annotations

from typing import Any, cast

from msgspec.structs import replace

from backstay.engine.core.engine import Engine
from backstay.engine.core.world import turn
from backstay.engine.reading.facts import FactFinder
from backstay.engine.views.projector import Projector
from backstay.kernel.decision import CommandRecord, RunRow
from backstay.kernel.event import HistoryDamaged, Recorded
from backstay.kernel.message import Refused
from backstay.kernel.views.causes import LINKS, ChainLink, chain_of, last_of
from backstay.kernel.views.facts import Facts
from backstay.kernel.views.summary import RunSummary
from backstay.kernel.views.why import Why, explain, explain_damage, explain_event
from backstay.protocol.requests import ExplainWorkflow
from backstay.store import RunFilter

PAGE = 200
MOST = 2000
NEAREST = 12  # causes that explain a state; an event has all of its causes
CLOSING = frozenset(
    (
        "WorkflowCompleted",
        "WorkflowFailed",
        "WorkflowTimedOut",
        "WorkflowCancelled",
        "WorkflowTerminated",
        "WorkflowContinuedAsNew",
        "WorkflowRewound",
    )
)


class Explainer:
    def __init__(self, engine: Engine, projector: Projector) -> None:
        self._engine = engine
        self._projector = projector

    async def explain(self, request: ExplainWorkflow) -> Why:
        row = await self._row(request)
        try:
            return await self._explain(row, request)
        except HistoryDamaged as damage:
            return explain_damage(row, damage)

    async def _explain(self, row: RunRow, request: ExplainWorkflow) -> Why:
        summary = await self._projector.summary(row)
        if request.event is not None:
            return await self._explain_event(row, summary, request.event)
        facts = await self._facts(summary)
        events, causes = await self._causes(row.key, summary.events, summary)
        closing = next((event for event in reversed(events) if event.type in CLOSING), None)
        return explain(summary, facts, self._engine.world.now(), causes, closing)

    async def _row(self, request: ExplainWorkflow) -> RunRow:
        store, namespace, workflow_id = self._engine.store, request.namespace, request.workflow_id
        if request.run_id is not None:
            row = await store.run(namespace, request.run_id)
            if row is None or row.workflow_id != workflow_id:
                raise Refused(
                    "run_not_found",
                    f"workflow {workflow_id!r} has no run {request.run_id!r}",
                    run_id=request.run_id,
                )
            return row
        rows = await store.runs(RunFilter(namespace=namespace, workflow_id=workflow_id, current=True, limit=1))
        if rows:
            return rows[0]
        if await store.find(namespace, workflow_id) is not None:
            raise Refused("instance_not_started", f"workflow {workflow_id!r} has no run yet")
        raise Refused(
            "workflow_not_found",
            f"there is no workflow {workflow_id!r} in namespace {namespace!r}",
            workflow_id=workflow_id,
        )

    async def _facts(self, summary: RunSummary) -> Facts:
        engine = self._engine
        if summary.closed_at is not None:
            return Facts()
        has_engine = engine.holder or await engine.store.has_engine()
        facts = FactFinder(engine, has_engine=has_engine).of(summary)
        if summary.state == "paused":
            command = await engine.store.last_command(summary.workflow, "pause")
            if command is not None:
                return replace(facts, paused_by=caller_of(command), pause_reason=summary.pause_reason)
        if summary.next_task_state == "failed":
            tasks = await engine.store.tasks(summary.workflow)
            return replace(facts, block=next((task.block for task in tasks if task.block is not None), None))
        return facts

    async def _explain_event(self, row: RunRow, summary: RunSummary, sequence: int) -> Why:
        if not 1 <= sequence <= summary.events:
            raise Refused(
                "event_not_found",
                f"run {row.run_id!r} has events 1 to {summary.events}, not {sequence}",
                field="event",
            )
        events, causes = await self._causes(row.key, sequence)
        return explain_event(summary, events[-1], causes)

    async def _causes(
        self, run: int, upto: int, about: RunSummary | None = None
    ) -> tuple[list[Recorded], list[ChainLink]]:
        """The events that were read, and the causes of the last one; `about`: of the last one of the step it waits for."""
        events: list[Recorded] = []
        before = upto  # how many events have not been read yet
        while True:
            size = min(PAGE, before)
            events = await self._engine.store.history(run, before - size, size) + events
            before -= size
            start = _start(events, about)
            chain = None if start is None else chain_of(events, start, LINKS if about is None else NEAREST)
            over = before == 0 or len(events) >= MOST
            if chain is not None and (chain.missing is None or over):
                return events, chain.causes
            if over:
                return events, []
            await turn(self._engine.world)


def _start(events: list[Recorded], about: RunSummary | None) -> int | None:
    """The event to explain: the one that closed the run, or the last one of the step that it waits for."""
    if about is None or not events:
        return events[-1].sequence if events else None
    if about.closed_at is not None:
        return next((event.sequence for event in reversed(events) if event.type in CLOSING), None)
    return last_of(events, about.step)


def caller_of(command: CommandRecord) -> str:
    """The sender of a command: the label of the caller, else the token, else the source with the address."""
    request: Any = command.context.get("request")
    about = cast(dict[str, Any], request) if isinstance(request, dict) else {}
    if about.get("caller"):
        return str(about["caller"])[:80]
    if about.get("token_id"):
        return f"token {about['token_id']}"
    return f"{command.source} from {about['address']}" if about.get("address") else command.source
