"""Trials at several nodes: while a node tries a suspect, the other nodes give nothing to its worker.

A worker works for all nodes, and each of them isolates only its own tasks (`engine/tasks/isolation.py`). If two nodes
gave a suspect to one worker at once, both tasks would count its death. So a node asks the others to spare a worker
before that gets a suspect, and notifies them of the begin, length and end of the trial. If two nodes ask at once, the
one with the smaller id goes first. A node that gives no answer is not waited for: then each node isolates by itself.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import NamedTuple

from backstay.engine.core.world import World
from backstay.engine.node import Node
from backstay.engine.tasks.isolation import Worker
from backstay.kernel.values import SECOND, Micros
from backstay.protocol.native.node_links import Links, asked_of
from backstay.protocol.native.nodes import SpareWorker

PATIENCE = 5.0  # seconds for another node
FIRST = 10 * SECOND  # from the question: in which the others have answered, and the suspect is leased
AGAIN = SECOND // 2  # after a refusal, for the same worker


class Permit(NamedTuple):
    """The other nodes spare this worker until then; 0: the calls to them are under way."""

    worker: Worker
    until: Micros


class TrialsOfNodes:
    def __init__(self, node: Node, links: Links, world: World) -> None:
        self._node = node
        self._links = links
        self._world = world
        self._isolation = node.engine.matching.isolation
        self._permit: Permit | None = None  # one at a time: a suspect needs one worker
        self._refused: dict[Worker, Micros] = {}  # workers that other nodes did not spare, and the time of the next try
        self._number = 0  # of the last message to the others
        self._spared: dict[tuple[Worker, int], int] = {}  # the number of the message by which another node requested it
        if not node.store.exclusive:
            self._isolation.may_try = self._may_try
            self._isolation.on_trial = self._tell

    async def here(self, asked: SpareWorker) -> bool:
        """Spare a worker for another node, unless it has a suspect of this node. `seconds` is 0 when the trial is over."""
        worker, permit = (asked.namespace, asked.worker_id), self._permit
        if asked.number < self._spared.get((worker, asked.node), 0):
            return True  # a later message has overtaken it
        if asked.seconds == 0:
            self._end(worker, asked.node)
            return True
        if self._isolation.is_trying(worker, but=asked.node):
            return False
        if permit is not None and permit.worker == worker:
            if permit.until > self._world.now() or self._node.shards.me < asked.node:
                return False
            self._permit = None
        until = self._world.now() + round(asked.seconds * SECOND)
        self._isolation.spare(worker, asked.node, until)
        self._spared[worker, asked.node] = asked.number
        self._world.at(until, partial(self._end, worker, asked.node, until))
        return True

    def _end(self, worker: Worker, node: int, until: Micros | None = None) -> None:
        """The trial of another node is over; with `until`: unless that node has extended it since."""
        if self._isolation.unspare(worker, node, until):
            self._spared.pop((worker, node), None)
            self._node.engine.dispatcher.on_trial_ended()

    def _may_try(self, worker: Worker) -> bool:
        """Whether the other nodes spare this worker. If not, they are called, and its tasks are offered again after
        their replies."""
        permit, now = self._permit, self._world.now()
        if permit is not None and now < permit.until <= now + FIRST:
            return permit.worker == worker
        if (permit is None or permit.until) and not now < self._refused.get(worker, 0) <= now + AGAIN:
            if not self._node.shards.linked:
                return True
            self._permit = Permit(worker, 0)
            self._world.spawn(self._ask(self._permit), "backstay-trial")
        return False

    async def _ask(self, asking: Permit) -> None:
        until = self._world.now() + FIRST - SECOND
        granted = await self._call(asking.worker, FIRST)
        if self._permit is not asking:  # another node goes first
            await self._call(asking.worker, 0)
            return
        if granted:
            self._permit = Permit(asking.worker, until)
            self._node.engine.dispatcher.on_trial_ended()
            return
        self._permit = None
        now, dispatcher = self._world.now(), self._node.engine.dispatcher
        self._refused = {one: at for one, at in self._refused.items() if at > now} | {asking.worker: now + AGAIN}
        self._world.at(now + AGAIN, dispatcher.on_trial_ended)
        dispatcher.on_trial_ended()  # another worker may have it
        await self._call(asking.worker, 0)

    def _tell(self, worker: Worker, seconds: Micros) -> None:
        """A trial has begun, for so long, or is over."""
        if self._permit is not None and self._permit.worker == worker:
            self._permit = None
        if self._node.shards.linked:
            self._world.spawn(self._call(worker, seconds), "backstay-trial")

    async def _call(self, worker: Worker, time: Micros) -> bool:
        """Ask all other nodes to spare a worker for this time; whether none has refused."""
        namespace, worker_id = worker
        self._number += 1
        asked = SpareWorker(
            node=self._node.shards.me,
            number=self._number,
            namespace=namespace,
            worker_id=worker_id,
            seconds=time / SECOND,
        )
        others = self._node.shards.linked
        answers = await asyncio.gather(*(asked_of(self._links, other, asked, PATIENCE) for other in others))
        return False not in answers
