"""One call of a server's control plane, for commands that are a route of it."""

from __future__ import annotations

import json
from typing import Any

from backstay.cli.options import ServerAt
from backstay.cli.problems import CliError, Missing, waiting_for

ANSWER = 30.0


def asked(
    server: ServerAt, method: str, path: str, body: dict[str, Any] | None = None, *, namespace: str | None = None
) -> dict[str, Any]:
    """The answer of the route; `CliError` if it refuses or if the server cannot be reached."""
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    from backstay.protocol.versions import CONTROL_PLANE, CONTROL_PLANE_HEADER

    if not server.url.startswith(("http://", "https://")):
        raise CliError(f"{server.url!r} is no address of a server; write http://HOST:PORT")
    headers = {CONTROL_PLANE_HEADER: str(CONTROL_PLANE)}
    if namespace is not None:
        headers["X-Namespace"] = namespace
    if server.token is not None:
        headers["Authorization"] = f"Bearer {server.token}"
    data = None if body is None else json.dumps(body).encode()
    if data is not None:
        headers["Content-Type"] = "application/json"
    request = Request(server.url.rstrip("/") + path, data, headers, method=method)
    try:
        with waiting_for(server.url), urlopen(request, timeout=ANSWER) as reply:
            return json.loads(reply.read())
    except HTTPError as refusal:
        said = _said(refusal.read())
        kind = Missing if said.get("reason") == "token_not_found" else CliError
        raise kind(said.get("message") or f"{server.url} answers {refusal.code}") from None
    except (URLError, OSError, ValueError) as error:
        raise CliError(f"{server.url} cannot be asked: {getattr(error, 'reason', error)}") from None


def _said(body: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(body))
    except (ValueError, TypeError):
        return {}
