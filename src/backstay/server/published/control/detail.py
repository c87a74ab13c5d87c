"""The detail of one run for operators: commands, messages, waits, tasks, activities with their attempts, the timeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backstay.engine.describe import beside
from backstay.kernel.decision import CommandRecord, RunRow
from backstay.kernel.event import HistoryDamaged, Recorded
from backstay.kernel.views.activities import activities
from backstay.protocol import requests as ask
from backstay.protocol.run_detail import PROJECTION_SOURCES, chart, declared, log, run_detail
from backstay.server.auth import OPERATOR
from backstay.server.http_errors import HttpError
from backstay.server.http_messages import HttpRequest
from backstay.server.published.control.damaged import damaged_detail
from backstay.server.published.control.workflow_json import described, find_instance, find_run, run_of_workflow
from backstay.server.router import Route
from backstay.server.server import Server


async def current(server: Server, request: HttpRequest) -> dict[str, Any]:
    """The current run of an instance."""
    try:
        found, history = await find_instance(server, request)
        if found.run is None:
            raise HttpError(409, "instance_not_started", f"workflow {found.workflow_id!r} has no run yet")
        return await _detail(server, found, history, found.run)
    except HistoryDamaged as damage:
        asked = ask.ListWorkflows(workflow_id=request.params["workflow_id"], namespace=request.namespace, limit=1)
        rows = await server.api.call(asked)
        if not rows:
            raise
        return await damaged_detail(server, rows[0], damage)


async def of_run(server: Server, request: HttpRequest) -> dict[str, Any]:
    """Any run of an instance."""
    row = await find_run(server, request)
    try:
        return await _detail(server, *await find_instance(server, request), row)
    except HistoryDamaged as damage:
        return await damaged_detail(server, row, damage)


async def _detail(server: Server, found: ask.Description, history: list[Recorded], row: RunRow) -> dict[str, Any]:
    """`history`: of the current run."""
    is_current = found.run is not None and found.run.run_id == row.run_id
    if is_current:
        run = described(server, found, history)
    else:
        run = await run_of_workflow(server, row, is_current=False)
        history = await server.api.whole(row)
    commands = [command for command in found.commands if command.may_be_of(row.key)]
    held = found if is_current else None
    chain = await beside(server.engine.store, row.namespace, history)
    return await server.api.aside(history, lambda: _made(found, history, row, run, commands, held, chain))


def _made(
    found: ask.Description,
    history: list[Recorded],
    row: RunRow,
    run: dict[str, Any],
    commands: list[CommandRecord],
    held: ask.Description | None,
    chain: Mapping[str, RunRow],
) -> dict[str, Any]:
    parts = run_detail(row, history, commands, held, chain)
    done = activities(history)
    return (
        run
        | parts
        | declared(history)
        | PROJECTION_SOURCES
        | {
            "current_run_id": None if found.run is None else found.run.run_id,
            "current_run_source": found.current_run_source,
            "workflow_determinism_source": held.determinism_source if held else "unavailable",
            "open_wait_count": sum(wait["status"] == "open" for wait in parts["waits"]),
            "exceptions": parts["failures"],
            "continuedWorkflows": parts["children"],
            "logs": [log(view) for view in done],
            "chartData": chart(row, done),
        }
    )


ROUTES = [
    Route("GET", "/api/workflows/{workflow_id}/detail", current, "control", OPERATOR),
    Route("GET", "/api/workflows/{workflow_id}/runs/{run_id}/detail", of_run, "control", OPERATOR),
]
