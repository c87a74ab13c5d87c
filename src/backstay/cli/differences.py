"""A run that code does not fit, as people read it: the message, the line, and history beside the commands of the code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from backstay.sdk.replay.replayer import BlockedRun


def tell_blocked(out: Console, run: BlockedRun, where: str = "") -> None:
    """Print why a run would be blocked. `where`: the file it was read from."""
    head = f"{where}: " if where else ""
    out.print(
        f"{head}{run.workflow_id} ({run.workflow_type}) would be blocked: {run.message}",
        style="bold red",
        markup=False,
    )
    if run.place is not None:
        out.print(f"  {run.place}: {run.place.text}", markup=False)
    if run.difference:
        out.print(side_by_side(run.difference))


def side_by_side(difference: Iterable[tuple[str, str]]) -> Table:
    table = Table(box=None, header_style="bright_black", pad_edge=False, padding=(0, 3, 0, 2))
    table.add_column("history has", no_wrap=True)
    table.add_column("the code asked for", no_wrap=True)
    for recorded, asked in difference:
        same = recorded.partition(": ")[2] == asked
        style = "" if same else "bold red"
        table.add_row(Text(recorded, style), Text(asked or "-", style))
    return table
