"""A server in a process of its own, and callers that mean it harm. Its memory is measured from outside."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

ADMIN = "admin-token"
PATIENCE = 30
MEGABYTE = 1_000_000
VERSIONS = {
    "X-Durable-Workflow-Control-Plane-Version": "2",
    "X-Durable-Workflow-Protocol-Version": "1.20",
    "X-Backstay-Protocol": "1",
}


class HostileCaller:
    """Calls the server `url`, whose process is `pid`."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = httpx.URL(url)
        self._process = psutil.Process(pid)
        self._before = self._most = 0
        self._over = threading.Event()
        self._looks = threading.Thread(target=self._look, daemon=True)
        self._looks.start()

    def _look(self) -> None:
        while not self._over.wait(0.01):
            self._most = max(self._most, self.memory)

    @property
    def memory(self) -> int:
        """Bytes of memory of the server's process."""
        try:
            return self._process.memory_info().rss
        except psutil.Error:
            return 0  # it has ended

    def begin(self) -> None:
        """Measure from now on."""
        self._before = self._most = self.memory

    @property
    def taken(self) -> int:
        """Bytes of memory by which the process has grown since `begin`, when that was the most."""
        self._most = max(self._most, self.memory)
        return self._most - self._before

    def close(self) -> None:
        self._over.set()
        self._looks.join()

    def call(self, method: str, path: str, body: Any = None, token: str = ADMIN, **options: Any) -> httpx.Response:
        headers = VERSIONS | {"Authorization": f"Bearer {token}"} | options.pop("headers", {})
        if body is not None:
            options["json"] = body
        return httpx.request(method, f"{self.url}{path}", headers=headers, timeout=PATIENCE, **options)

    def client(self, token: str, **headers: str) -> httpx.Client:
        """A caller with one connection for many requests."""
        known = VERSIONS | {"Authorization": f"Bearer {token}"} | headers
        return httpx.Client(base_url=self.url, headers=known, timeout=PATIENCE)

    def made(self, path: str, body: Any, token: str = ADMIN, **options: Any) -> dict[str, Any]:
        answer = self.call("POST", path, body, token, **options)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    def team(self, name: str, *roles: str) -> list[str]:
        """A namespace with tokens that are bound to it."""
        self.made("/api/namespaces", {"name": name})
        return [self.made("/api/tokens", {"role": role, "namespace": name})["token"] for role in roles]

    def healthy(self) -> bool:
        return httpx.get(f"{self.url}/api/health", timeout=PATIENCE).status_code == 200

    def connect(self) -> socket.socket:
        made = socket.create_connection((self.url.host, self.url.port or 0), PATIENCE)
        made.settimeout(PATIENCE)
        return made


def until(true: Callable[[], bool], patience: float = PATIENCE) -> bool:
    deadline = time.monotonic() + patience
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def head(method: str, path: str, *lines: str, token: str | None = None) -> bytes:
    known = [f"{name}: {value}" for name, value in VERSIONS.items()]
    if token is not None:
        known.append(f"Authorization: Bearer {token}")
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: here", *known, *lines, "", "")).encode()


def sent(line: socket.socket, piece: bytes, most: int) -> int:
    """How many bytes the server takes of an endless stream of this piece, up to `most`."""
    count = 0
    try:
        while count < most:
            line.sendall(piece)
            count += len(piece)
    except (OSError, TimeoutError):
        pass
    return count


@contextmanager
def attacked(directory: Path, **settings: Any) -> Iterator[HostileCaller]:
    """A server with these settings. Whatever was done to it, it answers at the end, and leaves with 0."""
    variables = {f"DW_{name.upper()}": str(value) for name, value in settings.items()}
    with (directory / "log").open("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "backstay.cli.main", "server", "--port", "0"],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "DW_ADMIN_TOKEN": ADMIN, "DW_DRAIN_SECONDS": "2", **variables},
        )
        assert process.stdout is not None
        caller = HostileCaller(process.stdout.readline().split()[-1], process.pid)
        try:
            assert caller.healthy()
            caller.begin()
            yield caller
            assert caller.healthy(), "it serves on"
        finally:
            caller.close()
            gc.collect()  # sockets of the test
            process.terminate()
            process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, (directory / "log").read_text()
