"""The file of `dw dev` as a worker of the server that `dw dev` is: it takes tasks until its process is to end."""

from __future__ import annotations

import asyncio
import socket
import warnings
from collections.abc import Callable

from backstay.cli.dev_plan import DevPlan
from backstay.cli.loading import Program
from backstay.cli.problems import CliError
from backstay.sdk.client.loop_thread import new_loop
from backstay.sdk.errors import ServerUnreachable
from backstay.sdk.remote.worker import AsyncWorker

LOOK = 0.05
DRAIN = 1.0  # seconds that running activities get to end; those that take longer run again


def work(program: Program, plan: DevPlan, is_over: Callable[[], bool], ready: Callable[[], None]) -> None:
    """Work until `is_over`. `ready` is called when the server has taken the worker on."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # loading has told them as hints
            worker = AsyncWorker(
                plan.server,
                program.things,
                queues=sorted(program.queues.union(plan.queues)),
                namespace=plan.namespace,
                types=program.types,
                # The same name for every process: a new one without tasks lets the server offer the tasks of the
                # previous one again at once, and not when their leases expire.
                worker_id=f"dw-dev-{socket.gethostname()[:60]}",
                drain=DRAIN,
            )
    except (ValueError, TypeError) as wrong:
        raise CliError(str(wrong)) from None
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_until_over(worker, is_over, ready))


async def _until_over(worker: AsyncWorker, is_over: Callable[[], bool], ready: Callable[[], None]) -> None:
    opening = asyncio.ensure_future(_open(worker))
    while not opening.done() and not is_over():
        await asyncio.wait({opening}, timeout=LOOK)
    if not opening.done():
        opening.cancel()
        await asyncio.wait({opening})
        return
    opening.result()
    try:
        ready()
        while not is_over():
            await asyncio.sleep(LOOK)
    finally:
        await worker.close()


async def _open(worker: AsyncWorker) -> None:
    """Open the link, however long it takes: the server accepts no worker while another process is the engine."""
    while True:
        try:
            await worker.open()
            return
        except ServerUnreachable:
            continue
