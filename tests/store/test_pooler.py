"""A database server that is reached through pgbouncer, where the machine has it (Debian: the package `pgbouncer`)."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from backstay import AsyncBackstay, StoreError, activity, workflow
from tests.sdk.kit import eventually

PGBOUNCER = shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")

Pooled = Callable[[str], str]


@activity
def double(number: int) -> int:
    return 2 * number


@workflow
def doubled(number: int) -> int:
    return double(number)


@pytest.fixture
def pooled(postgresql_url: str) -> Iterator[Pooled]:
    """The URL of a pooler in a mode, before the server of the tests."""
    asked = urlsplit(postgresql_url)
    options = {name: values[0] for name, values in parse_qs(asked.query).items()}
    if "host" not in options:
        pytest.skip("the server of the tests is not one of this machine")
    started: list[subprocess.Popen[bytes]] = []
    places: list[Path] = []

    def start(mode: str) -> str:
        place = Path(tempfile.mkdtemp(prefix="hf-pooler-"))  # the folders of pytest are closed to others
        place.chmod(0o777)
        places.append(place)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = place / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\npostgres = host={options['host']} dbname=postgres user=postgres\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = any\npool_mode = {mode}\nlogfile = {place}/log\n"
        )
        who = ["-u", "nobody"] if os.getuid() == 0 else []
        assert PGBOUNCER is not None
        started.append(subprocess.Popen([PGBOUNCER, "-q", *who, str(settings)], stderr=subprocess.DEVNULL))
        asyncio.run(eventually(lambda: _answers(port), "the pooler is up"))
        return f"postgresql://postgres@127.0.0.1:{port}/postgres?schema={options['schema']}"

    yield start
    for process in started:
        process.terminate()
        process.wait()
    for place in places:
        shutil.rmtree(place)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


async def both(where: str, directly: str) -> None:
    async with AsyncBackstay(where, [doubled, double]) as engine:
        assert engine.engine.holder
        assert await engine.execute(doubled, "one", 1) == 2
        async with AsyncBackstay(where, [doubled, double]) as beside:
            assert not beside.engine.holder
            assert await beside.execute(doubled, "two", 2) == 4
        async with AsyncBackstay(directly, [doubled, double]) as beside:
            assert not beside.engine.holder, "the lock is one of the server's session"
            assert await beside.handle(doubled, "two").result() == 4, "and the schema is the one that was named"
    async with AsyncBackstay(where, [doubled, double]) as later:
        assert later.engine.holder, "a session goes back to the pool without its locks"


def test_a_pooler_in_session_mode_is_like_the_server(pooled: Pooled, postgresql_url: str) -> None:
    asyncio.run(both(pooled("session"), postgresql_url))


def test_a_pooler_in_transaction_mode_is_refused(pooled: Pooled) -> None:
    async def opened() -> None:
        async with AsyncBackstay(pooled_url, [doubled, double]):
            pass

    pooled_url = pooled("transaction")
    for _ in range(2):
        with pytest.raises(StoreError, match="session mode"):
            asyncio.run(opened())
