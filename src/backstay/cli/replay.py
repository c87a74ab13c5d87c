"""`dw replay`: exported histories against the code of a file, without a database."""

from __future__ import annotations

from pathlib import Path

import click

from backstay.cli import options
from backstay.cli.problems import CliError, Unsuccessful

FILES = click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))


@click.command(name="replay")
@FILES
@options.app
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(files: tuple[Path, ...], app: Path, as_json: bool) -> None:
    """Replay exported runs with the code of --app, and show which of them the code does not fit.

    FILE is an export, or a folder with exports whose names end with `.json`. The command needs no database, and no
    activity runs. An open run is replayed to where it stands. Exit code 1: the code does not fit every run.

    \b
    Examples:
      dw export order-1 > order-1.json
      dw replay order-1.json --app shop.py
      dw replay tests/histories --app shop.py
    """
    import msgspec

    from backstay.cli.console import console
    from backstay.cli.differences import tell_blocked
    from backstay.cli.loading import judge_of, load
    from backstay.cli.progress import ProgressLine
    from backstay.sdk.replay.history_files import UnreadableHistory, files_of, read_run
    from backstay.sdk.replay.replayer import BlockedRun, Replayed, UnjudgedRun, counted

    judge = judge_of(load(app))
    out = console()
    blocked, unjudged = list[BlockedRun](), list[UnjudgedRun]()
    progress = ProgressLine("histories")
    try:
        found = [one for file in files for one in files_of(file)]
        for number, file in enumerate(found):
            progress("replayed", number, len(found))
            verdict = judge.judge(read_run(file, judge.machine))
            if isinstance(verdict, BlockedRun):
                blocked.append(verdict)
                if not as_json:
                    tell_blocked(out, verdict, str(file))
            elif verdict is not None:
                unjudged.append(verdict)
                if not as_json:
                    out.print(f"{file}: {verdict}", style="bold red", markup=False)
    except UnreadableHistory as problem:
        raise CliError(str(problem)) from None
    finally:
        progress.end()
        judge.close()
    if as_json:
        click.echo(msgspec.json.encode(Replayed(runs=len(found), blocked=blocked, unjudged=unjudged)))
    many = counted(len(found), "run")
    if blocked or unjudged:
        more = f", {len(unjudged)} could not be judged" if unjudged else ""
        raise Unsuccessful(f"{len(blocked)} of {many} would be blocked by {app}{more}")
    if not as_json:
        out.print(f"{many} replayed; none would be blocked", style="green")
