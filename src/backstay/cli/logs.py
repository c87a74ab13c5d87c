"""Logging of long-running commands: a record begins at the margin, and no text in it can look like another record.

What callers send may be part of what is said. Control characters in it are shown as what they are, and every line of a
record but its first is indented.
"""

from __future__ import annotations

import logging

_SHOWN = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"} | {
    code: f"\\u{code:04x}" for code in (0x2028, 0x2029)
}


class LogFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).translate(_SHOWN).replace("\n", "\n    ")


def log_to_stderr(level: int) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
