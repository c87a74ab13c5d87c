"""The export of a run: one verifiable file, made on disk and sent as fast as the caller reads it."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from backstay.engine.reading.exports import WrittenRun
from backstay.server.access.auth import OPERATOR
from backstay.server.access.hidden_payloads import no_payloads
from backstay.server.http.messages import HttpRequest, HttpResponse
from backstay.server.http.router import Route
from backstay.server.published.control.parts.selected import selected_run
from backstay.server.server import Server


async def export(server: Server, request: HttpRequest) -> HttpResponse:
    """The whole run as one verifiable file. The checksum covers the file without its last member, `integrity`."""
    if not request.caller.payloads:
        raise no_payloads()  # before a file is made that would not be sent
    row = await selected_run(server, request)
    made = await server.api.exports.of_run(row)
    return HttpResponse({}, parts=_sent(made))


async def _sent(made: WrittenRun) -> AsyncGenerator[bytes]:
    try:
        for piece in made.file.pieces():
            yield piece
    finally:
        made.close()


ROUTES = [
    Route("GET", "/api/workflows/{workflow_id}/history/export", export, "control", OPERATOR),
    Route("GET", "/api/workflows/{workflow_id}/runs/{run_id}/history/export", export, "control", OPERATOR),
]
