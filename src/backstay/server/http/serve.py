"""Serving: the application listens on sockets until SIGTERM or Ctrl-C drains the server.

Draining: first the server reports that it is not ready; then it grants no new leases, answers parked polls at once and
finishes running requests. The engine writes its decisions and hands its shards over, and the process exits with 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
from collections.abc import Callable

from backstay.server.cluster.links import advertised
from backstay.server.http.app import App
from backstay.server.http.connections import raise_descriptor_limit
from backstay.server.http.protocol import HttpProtocol
from backstay.server.server import Server
from backstay.server.settings import Settings

log = logging.getLogger("backstay.server")

BACKLOG = 4096
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class CannotListen(Exception):
    """The address is in use or not of this machine, or the certificate cannot be used."""


class HttpServer:
    """Accepts connections until `drain` is called.

    **Shutdown.** A signal calls `drain`: it returns at once. For `drain_notice_seconds` the server only says that it is
    not ready, and hands its shards to others. Then the engine leases nothing any more, and parked requests are
    answered. `close` then stops listening, closes idle connections, and ends the others after the reply to their
    current request, with `connection: close`. Connections that are left after `drain_seconds`, or at a second signal,
    are dropped: a client that does not read its reply must not keep a process alive that its supervisor is about to
    kill. Dropping is safe: the decision of a request is on disk or was never answered, and our clients repeat a request
    under the same request id.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._settings = app.server.settings
        self._listening: list[asyncio.Server] = []
        self._draining = asyncio.Event()
        self._forced = asyncio.Event()
        self._notice: asyncio.TimerHandle | None = None

    async def listen(self, sockets: list[socket.socket]) -> list[str]:
        """Accept connections on these sockets. Returns the addresses."""
        loop = asyncio.get_running_loop()
        tls = _tls(self._settings)
        patience = None if tls is None else self._settings.head_seconds
        for one in sockets:
            listening = await loop.create_server(
                lambda: HttpProtocol(self._app), sock=one, ssl=tls, backlog=BACKLOG, ssl_handshake_timeout=patience
            )
            self._listening.append(listening)
        return addresses_of(self._settings, sockets)

    def drain(self) -> None:
        """Begin to stop: at once, or after a notice. A second call ends the notice; a further one drops unfinished
        requests."""
        notice = self._settings.drain_notice_seconds
        if self._draining.is_set():
            self._forced.set()
        elif notice and self._notice is None:
            self._app.server.announce_drain()
            self._notice = asyncio.get_running_loop().call_later(notice, self._stop)
        else:
            self._stop()

    def _stop(self) -> None:
        if self._notice is not None:
            self._notice.cancel()
        self._draining.set()
        self._app.server.drain()

    async def drain_requested(self) -> None:
        await self._draining.wait()

    async def close(self) -> None:
        """Stop listening, let requests end, and close every connection."""
        for listening in self._listening:
            listening.close()
        connections, handling = self._app.connections, self._app.handling
        for connection in connections:
            connection.shutdown()
        ending = asyncio.ensure_future(self._ended())
        forced = asyncio.ensure_future(self._forced.wait())
        await asyncio.wait((ending, forced), timeout=self._settings.drain_seconds, return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()
        if ending.done():
            return
        ending.cancel()
        log.warning(
            "cut off %d connections and %d requests that did not end in time (drain_seconds is %g)",
            len(connections),
            len(handling),
            self._settings.drain_seconds,
        )
        for connection in connections:
            connection.drop()
        for task in handling:
            task.cancel()
        if handling:
            await asyncio.wait(handling)

    async def _ended(self) -> None:
        await self._app.connections.none_left()
        while self._app.handling:  # requests whose caller has hung up
            await asyncio.wait(self._app.handling)


def addresses_of(settings: Settings, sockets: list[socket.socket]) -> list[str]:
    """The addresses of sockets that a server listens on."""
    scheme = "http" if settings.tls_certificate is None else "https"
    names = [one.getsockname()[:2] for one in sockets]
    return [f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}" for host, port in names]


def _tls(settings: Settings) -> ssl.SSLContext | None:
    if settings.tls_certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        files = f"tls_certificate {settings.tls_certificate} and tls_key {settings.tls_key}"
        raise CannotListen(f"{files} cannot be used: {error.strerror or error}") from None
    return context


def listen(settings: Settings) -> list[socket.socket]:
    """Bind the address before anything else: a server that cannot be reached must not become the engine."""
    sockets: list[socket.socket] = []
    try:
        addresses = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(addresses):
            sockets.append(socket.create_server(address, family=family, backlog=BACKLOG))
    except OSError as error:
        for one in sockets:
            one.close()
        why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise CannotListen(
            f"cannot listen at {settings.host}:{settings.port}: {why}; see what runs there, or choose another address"
            " with --host and --port"
        ) from None
    return sockets


def say_if_nobody_can_call(server: Server) -> None:
    """A warning if there are other servers to call this one."""
    if server.node.facts.address is None and not server.store.exclusive:
        log.log(
            logging.WARNING if server.node.shards.others else logging.INFO,
            "this server listens on every address of its machine, so other servers of this database do not know where to"
            " call it, and reach it through the database only; name its address with --advertise",
        )


async def serve(settings: Settings, started: Callable[[str], None]) -> None:
    """Serve until a signal. `started` is called with each address."""
    raise_descriptor_limit(settings)
    sockets = listen(settings)
    loop = asyncio.get_running_loop()
    try:
        address = advertised(settings.advertise, addresses_of(settings, sockets))
        async with Server(settings, address=address) as server:
            say_if_nobody_can_call(server)
            http = HttpServer(App(server))
            addresses = await http.listen(sockets)
            for number in SIGNALS:
                loop.add_signal_handler(number, http.drain)
            for address in addresses:
                started(address)
            await http.drain_requested()
            await http.close()
            for number in SIGNALS:
                loop.remove_signal_handler(number)  # a further one ends the process, as usual
    finally:
        for one in sockets:
            one.close()


def run(settings: Settings, started: Callable[[str], None]) -> None:
    import uvloop

    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(serve(settings, started))
