"""The difference of a blocked run in two columns: history, and the commands of the code."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text


def side_by_side(difference: Iterable[tuple[str, str]]) -> Table:
    table = Table(box=None, header_style="bright_black", pad_edge=False, padding=(0, 3, 0, 2))
    table.add_column("history has", no_wrap=True)
    table.add_column("the code asked for", no_wrap=True)
    for recorded, asked in difference:
        same = recorded.partition(": ")[2] == asked
        style = "" if same else "bold red"
        table.add_row(Text(recorded, style), Text(asked or "-", style))
    return table
