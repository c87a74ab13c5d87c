"""PostgreSQL servers of a test's own, on this machine only: killed, started again, followed by a standby that is promoted."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import asyncpg

from .. import postgresql

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "16MB",
    "max_connections": "100",
    "wal_level": "replica",
    "max_wal_senders": "4",
    "wal_keep_size": "64MB",
    "hot_standby": "on",
    "autovacuum": "off",
    "log_min_messages": "fatal",
    "fsync": "on",
}
PATIENCE = 60.0
PGBOUNCER = shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Database:
    """One server that is written to, and maybe one that follows it. The URL names both: whoever is in charge gets the work."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self._settings = SETTINGS | (settings or {})
        self._place = Path(tempfile.mkdtemp(prefix="hf-db-"))
        self._programs = postgresql.binaries()
        if os.geteuid() == 0:
            os.chown(self._place, postgresql.NOBODY, postgresql.NOBODY)
            self._programs = postgresql._for_nobody(self._programs, self._place)
        self.ports = [free_port(), free_port()]
        self._servers: list[subprocess.Popen[Any] | None] = [None, None]
        self.primary = 0

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    @property
    def pid(self) -> int:
        server = self._servers[self.primary]
        assert server is not None
        return server.pid

    def create(self) -> None:
        data = self._data(0)
        self._run("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
        self.start()

    def start(self, number: int | None = None) -> None:
        """Start the server in charge, also after a crash."""
        number = self.primary if number is None else number
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        data = self._data(number)
        (data / "postmaster.pid").unlink(missing_ok=True)  # all its processes are gone: we killed them
        self._servers[number] = server = subprocess.Popen(
            [str(self._programs / "postgres"), "-D", str(data), "-p", str(self.ports[number]), *options],
            **postgresql._as_nobody(),
            cwd=self._place,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + PATIENCE
        while "ready" not in postgresql._status(data):
            assert server.poll() is None, "PostgreSQL has ended"
            assert time.monotonic() < deadline, "PostgreSQL did not come up"
            time.sleep(0.01)

    def kill(self, number: int | None = None) -> None:
        """End every process of a server at once, as a power cut does."""
        number = self.primary if number is None else number
        server = self._servers[number]
        if server is None:
            return
        server.send_signal(signal.SIGSTOP)  # nobody is started again meanwhile
        children = [int(pid) for pid in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()]
        for pid in (*children, server.pid):
            os.kill(pid, signal.SIGKILL)
        server.wait(PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while any(_runs(pid) for pid in children):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        self._servers[number] = None

    async def follow(self) -> None:
        """Start a standby. From here on no commit is answered before the standby has it."""
        number = 1 - self.primary
        data = self._data(number)
        shutil.rmtree(data, ignore_errors=True)
        source = f"host=127.0.0.1 port={self.ports[self.primary]} user=postgres application_name=standby"
        await asyncio.to_thread(
            self._run, "pg_basebackup", "-D", data, "-d", source, "-R", "-X", "stream", "-c", "fast"
        )
        await asyncio.to_thread(self.start, number)
        connection = await asyncpg.connect(self.url)
        try:
            while await connection.fetchval("select count(*) from pg_stat_replication where state = 'streaming'") < 1:
                await asyncio.sleep(0.02)
            await connection.execute("alter system set synchronous_standby_names = 'standby'")
            await connection.execute("select pg_reload_conf()")
            while await connection.fetchval("select count(*) from pg_stat_replication where sync_state = 'sync'") < 1:
                await asyncio.sleep(0.02)
        finally:
            await connection.close()

    async def fail_over(self) -> None:
        """Kill the server in charge and put the standby in its place."""
        await asyncio.to_thread(self.kill)
        self.primary = 1 - self.primary
        connection = await asyncpg.connect(f"postgresql://postgres@127.0.0.1:{self.ports[self.primary]}/postgres")
        try:
            assert await connection.fetchval("select pg_promote()")
            await connection.execute("alter system reset synchronous_standby_names")
            await connection.execute("select pg_reload_conf()")
        finally:
            await connection.close()

    def end(self) -> None:
        for number in (0, 1):
            self.kill(number)
        shutil.rmtree(self._place, ignore_errors=True)

    def _data(self, number: int) -> Path:
        return self._place / f"data-{number}"

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(self._programs / program), *map(str, arguments)]
        subprocess.run(command, check=True, **postgresql._as_nobody(), cwd=self._place, stdout=subprocess.DEVNULL)


class Pooler:
    """pgbouncer before a server, where the machine has it (Debian: the package `pgbouncer`)."""

    def __init__(self, database: Database, mode: str) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="hf-pooler-"))
        self._place.chmod(0o777)  # it does not run as root
        self._port, self._mode = free_port(), mode
        self._settle(database)
        who = ["-u", "nobody"] if os.getuid() == 0 else []
        assert PGBOUNCER is not None
        command = [PGBOUNCER, "-q", *who, str(self._place / "pgbouncer.ini")]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self.url = f"postgresql://postgres@127.0.0.1:{self._port}/postgres?"

    def follow(self, database: Database) -> None:
        """Another server is in charge, as who operates a pooler tells it after a failover."""
        self._settle(database)
        self._process.send_signal(signal.SIGHUP)

    def _settle(self, database: Database) -> None:
        server = f"host=127.0.0.1 port={database.ports[database.primary]} dbname=postgres user=postgres"
        (self._place / "pgbouncer.ini").write_text(
            f"[databases]\npostgres = {server}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self._port}\n"
            f"unix_socket_dir =\nauth_type = any\npool_mode = {self._mode}\ndefault_pool_size = 80\n"
            f"max_client_conn = 200\nlogfile = {self._place}/log\n"
        )

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)
        shutil.rmtree(self._place, ignore_errors=True)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False
