"""`dw doctor`: what is wrong with an installation, and how to put it right."""

from __future__ import annotations

import json

import click
import msgspec

from backstay.cli import options
from backstay.cli.doctor.results import CheckResult, Status, error, ok, warning, with_skipped, worst

STYLES: dict[Status, str] = {"ok": "green", "warning": "yellow", "error": "bold red", "skipped": "bright_black"}


@click.command(name="doctor")
@options.place
@options.namespace
@click.option(
    "--free",
    metavar="MEGABYTES",
    type=click.IntRange(0),
    default=500,
    show_default=True,
    help="Megabytes that must be free on the disk of a file.",
)
@click.option("--strict", is_flag=True, help="Exit with code 1 for warnings, too.")
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
def command(path: options.Place, namespace: str, free: int, strict: bool, as_json: bool) -> None:
    """Check an installation, and say how to fix what is wrong.

    With --server it looks at a server from this machine, else at a database and at this machine. It changes nothing: a
    database of an older release is not brought up to date, either. Exit code: 0 if nothing is wrong, 1 if a check is an
    error, 2 for a mistake in the call.

    \b
    Examples:
      dw doctor --db app.db
      dw doctor --db postgresql://backstay@db.internal/shop
      dw doctor --server https://flows.example.com --token TOKEN
      dw doctor --json | jq -r '.checks[] | select(.status == "error") | .fix'
    """
    results = examined(path, namespace, free)
    status = worst(results)
    if as_json:
        click.echo(json.dumps({"status": status, "checks": msgspec.to_builtins(results)}))
    else:
        _print(results)
    if status == "error" or (strict and status == "warning"):
        click.get_current_context().exit(1)


def examined(path: options.Place, namespace: str, free: int) -> list[CheckResult]:
    """The results of all checks of a place, in the order of what needs what."""
    from backstay.store.address import is_server

    if isinstance(path, options.ServerAt):
        from backstay.cli.doctor import server

        return with_skipped(server.NAMES, server.checks(path, namespace))
    from backstay.cli.doctor import machine

    results = list(machine.checks(path))
    if not is_server(path):
        from backstay.cli.doctor import files

        file = path.removeprefix("sqlite:")
        found = with_skipped(files.NAMES, files.checks(file, free))
    elif worst(results) != "error":
        found = _of_postgresql(path)
    else:
        return results
    opens = worst(found) != "error" and all(one.check != "schema" or one.status == "ok" for one in found)
    return [*results, *found, *(_of_open_database(path, namespace) if opens else [])]


def _of_postgresql(url: str) -> list[CheckResult]:
    import asyncio

    from backstay.cli.doctor import postgresql

    async def collected() -> list[CheckResult]:
        return [one async for one in postgresql.checks(url)]

    return with_skipped(postgresql.NAMES, asyncio.run(collected()))


def _of_open_database(path: str, namespace: str) -> list[CheckResult]:
    """The checks of a database that can be opened, and whose schema is that of this release."""
    from backstay.cli.doctor import causes
    from backstay.cli.overview import overview_of

    seen = overview_of(path, namespace, "1h")
    return [_engine(path, namespace), *causes.checks(seen["verdict"]["sentence"], seen["causes"])]


def _engine(path: str, namespace: str) -> CheckResult:
    """Whether a process runs the database."""
    from backstay.cli.reading import StoreReader
    from backstay.protocol.requests import ListWorkflows

    with StoreReader(path) as reader:
        if reader.has_engine():
            return ok("engine", "a process runs this database")
        waiting = reader.ask(ListWorkflows(namespace=namespace, statuses=("pending", "running", "waiting"), limit=1))
    fix = "start your program, `dw server` or `dw dev` on it, and look in its log why it ended"
    if waiting:
        return error(
            "engine", f"no process runs this database, and {waiting[0].workflow_id} and others wait for one", fix
        )
    return warning("engine", "no process runs this database; no run is open", fix)


def _print(results: list[CheckResult]) -> None:
    from rich.table import Table
    from rich.text import Text

    from backstay.cli.console import console

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in results:
        table.add_row(Text(one.status, style=STYLES[one.status]), one.check, Text(one.message))
        if one.fix is not None:
            table.add_row("", "", Text(f"fix: {one.fix}", style="bold"))
    out = console()
    out.print(table)
    bad = [one for one in results if one.status in ("warning", "error")]
    out.print(f"{len(results)} checks, {len(bad)} with something to fix", style="green" if not bad else "yellow")
