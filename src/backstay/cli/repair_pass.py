"""`dw repair-pass`: look through a whole database or server for work that does not move, once or as the process that owns this.

With --loop and a server it is the dedicated matching role: servers started with DW_V2_MATCHING_ROLE_QUEUE_WAKE=0 leave it to this
process when they look through everything.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from backstay.cli import options
from backstay.cli.problems import CliError, as_problems

if TYPE_CHECKING:
    from backstay import Client
    from backstay.cli.reading import StoreReader
    from backstay.sdk.remote.transport import Access

PATH = "/api/system/repair/pass"
ANSWER = 60.0


@click.command(name="repair-pass")
@options.place
@options.namespace
@click.option("--loop", is_flag=True, help="Repeat until SIGTERM or Ctrl-C.")
@click.option(
    "--every",
    metavar="SECONDS",
    type=click.FloatRange(0.05, 3600),
    default=5,
    show_default=True,
    help="Seconds between two passes of --loop.",
)
def command(path: options.Place, namespace: str, loop: bool, every: float) -> None:
    """Restore lost tasks and wakes of all runs; at a server, also release the leases of dead workers.

    Servers and apps run this pass every few seconds. To move it out of the servers, run `--loop` in a process of its
    own and start the servers with DW_V2_MATCHING_ROLE_QUEUE_WAKE=0. If the loop ends, the servers run the pass again,
    less often.

    \b
    Examples:
      dw repair-pass --db shop.db
      dw repair-pass --server http://127.0.0.1:8080 --token TOKEN
      DW_SERVER=http://127.0.0.1:8080 DW_TOKEN=... dw repair-pass --loop --every 2
    """
    if not isinstance(path, options.ServerAt):
        _on_database(path, namespace, every if loop else None)
        return
    from backstay.sdk.remote.transport import Access

    access = Access(path.url, path.token, namespace)
    try:
        access.client()
    except ValueError as wrong:
        raise CliError(str(wrong)) from None
    with as_problems():
        asyncio.run(_loop(access, every) if loop else _once(access))


def _on_database(path: str, namespace: str, every: float | None) -> None:
    """Repair as any process may. `every`: seconds between two passes; None: one pass."""
    from backstay.cli.messages import opened
    from backstay.cli.reading import StoreReader
    from backstay.store.address import shown

    with StoreReader(path) as reader, opened(path, namespace) as backstay:
        if every is None:
            click.echo(_said(_pass_on_database(reader, backstay, namespace)))
            return
        stopping = threading.Event()

        def stop(number: int, frame: object) -> None:
            stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        click.echo(f"checks {shown(path)} every {every:g} s")
        quiet = True
        while not stopping.is_set():
            try:
                done = _pass_on_database(reader, backstay, namespace)
            except CliError as why:
                if quiet:
                    click.echo(f"{why}; trying again", err=True)
                quiet = False
            else:
                quiet = True
                if done["dispatched_tasks"]:
                    click.echo(_said(done))
            stopping.wait(every)


def _pass_on_database(reader: StoreReader, backstay: Client, namespace: str) -> dict[str, Any]:
    from backstay.server.operators.repair import candidates_on_disk, select_fairly
    from backstay.server.settings import Settings

    limit = Settings().task_repair_scan_limit
    found = reader.get(candidates_on_disk(reader.store, namespace))
    missing, existing = select_fairly(found.missing, limit), select_fairly(found.existing, limit)
    chosen = {one.workflow for one in (*missing, *existing)}
    for workflow in sorted(chosen):
        loaded = reader.get(reader.store.load(workflow))
        if loaded is None:
            continue
        id = loaded.row.workflow_id
        try:
            with as_problems():
                backstay.handle(None, id).repair()
        except CliError as why:
            click.echo(f"{id}: {why}", err=True)
    if chosen:
        found = reader.get(candidates_on_disk(reader.store, namespace))
    left = {one.workflow for one in (*found.missing, *found.existing)}
    return {
        "selected_existing_task_candidates": len(existing),
        "selected_missing_task_candidates": len(missing),
        "dispatched_tasks": len(chosen - left),
    }


async def _once(access: Access) -> None:
    from backstay.link.http import Lost, NotHttp
    from backstay.sdk import errors

    try:
        click.echo(_said(await _pass(access)))
    except (Lost, NotHttp, _Busy) as why:
        raise errors.ServerUnreachable(access.url, str(why)) from None


async def _loop(access: Access, every: float) -> None:
    """Repeat the pass. A server that cannot be reached is tried again; one that refuses the token ends the loop."""
    from backstay.link.http import Lost, NotHttp

    running = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        running.add_signal_handler(number, stopping.set)
    click.echo(f"checks {access.url} every {every:g} s")
    quiet = True
    while not stopping.is_set():
        try:
            done = await _pass(access)
        except (Lost, NotHttp, _Busy) as why:
            if quiet:
                click.echo(f"cannot reach {access.url}: {why}; trying again", err=True)
            quiet = False
        else:
            quiet = True
            if done["dispatched_tasks"]:
                click.echo(_said(done))
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), every)


class _Busy(Exception):
    """The server cannot do the pass now; a retry may succeed."""


async def _pass(access: Access) -> dict[str, Any]:
    import msgspec

    from backstay.protocol.versions import CONTROL_PLANE, CONTROL_PLANE_HEADER
    from backstay.sdk.remote.transport import refusal, said_by

    http = access.client()
    body = msgspec.json.encode({"sweep_owner": f"{socket.gethostname()[:200]}-{os.getpid()}"})
    try:
        reply = await http.post(PATH, body, ANSWER, f"{CONTROL_PLANE_HEADER}: {CONTROL_PLANE}\r\n")
    finally:
        http.close()
    if reply.status in (429, 502, 503, 504):
        raise _Busy(said_by(reply).get("message") or f"HTTP {reply.status}")
    if reply.status != 200:
        raise refusal(reply, access)
    return said_by(reply)


def _said(done: dict[str, Any]) -> str:
    found = done["selected_existing_task_candidates"] + done["selected_missing_task_candidates"]
    return f"{found} candidates, {done['dispatched_tasks']} repaired" if found else "nothing to repair"
