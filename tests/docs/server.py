"""The one `dw server` of a test session that programs of the documentation share, each database of theirs as a namespace.

`python -m tests.docs.server PID DIRECTORY` keeps it until the process PID, which runs the tests, has ended; see `tests/session.py`.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

from .. import session

TOKEN = "secret"


def shared() -> dict[str, str]:
    """What a program has to know of the server of this session, which is started if it does not run yet."""
    told = session.shared("tests.docs.server", "-docs")
    assert told.startswith("http://"), told
    return {"DOCS_SERVER": told, "DOCS_TOKEN": TOKEN}


def supervise(keeper: int, directory: Path) -> None:
    gone = os.pidfd_open(keeper)
    command = (sys.executable, "-P", "-m", "backstay.cli.main", "server", "--port", "0", "--token", TOKEN)
    store = ("--store", f"sqlite:{directory / 'docs.db'}")
    with subprocess.Popen([*command, *store], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        (directory / "starting").write_text(server.stdout.readline().split()[-1])
        (directory / "starting").rename(directory / "told")
        select.select([gone], [], [])
        server.terminate()
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    supervise(int(sys.argv[1]), Path(sys.argv[2]))
