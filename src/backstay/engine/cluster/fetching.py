"""Fetching: brings tasks of other nodes to polls that are parked here.

When a node gets news that tasks wait at another node (`task_news.py`), it sends a poll that is parked here to that
node, as a poll that does not wait. The parked poll is *held back* meanwhile: neither a local task nor another fetch may
be given to it, so it gets one task. If its caller has hung up when a task arrives, the lease is released.

The reply to a fetch may be lost, and the lease with it be on disk. So every fetch has the id of its poll, or gets one: its task is
looked up in the database by it.

News are remembered for a while: they are hints where the next poll that finds nothing here may find a task.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from backstay.engine.core.engine import Engine
from backstay.engine.core.world import Alarm
from backstay.engine.tasks.leases import Queue
from backstay.engine.tasks.parked_polls import ParkedPoll
from backstay.kernel.event import HistoryDamaged
from backstay.kernel.features.lease import never_heard_of
from backstay.kernel.message import Refused
from backstay.kernel.task import Task
from backstay.kernel.values import SECOND, Micros
from backstay.protocol import requests as ask
from backstay.protocol.native.node_links import Links
from backstay.protocol.native.nodes import (
    FetchActivityTask,
    FetchWorkflowTask,
    LinkFailed,
    Misdirected,
    Owner,
    TellWaiting,
)
from backstay.store.errors import StoreError, Unavailable

PATIENCE = 2.0  # seconds to wait for the node that sent the news
LATE: Micros = 5 * SECOND  # after which a fetch whose reply was lost has come to its end
REMEMBERED: Micros = 2 * SECOND  # news; a node that still has tasks then sends it again
TWIN: Micros = (
    SECOND  # after which a poll looks once more for a lease under its id: the first try may just have got one
)
HINTS = 10_000  # queues, of which news are remembered
TELLERS = 100  # nodes, whose news of one queue are remembered

Found = Callable[[ParkedPoll], Awaitable[Any]]
"""The assignment that a poll has got by its id, as the database knows it."""


class Fetching:
    def __init__(self, engine: Engine, links: Links, assignment: Found) -> None:
        self._engine = engine
        self._world = engine.world
        self._links = links
        self._assignment = assignment
        self._hints: dict[
            Queue, dict[Owner, Micros]
        ] = {}  # the nodes that have tasks of a queue, and the time of their news
        self._stopped = False
        self.counts: Counter[str] = Counter()

    def stop(self) -> None:
        self._stopped = True

    # -- news

    async def heard(self, news: TellWaiting) -> list[int]:
        """Another node has tasks that wait. Returns how many polls of each of their queues are parked here."""
        owner = Owner(news.node, news.address, 0)
        parked: list[int] = []
        for waiting in news.waiting:
            queue: Queue = (waiting.kind, waiting.namespace, waiting.queue)
            self._remember(queue, owner)
            polls = self._engine.matching.polls.on(queue)
            parked.append(len(polls))
            for poll in polls[: waiting.count]:
                self._fetch(owner, poll)
        return parked

    def _remember(self, queue: Queue, owner: Owner) -> None:
        if len(self._hints) >= HINTS and queue not in self._hints:
            self._hints.pop(next(iter(self._hints)))
        hints = self._hints.setdefault(queue, {})
        hints.pop(owner, None)
        hints[owner] = self._world.now()
        if len(hints) > TELLERS:
            del hints[next(iter(hints))]

    def parked(self, poll: ParkedPoll) -> None:
        """A poll has found no task here: fetch one from a node that sent news of its queue."""
        hints = self._hints.get(poll.place)
        if hints is None or not self._engine.matching.polls.is_parked(poll):
            return
        old = self._world.now() - REMEMBERED
        for owner, told_at in list(hints.items()):
            if told_at < old:
                del hints[owner]
        if hints:
            owner = max(hints, key=lambda node: hints[node])
            self._fetch(owner, poll)
        else:
            del self._hints[poll.place]

    def look_soon(self, poll: ParkedPoll) -> Alarm:
        """Look once more for a lease under the id of a poll. Its worker may have lost the reply of another node just before."""
        return self._world.at(self._world.now() + TWIN, lambda: self._look_again(poll))

    def _look_again(self, poll: ParkedPoll) -> None:
        polls = self._engine.matching.polls
        if polls.is_parked(poll) and not self._stopped and self._engine.down is None:
            polls.hold(poll)
            self._world.spawn(self._finding(poll), "backstay-fetch")

    async def _finding(self, poll: ParkedPoll) -> None:
        self._end(poll, await self._look_up(poll))

    # -- fetches

    def _fetch(self, owner: Owner, poll: ParkedPoll) -> None:
        if self._stopped or self._engine.down is not None:
            return
        self._engine.matching.polls.hold(poll)
        if poll.call is None:
            poll.call = self._world.ids.ulid()
        self._world.spawn(self._fetching(owner, poll), "backstay-fetch")

    async def _fetching(self, owner: Owner, poll: ParkedPoll) -> None:
        assigned: Any = None
        is_lost = False
        try:
            async with asyncio.timeout(PATIENCE):
                assigned = await self._links.call(owner, _request(poll))
        except LinkFailed as failed:
            is_lost = failed.sent
        except TimeoutError:
            is_lost = True
        except (Misdirected, Refused, HistoryDamaged):
            pass
        if is_lost:
            self.counts["lost"] += 1
            assigned = await self._look_up(poll)
        self.counts["empty" if assigned is None else "fetched"] += 1
        if assigned is None:
            self._hints.get(poll.place, {}).pop(owner, None)
        else:
            self._engine.counters.fetched += 1
        poll = self._end(poll, assigned)
        if is_lost and assigned is None:
            self._world.at(self._world.now() + LATE, lambda: self._look_later(poll))

    def _end(self, poll: ParkedPoll, assigned: Any) -> ParkedPoll:
        """Give a task to its poll, or let the poll wait on. Returns the poll that it is for: the worker may have repeated it."""
        poll = self._engine.dispatcher.settle_poll(poll, assigned)
        if assigned is None:
            self.parked(poll)
        elif poll.got() is assigned.task:
            poll.fetched = True
        else:
            self.counts["released"] += 1
        return poll

    def _release(self, task: Task) -> None:
        """No worker has heard of this lease."""
        self.counts["released"] += 1
        self._engine.submit(task.workflow, never_heard_of(task))

    # -- lost replies

    async def _look_up(self, poll: ParkedPoll) -> Any:
        try:
            return await self._assignment(poll)
        except (StoreError, Refused):
            return None

    def _look_later(self, poll: ParkedPoll) -> None:
        if not self._stopped:
            self._world.spawn(self._release_late(poll), "backstay-late-fetch")

    async def _release_late(self, poll: ParkedPoll) -> None:
        """Release the lease of a late fetch whose poll has got another task. If not, the worker may still ask for
        it."""
        got = poll.got()
        if got is None or poll.call is None:
            return
        try:
            held = await self._engine.store.leased_by(poll.namespace, poll.owner, poll.call)
        except Unavailable:
            return  # the lease has an end
        for task in held:
            if task.id != got.id:
                self._release(task)


def _request(poll: ParkedPoll) -> ask.Request[Any]:
    common: dict[str, Any] = {
        "worker_id": poll.owner,
        "queue": poll.queue,
        "namespace": poll.namespace,
        "connection": poll.worker.connection,
        "compatibility": poll.worker.compatibility,
        "poll_request_id": poll.call,
    }
    if poll.kind == "workflow":
        return FetchWorkflowTask(workflow_types=poll.types, **common)
    return FetchActivityTask(activity_types=poll.types or frozenset(), **common)
