"""Imported first, it puts a server in between: `Backstay(...)` becomes a worker and a client of the server `DOCS_SERVER`.

A database of the program is a namespace there, so programs share the server and see nothing of each other.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import backstay
from backstay import AsyncClient, AsyncWorker, Client, Worker
from backstay.sdk.worker.registry import Registry

TOKEN = os.environ["DOCS_TOKEN"]
VERSION = {"X-Durable-Workflow-Control-Plane-Version": "2"}
OF_WORKERS = (
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
    """What an app that is opened finds at the server: its namespace, and what its worker is told."""

    def __init__(self, path: Any, register: Iterable[Any], options: dict[str, Any]) -> None:
        unknown = options.keys() - {*OF_WORKERS, "grace", "cache_bytes"}
        assert not unknown, f"an app over HTTP cannot be told {unknown}"
        self.url = os.environ["DOCS_SERVER"]
        self.namespace = f"docs-{sha256(_database(path).encode()).hexdigest()[:16]}"
        self.things = list(register)
        Registry(options.get("types"), options.get("guard", "warn")).register(self.things)  # mistakes are told at once
        self.options = {name: value for name, value in options.items() if name in OF_WORKERS}
        self.options |= {"namespace": self.namespace, "token": TOKEN}

    def open(self) -> None:
        """A program that opens its database again has the namespace already."""
        if self.namespace not in {told["name"] for told in self._call("GET")["namespaces"]}:
            self._call("POST", {"name": self.namespace})

    def _call(self, method: str, body: dict[str, str] | None = None) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.url}/api/namespaces",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={**VERSION, "Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)


def _database(path: Any) -> str:
    return uuid4().hex if path == ":memory:" else str(Path(path).resolve())


class Backstay(Client):
    def __init__(self, path: Any = "backstay.db", register: Iterable[Any] = (), **options: Any) -> None:
        self._place = _Place(path, register, options)
        self._worker: Worker | None = None

    def open(self) -> Self:
        place = self._place
        place.open()
        self._worker = Worker(place.url, place.things, drain=1, **place.options)
        self._worker.__enter__()
        super().__init__(place.url, token=TOKEN, namespace=place.namespace)
        return self

    def close(self) -> None:
        if self._worker is not None:
            self._worker.__exit__(None, None, None)
            self._worker = None
            super().close()

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
        self._worker = AsyncWorker(place.url, place.things, drain=1, **place.options)
        await self._worker.__aenter__()
        super().__init__(place.url, token=TOKEN, namespace=place.namespace)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._worker.close()
        await self.close()


backstay.Backstay = Backstay  # type: ignore[misc, assignment]
backstay.AsyncBackstay = AsyncBackstay  # type: ignore[misc, assignment]
