"""Links between nodes: a request goes to the node that owns its instance, as bytes, and its answer comes back. Both may get lost.

What a server does with such a request is done here in the same way: see `server/cluster/links.py`, and `link/nodes.py` for its caller.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from backstay.engine.cluster.peers import partition_of_request, repeated
from backstay.kernel.message import Refused
from backstay.protocol import commands as tell
from backstay.protocol import requests as ask
from backstay.protocol.native import client as calls
from backstay.protocol.native import nodes
from backstay.protocol.native.nodes import DeliverSend, LinkFailed, Misdirected, Owner

from .disk import RecordedAlready

if TYPE_CHECKING:
    from .nodes import Node
    from .simulation import Simulation

WAYS = [0, 0.0002, 0.0002, 0.001, 0.02]
"""Seconds."""

SILENCE = 4.0
"""Seconds after which a node that does not even answer a ping is given up."""

PATIENCE = calls.PATIENCE + 10
"""Seconds to wait for one answer."""

FAILURES = 3
REST = 1.0

PREFIX = "sim://"


def has_links(seed: int) -> bool:
    """Half of the seeds. In the others nodes reach each other through the database."""
    return Random(f"{seed}:node links").random() < 0.5


class Call:
    """One request on its way. `task`: what the node that was called does for it."""

    def __init__(self, caller: Node, owner: Owner, answer: asyncio.Future[bytes]) -> None:
        self.caller = caller
        self.owner = owner
        self.answer = answer
        self.target: Node | None = None
        self.tasks: list[asyncio.Task[Any]] = []

    def fail(self, why: str, *, sent: bool) -> None:
        if not self.answer.done():
            self.answer.set_exception(LinkFailed(why, sent=sent))

    def hang_up(self) -> None:
        for task in self.tasks:
            task.cancel()


class NodeNetwork:
    """All links. `cut`: to the end none of them leads anywhere, though every node tells its address."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self._dice = Random(f"{sim.seed}:node network")
        self.cut = sim.faults.fires("links cut")
        self._blocked: Counter[tuple[int, int]] = Counter()  # ways that lead nowhere, from one place to another
        self.calls: dict[Call, None] = {}

    def disturb(self) -> None:
        sim = self.sim
        places = sorted({node.place for node in sim.nodes})
        if len(places) > 1 and sim.faults.fires("link one-way"):
            dice = sim.faults.dice("link one-way")
            (start, end), length = dice.sample(places, 2), dice.choice([1, 10, 60])
            sim.log(f"nothing gets from place {start} to place {end} for {length} s")
            self._blocked[start, end] += 1
            sim.loop.call_later(length, self._blocked.subtract, [(start, end)])

    def died(self, node: Node) -> None:
        """Who has called it hears of that at once, and it waits for nobody any more."""
        for call in list(self.calls):
            if call.target is node:
                call.fail("the connection was reset", sent=True)
            elif call.caller is node:
                call.hang_up()
                self.calls.pop(call)

    def _leads(self, start: Node, end: Node) -> bool:
        return not self.cut and (self.sim.faults.calm or self._blocked[start.place, end.place] <= 0)

    # -- one call

    async def carry(self, caller: Node, owner: Owner, request: ask.Request[Any]) -> Any:
        sim, faults, loop = self.sim, self.sim.faults, self.sim.loop
        verb = nodes.OF[type(request)]
        call = Call(caller, owner, loop.create_future())
        body = nodes.encode(request)
        forgot = sim.amnesia.times
        self.calls[call] = None
        try:
            await asyncio.sleep(self._dice.choice(WAYS))
            if faults.fires("link late"):
                await asyncio.sleep(faults.dice("link late").choice([0.1, 2, 8]))
            target = self._listens(owner.address)
            if target is None or target.shards.me != owner.id:
                raise LinkFailed("nobody of this id listens there", sent=False)
            if not self._leads(caller, target) or faults.fires("link lost"):
                await asyncio.sleep(self._dice.choice([0, 0.01, 2]))
                raise LinkFailed("it did not arrive", sent=self._dice.random() < 0.5)
            call.target = target
            loop.call_later(SILENCE, self._ping, call)
            loop.call_later(PATIENCE, lambda: call.fail("no answer came", sent=True))
            loses = faults.fires("link answer lost")
            if loses:
                pause = faults.dice("link answer lost").choice([0, 0.001, 0.5, 4])
                loop.call_later(pause, lambda: call.fail("the connection was reset", sent=True))
            self._serve(target, verb, body, call, loses)
            if faults.fires("link twice"):
                self._serve(target, verb, nodes.encode(repeated(request)), call, loses)
            said = await call.answer
        except asyncio.CancelledError:
            call.hang_up()
            raise
        finally:
            self.calls.pop(call, None)
        answer = verb.decode_reply(said)
        if sim.amnesia.times == forgot:
            self._acknowledged(caller, request, answer)
        sim.done("forwarded")
        return answer

    def _listens(self, address: str | None) -> Node | None:
        places = {f"{PREFIX}{node.place}": node for node in self.sim.nodes if node.serving}
        return places.get(address or "")

    def _ping(self, call: Call) -> None:
        """Who is silent is asked whether it is there, again and again."""
        target = call.target
        if call.answer.done() or target is None:
            return
        if target.life.paused or not (self._leads(call.caller, target) and self._leads(target, call.caller)):
            call.fail("it does not answer", sent=True)
        else:
            self.sim.loop.call_later(SILENCE, self._ping, call)

    def _serve(self, target: Node, verb: calls.Verb, body: bytes, call: Call, loses: bool) -> None:
        async def serve() -> None:
            try:
                answer = await self._answered(target, verb, body, call)
            except Exception as error:
                self._reply(target, call, loses, error)
            else:
                self._reply(target, call, loses, answer)

        call.tasks.append(target.world.spawn(serve(), "handed on"))

    async def _answered(self, target: Node, verb: calls.Verb, body: bytes, call: Call) -> bytes:
        asked: Any = nodes.received(verb.decode_request.decode(body))
        node = target.app._node
        peers = node.peers
        assert peers is not None
        owner = peers.misdirected(asked)
        if owner is not None:
            raise Misdirected(owner)
        partition = partition_of_request(asked)
        others = None if partition is None else node.shards.owner_of(partition)
        self.sim.auditor.must(others is None, "S14 who is called by a link owns what it decides", (target.name, asked))
        seconds = calls.PATIENCE
        match asked:
            case ask.AwaitResult() | ask.RunWorkflow():
                if isinstance(asked, ask.AwaitResult):
                    seconds = _cut(asked.wait_seconds)
                    asked = replace(asked, wait_seconds=None)
                start = asked.start if isinstance(asked, ask.RunWorkflow) else asked
                not_yet = ask.Result(workflow_id=start.workflow_id or "", run_id="", status=None)
                target.world.later(seconds, lambda: self._send_away(target, call, verb.encode_reply(not_yet)))
            case tell.GetUpdate() | tell.UpdateWorkflow() | nodes.AwaitEvents():
                asked = replace(asked, wait_seconds=_cut(asked.wait_seconds))
            case _:
                pass
        return verb.encode_reply(await node.api.here(asked))

    def _send_away(self, target: Node, call: Call, not_yet: bytes) -> None:
        if not call.answer.done():
            self._reply(target, call, False, not_yet)
            call.hang_up()

    def _reply(self, target: Node, call: Call, loses: bool, said: bytes | Exception) -> None:
        match said:
            case bytes() | Misdirected():
                pass
            case Refused():
                read = msgspec.json.decode(nodes.encode(calls.Refusal(said.reason, said.message, said.fields)))
                said = Refused(read["reason"], read["message"], **read["fields"])
            case RecordedAlready() if not call.answer.done():
                self.sim.violation("S6 who asks over a link is answered by the record", said)
                return
            case _:
                said = LinkFailed(repr(said), sent=True)
        if not loses and self._leads(target, call.caller):
            self.sim.loop.call_later(self._dice.choice(WAYS), _arrive, call.answer, said)

    # -- laws

    def _acknowledged(self, caller: Node, request: Any, answer: Any) -> None:
        """What a node is told over a link is so on disk."""
        disk, must = self.sim.disk, self.sim.auditor.must
        if isinstance(request, DeliverSend):
            must(request.key not in disk.sends, "S7 what a link has delivered is taken", (caller.name, request))
            return
        if not isinstance(request, ask.StartWorkflow | tell.SignalWithStart | tell.ToInstance):
            return
        if isinstance(answer, tell.UpdateStatus) and answer.update_status == "rejected":
            return  # that leaves nothing
        start: Any = request.start if isinstance(request, tell.SignalWithStart) else request
        key = disk.names.get((start.namespace, start.workflow_id or ""), 0)
        kinds = Counter(c.command_type for c in disk.commands.get(key, ()) if c.request_id == request.request_id)
        once = bool(kinds) and max(kinds.values()) == 1
        must(once, "S6 a forwarded request is decided once", (caller.name, request, kinds))


def _arrive(answer: asyncio.Future[bytes], said: bytes | Exception) -> None:
    if answer.done():
        return
    if isinstance(said, Exception):
        answer.set_exception(said)
    else:
        answer.set_result(said)


def _cut(seconds: float | None) -> float:
    return calls.PATIENCE if seconds is None else min(seconds, calls.PATIENCE)


class NodeLinks:
    """The links of one node, as its engine sees them."""

    def __init__(self, network: NodeNetwork, node: Node) -> None:
        self._network = network
        self._node = node
        self._failures: Counter[int] = Counter()
        self._rests: dict[int, float] = {}

    async def call(self, owner: Owner, request: ask.Request[Any]) -> Any:
        now = self._network.sim.loop.time
        if self._rests.get(owner.id, 0) > now():
            raise LinkFailed("the link rests", sent=False)
        try:
            answer = await self._network.carry(self._node, owner, request)
        except LinkFailed:
            self._failures[owner.id] += 1
            if self._failures[owner.id] >= FAILURES:
                self._rests[owner.id] = now() + REST
            raise
        except (Refused, Misdirected):
            self._failures.pop(owner.id, None)
            raise
        self._failures.pop(owner.id, None)
        return answer

    def keep(self, living: Collection[int]) -> None:
        """Who waits for one that is not among these asks its successor."""
        for call in list(self._network.calls):
            if call.caller is self._node and call.owner.id not in living:
                call.fail("it is gone", sent=True)
