"""`dw bulk`: one command to many runs of a server, with a look at them first."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import quote

import click

from backstay.cli import options
from backstay.cli.control import asked
from backstay.cli.plain_text import printable
from backstay.cli.problems import CliError
from backstay.kernel.operator_command import OperatorCommand
from backstay.kernel.operators import OPERATOR_COMMANDS

F = TypeVar("F", bound=Callable[..., Any])

LOOK = 0.2  # seconds between two looks at the progress


@click.group(name="bulk")
def command() -> None:
    """Send one command to many runs of a server.

    A filter selects the runs by the fields of `dw list`, or --id names them. The operation is durable: it continues
    when this terminal is closed and after a restart of the server. It does not touch runs that start later.

    \b
    Examples:
      dw bulk cancel --filter workflow_type=order --filter queue=eu --dry-run
      dw bulk terminate --filter 'label[team]=shop' --reason "wrong prices" --yes
      dw bulk rewind --filter workflow_type=order --filter status=failed --at charge
      dw bulk signal approve '"ann"' --filter business_key=spring
      dw bulk list
      dw bulk stop 01J9ZK3Y8Q5T4W6X7V8B9N0M1P
    """


def _asked(command: F) -> F:
    """The options that all actions share."""
    for option in (
        click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
        click.option(
            "--dry-run", is_flag=True, help="Print the number of runs that would get the command, and change nothing."
        ),
        click.option("--reason", metavar="TEXT", help="The reason, recorded with each command."),
        click.option("--id", "ids", metavar="ID", multiple=True, help="Send to this workflow. May be repeated."),
        click.option(
            "--filter", "filters", metavar="FIELD=VALUE", multiple=True, help="Send to matching runs. May be repeated."
        ),
        options.namespace,
        click.option("--token", metavar="TOKEN", envvar="DW_TOKEN", help="The server's token. Default: DW_TOKEN."),
        click.option("--server", metavar="URL", envvar="DW_SERVER", help="The server. Default: DW_SERVER."),
    ):
        command = option(command)
    return command


def _action(declared: OperatorCommand) -> None:
    name = declared.verb

    def act(
        server: str | None,
        token: str | None,
        namespace: str,
        filters: tuple[str, ...],
        ids: tuple[str, ...],
        reason: str | None,
        dry_run: bool,
        yes: bool,
        **fields: str | None,
    ) -> None:
        body = _body(name, filters, ids, reason)
        given = {field: value for field, value in fields.items() if value is not None}
        if given:
            body["fields"] = given
        _do(_server(server, token), namespace, body, dry_run=dry_run, yes=yes)

    act.__doc__ = declared.about("each run")
    decorated: Any = act
    for field in declared.fields:
        if field.bulk:
            decorated = click.option(*field.option, field.name, metavar=field.metavar, help=field.help)(decorated)
    command.command(name=name)(_asked(decorated))


for _declared in OPERATOR_COMMANDS.values():
    if _declared.bulk:
        _action(_declared)


@command.command(name="signal")
@click.argument("name")
@click.argument("arguments", nargs=-1)
@_asked
def signal(
    name: str,
    arguments: tuple[str, ...],
    server: str | None,
    token: str | None,
    namespace: str,
    filters: tuple[str, ...],
    ids: tuple[str, ...],
    reason: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Send signal NAME to each run. Each argument is JSON."""
    from backstay.cli.messages import parsed

    body = _body("signal", filters, ids, reason) | {"signal_name": name, "input": parsed(arguments, "dw bulk signal")}
    _do(_server(server, token), namespace, body, dry_run=dry_run, yes=yes)


@command.command(name="list")
@click.option("--token", metavar="TOKEN", envvar="DW_TOKEN", help="The server's token. Default: DW_TOKEN.")
@click.option("--server", metavar="URL", envvar="DW_SERVER", help="The server. Default: DW_SERVER.")
@options.namespace
def listing(server: str | None, token: str | None, namespace: str) -> None:
    """List the bulk operations of a namespace, newest first."""
    for bulk in asked(_server(server, token), "GET", "/api/bulk?page_size=200", namespace=namespace)["bulk_operations"]:
        click.echo(f"{bulk['bulk_id']}  {bulk['action']:10}  {_progress(bulk)}  {bulk['created_at']}")


@command.command(name="show")
@click.argument("id")
@click.option("--token", metavar="TOKEN", envvar="DW_TOKEN", help="The server's token. Default: DW_TOKEN.")
@click.option("--server", metavar="URL", envvar="DW_SERVER", help="The server. Default: DW_SERVER.")
@click.option("--all", "everything", is_flag=True, help="List every run and its outcome.")
@options.namespace
def show(id: str, server: str | None, token: str | None, namespace: str, everything: bool) -> None:
    """Show the progress of operation ID and the outcome of its runs."""
    at, path = _server(server, token), f"/api/bulk/{quote(id, safe='')}"
    bulk = asked(at, "GET", path, namespace=namespace)
    click.echo(f"{bulk['bulk_id']}  {bulk['action']}  {_progress(bulk)}")
    _outcomes(bulk)
    while everything:
        for run in bulk["results"]:
            click.echo(printable(f"  {run['workflow_id']}  {run['outcome']}{_because(run['reason'])}"))
        if bulk["next_page_token"] is None:
            return
        bulk = asked(at, "GET", f"{path}?next_page_token={bulk['next_page_token']}", namespace=namespace)


@command.command(name="stop")
@click.argument("id")
@click.option("--token", metavar="TOKEN", envvar="DW_TOKEN", help="The server's token. Default: DW_TOKEN.")
@click.option("--server", metavar="URL", envvar="DW_SERVER", help="The server. Default: DW_SERVER.")
@options.namespace
def stop(id: str, server: str | None, token: str | None, namespace: str) -> None:
    """Stop operation ID after its current runs. Commands that were sent stay in effect."""
    bulk = asked(_server(server, token), "POST", f"/api/bulk/{quote(id, safe='')}/stop", {}, namespace=namespace)
    click.echo(f"{id}: {_progress(bulk)}")


# -- inside


def _server(url: str | None, token: str | None) -> options.ServerAt:
    if url is None:
        raise CliError("name the server with --server or DW_SERVER; only a server runs bulk operations")
    return options.ServerAt(url, token)


def _body(action: str, filters: tuple[str, ...], ids: tuple[str, ...], reason: str | None) -> dict[str, Any]:
    if bool(filters) == bool(ids):
        raise CliError("name the runs with --filter FIELD=VALUE or with --id ID")
    body: dict[str, Any] = {"action": action.replace("-", "_"), "reason": reason}
    return body | ({"ids": list(ids)} if ids else {"filter": _filter(filters)})


def _filter(filters: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in filters:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise CliError(f"a filter is FIELD=VALUE, not {text!r}")
        found[name] = value if name not in found else [*_several(found[name]), value]
    return found


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]


def _do(server: options.ServerAt, namespace: str, body: dict[str, Any], *, dry_run: bool, yes: bool) -> None:
    """Look first; then do it for exactly as many runs, and follow it."""
    seen = asked(server, "POST", "/api/bulk?dry_run=1", body, namespace=namespace)
    count, action = seen["count"], body["action"]
    if dry_run or not yes:
        click.echo(f"{action}: {count} run{'' if count == 1 else 's'}")
        for run in seen["examples"]:
            wrote = ", ".join(run["would_write"]) or "nothing"
            about = f"{run['workflow_id']}  {run['workflow_type']}  {run['outcome']}"
            click.echo(printable(f"  {about}{_because(run['reason'])}: {wrote}"))
        if count > len(seen["examples"]):
            click.echo("  ...")
    if dry_run or not count:
        return
    if not yes:
        click.confirm(f"{action} {count} run{'' if count == 1 else 's'}?", abort=True)
    bulk = asked(server, "POST", "/api/bulk", body | {"expected_count": count}, namespace=namespace)
    try:
        _follow(server, namespace, bulk)
    except KeyboardInterrupt:
        click.echo(f"the operation continues; dw bulk stop {bulk['bulk_id']} stops it", err=True)
        raise


def _follow(server: options.ServerAt, namespace: str, bulk: dict[str, Any]) -> None:
    path = f"/api/bulk/{bulk['bulk_id']}"
    told = ""
    while True:
        line = _progress(bulk)
        if line != told:
            click.echo(f"{bulk['bulk_id']}: {line}")
            told = line
        if bulk["ended_at"] is not None:
            break
        time.sleep(LOOK)
        bulk = asked(server, "GET", path, namespace=namespace)
    _outcomes(bulk)
    if bulk["failed"] or bulk["rejected"]:
        click.echo(f"dw bulk show --all {bulk['bulk_id']} names them", err=True)


def _progress(bulk: dict[str, Any]) -> str:
    return f"{bulk['done']} of {bulk['total']}, {bulk['status']}"


def _outcomes(bulk: dict[str, Any]) -> None:
    for name, count in sorted(bulk["outcomes"].items(), key=lambda entry: -entry[1]):
        click.echo(f"  {count} {name}")
    for name, count in sorted(bulk["reasons"].items(), key=lambda entry: -entry[1]):
        click.echo(f"    {count} because {name}")


def _because(reason: str | None) -> str:
    return "" if reason is None else f" ({reason})"
