"""`dw dev`: run a file in the foreground, and restart it whenever it is saved.

With the extra `server` this process is a server on loopback, with Waterline, and the file runs in a worker beside it
(`dev_server.py`). Without it, the process of the file is the engine, too. Either way `dev_process.py` is what runs in the
process of the file, and here a new one is started when one ends.
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
from backstay.cli.dev_child import PATIENCE, DevChild, SaveAwaited
from backstay.cli.dev_plan import DevPlan
from backstay.cli.problems import CliError

LOOK = 0.2


@click.command(name="dev")
@click.argument("file", type=click.Path(path_type=Path))
@options.database
@options.namespace
@click.option("--queue", "queues", metavar="NAME", multiple=True, help="Serve this queue too. May be repeated.")
@click.option(
    "--port",
    metavar="NUMBER",
    type=click.IntRange(0, 65_535),
    help="The port of the page, 0 for any. Default: 8233, or the next free one.",
)
def command(file: Path, path: str, namespace: str, queues: tuple[str, ...], port: int | None) -> None:
    """Run the workflows and activities of FILE, and reload on every save.

    Registers the workflows, activities, exception classes and objects with activity methods of the module FILE. Runs
    are in the database, so a reload loses nothing: open runs continue with the new code, and blocked runs are retried
    with it.

    Also serves Waterline, the page of the runs, to this machine only. The page stays open during reloads. When new code
    blocks a run, the address of the run's page is printed. The page needs: pip install 'backstay[server]'.

    \b
    Examples:
      dw dev shop.py                        then open http://127.0.0.1:8233/waterline
      dw dev shop.py --db shop.db
      dw dev shop.py --queue warehouse
      dw dev shop.py --port 9000
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
    plan = DevPlan(file=os.fspath(file), path=path, namespace=namespace, queues=queues)
    if namespace != namespace.lower():  # which a server has not
        click.echo(
            f"Waterline, the page of these runs, does not support a namespace with capitals such as {namespace!r}"
        )
        sys.exit(_supervise(plan))
    try:
        from backstay.cli.dev_server import run
    except ImportError as missing:
        if missing.name not in ("httptools", "uvloop"):
            raise
        click.echo("Waterline, the page of these runs, needs: pip install 'backstay[server]'")
        sys.exit(_supervise(plan))
    sys.exit(run(plan, port))


def _supervise(plan: DevPlan) -> int:
    # Also Ctrl-C: a shell starts the programs in the background of a script with that signal ignored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    while True:
        child = DevChild(plan)
        try:
            code = child.process.wait()
            if code in (0, 2):
                return code
            save = child.report_crash(code)
            if save is not None:
                _wait_for(save)
        except KeyboardInterrupt:
            return _stop(child.process)


def _wait_for(save: SaveAwaited) -> None:
    while not save.has_come:
        time.sleep(LOOK)


def _stop(process: subprocess.Popen[bytes]) -> int:
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
