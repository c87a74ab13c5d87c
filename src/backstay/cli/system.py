"""`dw system:operator-metrics`: the operator metrics of a server."""

from __future__ import annotations

import json
from typing import Any

import click

from backstay.cli import options
from backstay.cli.control import asked
from backstay.cli.problems import CliError

PATH = "/api/system/operator-metrics"


@click.command(name="system:operator-metrics")
@click.option("--server", metavar="URL", envvar="DW_SERVER", help="The server. Default: the variable DW_SERVER.")
@click.option("--token", metavar="TOKEN", envvar="DW_TOKEN", help="The server's token. Default: the variable DW_TOKEN.")
@options.namespace
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")
def operator_metrics(server: str | None, token: str | None, namespace: str, as_json: bool) -> None:
    """Show runs, tasks, repair, workers and health counters of a server.

    \b
    Examples:
      dw system:operator-metrics --server http://127.0.0.1:8080 --token TOKEN
      dw system:operator-metrics --json | jq .operator_metrics.repair
    """
    if server is None:
        raise CliError("name the server with --server or DW_SERVER")
    answer = asked(options.ServerAt(server, token), "GET", PATH, namespace=namespace)
    if as_json:
        click.echo(json.dumps(answer))
        return
    sections: dict[str, Any] = answer["operator_metrics"]
    for section in ("runs", "tasks", "activities", "backlog", "leases", "repair", "history", "workers"):
        counts: dict[str, Any] = sections[section]
        told = [f"{name}={value}" for name, value in counts.items() if isinstance(value, int | str)]
        click.echo(f"{section:12} {'  '.join(told)}")
