"""`dw verdict`: which open runs of a database or server the code of a file would block, before it is deployed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backstay.cli import options
from backstay.cli.problems import Unsuccessful, as_problems

if TYPE_CHECKING:
    from backstay.cli.loading import Program
    from backstay.sdk.replay.replayer import Replayed


@click.command(name="verdict")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@options.app
@options.place
@options.namespace
def command(ids: tuple[str, ...], app: Path, path: options.Place, namespace: str) -> None:
    """Replay open runs, all or those of each ID, with the code of --app, and show which runs the code would block.

    The command writes nothing, runs no activity and does not disturb the engine. Exit code 1: the code would block at
    least one run.

    \b
    Examples:
      dw verdict --app shop.py
      dw verdict --app shop.py --db copy-of-production.db
      dw verdict order-1 order-2 --app shop.py --server http://127.0.0.1:8080
    """
    from backstay.cli.console import console
    from backstay.cli.differences import tell_blocked
    from backstay.cli.loading import load
    from backstay.sdk.replay.replayer import counted

    found = _replayed(load(app), ids, path, namespace)
    out = console()
    for run in found.blocked:
        tell_blocked(out, run)
    for other in found.unjudged:
        out.print(str(other), style="bold red", markup=False)
    many = counted(found.runs, "run")
    if not found.fits:
        more = f", {len(found.unjudged)} could not be judged" if found.unjudged else ""
        raise Unsuccessful(f"{len(found.blocked)} of {many} would be blocked by {app}{more}")
    out.print(f"{many} replayed; none would be blocked", style="green")


def _replayed(program: Program, ids: tuple[str, ...], path: options.Place, namespace: str) -> Replayed:
    if isinstance(path, options.ServerAt):
        from backstay.cli.loading import registry_of
        from backstay.kernel.machine import Machine
        from backstay.sdk.client.client import AsyncClient
        from backstay.sdk.replay.replayer import replay

        server = path

        async def ask() -> Replayed:
            async with AsyncClient(server.url, token=server.token, namespace=namespace) as client:
                return await replay(client, registry_of(program), Machine(), ids)

        with as_problems():
            return asyncio.run(ask())
    from backstay import Backstay

    options.existing(path)
    with as_problems():
        app = Backstay(path, program.things, namespace=namespace, types=program.types, guard="off")
        return app.replay(*ids)
