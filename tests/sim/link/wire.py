"""The wire: TCP as two processes see it, with everything that happens to connections.

What is written on one side arrives on the other, in order and some time later; or in pieces; or a part of it; or not at all,
with or without a word. What happens is drawn for each write, which with our own client and server is a request or a reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from .process import ProcessLoop

if TYPE_CHECKING:
    from .simulation import LinkSimulation

Address = tuple[str, int]
PROMPT = [0.0002, 0.0005, 0.0005, 0.001, 0.004]
"""How many seconds a segment takes on a good day."""


class Listening:
    """A socket that listens."""

    def __init__(
        self, network: Network, process: ProcessLoop, factory: Callable[[], asyncio.BaseProtocol], address: Address
    ) -> None:
        self.process = process
        self.factory = factory
        self.sockets = (self,)
        self._network = network
        self._address = address

    def getsockname(self) -> Address:
        return self._address

    def close(self) -> None:
        self._network.unlisten(self)

    async def wait_closed(self) -> None:
        pass

    @property
    def family(self) -> int:
        return 2


class Endpoint(asyncio.Transport):
    """One side of a connection."""

    def __init__(self, network: Network, process: ProcessLoop | None, factory: Callable[[], Any]) -> None:
        super().__init__()
        self._network = network
        self.process = process  # None: a proxy in between, which listens to nobody
        self._factory = factory
        self.protocol: Any = None
        self.peer: Endpoint
        self.is_client = False
        self._closing = False
        self.gone = False  # nothing more comes here, and nothing leaves
        self._paused = False
        self._arrived: list[bytes] = []
        self._last = 0.0  # when the last segment to the peer arrives
        self.deaf = False  # what is sent from here gets lost from now on

    # -- what a protocol asks of its transport

    def write(self, data: bytes) -> None:  # type: ignore[override]
        if not self._closing and data:
            self._network.send(self, bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._network.fin(self)
            self._soon(self._lost, None)

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            self._network.reset_peer(self)
            self._soon(self._lost, None)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            if self._arrived:
                self._soon(self._read)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 1) if name in ("peername", "sockname") else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    # -- what the network does to it

    def open(self) -> Any:
        self.protocol = self._factory()
        self.protocol.connection_made(self)
        if self._arrived:
            self._soon(self._read)
        return self.protocol

    def arrive(self, data: bytes) -> None:
        if self.process is None or self.gone:
            return
        self._arrived.append(data)
        if len(self._arrived) == 1:
            self._soon(self._read)

    def hear_end(self) -> None:
        """The other side sends nothing more. Our protocols close their own side then."""
        if self.process is None:
            self.gone = True
        elif not self.gone:
            self._soon(self._ended)

    def break_off(self) -> None:
        """The connection is reset."""
        if self.process is None:
            self.gone = True
        elif not self.gone:
            self._closing = True
            self._soon(self._lost, ConnectionResetError(104, "Connection reset by peer"))

    def _soon(self, call: Callable[..., None], *args: Any) -> None:
        if self.process is not None:
            self.process.call_soon(call, *args)

    def _read(self) -> None:
        if self.gone or self._closing or self._paused or self.protocol is None or not self._arrived:
            return
        data, self._arrived = b"".join(self._arrived), []
        self.protocol.data_received(data)

    def _ended(self) -> None:
        if not self.gone and not self._closing and self.protocol is not None:
            self._read()
            if not self._closing and not self.protocol.eof_received():
                self.close()

    def _lost(self, error: Exception | None) -> None:
        if not self.gone:
            self.gone = True
            self._arrived.clear()
            if self.protocol is not None:
                self.protocol.connection_lost(error)


class Network:
    def __init__(self, sim: LinkSimulation) -> None:
        self._sim = sim
        self._listening: dict[Address, list[Listening]] = {}
        self._open: list[Endpoint] = []

    # -- connections

    def listen(self, process: ProcessLoop, factory: Callable[[], Any], address: Address) -> Listening:
        found = Listening(self, process, factory, address)
        self._listening.setdefault(address, []).append(found)
        return found

    def unlisten(self, listening: Listening) -> None:
        for there in self._listening.values():
            if listening in there:
                there.remove(listening)

    async def connect(
        self, process: ProcessLoop, factory: Callable[[], Any], address: Address
    ) -> tuple[Endpoint, asyncio.BaseProtocol]:
        self._asks(process)
        faults = self._sim.faults
        if faults.fires("connect unanswered"):
            await process.create_future()
        await asyncio.sleep(self._latency())
        reached = self._sim.reaches(process, address[0])
        there = self._sim.chosen(self._listening.get(address, [])) if reached else None
        if there is None:
            raise ConnectionRefusedError(111, "Connection refused")
        mine = self._pair(process, factory, there)
        return mine, mine.open()

    def _pair(self, process: ProcessLoop | None, factory: Callable[[], Any], there: Listening) -> Endpoint:
        mine = Endpoint(self, process, factory)
        other = Endpoint(self, there.process, there.factory)
        mine.peer, other.peer = other, mine
        mine.is_client = True
        self._open = [end for end in self._open if not (end.gone and end.peer.gone)]
        self._open += (mine, other)
        there.process.call_soon(other.open)
        return mine

    def process_died(self, process: ProcessLoop) -> None:
        """The kernel closes what it had; or its machine is gone, and nobody says a word."""
        for there in self._listening.values():
            there[:] = [listening for listening in there if listening.process is not process]
        silent = self._sim.faults.fires("dies silently")
        for end in self._open:
            if end.process is process:
                end.gone = True
                if not silent:
                    self._later(end, end.peer.break_off)

    # -- what is sent

    def send(self, end: Endpoint, data: bytes) -> None:
        faults = self._sim.faults
        process = end.process
        if end.is_client and process is not None:
            self._asks(process)
        if end.deaf or end.gone:
            return
        if process is None:
            self._later(end, partial(end.peer.arrive, data))
            return
        kind = "request" if end.is_client else "reply"
        if faults.fires(f"{kind} lost"):
            self._log(end, f"a {kind} is lost, the connection reset")
            self._reset(end)
        elif faults.fires(f"{kind} swallowed"):
            self._log(end, f"a {kind} is swallowed")
            end.deaf = True
        elif faults.fires(f"{kind} cut"):
            part = faults.dice(f"{kind} cut").randrange(1, len(data)) if len(data) > 1 else 1
            self._log(end, f"a {kind} is cut after {part} of {len(data)} bytes")
            self._later(end, partial(end.peer.arrive, data[:part]))
            self._reset(end)
        elif faults.fires("half closed"):
            self._log(end, f"half closed behind a {kind}")
            self._later(end, partial(end.peer.arrive, data))
            self._later(end, end.peer.hear_end)
        elif faults.fires("in pieces"):
            self._in_pieces(end, data)
        else:
            self._later(end, partial(end.peer.arrive, data))
            if end.is_client and faults.fires("request twice"):
                self._again(end, data)
        if kind == "reply" and faults.fires("reset behind a reply"):
            self._reset(end)

    def _in_pieces(self, end: Endpoint, data: bytes) -> None:
        dice = self._sim.faults.dice("in pieces")
        while data:
            size = dice.randint(1, max(1, len(data)))
            self._later(end, partial(end.peer.arrive, data[:size]))
            data = data[size:]

    def _again(self, end: Endpoint, data: bytes) -> None:
        """A proxy repeats a request on a connection of its own, and nobody hears that answer."""
        there = next(
            (one for many in self._listening.values() for one in many if one.process is end.peer.process), None
        )
        if there is not None:
            self._log(end, "a request is made twice")
            proxy = self._pair(None, lambda: None, there)
            self._later(proxy, partial(proxy.peer.arrive, data))

    def fin(self, end: Endpoint) -> None:
        if not end.deaf:
            self._later(end, end.peer.hear_end)

    def reset_peer(self, end: Endpoint) -> None:
        if not end.deaf:
            self._later(end, end.peer.break_off)

    def _reset(self, end: Endpoint) -> None:
        """Both sides learn that the connection is over, each in its time."""
        self._later(end, end.peer.break_off)
        end.deaf = True
        self._sim.loop.call_later(self._latency(), end.break_off)

    def _later(self, end: Endpoint, call: Callable[[], None]) -> None:
        loop = self._sim.loop
        at = max(loop.time() + self._latency(), end._last)
        end._last = at
        loop.call_at(at, call)

    def _latency(self) -> float:
        faults = self._sim.faults
        if faults.fires("slow segment"):
            return faults.dice("slow segment").choice([0.01, 0.05, 0.3, 1])
        if faults.fires("late segment"):
            return faults.dice("late segment").choice([3, 20, 70])
        return self._sim.random.choice(PROMPT)

    def _asks(self, process: ProcessLoop) -> None:
        if process.owner is not None and process.owner.open:  # who begins is impatient, for ten seconds
            self._sim.laws.asks(process.name)

    def _log(self, end: Endpoint, what: str) -> None:
        ours = end if end.is_client else end.peer
        self._sim.log(f"{ours.process.name if ours.process else 'proxy'}: {what}")
