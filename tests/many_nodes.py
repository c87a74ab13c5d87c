"""The same tests against several nodes: servers of one PostgreSQL in one process, and a balancer that sends every request to any
of them.

`--nodes 3` puts them where a test has one server, `--links off` takes the links between them away, and `--sessions no` the
sessions that show who is alive. Without links our own workers keep to one node. A test that looks inside its server is skipped: there are several.

`python -m tests.many_nodes '{"store": …}'` runs them in a process of their own, with settings of a server.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self
from urllib.parse import urlsplit
from uuid import uuid4
from zlib import crc32

import msgspec
import pytest
from msgspec.structs import replace

from backstay.protocol.native import worker as wire
from backstay.server.http.app import App
from backstay.server.http.serve import HttpServer, addresses_of, listen
from backstay.server.server import Server
from backstay.server.settings import Settings

from . import postgresql
from .processes.balancer import Balancer
from .sdk.kit import eventually


class Shape(NamedTuple):
    """How many nodes there are, and what they have."""

    nodes: int = 1
    links: bool = True
    sessions: bool = True

    @property
    def many(self) -> bool:
        return self.nodes > 1

    def arguments(self) -> list[str]:
        return [str(self.nodes), str(int(self.links)), str(int(self.sessions))]

    @staticmethod
    def of(arguments: list[str]) -> Shape:
        nodes, links, sessions = map(int, arguments)
        return Shape(nodes, bool(links), bool(sessions))


class Chosen:
    """The shape that servers of tests have at present."""

    shape = Shape()


_numbers = count(1)
_session = uuid4().hex[:8]


def store_of(database: str | Path) -> str:
    """A schema of its own for each file that a test names; one in memory is always another."""
    name = str(database)
    known = f"{_session}_{next(_numbers)}" if name == ":memory:" else f"{crc32(name.encode()):08x}"
    try:
        url = postgresql.with_schema(postgresql.server_url(), f"nodes_{known}")
    except postgresql.NoServer as missing:
        pytest.skip(str(missing))
    return url if Chosen.shape.sessions else f"{url}&sessions=no"


def looks_inside(what: str) -> NoReturn:
    pytest.skip(f"looks at {what}, and there are several")


class ManyNodes:
    """Servers of one database, each on a port of its own, behind one address."""

    def __init__(self, settings: Settings, shape: Shape) -> None:
        self._settings = settings
        self._shape = shape
        # The state of a worker's link is in one node, and without links no other node can hand its requests on.
        keeps = () if shape.links else (wire.OPEN, wire.EXCHANGE, wire.HISTORY, wire.CLOSE)
        self._balancer = Balancer("/api/health", at_random=True, keeps=keeps)
        self._places: dict[str, tuple[str, int]] = {}
        self._https: list[HttpServer] = []
        self.servers: list[Server] = []

    async def __aenter__(self) -> Self:
        try:
            await self._open_all()
        except BaseException:
            await self._close_nodes()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._balancer.stop()
        await self._close_nodes()

    async def _open_all(self) -> None:
        places = self._places
        for number in range(self._shape.nodes):
            place = urlsplit(await self._open_node())
            places[f"node-{number + 1}"] = place.hostname or "", place.port or 0
        await eventually(self._shared, "the nodes shared the instances")
        self._balancer.set_nodes(places)
        await self._balancer.start(self._settings.port)
        self.url = self._balancer.url
        await eventually(lambda: all(map(self._balancer.is_ready, places)), "the nodes were ready")

    def move_workers(self) -> None:
        """Without links: all connections are lost, and workers come to the last node from now on."""
        self._balancer.set_nodes(dict(reversed(self._places.items())))
        self._balancer.cut()

    async def _open_node(self) -> str:
        settings = replace(self._settings, port=0, host="127.0.0.1")
        sockets = listen(settings)
        (address,) = addresses_of(settings, sockets)
        server = Server(settings, address=address if self._shape.links else None)
        await server.__aenter__()
        self.servers.append(server)
        http = HttpServer(App(server))
        await http.listen(sockets)
        self._https.append(http)
        return address

    async def _close_nodes(self) -> None:
        for http in self._https:
            http.drain()
        await asyncio.gather(*(http.close() for http in self._https))
        await asyncio.gather(*(server.__aexit__() for server in self.servers))

    def _shared(self) -> bool:
        """Whether each node owns its part, and knows whose the others are."""
        owned = [sum(server.engine.owned) for server in self.servers]
        return all(owned) and sum(owned) == 256 and all(self._knows(server) for server in self.servers)

    def _knows(self, server: Server) -> bool:
        return len({row.owner for row in server.node.shards.rows}) == len(self.servers)


async def serve(settings: Settings, shape: Shape) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with ManyNodes(settings, shape) as nodes:
        print("listening at", nodes.url, flush=True)
        await ended.wait()


def command(settings: dict[str, Any], shape: Shape) -> list[str]:
    """What runs them in a process of their own."""
    return [sys.executable, "-m", "tests.many_nodes", msgspec.json.encode(settings).decode(), *shape.arguments()]


if __name__ == "__main__":
    asyncio.run(serve(Settings(**msgspec.json.decode(sys.argv[1])), Shape.of(sys.argv[2:])))
