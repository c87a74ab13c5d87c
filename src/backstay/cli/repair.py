"""`dw repair`: restore what a run misses to go on, from its history, and try what is blocked again."""

from __future__ import annotations

import click

from backstay.cli import options


@click.command(name="repair")
@click.argument("id")
@options.place
@options.namespace
def command(id: str, path: options.Place, namespace: str) -> None:
    """Repair workflow ID: restore missing tasks from history, and try blocked or failed ones again.

    Nothing of the history changes. The work itself is done by the engine of the database, now or when one starts.

    \b
    Examples:
      dw repair order-1
    """
    from backstay.cli.messages import alone, opened

    with opened(path, namespace) as backstay:
        done = backstay.handle(None, id).repair()
        lonely = alone(backstay)
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
    click.echo(f"{id}: tasks {', '.join(said)}" if said else f"{id}: nothing to repair")
    if said and lonely:
        click.echo("no engine runs this database now; the run goes on when one starts (dw dev FILE)", err=True)
