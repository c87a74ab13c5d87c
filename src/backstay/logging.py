"""Logs of a process that runs Backstay: text for people, or JSON for a collector, with one object per line.

`dw server` and `dw worker` log like this. A program of your own calls `log_to_stderr()`, or gives `json_formatter()` to
a handler of its own.
"""

from __future__ import annotations

import logging
import os

from backstay.sdk.json_logs import JsonFormatter

__all__ = ["LogFormatter", "json_formatter", "log_to_stderr"]

VARIABLE = "DW_LOG_FORMAT"

_SHOWN = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"} | {
    code: f"\\u{code:04x}" for code in (0x2028, 0x2029)
}


class LogFormatter(logging.Formatter):
    """A formatter of text whose records begin at the margin, so that no text in one can look like another.

    Messages may contain text of callers. Control characters in it are shown as what they are, and every line of a
    record but its first is indented.
    """

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).translate(_SHOWN).replace("\n", "\n    ")


def json_formatter() -> logging.Formatter:
    """Return a formatter that writes each record as one line of JSON, with the ids of its run, step, attempt and trace.

    `logging.config.dictConfig` takes it as `{"()": "backstay.logging.json_formatter"}`.
    """
    return JsonFormatter()


def log_to_stderr(level: int = logging.INFO, form: str | None = None) -> None:
    """Log to stderr as text or as JSON. The default of `form` is the variable DW_LOG_FORMAT, else text.

    Like `logging.basicConfig`, it does nothing if the program has configured its log already.
    """
    wanted = form or os.environ.get(VARIABLE) or "text"
    if wanted not in ("text", "json"):
        raise ValueError(f"{VARIABLE} is {wanted!r}; use text or json")
    handler = logging.StreamHandler()
    text = LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(json_formatter() if wanted == "json" else text)
    logging.basicConfig(level=level, handlers=[handler])
