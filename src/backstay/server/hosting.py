"""Serving: uvicorn on uvloop and httptools around the app; SIGTERM and Ctrl-C drain.

Draining: no new leases, parked polls are answered at once, running requests end, the engine writes what it has decided,
the process ends with 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from backstay.server.app import App
from backstay.server.connections import make_room
from backstay.server.direct import Protocol
from backstay.server.server import Server
from backstay.server.settings import Settings

BACKLOG = 4096


class Serving(uvicorn.Server):
    """Drains before it stops. Signals are not raised again at the end: a drained server has done what it should."""

    def __init__(self, config: uvicorn.Config, server: Server, started: Callable[[str], None]) -> None:
        super().__init__(config)
        self._server = server
        self._tell = started
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True  # asked twice
        self._loop.call_soon_threadsafe(self.drain)

    def drain(self) -> None:
        self.should_exit = True
        self._server.drain()

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup(sockets)  # type: ignore[arg-type]
        if self.started:
            for listening in self.servers:
                for one in listening.sockets:
                    host, port = one.getsockname()[:2]
                    scheme = "https" if self.config.is_ssl else "http"
                    self._tell(f"{scheme}://{host}:{port}")


def config(app: App, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=settings.idle_seconds,  # type: ignore[arg-type]
        timeout_graceful_shutdown=round(settings.drain_seconds),
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
    )


class CannotListen(Exception):
    """The address is taken, or none of this machine's."""


def listen(settings: Settings) -> list[socket.socket]:
    """Take the address before anything else: a server that nobody can reach must not become the engine."""
    taken: list[socket.socket] = []
    try:
        places = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(places):
            taken.append(socket.create_server(address, family=family, backlog=BACKLOG))
    except OSError as error:
        for one in taken:
            one.close()
        why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise CannotListen(
            f"cannot listen at {settings.host}:{settings.port}: {why}; see what runs there, or choose another address"
            " with --host and --port"
        ) from None
    return taken


async def serve(settings: Settings, started: Callable[[str], None]) -> None:
    """Until told to stop. `started` gets the address."""
    make_room(settings)
    sockets = listen(settings)
    try:
        async with Server(settings) as server:
            await Serving(config(App(server), settings), server, started).serve(sockets)
    finally:
        for one in sockets:
            one.close()


def run(settings: Settings, started: Callable[[str], None]) -> None:
    import uvloop

    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(serve(settings, started))
