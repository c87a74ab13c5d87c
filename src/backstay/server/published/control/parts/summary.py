"""The summary of a run: its state, what it waits for, and whether it needs attention, with the clock and the fleet of now."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from backstay.engine.reading.facts import FactFinder
from backstay.kernel.views.why import attention
from backstay.protocol.summaries import shown_summary
from backstay.server.http.messages import HttpRequest
from backstay.server.operators.fleet import FleetEntry
from backstay.server.published.control.parts.selected import check_parameters, part, selected_run
from backstay.server.published.control.workflow_json import RunAnswer, listed
from backstay.server.server import Server


class SummaryAnswer(RunAnswer, frozen=True, kw_only=True):
    """The fields of the stored summary of a run, beside its row, and those of `FleetOfRun`."""

    compatibility_namespace: str
    compatibility_fleet_reason: str | None
    compatibility_fleet: list[FleetEntry]
    is_current_run: bool
    state: str
    attention: str | None
    liveness_state: str
    wait_kind: str | None
    wait_name: str | None
    open_wait_id: str | None
    resume_source_kind: str | None
    resume_source_id: str | None
    since: str
    until: str | None
    wait_since: str | None
    wait_until: str | None
    queue: str
    build: str | None
    next_task_id: str | None
    next_task_kind: str | None
    next_task_type: str | None
    next_task_state: str | None
    next_task_connection: str | None
    next_task_at: str | None
    next_task_owner: str | None
    next_task_lease_expires_at: str | None
    attempt: int
    attempts: int | None
    last_error: str | None
    failing: str | None
    blocked_reason: str | None
    blocked_by: str | None
    pause_reason: str | None
    step: int | None
    steps: int
    children: int
    open_children: int
    child_type: str | None
    task_problem: bool
    can_repair: bool
    exception_count: int
    events: int
    bytes: int
    declared_entry_mode: str | None
    declared_contract_source: str
    archived_at: str | None


async def summary(server: Server, request: HttpRequest) -> SummaryAnswer:
    """The summary of a run."""
    check_parameters(request)
    row = await selected_run(server, request)
    found = await server.node.projector.summary(row)
    fields: dict[str, Any] = {**asdict(listed(row)), **shown_summary(found), **asdict(server.fleet.of_run(row))}
    fields["history_length"] = found.events
    if found.closed_at is None:
        engine = server.engine
        has_engine = engine.holder or await server.api.stored.has_engine()
        facts = FactFinder(engine, has_engine=has_engine).of(found)
        fields["attention"] = attention(found, facts, server.now)
    return SummaryAnswer(**fields)


ROUTES = part("summary", summary)
