"""The process that `dw dev` runs: imports the file, works on its runs, ends on a save or a signal.

Every reload is a new process, so that no state of the old code is left. Runs are in the database: the next process goes
on where this one ended. This process is a worker of the server that `dw dev` is, and ends with it, because it could not
report any more.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.text import Text

from backstay.cli.console import console
from backstay.cli.dev_console import log_to, say
from backstay.cli.dev_plan import RELOAD, DevPlan, told
from backstay.cli.dev_worker import work
from backstay.cli.file_watch import FileWatch
from backstay.cli.loading import Program, load, module_name, near
from backstay.cli.problems import CliError, as_problems
from backstay.store.address import shown

LOOK = 0.1
SETTLE = 0.05  # an editor may still be writing
GRACE = 3.0  # for code that does not return, before it is cut off


class ProcessEnd:
    """Why this process ends, and with which exit code. Plain attributes: set by signal handlers and by another thread."""

    code: int | None = None
    why = ""

    def end(self, code: int, why: str = "") -> None:
        if self.code is None:
            self.why = why
            self.code = code

    @property
    def is_near(self) -> bool:
        return self.code is not None


def run(plan: DevPlan) -> int:
    out = console()
    ending = ProcessEnd()
    _listen(ending)
    source = Path(plan.file)
    watch = _watch(source, plan, ending)
    log_to(out, logging.INFO)
    try:
        program = load(source)
        saved = watch.look()  # from here on, a save of anything it has imported is seen
    except CliError as problem:
        out.print(Text(problem.message, "bold red"))
        out.print("waiting for the next save; Ctrl-C stops", style="bright_black")
        return _wait(ending, out)
    if saved is not None:  # while it was imported: what was loaded may be the text from before
        ending.end(RELOAD, f"{near(saved)} was saved; reloading")
        _say_why(ending, out)
        return RELOAD
    _greet(program, plan, out)
    try:
        with as_problems():
            _work(program, plan, ending, out)
    except CliError as problem:
        print(f"dw: {problem.message}", file=sys.stderr)
        return 2
    _say_why(ending, out)
    return ending.code or 0


def _work(program: Program, plan: DevPlan, ending: ProcessEnd, out: Console) -> None:
    def is_over() -> bool:
        return ending.is_near

    def ready() -> None:
        _say_ready(program, out)

    work(program, plan, is_over, ready)


def _greet(program: Program, plan: DevPlan, out: Console) -> None:
    out.print(Text.assemble((f"{near(program.file)}", "bold"), "  on  ", (shown(plan.path), "bold")))
    out.print(f"  workflows   {', '.join(program.workflows) or 'none'}", markup=False)
    out.print(f"  activities  {', '.join(program.activities) or 'none'}", markup=False)
    for hint in program.hints:
        out.print(Text(f"  warning: {hint}", "yellow"))
    if plan.open_runs is not None:
        out.print(plan.open_runs, style="cyan")


def _say_ready(program: Program, out: Console) -> None:
    name = next(iter(program.names), None)
    begin = "" if name is None else f"; start one with: dw start {near(program.file)}:{name} ID [JSON ARGS]"
    out.print(f"ready{begin}", style="green", markup=False)


def _wait(ending: ProcessEnd, out: Console) -> int:
    while not ending.is_near:
        time.sleep(LOOK)
    _say_why(ending, out)
    return ending.code or 0


def _say_why(ending: ProcessEnd, out: Console) -> None:
    if ending.why:
        say(out, ending.why, "cyan")


def _listen(ending: ProcessEnd) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        if ending.is_near and number == signal.SIGINT:
            os._exit(130)  # a second Ctrl-C: exit at once
        ending.end(0)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by the parent of this process


def _watch(file: Path, plan: DevPlan, ending: ProcessEnd) -> FileWatch:
    """Watch for saves on a thread, because the main one may be stuck in the file's own code; if it is, exit without waiting."""
    watch = FileWatch(file, module_name(file)[1])

    def look() -> None:
        while not ending.is_near:
            time.sleep(LOOK)
            saved = watch.look()
            if saved is not None:
                time.sleep(SETTLE)
                watch.look()
                ending.end(RELOAD, f"{near(saved)} was saved; reloading")
            elif os.getppid() != plan.parent:  # the `dw dev` that started this process is gone
                os._exit(0)  # whatever still runs has no server to report to, and the next worker has our name
        time.sleep(GRACE)
        os._exit(ending.code or 0)

    threading.Thread(target=look, name="dw-watch", daemon=True).start()
    return watch


def main() -> None:
    sys.exit(run(told(sys.argv[1])))


if __name__ == "__main__":
    main()
