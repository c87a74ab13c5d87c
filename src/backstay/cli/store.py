"""`dw store copy`: move a database, open runs included, to another one."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backstay.cli.problems import CliError, Unsuccessful, as_problems
from backstay.cli.progress import ProgressLine

if TYPE_CHECKING:
    from backstay.store.copying.copier import CopyReport

SHOWN = 20  # of differences and damage


@click.group(name="store")
def command() -> None:
    """Copy and compare databases."""


@command.command(name="copy")
@click.argument("source")
@click.argument("target")
@click.option("--verify-only", is_flag=True, help="Compare both databases, and copy nothing.")
@click.option("--restart", is_flag=True, help="Discard an unfinished copy in TARGET, and start over.")
@click.option("--with-damaged", is_flag=True, help="Copy runs whose history is damaged, as they are.")
def copy(source: str, target: str, verify_only: bool, restart: bool, with_damaged: bool) -> None:
    """Copy the whole database SOURCE, with its open runs, into TARGET.

    SOURCE and TARGET are a path, sqlite:PATH or postgresql://…. SOURCE must not be in use; it is locked during the copy
    and does not change. TARGET must be new. Run the same command again to continue an interrupted copy. An unfinished
    TARGET cannot be opened by other programs. At the end the command reads and folds every history on both sides and
    compares the rows of workflows. It prints each workflow that differs, and exits with code 1.

    After the copy, start your processes on TARGET only: processes on SOURCE would do the same work again.

    \b
    Examples:
      dw store copy sqlite:app.db postgresql://backstay@db.internal/shop
      dw store copy app.db 'postgresql://backstay@db.internal/shop?schema=orders'
      dw store copy postgresql://backstay@db.internal/shop copy.db
      dw store copy --verify-only app.db postgresql://backstay@db.internal/shop
    """
    from backstay.store.copying.copier import DamagedSource

    _existing(source)
    if verify_only:
        _existing(target)
    began = time.monotonic()
    progress = ProgressLine("instances")
    try:
        with as_problems():
            report = asyncio.run(_copied(source, target, progress, verify_only, restart, with_damaged))
    except DamagedSource as damage:
        _list(damage.found)
        raise Unsuccessful(
            f"{damage}; restore it from a backup, or copy them as they are with --with-damaged"
        ) from None
    finally:
        progress.end()
    _tell(report, target, time.monotonic() - began, verify_only)


async def _copied(
    source: str, target: str, progress: ProgressLine, verify_only: bool, restart: bool, with_damaged: bool
) -> CopyReport:
    from backstay.engine.core.local_kinds import is_local
    from backstay.kernel.machine import Machine
    from backstay.store.copying.copier import Copier, open_end

    machine = Machine()
    there = await open_end(source, machine, create=False, unfinished=False)
    try:
        here = await open_end(target, machine, create=not verify_only, unfinished=True)
        try:
            copier = Copier(there, here, machine, progress, leaves_out=is_local)
            if verify_only:
                return await copier.compare()
            return await copier.copy(restart=restart, with_damaged=with_damaged)
        finally:
            await here.close()
    finally:
        await there.close()


def _existing(database: str) -> None:
    """Refuse a file that does not exist: opening it would make one. Databases on a server are not checked here."""
    from backstay.store.address import checked, is_server

    with as_problems():
        checked(database)
    if not is_server(database) and not Path(database.removeprefix("sqlite:")).exists():
        raise CliError(f"there is no database {database}; name a file that exists, or postgresql://…")


def _tell(report: CopyReport, target: str, seconds: float, verify_only: bool) -> None:
    from backstay.store.address import shown

    if report.discarded:
        click.echo("the unfinished copy was discarded, and all was copied anew")
    elif report.resumed:
        click.echo(f"continued an unfinished copy, which had {_number(report.resumed, 'instance')}")
    if report.damaged:
        click.echo("damaged, and the same on both sides:", err=True)
        _list(report.damaged)
    if report.differences:
        _list(report.differences)
        raise Unsuccessful(
            f"{_number(len(report.differences), 'difference')}; {shown(target)} is not the same database"
            + ("" if verify_only else " and stays closed: start over with --restart")
        )
    compared = _number(report.compared, "instance")
    if verify_only:
        click.echo(f"{compared}, every history and row is the same on both sides ({seconds:.1f} s)")
        return
    click.echo(f"{compared} copied and compared in {seconds:.1f} s")
    click.echo(
        f"start your processes on {shown(target)} now, and none on the source, where they would do the same work again"
    )


def _number(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _list(lines: list[str]) -> None:
    from backstay.cli.plain_text import printable

    for line in lines[:SHOWN]:
        click.echo(f"  {printable(line)}", err=True)
    if len(lines) > SHOWN:
        click.echo(f"  and {len(lines) - SHOWN:,} more", err=True)
