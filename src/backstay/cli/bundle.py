"""`dw export verify` and `dw import`: exports as files, checked or read into an empty database."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backstay.cli import options

if TYPE_CHECKING:
    from collections.abc import Generator

    from backstay.protocol.bundle_check import BundleReport, ExportBundle

FILE = click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
KEY = click.option(
    "--key",
    metavar="KEY",
    envvar="DW_EXPORT_SIGNING_KEY",
    help="The key that signed the export. Default: DW_EXPORT_SIGNING_KEY.",
)


@click.command(name="export verify")
@FILE
@KEY
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def verify(file: Path, key: str | None, as_json: bool) -> None:
    """Verify the checksums of the export in FILE and, with a key, its signature.

    Needs no database and no server. Exits with code 1 if the file was changed, is incomplete, or was signed with another key.

    \b
    Examples:
      dw export verify order-1.json
      dw export verify order-1.json --key KEY
    """
    import msgspec

    from backstay.cli.console import console
    from backstay.cli.problems import Unsuccessful
    from backstay.protocol.bundle_check import check_bundle

    with opened(file) as bundle:
        report = check_bundle(bundle, key)
    if as_json:
        click.echo(msgspec.json.encode(report))
    else:
        out = console()
        for rule, sentence in report.findings:
            out.print(f"{rule}: {sentence}", style="bold red", markup=False)
        if not report.findings:
            out.print(told(report), style="green", markup=False)
    if report.findings:
        raise Unsuccessful(f"{file} failed the verification")


def told(report: BundleReport) -> str:
    """A good report in a sentence."""
    whole = "its whole history" if report.history_complete else "an open run"
    signed = "signed" if report.signed else "not signed"
    if report.signed:
        signed += ", and the key fits" if report.signature_checked else "; name the --key to check by whom"
    redacted = ", redacted" if report.redacted else ""
    return f"ok: {report.workflow_id}, run {report.run_id}, {report.events} events, {whole}{redacted}, {signed}"


@click.command(name="import")
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@options.database
@KEY
def import_(files: tuple[Path, ...], path: str, key: str | None) -> None:
    """Import the export in each FILE into an empty database, for `dw history`, `dw describe` and `dw verdict`.

    Only a whole export with a matching checksum is read, and only into a database that has no workflow yet. All files
    are checked before the first is imported. One run of each workflow can be imported. A redacted export is refused,
    since a replay needs its arguments. An app or a server that opens this database continues an open run; use commands
    that only read.

    \b
    Examples:
      dw import order-1.json --db debug.db
      dw import exports/*.json --db debug.db
      dw verdict --app shop.py --db debug.db
    """
    from backstay.cli.problems import CliError
    from backstay.cli.progress import ProgressLine
    from backstay.cli.reading import StoreReader
    from backstay.kernel.machine import Machine
    from backstay.protocol.bundle_import import CannotImport, imported

    reports = _checked(files, key)
    progress = ProgressLine("exports")
    machine = Machine()
    with StoreReader(path, create=True) as reader:
        if reader.has_workflows():
            raise CliError(f"{path} has workflows already; import into an empty database: name a new one")
        try:
            for number, (file, report) in enumerate(reports):
                progress("imported", number, len(reports))
                with opened(file) as bundle:
                    try:
                        decision = imported(bundle, machine, reader.world.ids)
                    except CannotImport as problem:
                        before = f"; {path} has the {number} before it" if number else ""
                        raise CliError(f"{file} is not imported: {problem}{before}") from None
                    reader.apply(decision)
                click.echo(f"{report.workflow_id}, run {report.run_id}, {report.events} events are in {path}")
        finally:
            progress.end()


def _checked(files: tuple[Path, ...], key: str | None) -> list[tuple[Path, BundleReport]]:
    """The files with their reports; `CliError` for the first that cannot be imported."""
    from backstay.cli.problems import CliError
    from backstay.protocol.bundle_check import check_bundle

    found: list[tuple[Path, BundleReport]] = []
    seen: dict[tuple[str, str | None], Path] = {}
    for file in files:
        with opened(file) as bundle:
            report = check_bundle(bundle, key)
            if report.findings:
                raise CliError(f"{file} is not imported: {report.findings[0][1]}")
            if report.redacted:
                raise CliError(
                    f"{file} is redacted, so the payloads of its run are not in it; import an export without redaction"
                )
            whose = str(bundle.get("workflow").get("namespace")), report.workflow_id
        other = seen.setdefault(whose, file)
        if other is not file:
            raise CliError(
                f"{file} is not imported: {other} has the same workflow, {report.workflow_id!r}; import one run of it"
            )
        found.append((file, report))
    return found


@contextmanager
def opened(file: Path) -> Generator[ExportBundle]:
    """The export in a file; `CliError` if it is none."""
    from backstay.cli.problems import CliError
    from backstay.protocol.bundle_check import ExportBundle, NoBundle

    try:
        with file.open("rb") as stream:
            if not stream.seek(0, 2):
                raise NoBundle("it is empty")
            text = mmap(stream.fileno(), 0, access=ACCESS_READ)
            view = memoryview(text)
            bundle: ExportBundle | None = None
            try:
                bundle = ExportBundle(view)
                yield bundle
            finally:
                if bundle is not None:
                    bundle.close()
                with suppress(BufferError):  # an error on its way still holds a part of the text
                    view.release()
                    text.close()
    except NoBundle as problem:
        raise CliError(f"{file} is no export: {problem}") from None
    except OSError as error:
        raise CliError(f"{file} cannot be read: {error.strerror}") from None
