"""`dw export`: a run as one file that can be kept, sent and verified without Backstay."""

from __future__ import annotations

from pathlib import Path

import click

from backstay.cli import options


@click.command(name="export")
@click.argument("id")
@options.place
@options.namespace
@click.option("--run", "run_id", metavar="RUN", help="Another run of this workflow than the current one.")
@click.option(
    "--output", "-o", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Write it there, not here."
)
def command(id: str, path: options.Place, namespace: str, run_id: str | None, output: Path | None) -> None:
    """Export workflow ID with its whole history as JSON, with a checksum over all of it.

    A run that is open is exported as it is now; `history_complete` says which.

    \b
    Examples:
      dw export order-1 > order-1.json
      dw export order-1 --run 01J9ZQ5W3V6K1Q7T0M8E2C4X5B -o first.json
    """
    from backstay.cli.problems import CliError
    from backstay.cli.reading import reader_of
    from backstay.protocol.requests import ExportHistory

    with reader_of(path, namespace) as reader:
        text = reader.ask(ExportHistory(workflow_id=id, namespace=namespace, run_id=run_id))
    if output is None:
        click.echo(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CliError(f"{output} cannot be written: {error.strerror}") from None
