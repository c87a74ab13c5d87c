"""Logging of long-running commands: a record begins at the margin, and no text in it can look like another record.

Messages may contain text of callers. Control characters in it are shown as what they are, and every line of a
record but its first is indented.
"""

from __future__ import annotations

import logging

from backstay.sdk.json_logs import JsonFormatter

_SHOWN = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"} | {
    code: f"\\u{code:04x}" for code in (0x2028, 0x2029)
}


class LogFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).translate(_SHOWN).replace("\n", "\n    ")


def log_to_stderr(level: int, form: str = "text") -> None:
    """Log to stderr, as text for people or as JSON for a collector."""
    handler = logging.StreamHandler()
    text = LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    logging.basicConfig(level=level, handlers=[handler])
