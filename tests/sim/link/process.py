"""Processes: each has an event loop of its own, as real ones have, on the one loop of the virtual world.

Whatever code of a process asks asyncio for (the running loop, a task, a timer, a connection) it gets from the loop of its
process. So a process can be killed, stopped and continued from outside, and no future of one can be awaited in another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from ..virtual import VirtualLoop

if TYPE_CHECKING:
    from .wire import Network

_running = asyncio._set_running_loop

TICK = 1e-6
"""The shortest time that a loop can wait: who waits for the rest of a second finds that it is over then."""


class _Call:
    """A call that a process is to make."""

    __slots__ = ("args", "callback", "context", "moment")

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...], context: Context | None, moment: float):
        self.callback: Callable[..., Any] | None = callback
        self.args = args
        self.context = copy_context() if context is None else context
        self.moment = moment

    def cancel(self) -> None:
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.moment


class _Task(asyncio.Task[Any]):
    """Tasks hash by their number: a set of them has the same order in every run."""

    def __init__(self, coroutine: Any, *, loop: ProcessLoop, **options: Any) -> None:
        self._number = loop.count()
        super().__init__(coroutine, loop=loop, **options)
        self._log_destroy_pending = False

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class ProcessLoop(asyncio.AbstractEventLoop):
    def __init__(self, name: str, virtual: VirtualLoop, network: Network, owner: Any = None) -> None:
        self.name = name
        self.owner = owner
        self.alive = True
        self.stopped = False
        self.before_call: Callable[[], bool] = lambda: True  # whether the process lives to make its next call
        self._virtual = virtual
        self._network = network
        self._context = Context()
        self._backlog: deque[_Call] = deque()  # what came up while it was stopped
        self._tasks: list[asyncio.Task[Any]] = []
        self._counted = 0

    # -- life

    def kill(self) -> None:
        """Nothing of it happens any more; its connections are closed by the kernel."""
        if self.alive:
            self.alive = False
            self._backlog.clear()
            self._network.process_died(self)

    def stop(self) -> None:
        """Like SIGSTOP: time passes, data arrives, and it does nothing."""
        self.stopped = True

    def go_on(self) -> None:
        """Like SIGCONT: everything that came up meanwhile happens now, in its order."""
        self.stopped = False
        backlog, self._backlog = self._backlog, deque()
        for call in backlog:
            self._virtual.call_soon(self._make, call, context=self._context)

    def bury(self) -> None:
        """Its coroutines end without a word, once nobody looks any more."""
        self.alive = False
        for task in self._tasks:
            with suppress(BaseException):
                task.get_coro().close()  # type: ignore[union-attr]
        self._tasks.clear()

    def _make(self, call: _Call) -> None:
        if call.callback is None or not self.alive:
            return
        if self.stopped:
            self._backlog.append(call)
            return
        if not self.before_call():
            return
        _running(self)
        try:
            call.context.run(call.callback, *call.args)
        except Exception as error:
            self.call_exception_handler({"message": f"calling {call.callback} failed", "exception": error})
        finally:
            _running(self._virtual)

    # -- what asyncio asks of a loop

    def time(self) -> float:
        return self._virtual.time()

    def looked(self) -> None:
        self._virtual.looked()

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:
        call = _Call(callback, args, context, 0.0)
        self._virtual.call_soon(self._make, call, context=self._context)
        return call

    call_soon_threadsafe = call_soon  # there is one thread

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:
        call = _Call(callback, args, context, when)
        self._virtual.call_at(when, self._make, call, context=self._context)
        return call

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:
        if 0 < delay < TICK:
            delay = TICK
        return self.call_at(self._virtual.time() + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        task = _Task(coro, loop=self, **options)
        self._tasks.append(task)
        if len(self._tasks) > 500:
            self._tasks = [one for one in self._tasks if not one.done()]
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """A thread, as who waits for it sees it: the call is made a little later."""
        done = self.create_future()

        def make() -> None:
            if done.cancelled():
                return
            try:
                done.set_result(func(*args))
            except Exception as error:
                done.set_exception(error)

        self.call_soon(make)
        return done

    def count(self) -> int:
        self._counted += 1
        return self._counted

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.alive:
            self._virtual.call_exception_handler(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    # -- sockets

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await self._network.connect(self, protocol_factory, (host, port))

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], *, sock: Any, **_: Any
    ) -> Any:
        return self._network.listen(self, protocol_factory, sock.getsockname())
