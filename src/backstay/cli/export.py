"""`dw export`: a run as one file that can be kept, sent and verified without Backstay."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backstay.cli import options

if TYPE_CHECKING:
    from backstay.protocol.export_file import Exporting


@click.command(name="export")
@click.argument("id")
@options.place
@options.namespace
@click.option("--run", "run_id", metavar="RUN", help="Use this run of the workflow instead of the current one.")
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to FILE instead of standard output.",
)
@click.option(
    "--signing-key",
    metavar="KEY",
    envvar="DW_EXPORT_SIGNING_KEY",
    help="Sign the export with this key. Default: DW_EXPORT_SIGNING_KEY.",
)
@click.option(
    "--signing-key-id",
    metavar="NAME",
    envvar="DW_EXPORT_SIGNING_KEY_ID",
    help="The name of the key, as the signature shows it. Default: DW_EXPORT_SIGNING_KEY_ID.",
)
@click.option(
    "--redactor",
    metavar="MODULE:FUNCTION",
    envvar="DW_EXPORT_REDACTOR",
    help="Call this function to replace payloads and texts. Default: DW_EXPORT_REDACTOR.",
)
def command(
    id: str,
    path: options.Place,
    namespace: str,
    run_id: str | None,
    output: Path | None,
    signing_key: str | None,
    signing_key_id: str | None,
    redactor: str | None,
) -> None:
    """Export workflow ID with its whole history as JSON, with a checksum over all of it.

    An open run is exported as it is now, with `history_complete` false. The options sign and redact the export of a
    database; the settings of a server sign and redact its exports. `dw export verify FILE` checks the file.

    \b
    Examples:
      dw export order-1 > order-1.json
      dw export order-1 --run 01J9ZQ5W3V6K1Q7T0M8E2C4X5B -o first.json
      dw export order-1 --signing-key KEY --redactor shop.privacy:redact -o order-1.json
      dw export verify order-1.json --key KEY
    """
    from backstay.cli.problems import CliError
    from backstay.cli.reading import reader_of
    from backstay.private_files import write_private

    how = exporting_at(path, signing_key, signing_key_id, redactor)
    with reader_of(path, namespace, how) as reader:
        if output is None:
            reader.export(namespace, id, run_id, sys.stdout.buffer.write)
            click.echo()
            return
        unfinished = output.with_name(f"{output.name}.part")
        try:
            with write_private(unfinished) as file:
                reader.export(namespace, id, run_id, file.write)
            unfinished.replace(output)
        except OSError as error:
            raise CliError(f"{output} cannot be written: {error.strerror}") from None
        finally:
            unfinished.unlink(missing_ok=True)


def exporting_at(path: options.Place, signing_key: str | None, key_id: str | None, redactor: str | None) -> Exporting:
    """How exports of a database are written. `CliError` if an option is for a database, and this is a server."""
    from click.core import ParameterSource

    from backstay.cli.problems import CliError
    from backstay.protocol.export_file import AS_IT_IS
    from backstay.protocol.exporting import exporting_with

    if isinstance(path, options.ServerAt):
        context = click.get_current_context()
        for name in ("signing_key", "signing_key_id", "redactor"):
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                flag = "--" + name.replace("_", "-")
                raise CliError(f"{flag} is for a database; the settings of a server sign and redact its exports")
        return AS_IT_IS
    if redactor is not None and "" not in sys.path:
        sys.path.insert(0, "")  # it may be a module of this directory
    try:
        return exporting_with(signing_key, key_id, redactor)
    except ValueError as error:
        raise CliError(f"the redactor cannot be used: {error}") from None
