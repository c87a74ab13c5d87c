"""The state of a run at an event of its history: its activity then, and its open steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from backstay.codec import avro
from backstay.kernel.decision import RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.task import Task
from backstay.kernel.views.past import Past, StateAt
from backstay.protocol.history import iso
from backstay.protocol.plain import plain
from backstay.protocol.run_detail import AUTHORITY, shown_activity
from backstay.protocol.shown_payloads import PayloadMode, show_envelopes, shown_payload
from backstay.protocol.summaries import shown_summary
from backstay.protocol.tasks import optional_iso
from backstay.server.http.messages import HttpRequest
from backstay.server.published.control.parts.events import no_such_event
from backstay.server.published.control.parts.selected import (
    PartAnswer,
    about_run,
    check_parameters,
    checked_number,
    part,
    payload_mode,
    selected_run,
)
from backstay.server.server import Server

MOST = 500  # open waits and activities that are shown


class ExpectedTask(Struct, frozen=True, kw_only=True):
    id: str
    kind: str
    type: str | None
    task_queue: str
    step: int | None
    available_at: str
    resume_source_kind: str | None
    resume_source_id: str | None
    open_wait_id: str | None


class StateAtEvent(PartAnswer, frozen=True, kw_only=True):
    sequence: int
    recorded_at: str
    event_type: str
    seen: Annotated[int, Meta(description="The last event that the code had seen.")]
    step: Annotated[int | None, Meta(description="The step that the event belongs to.")]
    summary: dict[str, Any]
    open_wait_count: int
    waits: list[dict[str, Any]]
    open_activity_count: int
    activities: list[dict[str, Any]]
    expected_tasks: Annotated[list[ExpectedTask], Meta(description="The tasks that the run must have had.")]
    next_wake_at: str | None
    memo: dict[str, Any]
    search_attributes: dict[str, Any]


async def at(server: Server, request: HttpRequest) -> StateAtEvent:
    """The run as it was right after an event: its state, its open waits and activities, and the tasks that it must have had."""
    check_parameters(request, "payloads")
    row = await selected_run(server, request)
    sequence = checked_number("n", request.params["n"])
    mode = payload_mode(request)
    past = Past(server.engine.machine, row)

    def take(events: Sequence[Recorded]) -> None:
        for entry in events:
            past.add(entry)

    reached = await server.api.slices.through(row.key, take, last=sequence)
    if not sequence or reached != sequence:
        raise await no_such_event(server, row, sequence)

    def make() -> StateAtEvent:
        state = past.state()
        assert state is not None, "an event was added"
        return _shown(row, state, mode)

    return await server.api.slices.aside(make)


def _shown(row: RunRow, state: StateAt, mode: PayloadMode) -> StateAtEvent:
    return StateAtEvent(
        **about_run(row),
        sequence=state.sequence,
        recorded_at=iso(state.at),
        event_type=state.event_type,
        seen=state.seen,
        step=state.step,
        summary=shown_summary(state.summary),
        open_wait_count=len(state.waits),
        waits=[plain(view) | AUTHORITY for view in state.waits[:MOST]],
        open_activity_count=len(state.activities),
        activities=[show_envelopes(shown_activity(view), mode) for view in state.activities[:MOST]],
        expected_tasks=[_task(task) for task in state.tasks[:MOST]],
        next_wake_at=optional_iso(state.next_wake),
        memo={
            name: None if mode == "none" else shown_payload(avro.to_text(blob), 2048)
            for name, blob in state.memo.items()
        },
        search_attributes=state.search_attributes,
    )


def _task(task: Task) -> ExpectedTask:
    return ExpectedTask(
        id=task.id,
        kind=task.kind,
        type=task.type,
        task_queue=task.routing.queue,
        step=task.step,
        available_at=iso(task.available_at),
        resume_source_kind=task.resume.resume_source_kind,
        resume_source_id=task.resume.resume_source_id,
        open_wait_id=task.resume.open_wait_id,
    )


ROUTES = part("at/{n}", at)
