"""What `dw dev` prints beside the events of runs: log records, lines with the time in front, and the process that is
the engine."""

from __future__ import annotations

import logging
from pathlib import Path

from rich.console import Console
from rich.text import Text

from backstay.cli import format

TAKEN_OVER = "the other engine is gone; this one has taken over"


def other_engine(path: str) -> str:
    try:
        pid = f" (pid {int(Path(f'{path}-engine').read_text())})"
    except (OSError, ValueError):
        pid = ""
    return f"another process{pid} is the engine of this database; this one takes over when it ends"


def say(out: Console, text: str, style: str) -> None:
    out.print(Text(f"{format.clock(format.now())}  {text}", style))


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


def log_to(out: Console, level: int) -> None:
    root = logging.getLogger()
    root.setLevel(level)
    root.addHandler(_Handler(out))
    # Failures and blocked runs are printed from the database, including those of an earlier process.
    logging.getLogger("backstay.worker").addFilter(lambda record: "is blocked: " not in record.getMessage())
    logging.getLogger("backstay.failures").addFilter(lambda record: hasattr(record, "update_name"))
    logging.getLogger("backstay.engine").setLevel(logging.WARNING)
