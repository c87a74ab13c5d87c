"""`dw system:operator-metrics`: what operators watch of a server, as its route tells it."""

from __future__ import annotations

import json
from typing import Any

import click

from backstay.cli import options
from backstay.cli.problems import Problem

PATH = "/api/system/operator-metrics"
ANSWER = 30.0


@click.command(name="system:operator-metrics")
@click.option("--server", metavar="URL", envvar="DW_SERVER", help="The server. Default: the variable DW_SERVER.")
@click.option("--token", metavar="TOKEN", envvar="DW_TOKEN", help="A token. Default: the variable DW_TOKEN.")
@options.namespace
@click.option("--json", "as_json", is_flag=True, help="The whole answer as JSON.")
def operator_metrics(server: str | None, token: str | None, namespace: str, as_json: bool) -> None:
    """Show runs, tasks, repair, workers and health counters of a server.

    \b
    Examples:
      dw system:operator-metrics --server http://127.0.0.1:8080 --token TOKEN
      dw system:operator-metrics --json | jq .operator_metrics.repair
    """
    if server is None:
        raise Problem("name the server with --server or DW_SERVER")
    answer = _ask(server, token, namespace)
    if as_json:
        click.echo(json.dumps(answer))
        return
    sections: dict[str, Any] = answer["operator_metrics"]
    for section in ("runs", "tasks", "activities", "backlog", "leases", "repair", "history", "workers"):
        counts: dict[str, Any] = sections[section]
        told = [f"{name}={value}" for name, value in counts.items() if isinstance(value, int | str)]
        click.echo(f"{section:12} {'  '.join(told)}")


def _ask(server: str, token: str | None, namespace: str) -> dict[str, Any]:
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    from backstay.protocol.versions import CONTROL_PLANE, CONTROL_PLANE_HEADER

    if not server.startswith(("http://", "https://")):
        raise Problem(f"{server!r} is no address of a server; write http://HOST:PORT")
    headers = {CONTROL_PLANE_HEADER: str(CONTROL_PLANE), "X-Namespace": namespace}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    try:
        with urlopen(Request(server.rstrip("/") + PATH, headers=headers), timeout=ANSWER) as reply:
            return json.loads(reply.read())
    except HTTPError as refusal:
        raise Problem(_said(refusal.read()) or f"{server} answers {refusal.code}") from None
    except (URLError, OSError, ValueError) as error:
        raise Problem(f"{server} cannot be asked: {getattr(error, 'reason', error)}") from None


def _said(body: bytes) -> str | None:
    try:
        return json.loads(body).get("message")
    except (ValueError, AttributeError):
        return None
