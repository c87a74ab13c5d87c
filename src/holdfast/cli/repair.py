"""`dw repair`: restore what a run misses to go on, from its history, and try what is blocked again."""

from __future__ import annotations

import click

from holdfast.cli import options


@click.command(name="repair")
@click.argument("id")
@options.database
@options.namespace
def command(id: str, path: str, namespace: str) -> None:
    """Repair workflow ID: restore missing tasks from history, and try blocked or failed ones again.

    Nothing of the history changes. The work itself is done by the engine of the database, now or when one starts.

    \b
    Examples:
      dw repair order-1
    """
    from holdfast import Holdfast
    from holdfast.cli.problems import told

    options.existing(path)
    with told(), Holdfast(path, namespace=namespace, run_tasks=False) as holdfast:
        done = holdfast.handle(None, id).repair()
        alone = holdfast.is_engine
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
    if said and alone:
        click.echo("no engine runs this database now; the run goes on when one starts (dw dev FILE)", err=True)
