"""The output of `dw repair`: the numbers of restored, retried and removed tasks."""

from __future__ import annotations

from typing import Any

import click


def show_repair(handle: Any, fields: dict[str, Any]) -> str:
    """Repair the workflow of a handle, and print the changes."""
    done = handle.repair()
    said = [
        f"{len(tasks)} {what}"
        for what, tasks in (
            ("tried again", done.revived),
            ("restored", done.restored),
            ("taken back from a worker that is gone", done.released),
            ("superfluous removed", done.dropped),
        )
        if tasks
    ]
    click.echo(f"{handle.id}: tasks {', '.join(said)}" if said else f"{handle.id}: nothing to repair")
    return "repair_dispatched" if said else "repair_not_needed"
