"""`dw dev` as a server: engine and Waterline on loopback, and the file in a worker beside them that every save replaces.

Bound → events remembered → engine up, listening → (worker started → ended by a save, a crash, a signal) → worker ended →
drained. The worker is always ended before the server, so that it can report what it has done. The server needs no credential
and therefore answers this machine only, and no page but its own (`server/access/hosts.py`).
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from contextlib import suppress

import uvloop
from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from backstay.cli.console import console
from backstay.cli.dev_child import PATIENCE, DevChild
from backstay.cli.dev_console import TAKEN_OVER, log_to, other_engine, say
from backstay.cli.dev_events import EventFeed
from backstay.cli.dev_plan import DevPlan
from backstay.cli.problems import CliError, as_problems
from backstay.cli.reading import StoreReader
from backstay.server.http.app import App
from backstay.server.http.connections import raise_descriptor_limit
from backstay.server.http.serve import CannotListen, HttpServer, listen
from backstay.server.server import Server
from backstay.server.settings import Settings
from backstay.store.address import is_server

PORT = 8233
TRIED = 100  # ports from there on, before any will do
LOOK = 0.05
EVENTS = 0.1  # seconds between two looks for events
DRAIN = 2.0  # seconds for requests to end after Ctrl-C


def run(plan: DevPlan, port: int | None) -> int:
    """Serve and supervise until a signal. Returns the exit code."""
    out = console()
    log_to(out, logging.WARNING)
    settings = _settings(plan)
    raise_descriptor_limit(settings)
    sockets = _bound(settings, port)
    try:
        with as_problems():
            return uvloop.run(DevServer(plan, settings, sockets, out).run())
    finally:
        for one in sockets:
            one.close()


def _settings(plan: DevPlan) -> Settings:
    """The settings of a server for development. Variables such as DW_TOKEN are about other servers."""
    stored = plan.path if is_server(plan.path) else f"sqlite:{plan.path.removeprefix('sqlite:')}"
    return Settings(
        host="127.0.0.1",
        store=stored,
        default_namespace=plan.namespace,
        auth="none",
        environment_name="dev",
        drain_seconds=DRAIN,
        retention_interval_seconds=0,  # the database is the developer's: nothing is removed from it by itself
    )


def _bound(settings: Settings, port: int | None) -> list[socket.socket]:
    """The port of --port; otherwise 8233, the next free one, or any."""
    wanted = [*range(PORT, PORT + TRIED), 0] if port is None else [port]
    for number in wanted[:-1]:
        with suppress(CannotListen):
            return listen(replace(settings, port=number))
    try:
        return listen(replace(settings, port=wanted[-1]))
    except CannotListen as error:
        why = str(error).partition(";")[0]
        raise CliError(f"{why}; see what runs there, or choose another with --port") from None


class DevServer:
    def __init__(self, plan: DevPlan, settings: Settings, sockets: list[socket.socket], out: Console) -> None:
        self._plan = plan
        self._settings = settings
        self._sockets = sockets
        self._out = out
        self._signals = 0
        self._page = f"http://127.0.0.1:{sockets[0].getsockname()[1]}/waterline"

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        events = EventPrinter(self._plan, self._out, self._page)
        await loop.run_in_executor(None, events.start)
        try:
            async with Server(self._settings) as server:
                http = HttpServer(App(server))
                (address,) = await http.listen(self._sockets)
                self._out.print(Text.assemble(("Waterline", "bold"), "  at  ", (self._page, "bold")))
                if not server.engine.holder:
                    self._out.print(other_engine(self._plan.path), style="yellow", markup=False)
                try:
                    return await self._supervise(server, events, replace(self._plan, server=address))
                finally:
                    http.drain()
                    await http.close()
        finally:
            await loop.run_in_executor(None, events.stop)  # last: to print the last events of the engine, too

    def _on_signal(self) -> None:
        self._signals += 1

    async def _supervise(self, server: Server, events: EventPrinter, plan: DevPlan) -> int:
        """Start a worker whenever one has ended, until a signal."""
        while True:
            child = DevChild(replace(plan, open_runs=events.open_runs))
            try:
                code = await self._end_of(child, server)
            finally:
                if child.process.poll() is None:
                    child.process.kill()
                    child.process.wait()
            if self._signals:
                return 0
            if code in (0, 2):
                return code
            save = child.report_crash(code)
            while save is not None and not save.has_come:
                await asyncio.sleep(LOOK)
                if self._signals:
                    return 0

    async def _end_of(self, child: DevChild, server: Server) -> int:
        """The exit code of a worker, which is asked to end at a signal, and killed if it does not."""
        process = child.process
        waiting = not server.engine.holder
        give_up: float | None = None
        clock = asyncio.get_running_loop().time
        while (code := process.poll()) is None:
            if waiting and server.engine.holder:
                waiting = False
                self._out.print(TAKEN_OVER, style="green")
            if self._signals and give_up is None:
                give_up = clock() + PATIENCE
                process.terminate()
            elif give_up is not None and (self._signals > 1 or clock() > give_up):
                process.kill()
            await asyncio.sleep(LOOK)
        return code


class EventPrinter:
    """Prints the events of runs, on a thread of its own because it reads the database without `await`."""

    def __init__(self, plan: DevPlan, out: Console, page: str) -> None:
        self._plan = plan
        self._out = out
        self._page = page
        self._feed: EventFeed | None = None
        self._problem: BaseException | None = None
        self._remembered = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dw-events", daemon=True)

    def start(self) -> None:
        """Return when the open runs are known, or raise why the database cannot be read."""
        self._thread.start()
        self._remembered.wait()
        if self._problem is not None:
            raise self._problem

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def open_runs(self) -> str | None:
        return None if self._feed is None else self._feed.open_runs

    def _run(self) -> None:
        try:
            with StoreReader(self._plan.path, create=True) as reader:
                feed = EventFeed(reader, self._plan.namespace, self._out, self._page)
                feed.remember()
                self._feed = feed
                self._remembered.set()
                self._follow(feed)
        except BaseException as problem:
            if self._remembered.is_set():
                raise  # a bug of ours in a background task: its traceback is printed
            self._problem = problem
        finally:
            self._remembered.set()

    def _follow(self, feed: EventFeed) -> None:
        """Print until stopped. A database that does not answer is asked again: the engine waits for it, too."""
        told = ""
        look = feed.begin
        while True:
            last = self._stopping.is_set()
            try:
                look()
                look, told = feed.look, ""
            except CliError as problem:
                if problem.message != told:
                    told = problem.message
                    say(self._out, f"events cannot be read: {told}", "yellow")
            if last:
                return
            self._stopping.wait(EVENTS)
