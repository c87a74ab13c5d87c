"""One call of a server's control plane, for commands that are a route of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from backstay.cli.options import ServerAt
from backstay.cli.problems import CliError, Missing, waiting_for

if TYPE_CHECKING:
    from urllib.request import Request as HttpCall

ANSWER = 30.0
DOWNLOAD = 600.0  # seconds until a long answer begins: it is made first
PART = 64 << 10
MISSING = ("token_not_found", "node_not_found", "instance_not_found", "run_not_found")


def asked(
    server: ServerAt, method: str, path: str, body: dict[str, Any] | None = None, *, namespace: str | None = None
) -> dict[str, Any]:
    """The answer of the route; `CliError` if it refuses or if the server cannot be reached."""
    with _reply(server, method, path, body, namespace, ANSWER) as reply:
        return json.loads(reply.read())


def download(server: ServerAt, path: str, into: Callable[[bytes], object], *, namespace: str | None = None) -> None:
    """Read a long answer part by part. `CliError` also if it ends too early."""
    with _reply(server, "GET", path, None, namespace, DOWNLOAD) as reply:
        while part := reply.read(PART):
            into(part)


class Answer(NamedTuple):
    """An answer of any status. `body`: empty if it is no JSON object."""

    status: int
    body: dict[str, Any]


class Unanswered(Exception):
    """The server did not answer. The message says why."""


def answer_of(server: ServerAt, path: str, *, namespace: str | None = None) -> Answer:
    """What the server answers to a read, refusals included."""
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import urlopen

    request = _request(server, "GET", path, None, namespace)
    try:
        with waiting_for(server.url), urlopen(request, timeout=ANSWER) as reply:
            return Answer(reply.status, _said(reply.read()))
    except HTTPError as refusal:
        return Answer(refusal.code, _said(refusal.read()))
    except (URLError, OSError, ValueError, HTTPException) as error:
        raise Unanswered(str(getattr(error, "reason", error))) from None


@contextmanager
def _reply(
    server: ServerAt, method: str, path: str, body: dict[str, Any] | None, namespace: str | None, seconds: float
) -> Generator[IO[bytes]]:
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import urlopen

    request = _request(server, method, path, body, namespace)
    try:
        with waiting_for(server.url), urlopen(request, timeout=seconds) as reply:
            yield reply
    except HTTPError as refusal:
        said = _said(refusal.read())
        kind = Missing if said.get("reason") in MISSING else CliError
        raise kind(said.get("message") or f"{server.url} answers {refusal.code}") from None
    except (URLError, OSError, ValueError, HTTPException) as error:
        raise CliError(f"{server.url} cannot be reached: {getattr(error, 'reason', error)}") from None


def _request(server: ServerAt, method: str, path: str, body: dict[str, Any] | None, namespace: str | None) -> HttpCall:
    from urllib.request import Request

    from backstay.protocol.versions import CONTROL_PLANE, CONTROL_PLANE_HEADER

    if not server.url.startswith(("http://", "https://")):
        raise CliError(f"{server.url!r} is not the address of a server; write http://HOST:PORT")
    headers = {CONTROL_PLANE_HEADER: str(CONTROL_PLANE)}
    if namespace is not None:
        headers["X-Namespace"] = namespace
    if server.token is not None:
        headers["Authorization"] = f"Bearer {server.token}"
    data = None if body is None else json.dumps(body).encode()
    if data is not None:
        headers["Content-Type"] = "application/json"
    return Request(server.url.rstrip("/") + path, data, headers, method=method)


def _said(body: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(body))
    except (ValueError, TypeError):
        return {}
