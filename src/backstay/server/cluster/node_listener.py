"""The listener of an embedded app: the routes between nodes only.

So the other processes of its database hand requests for its workflows to it, instead of going through the database.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, cast
from urllib.parse import urlsplit

from msgspec import Raw

from backstay.engine.cluster.node_proofs import NodeProofs
from backstay.engine.node import Node
from backstay.kernel.message import Refused
from backstay.kernel.values import Micros
from backstay.link.http import origin_of
from backstay.protocol.native.nodes import AskWorker, ReadRates, ReadRegistry, SpareWorker, SweepShards
from backstay.server.cluster.asked_questions import NO_WORKER
from backstay.server.cluster.links import ROUTES, advertised
from backstay.server.http.app import App
from backstay.server.http.parked_requests import ParkedRequests
from backstay.server.http.serve import CannotListen, HttpServer, addresses_of, listen
from backstay.server.settings import Settings

if TYPE_CHECKING:
    from backstay.server.server import Server


class NodeListener:
    """Binds at once, so that its address is known before the app is opened; `start` accepts calls, `close` ends that.

    To routes and application it is a server, as far as they need one to answer nodes: an embedded app has no registries, no
    tokens and no workers of other processes.
    """

    capabilities = Raw(b"{}")

    def __init__(self, where: str, advertise: str | None) -> None:
        """`where`: HOST:PORT; port 0 takes any free one. `advertise`: the URL by which others call it, if it is another one."""
        self.settings = _settings(where)
        if advertise is not None:
            _check_advertised(advertise)
        try:
            self._sockets: list[socket.socket] = listen(self.settings)
        except CannotListen as error:
            raise OSError(
                f"{str(error).partition(';')[0]}; see what runs there, or choose another address with listen="
            ) from None
        address = advertised(advertise, addresses_of(self.settings, self._sockets))
        if address is None:
            self._unbind()
            raise ValueError(
                f"listen={where!r} is a wildcard address: name the address that other nodes call with advertise="
            )
        self.address = address
        self.draining = False
        self.parked = ParkedRequests(self.settings.max_parked_polls)
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.waiting: dict[asyncio.Future[Any], Callable[[], None]] = {}
        self.asked_questions = self.registries = _NotOfApps()
        self.cluster = SimpleNamespace(rates=_NotOfApps(), sweep=_NotOfApps(), trials=_NotOfApps())
        self.access = SimpleNamespace(signatures=None)
        self._http: HttpServer | None = None

    async def start(self, node: Node, proofs: NodeProofs) -> None:
        await proofs.secrets.ours()  # before the first call
        self.node, self.api, self.node_proofs = node, node.api, proofs
        self._http = HttpServer(App(cast("Server", self), ROUTES))
        await self._http.listen(self._sockets)

    def node_id(self) -> int | None:
        return self.node.shards.me or None

    @property
    def now(self) -> Micros:
        return self.node.engine.world.now()

    async def close(self) -> None:
        """Answer no more calls: those that wait are repeated elsewhere."""
        self.draining = True
        for give_up in list(self.waiting.values()):
            give_up()
        if self._http is not None:
            await self._http.close()
        self._unbind()

    def _unbind(self) -> None:
        for one in self._sockets:
            one.close()


class _NotOfApps:
    """Stands for the parts of a server that an embedded app lacks."""

    version = None

    async def answer(self, asked: AskWorker) -> NoReturn:
        raise Refused(NO_WORKER, "workers of other processes have no link to an embedded app")

    async def here(self, asked: ReadRates | SweepShards | SpareWorker) -> NoReturn:
        raise Refused(
            "not_of_apps",
            "an embedded app has no remote workers, counts no tasks of queues, and sweeps for lost work by itself",
        )

    async def read(self, asked: ReadRegistry) -> None:
        """An embedded app remembers no registry."""


def _check_advertised(address: str) -> None:
    try:
        origin_of(address)
    except ValueError as error:
        raise ValueError(f"advertise=: {error}") from None


def _settings(where: str) -> Settings:
    host, port = urlsplit(f"//{where}").hostname, None
    try:
        port = urlsplit(f"//{where}").port
    except ValueError:
        host = None
    if not host or port is None:
        raise ValueError(f"listen={where!r} is no address; write HOST:PORT, for example '10.0.0.5:8090'")
    return Settings(host=host, port=port, drain_seconds=1.0)
