"""`dw record`: a sample of real histories as files, which a test suite replays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backstay.cli import options
from backstay.cli.problems import CliError

if TYPE_CHECKING:
    from backstay.cli.reading import ServerReader, StoreReader
    from backstay.kernel.decision import RunRow
    from backstay.kernel.machine import Machine

PAGE = 200


@click.command(name="record")
@click.option(
    "--out",
    metavar="FOLDER",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder for the histories. It is made if it does not exist.",
)
@options.place
@options.namespace
@click.option("--type", "type_", metavar="TYPE", help="Record runs of this workflow type only.")
@click.option("--each", metavar="N", default=20, type=click.IntRange(1), help="Histories of each type. Default: 20.")
@click.option(
    "--look", metavar="N", default=2000, type=click.IntRange(1), help="Runs to look at, newest first. Default: 2000."
)
@click.option(
    "--redactor",
    metavar="MODULE:FUNCTION",
    envvar="DW_EXPORT_REDACTOR",
    help="Call this function to replace payloads and texts. Default: DW_EXPORT_REDACTOR.",
)
def command(
    out: Path, path: options.Place, namespace: str, type_: str | None, each: int, look: int, redactor: str | None
) -> None:
    """Record histories of real runs as files: of each workflow type, one for each path that its runs have taken.

    Open and closed runs are looked at, newest first. Two runs have the same path if they took the same steps, got the
    same messages and ended alike; what a loop repeats counts once. A file is named by its type and its path, so
    recording again adds only what is new. Commit the folder, and let the tests replay it after every change of the
    code. A redactor must return payloads in place of payloads, else a history cannot be replayed.

    \b
    Examples:
      dw record --out tests/histories
      dw record --out tests/histories --type order --each 5 --server http://127.0.0.1:8080
      dw record --out tests/histories --redactor shop.privacy:redact
      dw replay tests/histories --app shop.py
    """
    from backstay.cli.export import exporting_at
    from backstay.cli.progress import ProgressLine
    from backstay.cli.reading import reader_of
    from backstay.kernel.machine import Machine
    from backstay.protocol.requests import GetHistory
    from backstay.sdk.replay.path_taken import path_digest
    from backstay.sdk.replay.replayer import counted

    machine = Machine()
    kept, added, looked = dict[str, set[Path]](), 0, 0
    progress = ProgressLine("runs")
    how = exporting_at(path, None, None, redactor)
    with reader_of(path, namespace, how) as reader:
        out.mkdir(parents=True, exist_ok=True)
        try:
            for row in _runs(reader, namespace, type_, look):
                looked += 1
                progress("looked at", looked, look)
                files = kept.setdefault(row.workflow_type, set())
                if len(files) >= each:
                    continue
                history = reader.ask(GetHistory(workflow_id=row.workflow_id, namespace=namespace, run_id=row.run_id))
                file = out / f"{_file_name(row.workflow_type)}-{path_digest(machine, history)}.json"
                if file not in files and not file.exists():
                    _record(reader, row, file, machine)
                    added += 1
                files.add(file)
        finally:
            progress.end()
    paths = sum(map(len, kept.values()))
    click.echo(
        f"{counted(looked, 'run')} of {counted(len(kept), 'workflow type')} looked at: {counted(paths, 'path')},"
        f" {counted(added, 'new file')} in {out}"
    )


def _runs(reader: StoreReader | ServerReader, namespace: str, type_: str | None, look: int) -> Iterator[RunRow]:
    """The newest runs of workflow code, a page at a time."""
    from backstay.kernel.features.start import STANDALONE
    from backstay.protocol.requests import ListWorkflows

    before: int | None = None
    left = look
    while left > 0:
        page = reader.ask(ListWorkflows(namespace=namespace, workflow_type=type_, before=before, limit=min(PAGE, left)))
        yield from (row for row in page if row.workflow_type != STANDALONE)
        left -= len(page)
        if len(page) < PAGE:
            return
        before = page[-1].key


def _file_name(workflow_type: str) -> str:
    """A type as a part of a file name: any caller may have made it up."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", workflow_type)[:80].strip("-") or "workflow"


def _record(reader: StoreReader | ServerReader, row: RunRow, file: Path, machine: Machine) -> None:
    """Export a run into a file that can be replayed, or into none."""
    from backstay.private_files import write_private
    from backstay.sdk.replay.history_files import UnreadableHistory, read_run

    unfinished = file.with_name(f"{file.name}.part")
    try:
        with write_private(unfinished) as stream:
            reader.export(row.namespace, row.workflow_id, row.run_id, stream.write)
        read_run(unfinished, machine)
        unfinished.replace(file)
    except UnreadableHistory as problem:
        raise CliError(f"{row.workflow_id} is not recorded: {problem}") from None
    except OSError as error:
        raise CliError(f"{file} cannot be written: {error.strerror}") from None
    finally:
        unfinished.unlink(missing_ok=True)
