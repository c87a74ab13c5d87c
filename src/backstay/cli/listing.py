"""`dw list`: the runs of a database, newest first, with any combination of filters; and how many they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from backstay.cli import options

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from backstay.kernel.decision import RunRow
    from backstay.protocol.run_lists import CountedRuns, ListedRun

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
@click.option("--type", "types", metavar="TYPE", multiple=True, help="Only runs of this workflow type.")
@click.option("--id", "ids", metavar="ID", multiple=True, help="Only the runs of this workflow.")
@click.option(
    "--search",
    "q",
    metavar="TEXT",
    help="Only runs whose id begins with TEXT, or with this type, business key or run id.",
)
@click.option("--state", "states", metavar="STATE", multiple=True, help="Only runs in this state, like `retrying`.")
@click.option("--attention", metavar="CAUSE", multiple=True, help="Only runs that need attention for this cause.")
@click.option("--business-key", metavar="KEY", multiple=True, help="Only runs with this business key.")
@click.option("--queue", metavar="NAME", multiple=True, help="Only runs of this task queue.")
@click.option("--build", metavar="BUILD", multiple=True, help="Only runs that are pinned to this build.")
@click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help="Only runs with this label.")
@click.option("--attribute", "attributes", metavar="KEY=VALUE", multiple=True, help="Only runs with this attribute.")
@click.option("--since", metavar="TIME", help="Only runs that started after TIME: a time, or an age like 2h.")
@click.option("--until", metavar="TIME", help="Only runs that started before TIME.")
@click.option("--closed-since", metavar="TIME", help="Only runs that closed after TIME.")
@click.option("--closed-until", metavar="TIME", help="Only runs that closed before TIME.")
@click.option("--sort", metavar="ORDER", default="started", help="Sort by started, closed, duration, events or since.")
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@click.option("--view", metavar="ID", help="Add the filters of this saved view.")
@click.option("--count", is_flag=True, help="Print only the number of runs.")
@click.option("--by", metavar="FIELD", help="Count by status, state, attention, type, queue, build or label:KEY.")
@click.option("--why", is_flag=True, help="Show why each run does not move.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Show N runs."
)
def command(path: options.Place, namespace: str, **given: Any) -> None:
    """List runs, newest first. A repeated option matches any of its values.

    \b
    Examples:
      dw list
      dw list --status open
      dw list --status blocked       code does not fit history
      dw list --status failed --type order --limit 10
      dw list --id poller-1          every run of one workflow
      dw list --state retrying --label team=shop --why
      dw list --since 2h --sort duration
      dw list --status open --by state
    """
    from backstay.cli.console import console
    from backstay.cli.reading import reader_of
    from backstay.cli.run_options import Searched, asked

    with reader_of(path, namespace) as reader:
        searched = Searched(reader, asked(reader, namespace, given), given["view"])
        if given["count"] or given["by"]:
            _tell_counts(console(), searched.count(given["by"]), given["by"])
            return
        found = searched.runs(given["limit"])
    out = console()
    if not found:
        out.print("no runs" + (" match" if searched.filtered else " yet"), style="bright_black")
    else:
        _tell(out, found, why=given["why"])
    if searched.note:
        out.print(searched.note, style="bright_black")


def _tell(out: Console, found: list[ListedRun], *, why: bool) -> None:
    names = list(COLUMNS) if out.width >= WIDE else list(COLUMNS)[:-1]
    rows = [_blocked(run) for run in found]
    if why:
        # A sentence is longer than a line: it stands below its run.
        for row, run in zip(rows, found, strict=True):
            out.print(_id(row).append(f"  {row.workflow_type}  ").append_text(_status(row)))
            out.print(f"  {run.present.why}", markup=False, highlight=False)
        return
    table, width = _table(names, rows)
    while len(names) > NEEDED and width > out.width:
        names.pop()
        table, width = _table(names, rows)
    # An id is shown whole or it is of no use: a line that is too long for the terminal goes on below.
    out.width = max(out.width, width)
    out.print(table)


def _blocked(run: ListedRun) -> RunRow:
    from msgspec.structs import replace

    is_blocked = run.row.closed_at is None and run.present.liveness_state == "workflow_replay_blocked"
    return replace(run.row, status="blocked") if is_blocked else run.row


def _tell_counts(out: Console, counted: CountedRuns, by: str | None) -> None:
    from rich.table import Table

    least = "" if counted.complete else "at least "
    if by is None:
        out.print(f"{least}{counted.total}", highlight=False)
        return
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    table.add_column(by.upper(), no_wrap=True)
    table.add_column("RUNS", justify="right")
    for value, number in counted.groups:
        table.add_row("-" if value is None else value, str(number))
    out.print(table)
    if least:
        out.print(f"looked at {counted.looked_at} runs; there are more", style="bright_black")


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
