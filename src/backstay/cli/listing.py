"""`dw list`: the runs of a database, newest first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from backstay.cli import options

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from backstay.kernel.decision import RunRow

WIDE = 110  # columns, for the ids of runs to have a place
NEEDED = 3  # columns that are always shown
STATUSES = ("open", "pending", "waiting", "blocked", "completed", "failed", "cancelled", "terminated")
STYLES = {"completed": "green", "failed": "red", "waiting": "cyan", "pending": "cyan", "blocked": "bold red"}


@click.command(name="list")
@options.place
@options.namespace
@click.option(
    "--status",
    type=click.Choice(STATUSES),
    help="Only runs with this status; `open` is pending, waiting and blocked.",
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
      dw list --status blocked       whose code does not fit their history
      dw list --status failed --type order --limit 10
      dw list --id poller-1          every run of one workflow
    """
    from backstay.cli.console import console
    from backstay.cli.reading import reader_of
    from backstay.protocol.requests import OPEN, ListWorkflows

    with reader_of(path, namespace) as reader:
        found = reader.ask(
            ListWorkflows(
                namespace=namespace,
                workflow_id=id_,
                workflow_type=type_,
                status=None if status == "open" else status,
                statuses=OPEN if status == "open" else None,
                limit=limit,
                tells_blocked=True,
            )
        )
    out = console()
    if not found:
        out.print("no runs" + (" match" if status or type_ or id_ else " yet"), style="bright_black")
        return
    names = list(COLUMNS) if out.width >= WIDE else list(COLUMNS)[:-1]
    table, width = _table(names, found)
    while len(names) > NEEDED and width > out.width:
        names.pop()
        table, width = _table(names, found)
    # An id is shown whole or it is of no use: a line that is too long for the terminal goes on below.
    out.width = max(out.width, width)
    out.print(table)


def _table(names: list[str], runs: list[RunRow]) -> tuple[Table, int]:
    """These columns of these runs, and how wide that is."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for name in names:
        table.add_column(name, no_wrap=True)
    for run in runs:
        table.add_row(*(COLUMNS[name](run) for name in names))
    return table, Console(width=10_000).measure(table).maximum


def _id(run: RunRow) -> Text:
    from rich.text import Text

    return Text(run.workflow_id)


def _type(run: RunRow) -> Text:
    from rich.text import Text

    return Text(run.workflow_type)


def _status(run: RunRow) -> Text:
    from rich.text import Text

    return Text(run.closed_reason or run.status, STYLES.get(run.status, ""))


def _started(run: RunRow) -> str:
    from backstay.cli import format

    return format.moment(run.started_at)


def _took(run: RunRow) -> str:
    from backstay.cli import format

    if run.closed_at is not None:
        return format.span(run.closed_at - run.started_at)
    return f"({format.span(format.now() - run.started_at)})"


COLUMNS: dict[str, Callable[[RunRow], Text | str]] = {
    "ID": _id,
    "TYPE": _type,
    "STATUS": _status,
    "STARTED": _started,
    "TOOK": _took,
    "EVENTS": lambda run: str(run.length),
    "RUN": lambda run: run.run_id,
}
"""In a narrow terminal those on the right are left out, down to the first `NEEDED`."""
