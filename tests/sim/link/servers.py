"""Servers: the real one, with the HTTP protocol it really speaks, over the store in memory and on the virtual wire."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from backstay.engine.core.world import Alarm, Minted, MintedIds
from backstay.server.http.app import App
from backstay.server.http.serve import HttpServer
from backstay.server.server import Server
from backstay.server.settings import Settings
from backstay.store.errors import Unavailable

from ..disk import MemoryStore
from ..nodes import Troubled
from ..virtual import VirtualWorld
from ..world import Life
from .one_owner import OneOwnerStore
from .process import ProcessLoop
from .programs import BODY

if TYPE_CHECKING:
    from .simulation import LinkSimulation

HOST, PORT, TOKEN = "server", 8080, "secret"
URL = f"http://{HOST}:{PORT}"

SETTINGS = Settings(
    views=False,
    host=HOST,
    port=PORT,
    store="sqlite:simulated",
    token=TOKEN,
    max_body_bytes=BODY,
    retention_interval_seconds=0,
    drain_seconds=5,
)


class ServerWorld(VirtualWorld):
    def __init__(self, loop: ProcessLoop, seed: str, number: int) -> None:
        super().__init__(loop, 0)  # type: ignore[arg-type]
        self.random = Random(seed)
        self.ids: MintedIds = Minted(self.now, self.random)

    def later(self, seconds: float, call: Any) -> Alarm:
        return self.loop.call_later(seconds, call)


class _Socket:
    """What a process listens on."""

    def __init__(self, host: str) -> None:
        self._host = host

    def getsockname(self) -> tuple[str, int]:
        return self._host, PORT


class ServerProcess:
    """One process. Whoever comes back in its place is another."""

    build = "B"

    def __init__(self, sim: LinkSimulation, place: int, generation: int) -> None:
        self.sim = sim
        self.place = place
        self.name = f"server-{place}.{generation}"
        self.opening = True
        self.life = Life(sim.faults, self._died)
        self.loop = ProcessLoop(self.name, sim.loop, sim.network)
        self.loop.before_call = lambda: self.life.survives("kill server")
        self.world = ServerWorld(self.loop, f"{sim.seed}:{self.name}", generation)
        self.settings = replace(sim.limits.settings(SETTINGS), node_name=self.name)
        self.app = Server(self.settings, world=lambda: self.world, address=f"http://{self.name}:{PORT}")
        self._seam = Troubled(self)  # type: ignore[arg-type]
        self._told = self.loop.create_future()
        sim.log(f"{self.name} begins")
        self.loop.create_task(self._live(), name="server")

    @property
    def serving(self) -> bool:
        return self.life.alive and not self.opening and not self.loop.stopped

    @property
    def holds(self) -> bool:
        """Whether it owns anything, as far as it knows."""
        return self.serving and self.app.engine.holder and self.app.engine.down is None

    async def _live(self) -> None:
        try:
            async with self.app as server:
                http_server = HttpServer(App(server))
                server.node.lifecycle.on_up.append(self._came_up)
                if server.recovery.up:
                    self._came_up()
                # By the name of all servers, which leads to any of them, and by its own.
                await http_server.listen([_Socket(HOST), _Socket(self.name)])  # type: ignore[list-item]
                self.opening = False
                self.sim.log(f"{self.name} is up with {sum(server.engine.owned)} shards")
                await self._told
                http_server.drain()
                if server.recovery.up:
                    self.sim.laws.drains(self.world.now())
                await http_server.close()
        except Unavailable as error:
            self.life.die(f"could not open: {error}")
        except Exception as error:
            if not self.life.alive:
                raise  # it ends with the world
            self.sim.violation("a server serves until it is told to stop", f"{self.name}: {error!r}")
        else:
            self.life.die("stopped")

    def _came_up(self) -> None:
        self.sim.laws.came_up(self.name, self.world.now())

    def connect(self, kinds: Any) -> MemoryStore:
        store = OneOwnerStore if self.sim.one_owner else MemoryStore
        return store(self.sim.disk, kinds, self._seam)

    def stop(self) -> None:
        """Like SIGTERM."""
        if not self._told.done():
            self.sim.log(f"{self.name} is told to stop")
            self.opening = True
            self._told.set_result(None)

    def dies_at(self, step: str) -> None:
        """No hand-over is interrupted here."""

    def _died(self, why: str) -> None:
        self.sim.log(f"{self.name} dies: {why}")
        self.loop.kill()
        self.sim.died(self)  # type: ignore[arg-type]

    def bury(self) -> None:
        """Its coroutines stay where they are for as long as the world lasts."""
