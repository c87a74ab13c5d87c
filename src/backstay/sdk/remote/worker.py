"""A worker of a server: it runs workflows and activities of one or more task queues, with the same code as embedded.

    with Worker("http://127.0.0.1:8080", [order, charge], token="..."):
        ...                                     # works in the background until the block ends

    Worker("http://127.0.0.1:8080", [order, charge], token="...").run()      # until SIGTERM or Ctrl-C

Closing drains the worker: running work is finished and reported, and no new task is taken. If the server restarts or is
killed, the worker waits for it and then reports its results.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator, Iterable
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Any, Self, TypedDict, Unpack, cast

from backstay import collector
from backstay.kernel.machine import Machine
from backstay.link.http import Lost
from backstay.protocol.native import worker as wire
from backstay.sdk.author.options import expect, served
from backstay.sdk.client.loop_thread import LoopThread, new_loop
from backstay.sdk.errors import ServerUnreachable
from backstay.sdk.remote.bounds import Bounds
from backstay.sdk.remote.host import RemoteHost
from backstay.sdk.remote.report_queue import PendingReport
from backstay.sdk.remote.server_links import ServerLinks
from backstay.sdk.remote.tasks import FetchHistory
from backstay.sdk.remote.transport import PAUSES, Access
from backstay.sdk.remote.worker_link import Reset, ServerLink
from backstay.sdk.replay.guard.shims import install as install_shims
from backstay.sdk.replay.reactions import REACTIONS
from backstay.sdk.worker.registry import Guard, Registry, Types
from backstay.sdk.worker.watchdog import WORKFLOW_DEADLINE

log = logging.getLogger("backstay.worker")

DRAIN_GRACE = 15.0  # seconds after the end of the drain until a process that hangs is ended

FIRST_OPEN = 10.0  # seconds that a worker waits for a server when it starts


class WorkerOptions(TypedDict, total=False):
    """Options of `Worker` and `AsyncWorker`; `AsyncWorker` explains them."""

    queue: str
    queues: Iterable[str]
    token: str | None
    namespace: str
    threads: int
    async_tasks: int
    workflow_tasks: int
    live: int
    types: Types | None
    guard: Guard
    shims: bool
    diagnostics: bool
    workflow_deadline: float | None
    compatibility: str | None
    compatibility_namespace: str | None
    worker_id: str | None
    drain: float


class AsyncWorker:
    """A worker on the running event loop."""

    def __init__(
        self,
        server: str,
        register: Iterable[Any],
        *,
        queue: str | None = None,
        queues: Iterable[str] | None = None,
        token: str | None = None,
        namespace: str = "default",
        threads: int = 200,
        async_tasks: int = 1000,
        workflow_tasks: int = 1000,
        live: int = 5000,
        types: Types | None = None,
        guard: Guard = "warn",
        shims: bool = False,
        diagnostics: bool = True,
        workflow_deadline: float | None = WORKFLOW_DEADLINE,
        compatibility: str | None = None,
        compatibility_namespace: str | None = None,
        worker_id: str | None = None,
        drain: float = 30.0,
    ) -> None:
        """`server`: its address. `register`: the workflows, activities, objects with activity methods and exception classes.

        `queue`, or `queues` for several: the task queues that it polls, by default `default`. `threads`, `async_tasks` and
        `workflow_tasks`: how many `def` activities, `async def` activities and workflow tasks it runs at the same time.
        `live`: how many runs keep their code in memory between tasks. `drain`: seconds that running work has to end when the
        worker closes. `guard`: the reaction to calls that a replay could not repeat. `shims`: answer clocks and random
        numbers from the run. `workflow_deadline`: seconds after which workflow code that does not wait is interrupted; None
        for no limit. `compatibility`: the build id of this worker, for rollouts. `compatibility_namespace`: the app of this worker, if several
        share one database; by default that of the server. `worker_id`: its name, by default a new one.

        Raises `DefinitionError` for a wrong registration, `ValueError` for a wrong address.
        """
        self.registry = Registry(types, guard, diagnostics)
        self.registry.register(register)
        if shims:
            install_shims()
        self.access = Access(server, token, namespace)
        self.access.client()  # raises ValueError here if the address is wrong
        self.queues = _queues(queue, queues)
        self.worker_id = worker_id or f"{socket.gethostname()[:60]}-{os.getpid()}-{os.urandom(4).hex()}"
        expect("threads", threads)
        expect("async_tasks", async_tasks)
        expect("workflow_tasks", workflow_tasks)
        expect("compatibility", compatibility)
        expect("compatibility_namespace", compatibility_namespace)
        expect("workflow_deadline", workflow_deadline)
        self._threads = threads
        self._async_tasks = async_tasks
        self._workflow_tasks = workflow_tasks
        self._live = live
        self._compatibility = compatibility
        self._compatibility_namespace = compatibility_namespace
        self.drain = drain
        self._hurried = False
        self._workflow_deadline = workflow_deadline
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        machine = Machine()
        bounds = Bounds(machine.limits)

        def host(send: Callable[[PendingReport], None], history: FetchHistory) -> RemoteHost:
            return RemoteHost(
                loop,
                machine,
                self.registry,
                self.worker_id,
                send,
                history,
                bounds,
                namespace=self.access.namespace,
                queues=frozenset(self.queues),
                compatibility=self._compatibility,
                threads=self._threads,
                tasks=self._async_tasks,
                live=self._live,
                workflow_deadline=self._workflow_deadline,
            )

        known = {*machine.outcomes, *REACTIONS.by_event}
        self._quiet_events = sorted(name for name, kind in machine.kinds.items() if kind not in known)
        total = wire.Slots(self._workflow_tasks, self._threads, self._async_tasks)
        self.links = ServerLinks(self.access, host, self._open_request, bounds, total)
        self.host = self.links.host
        self.executor = self.host.executor
        try:
            await self._first_open()
        except BaseException:
            self.host.close()
            raise
        self._running = loop.create_task(self.links.run(), name="backstay-worker")
        collector.relax()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> Self:
        """Connect to the server and start to work, as `async with` does. Raises `ServerUnreachable` if no server answers."""
        return self if self._running is not None else await self.__aenter__()

    async def close(self) -> None:
        """Take no more tasks, finish and report running work, and close the link. Waits for at most `drain` seconds."""
        life, self._running = self._running, None
        if life is None:
            return
        await self.links.drain()
        loop = asyncio.get_running_loop()
        until = loop.time() + self.drain
        while (self.host.busy or not self.links.idle) and loop.time() < until and not (life.done() or self._hurried):
            await asyncio.sleep(0.01)
        left = len(self.host.leases)
        if left:
            log.warning(
                "worker %s closes with %d unfinished tasks; the server hands them out again", self.worker_id, left
            )
        life.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await life
        await self.links.close()
        self.executor.stop()
        self.host.close()
        collector.restore()

    @property
    def link(self) -> ServerLink:
        """The first of its links."""
        return self.links.home

    def hurry(self) -> None:
        """Make `close()` not wait for running work, also if it is waiting already."""
        self._hurried = True

    async def run(self) -> None:
        """Work until cancelled, then drain."""
        async with self:
            assert self._running is not None
            await asyncio.wait({self._running})
            self._running.result()

    async def _first_open(self) -> None:
        """Open the link; wait for a server that is starting, but raise at once if a server refuses."""
        loop = asyncio.get_running_loop()
        until = loop.time() + FIRST_OPEN
        while True:
            try:
                await self.link.open()
                return
            except (Lost, Reset) as why:
                if loop.time() > until:
                    raise ServerUnreachable(self.access.url, str(why)) from None
            await asyncio.sleep(PAUSES[0] * 5)

    def _open_request(self, slots: wire.Slots) -> wire.OpenLink:
        from backstay import __version__

        workflows = self.registry.workflows
        return wire.OpenLink(
            worker_id=self.worker_id,
            queues=self.queues,
            build_id=self._compatibility,
            sdk_version=__version__,
            workflows={type: definition.snapshot for type, definition in workflows.items()},
            validators={
                type: [name for name, member in definition.handlers.updates.items() if member.check is not None]
                for type, definition in workflows.items()
                if definition.handlers.updates
            },
            activities=sorted(self.registry.activities),
            async_activities=sorted(name for name, activity in self.registry.activities.items() if activity.is_async),
            workflow_slots=slots.workflow,
            activity_slots=slots.activity,
            async_slots=slots.awaiting,
            quiet=self._quiet_events,
            host=socket.gethostname()[:255],
            process_id=os.getpid(),
            compatibility_namespace=self._compatibility_namespace,
        )


def _queues(queue: str | None, queues: Iterable[str] | None) -> list[str]:
    if queues is None:
        return ["default" if queue is None else queue]
    if queue is not None:
        raise TypeError("give queue= for one queue or queues= for several, not both")
    return served(queues)


class Worker:
    """A worker for code without `await`: on a thread of its own, or with `run()` until the process is stopped.

    The options are those of `AsyncWorker`.
    """

    def __init__(self, server: str, register: Iterable[Any], **options: Unpack[WorkerOptions]) -> None:
        self._worker = AsyncWorker(server, register, **options)
        self._thread: LoopThread | None = None

    @property
    def worker_id(self) -> str:
        """The name under which the server knows this worker."""
        return self._worker.worker_id

    def open(self) -> Self:
        """Connect to the server and start to work, as `with` does. Raises `ServerUnreachable` if no server answers."""
        if self._thread is None:
            thread = LoopThread("backstay-worker")
            try:
                thread.run(self._worker.__aenter__())
            except BaseException:
                thread.stop()
                raise
            self._thread = thread
        return self

    def close(self) -> None:
        """Take no more tasks, finish and report running work, and close the link. Waits for at most `drain` seconds."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.run(self._worker.close())
            thread.stop()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self) -> None:
        """Work until SIGTERM or Ctrl-C, then drain."""
        work(self._worker, lambda: None)


def work(worker: AsyncWorker, ready: Callable[[], None]) -> None:
    """Work until SIGTERM or Ctrl-C, then drain. `ready` is called when the link to the server is open."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_until_signalled(worker, ready))


async def _until_signalled(worker: AsyncWorker, ready: Callable[[], None]) -> None:
    stop = asyncio.Event()
    with _signals(asyncio.get_running_loop(), stop, worker):
        opening = asyncio.ensure_future(worker.__aenter__())
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            opening.cancel()
            await asyncio.wait({opening})
            return
        try:
            opening.result()
            ready()
            await stopping
            log.info("stopping: running work has %g seconds to end; another Ctrl-C does not wait for it", worker.drain)
        finally:
            stopping.cancel()
            await worker.close()


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event, worker: AsyncWorker) -> Generator[None]:
    """Handle signals: SIGTERM or Ctrl-C drains, a second Ctrl-C stops waiting, a third ends the process at once.

    Handlers of the loop would have to wait for workflow code that never ends. A handler in Python may get the exception with
    which the watchdog interrupts such code, and the signal would be lost. So the handler is the `put` of a queue, which is C
    and may be called at any moment, and a thread handles the signal.

    Code that never ends also keeps the loop from draining, so one SIGTERM would never end the process. Therefore faulthandler
    ends it, with the tracebacks of all threads, some time after the drain should have ended. Its timer does not need the GIL,
    which such code may hold.
    """
    signals: SimpleQueue[int | None] = SimpleQueue()

    def act() -> None:
        requests = 0
        while (number := signals.get()) is not None:
            if not requests:
                faulthandler.dump_traceback_later(worker.drain + DRAIN_GRACE, exit=True, file=2)
            requests = requests + 1 if number == signal.SIGINT else max(requests, 1)
            if requests > 2:
                os.write(2, b"ended by the third Ctrl-C; what was running is done again\n")
                os._exit(128 + number)
            loop.call_soon_threadsafe(stop.set)
            if requests > 1:
                loop.call_soon_threadsafe(worker.hurry)

    thread = threading.Thread(target=act, name="backstay-signals", daemon=True)
    thread.start()
    put = cast(Callable[[int, FrameType | None], None], signals.put)  # the frame counts as `block`, which `put` ignores
    before = {number: signal.signal(number, put) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signals.put(None)
        thread.join()
        faulthandler.cancel_dump_traceback_later()
