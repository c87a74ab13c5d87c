"""A server, a worker and a client in one: what looks like an embedded Backstay and speaks HTTP in between."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, Self

from backstay import AsyncClient, AsyncWorker
from backstay.server.http.app import App
from backstay.server.http.serve import HttpServer, listen
from backstay.server.server import Server
from backstay.server.settings import Settings

from ..many_nodes import Chosen, ManyNodes, looks_inside, store_of
from ..sdk.kit import eventually

TOKEN = "secret"


class House:
    """A real server on a free port, in this process; or several of them behind one address, see `many_nodes`."""

    def __init__(self, store: str = ":memory:", port: int = 0, **settings: Any) -> None:
        many = Chosen.shape.many
        self.settings = Settings(
            store=store_of(store) if many else f"sqlite:{store}", port=port, token=TOKEN, **settings
        )
        self._nodes = ManyNodes(self.settings, Chosen.shape) if many else None

    async def __aenter__(self) -> Self:
        if self._nodes is not None:
            await self._nodes.__aenter__()
            self.servers, self.url = self._nodes.servers, self._nodes.url
            return self
        server = Server(self.settings)
        await server.__aenter__()
        self.servers = [server]
        self._http = HttpServer(App(server))
        (self.url,) = await self._http.listen(listen(self.settings))
        return self

    @property
    def server(self) -> Server:
        return self.servers[0] if self._nodes is None else looks_inside("the server")

    async def __aexit__(self, *_: object) -> None:
        if self._nodes is not None:
            await self._nodes.__aexit__()
            return
        self._http.drain()
        await self._http.close()
        await self.server.__aexit__()


class Remote(AsyncClient):
    """The same as `AsyncBackstay(":memory:", things)`, over HTTP."""

    def __init__(self, *things: Any, queues: Any = ("default",), limits: Any = None, **options: Any) -> None:
        self._things = things
        self._worker_options = options
        self._queues = sorted(queues)
        self.namespace = "default"

    async def __aenter__(self) -> Self:
        self.house = await House().__aenter__()
        try:
            self.worker = AsyncWorker(
                self.house.url, self._things, queues=self._queues, token=TOKEN, drain=0.3, **self._worker_options
            )
            await self.worker.__aenter__()
            await eventually(self._served, "the worker has a link to every node")
        except BaseException:
            await self.house.__aexit__()
            raise
        super().__init__(self.house.url, token=TOKEN, exceptions=self.worker.registry.exceptions)
        return self

    def _served(self) -> bool:
        """Whether the worker has its links: to every node that has told it an address."""
        served = [server for server in self.house.servers if list(server.worker_links)]
        return len(served) == (len(self.house.servers) if Chosen.shape.links else 1)

    @property
    def executor(self) -> Any:
        return self.worker.executor

    @property
    def engine(self) -> Any:
        return self.house.server.engine

    @property
    def store(self) -> Any:
        return self.house.servers[0].store  # every node has the same rows

    async def __aexit__(self, *_: object) -> None:
        await self.worker.close()
        await self.close()
        await self.house.__aexit__()


def remote(*things: Any, **options: Any) -> Remote:
    return Remote(*things, **options)


def forgetful(*things: Any, **options: Any) -> Remote:
    """With a worker that keeps no live code: every task is a replay of all history."""
    return Remote(*things, live=0, **options)


def no_threads(app: Remote) -> None:
    """From now on every thread for activities is taken: the server has nowhere to send what is scheduled."""
    for desk in app.house.server.worker_links:
        desk.station.slots["activity"] = 0


def retold(module: ModuleType) -> dict[str, Any]:
    """The stories of a module of the SDK's tests, without those marked `embedded`, and their fixtures.

    Given to `globals().update` of another module they are collected there; `conftest.py` puts a server in between.
    """
    return {
        name: thing
        for name, thing in vars(module).items()
        if not name.startswith("__") and (_is_fixture(thing) or _is_story(name, thing))
    }


def _is_fixture(thing: object) -> bool:
    return hasattr(thing, "_fixture_function_marker") or hasattr(thing, "_pytestfixturefunction")


def _is_story(name: str, thing: Any) -> bool:
    marks = getattr(thing, "pytestmark", ())
    return (
        name.startswith("test_")
        and inspect.iscoroutinefunction(thing)
        and not any(mark.name == "embedded" for mark in marks)
    )
