"""The console that commands print to: colours only on a terminal, nothing is cut when piped, and no text can command it."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from backstay.cli.plain_text import printable


def console() -> Console:
    """Output as wide as the terminal; piped output is as wide as it needs to be, so that ids stay whole."""
    made = PlainTextConsole(highlight=False, soft_wrap=True, file=sys.stdout)
    if not made.is_terminal:
        made.width = 10_000
    return made


class PlainTextConsole(Console):
    """Prints text only: workflow types, log records and the like come from anywhere, and may contain control sequences
    of a terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
