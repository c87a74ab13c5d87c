"""`dw dev`: run a file in the foreground, and restart it whenever it is saved.

This process is a server on loopback, with Waterline, and the file runs in a worker beside it (`dev_server.py`), whose
process (`dev_process.py`) is started again whenever it ends.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from backstay.cli import options
from backstay.cli.dev_plan import DevPlan
from backstay.cli.problems import CliError


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
    blocks a run, the address of the run's page is printed.

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
    if namespace != namespace.lower():
        raise CliError(
            f"a server accepts no namespace with capital letters such as {namespace!r}; its runs go on with"
            f" Backstay({path!r}, namespace={namespace!r}) in your program"
        )
    plan = DevPlan(file=os.fspath(file), path=path, namespace=namespace, queues=queues)
    from backstay.cli.dev_server import run

    sys.exit(run(plan, port))
