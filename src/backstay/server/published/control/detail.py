"""The detail of one run for operators: commands, messages, waits, tasks, activities with their attempts, the timeline.

It has the same fields for any run: current or earlier, open or closed, damaged or not. Of a long run it shows a page of each
list, and `collections` says how much that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict

from backstay import collector
from backstay.engine.reading.describe import beside
from backstay.engine.reading.looking import Looked
from backstay.kernel.decision import RunRow
from backstay.kernel.event import HistoryDamaged
from backstay.protocol import requests as ask
from backstay.protocol.detail_pages import collections, fit, page_of
from backstay.protocol.run_detail import chart, declared, log, run_detail
from backstay.protocol.run_tasks import replay_block
from backstay.server.access.auth import OPERATOR
from backstay.server.http.errors import HttpError
from backstay.server.http.messages import HttpRequest
from backstay.server.http.router import Route
from backstay.server.published.control.damaged import damaged_detail
from backstay.server.published.control.detail_answer import DetailAnswer
from backstay.server.published.control.workflow_json import described_run, find_instance, find_run
from backstay.server.server import Server

_NEWEST_FIRST = frozenset({"waits", "tasks"})  # lists that begin with what matters most
_PARTS = {
    **dict.fromkeys(("timeline",), "history"),
    **dict.fromkeys(("waits", "timers", "tasks"), "waits"),
    **dict.fromkeys(("signals", "updates", "commands"), "messages"),
    **dict.fromkeys(("failures", "exceptions"), "failures"),
    **dict.fromkeys(("parents", "children", "continuedWorkflows"), "lineage"),
    **dict.fromkeys(("activities", "logs", "chartData"), "activities"),
}
"""The route of a run that has all entries of a list."""


async def current(server: Server, request: HttpRequest) -> DetailAnswer:
    """The current run of an instance."""
    with collector.resting():  # until all that is made of a long history is gone again
        return await _current(server, request)


async def of_run(server: Server, request: HttpRequest) -> DetailAnswer:
    """Any run of an instance."""
    with collector.resting():
        return await _of_run(server, request)


async def _current(server: Server, request: HttpRequest) -> DetailAnswer:
    try:
        looked = await find_instance(server, request)
    except HistoryDamaged as damage:
        asked = ask.ListWorkflows(workflow_id=request.params["workflow_id"], namespace=request.namespace, limit=1)
        rows = await server.api.call(asked)
        if not rows:
            raise
        return await damaged_detail(server, rows[0], damage)
    if looked.found.run is None:
        raise HttpError(409, "instance_not_started", f"workflow {looked.found.workflow_id!r} has no run yet")
    return await _detail(server, looked, looked.found.run)


async def _of_run(server: Server, request: HttpRequest) -> DetailAnswer:
    row = await find_run(server, request)
    try:
        looked = await server.api.look_at(row)
    except HistoryDamaged as damage:
        return await damaged_detail(server, row, damage)
    return await _detail(server, looked, looked.found.run or row)


async def _detail(server: Server, looked: Looked, row: RunRow) -> DetailAnswer:
    shown = asdict(described_run(server, looked, row))
    chain = await beside(server.api.stored, row.namespace, looked.ends.neighbours)
    sources = await server.node.views.sources(row, looked.history)
    made = await server.api.aside(looked.history, lambda: _made(looked, row, shown | sources, chain))
    await server.api.looking.release(looked)
    return made


def _made(looked: Looked, row: RunRow, shown: dict[str, Any], chain: Mapping[str, RunRow]) -> DetailAnswer:
    found, history, _ = looked
    commands = [command for command in found.commands if command.may_be_of(row.key)]
    parts = run_detail(row, history, commands, found, chain, page_of(row.length))
    views = parts.pop("activity_views")
    totals: dict[str, int] = parts.pop("totals")
    counts = {"open_wait_count": parts.pop("open_wait_count"), "exception_count": parts.pop("exception_count")}
    lists: dict[str, list[dict[str, Any]]] = {
        **parts,
        "logs": [log(view) for view in views],
        "chartData": chart(row, views),
    }
    totals |= {"logs": totals["activities"], "chartData": totals["activities"] + 1}
    omitted = fit(lists, frozenset(lists.keys() - _NEWEST_FIRST), frozenset({"failures", "children"}))
    lists |= {"exceptions": lists["failures"], "continuedWorkflows": lists["children"]}
    totals |= {"exceptions": totals["failures"], "continuedWorkflows": totals["children"]}
    base = f"/api/workflows/{row.workflow_id}/runs/{row.run_id}"
    about: dict[str, Any] = shown | lists | declared(history) | counts
    return DetailAnswer(
        **about,
        workflow_determinism_source=found.determinism_source,
        replay_block=replay_block(view.task for view in found.tasks),
        history_damage=None,
        collections=collections(lists, totals, {name: f"{base}/{part}" for name, part in _PARTS.items()}),
        payloads_omitted=omitted,
    )


ROUTES = [
    Route("GET", "/api/workflows/{workflow_id}/detail", current, "control", OPERATOR),
    Route("GET", "/api/workflows/{workflow_id}/runs/{run_id}/detail", of_run, "control", OPERATOR),
]
