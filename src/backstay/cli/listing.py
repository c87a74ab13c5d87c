"""`dw list`: the runs of a database, newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from backstay.cli import options

if TYPE_CHECKING:
    from rich.text import Text

    from backstay.kernel.decision import RunRow

WIDE = 110  # columns, for the ids of runs to have a place
OPEN = ("pending", "waiting")
STYLES = {"completed": "green", "failed": "red", "waiting": "cyan", "pending": "cyan"}


@click.command(name="list")
@options.place
@options.namespace
@click.option(
    "--status",
    type=click.Choice(["open", *OPEN, "completed", "failed"]),
    help="Only runs with this status; `open` is pending and waiting.",
)
@click.option("--type", "type_", metavar="TYPE", help="Only runs of this workflow type.")
@click.option("--id", "id_", metavar="ID", help="Only the runs of this workflow.")
@click.option("--limit", metavar="N", type=click.IntRange(1, 10_000), default=50, show_default=True)
def command(
    path: options.Place, namespace: str, status: str | None, type_: str | None, id_: str | None, limit: int
) -> None:
    """List runs, newest first.

    \b
    Examples:
      dw list
      dw list --status open
      dw list --status failed --type order --limit 10
      dw list --id poller-1          every run of one workflow
    """
    from rich.table import Table
    from rich.text import Text

    from backstay.cli import words
    from backstay.cli.reading import reader_of
    from backstay.cli.screen import console
    from backstay.protocol.requests import ListWorkflows

    with reader_of(path, namespace) as reader:
        found: list[RunRow] = []
        for wanted in OPEN if status == "open" else (status,):
            found += reader.ask(
                ListWorkflows(namespace=namespace, workflow_id=id_, workflow_type=type_, status=wanted, limit=limit)
            )
        found = sorted(found, key=lambda run: run.key, reverse=True)[:limit]
        blocked = reader.blocked(found)
    out = console()
    if not found:
        out.print("no runs" + (" match" if status or type_ or id_ else " yet"), style="bright_black")
        return
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for name in ("ID", "TYPE"):
        table.add_column(name, overflow="fold")  # an id is shown whole or it is of no use
    for name in ("STATUS", "STARTED", "TOOK", "EVENTS"):
        table.add_column(name, no_wrap=True)
    wide = out.width >= WIDE
    if wide:
        table.add_column("RUN", no_wrap=True)
    for run in found:
        end = run.closed_at
        table.add_row(
            run.workflow_id,
            Text(run.workflow_type),
            _status(run, run.key in blocked),
            words.moment(run.started_at),
            words.span(end - run.started_at) if end is not None else f"({words.span(words.now() - run.started_at)})",
            str(run.length),
            *([run.run_id] if wide else []),
        )
    out.print(table)


def _status(run: RunRow, blocked: bool) -> Text:
    from rich.text import Text

    if blocked:
        return Text("blocked", "bold red")
    return Text(run.closed_reason or run.status, STYLES.get(run.status, ""))
