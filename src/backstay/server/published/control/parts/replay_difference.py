"""Why the code of a run does not fit its history, in two columns, and which other open runs are blocked in the same way."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from backstay.kernel.decision import RunRow
from backstay.kernel.task import Block, Task
from backstay.protocol.run_tasks import shown_blocker
from backstay.server.http.messages import HttpRequest
from backstay.server.published.control.parts.selected import (
    PartAnswer,
    about_run,
    check_parameters,
    part,
    selected_run,
)
from backstay.server.server import Server

LOOKED_AT = 500  # blocked runs of the same type that are compared
SHOWN = 50


class ReplayedStep(Struct, frozen=True, kw_only=True):
    recorded: str
    replayed: str


class ReplayBlock(Struct, frozen=True, kw_only=True):
    task_id: str
    reason: str | None
    message: str
    workflow_sequence: int | None
    expected_history_shape: str | None
    recorded_event_types: list[str]
    difference: list[ReplayedStep]
    exception_type: str | None
    exception_class: str | None
    resolution_source: str | None
    resolution_error: str | None
    stack_trace: str | None
    workflow_definition_fingerprint: str | None
    worker_id: Annotated[str | None, Meta(description="The worker whose code was blocked.")]
    host: str | None
    build_id: str | None
    tried_definitions: Annotated[list[str], Meta(description="The definitions that were tried since its last repair.")]


class SameBlock(Struct, frozen=True, kw_only=True):
    workflow_id: str
    run_id: str
    message: str


class ReplayDifferenceAnswer(PartAnswer, frozen=True, kw_only=True):
    workflow_type: str | UnsetType = UNSET
    blocked: bool
    block: ReplayBlock | None
    same_block: Annotated[list[SameBlock], Meta(description="Open runs that are blocked at the same step.")]
    same_block_count: int
    complete: Annotated[bool, Meta(description="Whether all blocked runs of the type were compared.")]


async def replay_difference(server: Server, request: HttpRequest) -> ReplayDifferenceAnswer:
    """The replay block of a run: recorded and replayed steps side by side, and the open runs that have the same block."""
    check_parameters(request)
    row = await selected_run(server, request)
    task = _blocked(await server.api.stored.tasks(row.workflow), row.key)
    if task is None or task.block is None:
        return ReplayDifferenceAnswer(
            **about_run(row), blocked=False, block=None, same_block=[], same_block_count=0, complete=True
        )
    others, complete = await _same(server, row, task.block)
    return ReplayDifferenceAnswer(
        **about_run(row),
        workflow_type=row.workflow_type,
        blocked=True,
        block=_shown(task, task.block),
        same_block=others[:SHOWN],
        same_block_count=len(others),
        complete=complete,
    )


async def _same(server: Server, row: RunRow, block: Block) -> tuple[list[SameBlock], bool]:
    """Other open runs of this type that are blocked for the same reason at the same step; whether all were looked at."""
    store = server.api.stored
    found: list[SameBlock] = []
    candidates = await store.blocked(row.namespace, row.workflow_type, LOOKED_AT)
    for run, workflow, workflow_id, run_id in candidates:
        task = None if run == row.key else _blocked(await store.tasks(workflow), run)
        other = None if task is None else task.block
        if other is not None and _sort(other) == _sort(block):
            found.append(SameBlock(workflow_id=workflow_id, run_id=run_id, message=other.message))
        if len(found) % 20 == 19:
            await server.api.slices.turn()
    return found, len(candidates) < LOOKED_AT


def _sort(block: Block) -> tuple[str | None, int | None]:
    return block.reason, block.workflow_sequence


def _blocked(tasks: list[Task], run: int) -> Task | None:
    return next((t for t in tasks if t.run == run and t.is_blocked), None)


def _shown(task: Task, block: Block) -> ReplayBlock:
    return ReplayBlock(
        task_id=task.id,
        reason=block.reason,
        message=block.message,
        workflow_sequence=block.workflow_sequence,
        expected_history_shape=block.expected_history_shape,
        recorded_event_types=block.recorded_event_types,
        difference=[ReplayedStep(recorded=recorded, replayed=replayed) for recorded, replayed in block.difference],
        exception_type=block.exception_type,
        exception_class=block.exception_class,
        resolution_source=block.resolution_source,
        resolution_error=block.resolution_error,
        stack_trace=block.stack_trace,
        **shown_blocker(task, block),
    )


ROUTES = part("replay-difference", replay_difference)
