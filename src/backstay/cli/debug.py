"""`dw debug`: step through the history of a run, event by event, and look at the workflow code after each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from backstay.cli import options

if TYPE_CHECKING:
    from backstay.kernel.machine import Machine
    from backstay.protocol.recorded_run import RecordedRun


@click.command(name="debug")
@click.argument("run", metavar="RUN")
@options.app
@options.place
@options.namespace
@click.option("--run", "run_id", metavar="RUN", help="Use this run of the workflow instead of the current one.")
@click.option("--at", metavar="N", type=click.IntRange(1), default=1, help="Stop at event N first. Default: 1.")
def command(run: str, app: Path, path: options.Place, namespace: str, run_id: str | None, at: int) -> None:
    """Step through the history of a run in pdb, and look at its workflow code after each event.

    RUN is a workflow ID, or the file of an export. `next` goes to the event after this one, `back` to the one before,
    `goto N` to any. Everything else is pdb: `p name`, `pp locals()`, `where`, `up`, `down`, `list`. Each stop is a replay
    with the code of --app. No activity runs, and nothing is written.

    \b
    Examples:
      dw debug order-1 --app shop.py
      dw debug order-1 --app shop.py --at 12 --server http://127.0.0.1:8080
      dw debug order-1.json --app shop.py
    """
    from backstay.cli.debugger import RunDebugger
    from backstay.cli.loading import load, registry_of
    from backstay.cli.problems import CliError
    from backstay.kernel.machine import Machine

    machine = Machine()
    registry = registry_of(load(app))
    recorded = _recorded(run, path, namespace, run_id, machine)
    definition = registry.workflows.get(recorded.workflow_type)
    if definition is None:
        raise CliError(f"{app} has no workflow of type {recorded.workflow_type!r}, which {recorded.workflow_id} is")
    RunDebugger(machine, registry, definition, recorded).debug(at)


def _recorded(run: str, path: options.Place, namespace: str, run_id: str | None, machine: Machine) -> RecordedRun:
    """Read a run: of a file if there is one of this name, else of the database or server."""
    from backstay.cli.problems import CliError, Missing
    from backstay.cli.reading import reader_of
    from backstay.protocol.recorded_run import of_row
    from backstay.protocol.requests import DescribeWorkflow, GetHistory
    from backstay.sdk.replay.history_files import UnreadableHistory, read_run

    if Path(run).is_file():
        try:
            return read_run(Path(run), machine)
        except UnreadableHistory as problem:
            raise CliError(str(problem)) from None
    with reader_of(path, namespace) as reader:
        if run_id is None:
            row = reader.ask(DescribeWorkflow(workflow_id=run, namespace=namespace)).run
            if row is None:
                raise Missing(f"workflow {run!r} is reserved and has no run yet")
        else:
            row = reader.run(namespace, run, run_id)
            if row is None:
                raise Missing(f"workflow {run!r} has no run {run_id!r}; see `dw list --id {run}`")
        asked = GetHistory(workflow_id=row.workflow_id, namespace=namespace, run_id=row.run_id)
        return of_row(row, list(reader.ask(asked)))
