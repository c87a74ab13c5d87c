"""The modules of Waterline are typed, with JSDoc. TypeScript checks that, on machines that have npm; nothing else needs it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def compiler() -> Path | None:
    """TypeScript, as `make` installs it beside the tools of Python."""
    found = Path(sys.prefix) / "typescript" / "node_modules" / ".bin" / "tsc"
    return found if found.exists() else None


@pytest.mark.skipif(compiler() is None or shutil.which("node") is None, reason="there is no TypeScript here: no npm")
def test_the_modules_are_typed() -> None:
    checked = subprocess.run([str(compiler()), "-p", str(HERE)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
