"""The export of a run: one verifiable file, made on disk and sent as fast as the caller reads it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from tempfile import SpooledTemporaryFile

from backstay.protocol import requests as ask
from backstay.server.auth import OPERATOR
from backstay.server.http_messages import HttpRequest, HttpResponse
from backstay.server.published.control.workflow_json import find_run
from backstay.server.router import Route
from backstay.server.server import Server

IN_MEMORY = 1 << 20  # bytes of an export
PART = 64 << 10


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


ROUTES = [Route("GET", "/api/workflows/{workflow_id}/runs/{run_id}/history/export", export, "control", OPERATOR)]
