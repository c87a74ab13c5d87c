"""Text of others on a terminal: types, notes, reasons and ids come from anywhere, and may contain control sequences of
a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text without control characters, but with its lines and its indentation."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else " " for c in text)


def one_line(text: str) -> str:
    """The same on one line: an entry of a list cannot look like two."""
    return printable(text.replace("\n", " "))
