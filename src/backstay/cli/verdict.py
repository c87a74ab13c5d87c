"""`dw verdict`: which open runs of a database or server the code of a file would block, before it is deployed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backstay.cli import options
from backstay.cli.problems import CliError, Unsuccessful, as_problems

if TYPE_CHECKING:
    from rich.console import Console

    from backstay.cli.loading import Program
    from backstay.sdk.client.client import AsyncClient
    from backstay.sdk.replay.verdict import Difference, Verdict

SAVED_EVERY = 2.0  # seconds


@click.command(name="verdict")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@options.app
@options.place
@options.namespace
@click.option("--type", "type_", metavar="TYPE", help="Judge runs of this workflow type only.")
@click.option(
    "--rollback",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Judge the same runs with this code, too: the one that a rollback would bring back.",
)
@click.option(
    "--state",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the progress in FILE, and go on from it if the command was interrupted.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def command(
    ids: tuple[str, ...],
    app: Path,
    path: options.Place,
    namespace: str,
    type_: str | None,
    rollback: Path | None,
    state: Path | None,
    as_json: bool,
) -> None:
    """Replay open runs, all or those of each ID, with the code of --app, and say which of them the code would block.

    Run it before you deploy, beside the running engine: it writes nothing to the database and runs no activity. Runs
    that would be blocked are grouped by their difference, each group with an example and, where one helps, the
    `patched()` line that would keep its runs. Runs that start meanwhile are not judged. Exit code 1: at least one run
    would be blocked, or could not be judged; with --rollback, by either code.

    \b
    Examples:
      dw verdict --app shop.py
      dw verdict --app shop.py --db postgresql://backstay@db.internal/shop --state verdict.json
      dw verdict --app shop.py --rollback v1/shop.py --server http://127.0.0.1:8080
      dw verdict order-1 order-2 --app shop.py --json
    """
    import msgspec

    from backstay.cli.console import console
    from backstay.cli.loading import load

    if state is not None and ids:
        raise CliError("--state is for a verdict on all open runs; leave the IDs out")
    if not isinstance(path, options.ServerAt):
        options.existing(path)
    program = load(app)
    verdict = _begun(state, program, type_)
    with as_problems():
        asyncio.run(_judged(program, verdict, ids, path, namespace, type_, state))
    before = None if rollback is None else _of_rollback(rollback, ids, path, namespace, type_)
    if as_json:
        click.echo(msgspec.json.encode({"app": told(verdict), "rollback": None if before is None else told(before)}))
    else:
        out = console()
        _tell(out, verdict)
        if before is not None:
            out.print(f"\nAfter a rollback to {rollback}:", markup=False)
            _tell(out, before)
    if not verdict.fits:
        raise Unsuccessful(f"{app} does not fit every open run: {verdict}")
    if before is not None and not before.fits:
        raise Unsuccessful(f"{app} fits every open run; a rollback to {rollback} would not: {before}")


def told(verdict: Verdict) -> dict[str, object]:
    """A verdict as plain values, with what follows from its counts."""
    import msgspec

    return {**msgspec.to_builtins(verdict), "fit": verdict.fit, "fits": verdict.fits}


async def _judged(
    program: Program,
    verdict: Verdict,
    ids: tuple[str, ...],
    path: options.Place,
    namespace: str,
    type_: str | None,
    state: Path | None,
) -> None:
    from backstay.cli.loading import judge_of
    from backstay.cli.progress import ProgressLine
    from backstay.sdk.replay.verdict import count_open_runs, judge_open_runs

    judge = judge_of(program)
    progress = ProgressLine("open runs")
    saved = time.monotonic()

    def after_each(now: Verdict) -> None:
        nonlocal saved
        if not now.finished:
            progress("judged", min(now.runs, total), total)
        if state is not None and (now.finished or time.monotonic() - saved > SAVED_EVERY):
            saved = time.monotonic()
            _save(state, now)

    async with client_at(path, namespace) as client:
        total = len(ids) or await count_open_runs(client, type_)
        try:
            await judge_open_runs(client, judge, verdict, type=type_, ids=ids, after_each=after_each)
        finally:
            if state is not None:
                _save(state, verdict)
            progress.end()
            judge.close()


@asynccontextmanager
async def client_at(path: options.Place, namespace: str) -> AsyncGenerator[AsyncClient]:
    """A client of a server, or one that reads a database and takes no lock."""
    from backstay.sdk.client.client import AsyncClient

    if isinstance(path, options.ServerAt):
        async with AsyncClient(path.url, token=path.token, namespace=namespace) as client:
            yield client
        return
    from backstay.sdk.embedded.reading import reading

    async with reading(path) as (transport, _):
        yield AsyncClient(transport, namespace=namespace)


# -- going on


def _begun(state: Path | None, program: Program, type_: str | None) -> Verdict:
    """The verdict to go on with: that of the file if it was interrupted, and if the same code began it."""
    import msgspec

    from backstay.sdk.replay.verdict import Verdict

    code = sha256(program.file.read_bytes())
    for name, definition in sorted(program.workflows.items()):
        code.update(f"{name} {definition.fingerprint}\n".encode())
    code.update(f"{type_}".encode())
    new = Verdict(code=code.hexdigest())
    if state is None or not state.exists():
        return new
    try:
        found = msgspec.json.decode(state.read_bytes(), type=Verdict)
    except (OSError, msgspec.MsgspecError) as error:
        raise CliError(f"{state} is no state of a verdict: {error}; name another file") from None
    if found.finished or found.code != new.code:
        return new
    click.echo(f"going on after {found.runs:,} open runs, as {state} says", err=True)
    return found


def _save(state: Path, verdict: Verdict) -> None:
    import msgspec

    from backstay.private_files import write_private

    unfinished = state.with_name(f"{state.name}.part")
    try:
        with write_private(unfinished) as file:
            file.write(msgspec.json.encode(verdict))
        unfinished.replace(state)
    except OSError as error:
        raise CliError(f"{state} cannot be written: {error.strerror}") from None


# -- a rollback


def _of_rollback(file: Path, ids: tuple[str, ...], path: options.Place, namespace: str, type_: str | None) -> Verdict:
    """The verdict of other code, in a process of its own: its modules have the same names as those of the new code."""
    import msgspec

    from backstay.sdk.replay.verdict import Verdict

    at = ["--server", path.url] if isinstance(path, options.ServerAt) else ["--db", path]
    environment = dict(os.environ)
    environment.pop("DW_SERVER", None)
    if isinstance(path, options.ServerAt) and path.token is not None:
        environment["DW_TOKEN"] = path.token
    only = [] if type_ is None else ["--type", type_]
    how = ["--namespace", namespace, "--json"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "backstay.cli.main", "verdict", *ids, "--app", str(file), *at, *only, *how],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode not in (0, 1) or not done.stdout:
        raise CliError(f"{file} could not be judged: {done.stderr.strip()}")
    return msgspec.convert(msgspec.json.decode(done.stdout)["app"], Verdict)


# -- what is printed


def _tell(out: Console, verdict: Verdict) -> None:
    from backstay.sdk.replay.replayer import counted

    for difference in sorted(verdict.differences, key=lambda one: -one.runs):
        _tell_difference(out, difference)
    if verdict.other_blocked:
        out.print(f"{counted(verdict.other_blocked, 'other run')} would be blocked in other ways", style="bold red")
    for reason in verdict.reasons:
        out.print(
            f"{counted(reason.runs, 'run')} of {reason.workflow_type} could not be judged, for example"
            f" {reason.example}: {reason.message}",
            style="bold yellow",
            markup=False,
        )
    if verdict.ended:
        out.print(f"{counted(verdict.ended, 'run')} ended meanwhile", style="bright_black")
    out.print(str(verdict), style="green" if verdict.fits else "bold red", markup=False)


def _tell_difference(out: Console, found: Difference) -> None:
    from backstay.cli.differences import side_by_side
    from backstay.sdk.replay.replayer import counted

    out.print(
        f"{counted(found.runs, 'run')} of {found.workflow_type} would be blocked, for example {found.example}:"
        f" {found.message}",
        style="bold red",
        markup=False,
    )
    if found.place is not None:
        out.print(f"  {found.place}: {found.place.text}", markup=False)
    if found.difference:
        out.print(side_by_side(found.difference))
    if found.hint is not None:
        tried = f"This keeps {found.example}, as a trial showed" if found.hint.tried else "This would keep such runs"
        out.print(f"  {tried}:", markup=False)
        for line in found.hint.lines:
            out.print(f"    {line}", markup=False, style="bright_black" if line.endswith("...") else "")
    out.print()
