"""The process that `dw dev` runs: imports the file, runs engine and worker on it, prints events, ends on a save or a signal.

Every reload is a new process, so that no state of the old code is left. Runs are in the database: the next process goes
on where this one ended.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.text import Text

from backstay.cli import format
from backstay.cli.console import console
from backstay.cli.dev_events import EventFeed
from backstay.cli.file_watch import FileWatch
from backstay.cli.loading import Program, load, module_name, near
from backstay.cli.problems import CliError, as_problems
from backstay.cli.reading import StoreReader
from backstay.sdk.embedded import Backstay
from backstay.store.address import shown

RELOAD = 75  # exit code: a file was saved, start again
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


def run(file: str, path: str, namespace: str, queues: list[str]) -> int:
    out = console()
    ending = ProcessEnd()
    _listen(ending)
    source = Path(file)
    watch = _watch(source, ending)
    _log_to(out)
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
    try:
        with as_problems():
            _serve(program, path, namespace, queues, ending, out)
    except CliError as problem:
        print(f"dw: {problem.message}", file=sys.stderr)
        return 2
    _say_why(ending, out)
    return ending.code or 0


def _serve(program: Program, path: str, namespace: str, queues: list[str], ending: ProcessEnd, out: Console) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # loading has told them as hints
        backstay = Backstay(
            path, program.things, namespace=namespace, queues=program.queues.union(queues), types=program.types
        )
    with StoreReader(path, create=True) as reader:
        stream = EventFeed(reader, namespace, out)
        stream.remember()
        with backstay:
            _greet(program, backstay, out)
            stream.begin()
            waiting = not backstay.is_engine
            while not ending.is_near:
                stream.look()
                if waiting and backstay.is_engine:
                    waiting = False
                    out.print("the other engine is gone; this one has taken over", style="green")
                time.sleep(LOOK)
        stream.look()


def _greet(program: Program, backstay: Backstay, out: Console) -> None:
    out.print(Text.assemble((f"{near(program.file)}", "bold"), "  on  ", (shown(backstay.path), "bold")))
    out.print(f"  workflows   {', '.join(program.workflows) or 'none'}", markup=False)
    out.print(f"  activities  {', '.join(program.activities) or 'none'}", markup=False)
    for hint in program.hints:
        out.print(Text(f"  warning: {hint}", "yellow"))
    if not backstay.is_engine:
        out.print(
            f"another process{_engine_pid(backstay.path)} is the engine of this database;"
            " this one takes over when it ends",
            style="yellow",
            markup=False,
        )
    name = next(iter(program.names), None)
    begin = "" if name is None else f"; start one with: dw start {near(program.file)}:{name} ID [JSON ARGS]"
    out.print(f"ready{begin}", style="green", markup=False)


def _engine_pid(path: str) -> str:
    try:
        return f" (pid {int(Path(f'{path}-engine').read_text())})"
    except (OSError, ValueError):
        return ""


def _wait(ending: ProcessEnd, out: Console) -> int:
    while not ending.is_near:
        time.sleep(LOOK)
    _say_why(ending, out)
    return ending.code or 0


def _say_why(ending: ProcessEnd, out: Console) -> None:
    if ending.why:
        out.print(Text(f"{format.clock(format.now())}  {ending.why}", "cyan"))


def _listen(ending: ProcessEnd) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        if ending.is_near and number == signal.SIGINT:
            os._exit(130)  # a second Ctrl-C: exit at once
        ending.end(0)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)


def _watch(file: Path, ending: ProcessEnd) -> FileWatch:
    """Watch for saves on a thread, because the main one may be stuck in the file's own code; if it is, exit without waiting."""
    watch = FileWatch(file, module_name(file)[1])
    parent = os.getppid()

    def look() -> None:
        while not ending.is_near:
            time.sleep(LOOK)
            saved = watch.look()
            if saved is not None:
                time.sleep(SETTLE)
                watch.look()
                ending.end(RELOAD, f"{near(saved)} was saved; reloading")
            elif os.getppid() != parent:
                ending.end(0)  # the `dw dev` that started this process is gone
        time.sleep(GRACE)
        os._exit(ending.code or 0)

    threading.Thread(target=look, name="dw-watch", daemon=True).start()
    return watch


class _Handler(logging.Handler):
    """Prints log records between the events."""

    def __init__(self, out: Console) -> None:
        super().__init__()
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        style = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "bold red"}.get(record.levelname, "")
        whose = getattr(record, "workflow_id", "")
        line = Text(f"{format.clock(format.now())}  ", "bright_black")
        line.append("  " + (f"{whose}  " if whose else ""), "bold")
        line.append(self.format(record), style)
        self._out.print(line)


def _log_to(out: Console) -> None:
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    root.addHandler(_Handler(out))
    # Failures and blocked runs are printed from the database, including those of an earlier process.
    logging.getLogger("backstay.worker").addFilter(lambda record: "is blocked: " not in record.getMessage())
    logging.getLogger("backstay.failures").addFilter(lambda record: hasattr(record, "update_name"))
    logging.getLogger("backstay.engine").setLevel(logging.WARNING)


def main() -> None:
    file, path, namespace, *queues = sys.argv[1:]
    sys.exit(run(file, path, namespace, queues))


if __name__ == "__main__":
    main()
