"""`dw replay`: hold the code of a file against the runs that are open, before it is deployed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backstay.cli import options
from backstay.cli.problems import Unsuccessful, as_problems

if TYPE_CHECKING:
    from backstay.sdk.replay.replayer import Replayed
    from backstay.sdk.worker.registry import Types


@click.command(name="replay")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.argument("ids", nargs=-1, metavar="[ID]...")
@options.place
@options.namespace
def command(file: Path, ids: tuple[str, ...], path: options.Place, namespace: str) -> None:
    """Replay open runs, all or those of each ID, with the code of FILE, and show which runs the code would block.

    The command writes nothing, runs no activity and does not disturb the engine. Exit code 1: the code would block at
    least one run.

    \b
    Examples:
      dw replay shop.py
      dw replay shop.py --db copy-of-production.db
      dw replay shop.py order-1 order-2 --server http://127.0.0.1:8080
    """
    from backstay.cli.console import console
    from backstay.cli.differences import side_by_side
    from backstay.cli.loading import load

    program = load(file)
    found = _replayed(program.things, program.types, ids, path, namespace)
    out = console()
    for run in found.blocked:
        out.print(
            f"{run.workflow_id} ({run.workflow_type}) would be blocked: {run.message}", style="bold red", markup=False
        )
        if run.difference:
            out.print(side_by_side(run.difference))
    many = "1 run" if found.runs == 1 else f"{found.runs} runs"
    if found.blocked:
        raise Unsuccessful(f"{len(found.blocked)} of {many} would be blocked by {file}")
    out.print(f"{many} replayed; none would be blocked", style="green")


def _replayed(
    things: list[Any], types: Types | None, ids: tuple[str, ...], path: options.Place, namespace: str
) -> Replayed:
    if isinstance(path, options.ServerAt):
        from backstay.kernel.machine import Machine
        from backstay.sdk.client.client import AsyncClient
        from backstay.sdk.replay.replayer import replay
        from backstay.sdk.worker.registry import Registry

        registry = Registry(types, "off")  # loading has checked already
        registry.register(things)
        server = path

        async def ask() -> Replayed:
            async with AsyncClient(server.url, token=server.token, namespace=namespace) as client:
                return await replay(client, registry, Machine(), ids)

        with as_problems():
            return asyncio.run(ask())
    from backstay import Backstay

    options.existing(path)
    with as_problems():
        return Backstay(path, things, namespace=namespace, types=types, guard="off").replay(*ids)
