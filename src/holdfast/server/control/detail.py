"""The whole of one run for operators: commands, messages, waits, tasks, activities with their attempts, the timeline."""

from __future__ import annotations

from typing import Any

from holdfast.kernel.decision import RunRow
from holdfast.kernel.views.activities import activities
from holdfast.kernel.views.failures import failures
from holdfast.kernel.views.messages import signals, updates
from holdfast.kernel.views.waits import waits
from holdfast.protocol import detail as show
from holdfast.protocol import requests as ask
from holdfast.server.auth import OPERATOR
from holdfast.server.call import Call
from holdfast.server.control.views import described, found_run, run_of_workflow
from holdfast.server.problems import Problem
from holdfast.server.routing import Route
from holdfast.server.server import Server


async def current(server: Server, call: Call) -> dict[str, Any]:
    """The current run of an instance."""
    found = await _described(server, call)
    if found.run is None:
        raise Problem(409, "instance_not_started", f"workflow {found.workflow_id!r} has no run yet")
    return await _detail(server, found, found.run)


async def selected(server: Server, call: Call) -> dict[str, Any]:
    """Any run of an instance."""
    row = await found_run(server, call)
    return await _detail(server, await _described(server, call), row)


async def _described(server: Server, call: Call) -> ask.Description:
    workflow_id = call.params["workflow_id"]
    return await server.operations.call(ask.DescribeWorkflow(workflow_id=workflow_id, namespace=call.namespace))


async def _detail(server: Server, found: ask.Description, row: RunRow) -> dict[str, Any]:
    is_current = found.run is not None and found.run.run_id == row.run_id
    history = await server.engine.store.history(row.key)
    run = await described(server, found) if is_current else await run_of_workflow(server, row, is_current=False)
    commands = [command for command in found.commands if command.run == row.key]
    done = activities(history)
    held = found if is_current else None
    waiting = held.waits if held else waits(history, row)
    return run | {
        "declared": show.plain(held.declared) if held and held.declared else None,
        "commands": [show.plain(command) for command in commands],
        "signals": [show.plain(view) for view in (held.signals if held else signals(history, commands))],
        "updates": [show.plain(view) for view in (held.updates if held else updates(history))],
        "waits": [show.plain(view) | show.AUTHORITY for view in waiting],
        "open_wait_count": sum(view.status == "open" for view in waiting),
        "tasks": [
            *(show.shown_task(view, row.run_id, done) for view in (held.tasks if held else [])),
            *(show.timer_task(view) for view in waiting if view.status == "open" and view.deadline_at is not None),
        ],
        "timeline": show.timeline(history, row.run_id),
        "activities": [show.shown_activity(view) for view in done],
        "exceptions": [show.plain(view) for view in failures(history, row.run_id)],
        "logs": [show.log(view) for view in done],
        "chartData": show.chart(row.workflow_type, row.started_at, row.closed_at, done),
    }


ROUTES = [
    Route("GET", "/api/workflows/{workflow_id}/detail", current, "control", OPERATOR),
    Route("GET", "/api/workflows/{workflow_id}/runs/{run_id}/detail", selected, "control", OPERATOR),
]
