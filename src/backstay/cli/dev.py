"""`dw dev`: run a file in the foreground, and restart it whenever it is saved.

This process only starts a new process of the file when one ends; `dev_process.py` is what runs in it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import click

from backstay.cli import options
from backstay.cli.problems import CliError

RELOAD = 75
SHORT = 2.0  # seconds: a process that crashes sooner is only started again after a save
PATIENCE = 10.0


@click.command(name="dev")
@click.argument("file", type=click.Path(path_type=Path))
@options.database
@options.namespace
@click.option("--queue", "queues", metavar="NAME", multiple=True, help="Serve this queue, too. May be repeated.")
def command(file: Path, path: str, namespace: str, queues: tuple[str, ...]) -> None:
    """Run the workflows and activities of FILE, and reload on every save.

    Registers what the module FILE holds: workflows, activities, exception classes, and objects with activity methods.
    Runs are in the database, so a reload loses nothing: open runs go on with the new code, and a run that the old code
    blocked is tried again.

    \b
    Examples:
      dw dev shop.py
      dw dev shop.py --db shop.db
      dw dev shop.py --queue warehouse
    """
    from backstay.cli.loading import check

    check(file)
    from backstay.cli.problems import as_problems
    from backstay.store.address import checked, is_server

    with as_problems():
        checked(path)
    parent = Path(path.removeprefix("sqlite:")).parent
    if not is_server(path) and not parent.is_dir():
        raise CliError(f"the directory {parent} does not exist; create it first")
    sys.exit(
        _supervise(
            [sys.executable, "-P", "-m", "backstay.cli.dev_process", os.fspath(file), path, namespace, *queues], file
        )
    )


def _supervise(command_line: list[str], file: Path) -> int:
    signal.signal(signal.SIGTERM, _interrupt)
    while True:
        started = time.monotonic()
        child = _begin(command_line)
        try:
            code = child.wait()
            if code not in (0, 2, RELOAD):
                _report_crash(code, time.monotonic() - started, file)
        except KeyboardInterrupt:
            return _stop(child)
        if code in (0, 2):
            return code


def _begin(command_line: list[str]) -> subprocess.Popen[bytes]:
    """Start the process with Ctrl-C ignored until its own handler is set: a starting interpreter would print a traceback."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return subprocess.Popen(command_line)
    finally:
        signal.signal(signal.SIGINT, before)


def _report_crash(code: int, age: float, file: Path) -> None:
    """Say that the process was killed, crashed or called os._exit; after a quick crash, wait for the next save."""
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    if age >= SHORT:
        click.echo(f"the process of {file} ended ({how}); starting it again", err=True)
        return
    click.echo(f"the process of {file} ended at once ({how}); waiting for the next save", err=True)
    from backstay.cli.file_watch import stamp_of

    before = stamp_of(os.fspath(file))
    while stamp_of(os.fspath(file)) in (None, before):
        time.sleep(0.2)


def _stop(child: subprocess.Popen[bytes]) -> int:
    child.terminate()
    try:
        child.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
