"""The console that commands print to: colours only on a terminal, and nothing is cut when piped."""

from __future__ import annotations

import sys

from rich.console import Console


def console() -> Console:
    """Output as wide as the terminal; piped output is as wide as it needs to be, so that ids stay whole."""
    made = Console(highlight=False, soft_wrap=True, file=sys.stdout)
    if not made.is_terminal:
        made.width = 10_000
    return made
