"""Imported first, it puts a server in between: `Backstay(...)` becomes a `dw server` process, a worker and a client of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any, Self

import backstay
from backstay import AsyncClient, AsyncWorker, Client, Worker
from backstay.sdk.worker.registry import Registry

TOKEN = "secret"
OF_WORKERS = (
    "namespace",
    "queues",
    "threads",
    "async_tasks",
    "types",
    "guard",
    "shims",
    "compatibility",
    "diagnostics",
)


class _Place:
    """The server of one opened app, and what its worker is told."""

    def __init__(self, path: Any, register: Iterable[Any], options: dict[str, Any]) -> None:
        unknown = options.keys() - {*OF_WORKERS, "grace", "cache_bytes"}
        assert not unknown, f"an app over HTTP cannot be told {unknown}"
        self.path: str = os.fspath(path)
        self.things = list(register)
        Registry(options.get("types"), options.get("guard", "warn")).register(self.things)  # mistakes are told at once
        self.options = {name: value for name, value in options.items() if name in OF_WORKERS}
        self.server: subprocess.Popen[str] | None = None
        self.url = ""

    def open(self) -> None:
        command = (sys.executable, "-m", "backstay.cli.main", "server", "--port", "0", "--token", TOKEN)
        store = ("--store", f"sqlite:{self.path}")
        self.server = subprocess.Popen([*command, *store], stdout=subprocess.PIPE, text=True)
        assert self.server.stdout is not None
        self.url = self.server.stdout.readline().split()[-1]

    def close(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            server.terminate()
            server.communicate()


class Backstay(Client):
    def __init__(self, path: Any = "backstay.db", register: Iterable[Any] = (), **options: Any) -> None:
        self._place = _Place(path, register, options)
        self._worker: Worker | None = None

    def open(self) -> Self:
        place = self._place
        place.open()
        self._worker = Worker(place.url, place.things, token=TOKEN, drain=1, **place.options)
        self._worker.__enter__()
        super().__init__(place.url, token=TOKEN, namespace=place.options.get("namespace", "default"))
        return self

    def close(self) -> None:
        if self._worker is not None:
            self._worker.__exit__(None, None, None)
            self._worker = None
            super().close()
            self._place.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncBackstay(AsyncClient):
    def __init__(self, path: Any = "backstay.db", register: Iterable[Any] = (), **options: Any) -> None:
        self._place = _Place(path, register, options)

    async def __aenter__(self) -> Self:
        place = self._place
        place.open()
        self._worker = AsyncWorker(place.url, place.things, token=TOKEN, drain=1, **place.options)
        await self._worker.__aenter__()
        super().__init__(place.url, token=TOKEN, namespace=place.options.get("namespace", "default"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._worker.close()
        await self.close()
        self._place.close()


backstay.Backstay = Backstay  # type: ignore[misc, assignment]
backstay.AsyncBackstay = AsyncBackstay  # type: ignore[misc, assignment]
