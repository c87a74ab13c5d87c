"""pgbouncer before the server of the tests, where the machine has it (Debian: the package `pgbouncer`)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

PGBOUNCER = shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))

SESSIONS = 3
"""Of the server, in transaction mode: fewer than clients, so that they meet each other's."""


def server_of(url: str) -> str | None:
    """The directory of the socket of a server of this machine."""
    return parse_qs(urlsplit(url).query).get("host", [None])[0]


class StorePooler:
    """One pgbouncer. `url` has no schema."""

    def __init__(self, server: str, mode: str) -> None:
        assert PGBOUNCER is not None
        self._place = Path(tempfile.mkdtemp(prefix="hf-pooler-"))  # the folders of pytest are closed to others
        self._place.chmod(0o777)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = self._place / "pgbouncer.ini"
        size = f"default_pool_size = {SESSIONS}\n" if mode == "transaction" else ""
        settings.write_text(
            f"[databases]\npostgres = host={server} dbname=postgres user=postgres\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = any\npool_mode = {mode}\n{size}logfile = {self._place}/log\n"
        )
        who = ["-u", "nobody"] if os.getuid() == 0 else []
        self._process = subprocess.Popen([PGBOUNCER, "-q", *who, str(settings)], stderr=subprocess.DEVNULL)
        self.url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        end = time.monotonic() + 10
        while not _answers(port):
            assert time.monotonic() < end, "the pooler is up"
            time.sleep(0.01)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._place)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
