"""`dw worker`: run the workflows and activities of a file for a server."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from backstay.cli import options
from backstay.cli.problems import CliError, as_problems
from backstay.logging import log_to_stderr


@click.command(name="worker")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--server", metavar="URL", envvar="DW_SERVER", help="The server. Default: the variable DW_SERVER.")
@click.option("--token", metavar="TOKEN", envvar="DW_TOKEN", help="The server's token. Default: the variable DW_TOKEN.")
@options.namespace
@click.option(
    "--queue",
    "queues",
    metavar="NAME",
    multiple=True,
    help="Take tasks of this queue only. Default: all queues that FILE names.",
)
@click.option("--build", metavar="ID", help="The ID of this build of the code, to which runs can be pinned.")
@click.option(
    "--workflow-deadline",
    metavar="SECONDS",
    type=float,
    default=2,
    show_default=True,
    help="Seconds that workflow code may compute without waiting before it is interrupted.",
)
@click.option(
    "--drain",
    metavar="SECONDS",
    type=float,
    default=30,
    show_default=True,
    help="Seconds to let running work finish after SIGTERM.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    envvar="DW_LOG_FORMAT",
    help="The format of the log. Default: the variable DW_LOG_FORMAT, else text.",
)
def command(
    file: Path,
    server: str | None,
    token: str | None,
    namespace: str,
    queues: tuple[str, ...],
    build: str | None,
    workflow_deadline: float,
    drain: float,
    log_format: str,
) -> None:
    """Run a worker with the workflows and activities of FILE for a server, until SIGTERM or Ctrl-C.

    On SIGTERM the worker drains: it finishes and reports its running tasks and takes no new ones. When the server
    restarts, the worker waits and reconnects.

    \b
    Examples:
      dw worker shop.py --server http://127.0.0.1:8080 --token TOKEN
      DW_SERVER=https://flows.example.com DW_TOKEN=... dw worker shop.py --queue warehouse
    """
    if server is None:
        raise CliError("name the server with --server or DW_SERVER, for example http://127.0.0.1:8080")
    from backstay.cli.loading import load

    program = load(file)
    log_to_stderr(logging.INFO, log_format)
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
