"""The history of a run, page by page, and its export. With `wait_new_event` a page waits for new events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from tempfile import SpooledTemporaryFile
from typing import Any

from backstay.kernel.event import Recorded
from backstay.kernel.values import SECOND
from backstay.protocol import requests as ask
from backstay.protocol.history import operator_event
from backstay.protocol.tasks import after_token, page_token
from backstay.server.auth import OPERATOR
from backstay.server.http_messages import HttpRequest, HttpResponse
from backstay.server.published.control.workflow_json import find_run
from backstay.server.published.worker.polls import parked_wait
from backstay.server.router import Route
from backstay.server.server import Server

HOLD = 30 * SECOND  # how long a page waits for new events
LOOK = SECOND // 10
IN_MEMORY = 1 << 20  # bytes of an export
PART = 64 << 10


async def history(server: Server, request: HttpRequest) -> dict[str, Any]:
    row = await find_run(server, request)
    size = request.integer("page_size", 100, 1, 1000)
    token = request.query.get("next_page_token") or None
    after = after_token(token, "next_page_token")
    events = await server.engine.store.history(row.key, after, size + 1)
    if not events and row.closed_at is None and request.flag("wait_new_event"):
        events = await _news(server, request, row.key, after, size + 1)
    page = events[:size]
    return {
        "workflow_id": row.workflow_id,
        "run_id": row.run_id,
        "namespace": row.namespace,
        "events": [_shown(entry, row.run_id) for entry in page],
        "next_page_token": page_token(page[-1].sequence) if len(events) > size else None,
    }


async def _news(server: Server, request: HttpRequest, run: int, after: int, limit: int) -> list[Recorded]:
    """Wait until the run has new events or closes, or the time is over."""
    world = server.engine.world
    deadline = world.ticks() + HOLD
    async with parked_wait(server, request):
        while not server.draining and world.ticks() < deadline:
            events = await server.engine.store.history(run, after, limit)
            if events:
                return events
            again: asyncio.Future[None] = world.future()
            world.at(world.now() + LOOK, lambda: again.set_result(None))  # noqa: B023 - rings before the next round
            await again
    return []


async def export(server: Server, request: HttpRequest) -> HttpResponse:
    """The whole run as one verifiable file, sent byte for byte as its checksum was computed."""
    row = await find_run(server, request)
    asked = ask.ExportHistory(workflow_id=row.workflow_id, namespace=row.namespace, run_id=row.run_id)
    # A long export goes to a temporary file, for callers that read slowly.
    file = SpooledTemporaryFile[bytes](IN_MEMORY)
    try:
        await server.api.write(asked, file.write)
        size = file.tell()
        file.seek(0)
    except BaseException:
        file.close()
        raise
    if size > IN_MEMORY:
        return HttpResponse({}, parts=_sent(file))
    with file:
        return HttpResponse({}, raw=file.read())


async def _sent(file: SpooledTemporaryFile[bytes]) -> AsyncGenerator[bytes]:
    with file:
        while part := file.read(PART):
            yield part


def _shown(entry: Recorded, run_id: str) -> dict[str, Any]:
    wire = operator_event(entry, run_id)
    return wire | {"timestamp": wire["recorded_at"]}


ROUTES = [
    Route("GET", "/api/workflows/{workflow_id}/runs/{run_id}/history/export", export, "control", OPERATOR),
    Route("GET", "/api/workflows/{workflow_id}/runs/{run_id}/history", history, "control", OPERATOR, "history"),
]
