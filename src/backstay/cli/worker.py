"""`dw worker`: run the workflows and activities of a file for a server."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from backstay.cli import options
from backstay.cli.logs import log_to_stderr
from backstay.cli.problems import CliError, as_problems


@click.command(name="worker")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--server", metavar="URL", envvar="DW_SERVER", help="The server. Default: the variable DW_SERVER.")
@click.option("--token", metavar="TOKEN", envvar="DW_TOKEN", help="Its token. Default: the variable DW_TOKEN.")
@options.namespace
@click.option("--queue", "queues", metavar="NAME", multiple=True, help="Only this queue. Default: all that FILE names.")
@click.option("--build", metavar="ID", help="The build that runs started for it are pinned to.")
@click.option(
    "--workflow-deadline",
    metavar="SECONDS",
    type=float,
    default=2,
    show_default=True,
    help="For workflow code, to wait.",
)
@click.option("--drain", metavar="SECONDS", type=float, default=30, show_default=True, help="For what runs, to end.")
def command(
    file: Path,
    server: str | None,
    token: str | None,
    namespace: str,
    queues: tuple[str, ...],
    build: str | None,
    workflow_deadline: float,
    drain: float,
) -> None:
    """Work for a server with everything that FILE defines, until SIGTERM or Ctrl-C.

    Then it drains: what is running is finished and reported, nothing new is taken. A server that restarts is waited for.

    \b
    Examples:
      dw worker shop.py --server http://127.0.0.1:8080 --token TOKEN
      DW_SERVER=https://flows.example.com DW_TOKEN=... dw worker shop.py --queue warehouse
    """
    if server is None:
        raise CliError("name the server with --server or DW_SERVER, for example http://127.0.0.1:8080")
    from backstay.cli.loading import load

    program = load(file)
    log_to_stderr(logging.INFO)
    for hint in program.hints:
        logging.getLogger("backstay.worker").warning("%s", hint)
    from backstay.sdk.remote.worker import AsyncWorker, work

    wanted = sorted(queues or program.queues)
    try:
        worker = AsyncWorker(
            server,
            program.things,
            queues=wanted,
            token=token,
            namespace=namespace,
            types=program.types,
            guard="off",  # loading has checked already
            shims=True,
            compatibility=build,
            workflow_deadline=workflow_deadline or None,
            drain=drain,
        )
    except (ValueError, TypeError) as wrong:
        raise CliError(str(wrong)) from None

    def ready() -> None:
        click.echo(f"{file} works for {server}, queue {', '.join(wanted)}")

    with as_problems():
        work(worker, ready)
