"""News of tasks: notifies other nodes that tasks wait here, because fitting polls may be parked there.

A worker of the published protocol polls through a load balancer. Its poll is served by the node it reached, or parked
there, and nowhere else. So the owner of a task without a poll here notifies other nodes, which *fetch* it
(`fetching.py`). At first it notifies as few nodes as have polls enough for all waiting tasks, by their last answers. If
no polls are known, if one of them answers that its polls are gone, or if tasks still wait after 50 ms, it notifies all
nodes. While they wait, it repeats that each second.

Nothing depends on news. They may be lost or outdated: a task that no news have brought to a worker is stolen (`stealing.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from backstay.engine.core.engine import Engine
from backstay.engine.core.world import Alarm
from backstay.engine.tasks.leases import Queue
from backstay.kernel.message import Refused
from backstay.kernel.values import SECOND, Micros
from backstay.protocol.native.node_links import Links
from backstay.protocol.native.nodes import LinkFailed, Misdirected, Owner, TellWaiting, WaitingTasks

EVERY: Micros = SECOND // 100  # news to one node, at most
SPREAD: Micros = (
    SECOND // 20
)  # after which all nodes are notified, if tasks still wait; also the shortest interval if no node has polls
AGAIN: Micros = SECOND  # after which all are notified again
MOST = 1000  # queues in one call
KNOWN = 10_000  # queues of one node, of whose polls is remembered how many there are


class _Listener:
    """Another node, as far as its answers tell. `polls`: how many are parked there, of the queues that have any."""

    def __init__(self) -> None:
        self.polls: dict[Queue, int] = {}
        self.untold: dict[Queue, int] = {}
        self.is_called = False

    def answered(self, queue: Queue, parked: int) -> None:
        self.polls.pop(queue, None)
        if parked:
            self.polls[queue] = parked
            if len(self.polls) > KNOWN:
                del self.polls[next(iter(self.polls))]


class _WaitingQueue:
    """A queue with tasks that no poll here takes."""

    __slots__ = ("has_polls", "is_new", "is_spreading", "to_tell_all", "told_all")

    def __init__(self) -> None:
        self.is_new = True  # a task came after the last news
        self.is_spreading = False  # some nodes were notified, and all will be
        self.has_polls = False  # somewhere, after the last notice to all
        self.told_all: Micros | None = None
        self.to_tell_all: Micros = 0

    def soonest(self) -> Micros:
        """When all nodes may be notified again."""
        return 0 if self.told_all is None else self.told_all + (EVERY if self.has_polls else SPREAD)


class TaskNews:
    """`me`: how other nodes call this one; None: they cannot. `others`: the living nodes that can be called."""

    def __init__(
        self,
        engine: Engine,
        links: Links,
        me: Callable[[], Owner | None],
        others: Callable[[], Sequence[Owner]],
    ) -> None:
        self._engine = engine
        self._world = engine.world
        self._links = links
        self._me = me
        self._others = others
        self._queues: dict[Queue, _WaitingQueue] = {}
        self._listeners: dict[int, _Listener] = {}
        self._alarm: Alarm | None = None
        self._rings_at: Micros = 0
        self._last_round: Micros = 0
        self._is_alone = False
        self._stopped = False
        self.counts: Counter[str] = Counter()
        engine.matching.lanes.on_unmatched = self.waits

    def stop(self) -> None:
        self._stopped = True
        self._queues.clear()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def waits(self, queue: Queue) -> None:
        """A task of this queue begins to wait."""
        if self._stopped:
            return
        waiting = self._queues.get(queue)
        if waiting is None:
            waiting = self._queues[queue] = _WaitingQueue()
        waiting.is_new = True
        self._ring(max(self._world.now(), self._last_round + (AGAIN if self._is_alone else EVERY)))

    # -- rounds

    def _ring(self, at: Micros) -> None:
        if self._alarm is not None and self._rings_at <= at:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._rings_at = at
        self._alarm = self._world.at(at, self._round)

    def _round(self) -> None:
        """Notify the nodes that may have a worker for the waiting tasks."""
        self._alarm = None
        now = self._last_round = self._world.now()
        others = self._others()
        for gone in self._listeners.keys() - {other.id for other in others}:
            del self._listeners[gone]
        self._is_alone = self._me() is None or not others
        counts = self._counts()
        for queue, waiting in list(self._queues.items()):
            count = counts.get(queue, 0)
            if not count or not self._engine.matching.admits(queue):
                del self._queues[queue]
            elif self._is_alone or self._engine.down is not None:
                self._ring(now + AGAIN)
            else:
                self._tell_of(queue, count, waiting, others, now)
                self._ring(max(waiting.to_tell_all, now + EVERY))

    def _counts(self) -> dict[Queue, int]:
        counts: dict[Queue, int] = {}
        for lane, size in self._engine.matching.lanes.sizes():
            counts[lane.place] = counts.get(lane.place, 0) + size
        return counts

    def _tell_of(self, queue: Queue, count: int, waiting: _WaitingQueue, others: Sequence[Owner], now: Micros) -> None:
        polls = {other: self._known(other, queue) for other in others}
        likely = sorted((other for other in others if polls[other]), key=lambda other: -polls[other])
        if waiting.is_new:
            waiting.to_tell_all = max(now + SPREAD if likely else now, waiting.soonest())
            missing = count
            for other in likely:
                if missing > 0:
                    missing -= polls[other]
                    self._tell(other, queue, count)
            waiting.is_new, waiting.is_spreading = False, True
        if waiting.to_tell_all <= now:
            for other in others:
                self._tell(other, queue, count)
            waiting.told_all, waiting.to_tell_all = now, now + AGAIN
            waiting.has_polls = waiting.is_spreading = False

    def _answered(self, queue: Queue, parked: int) -> None:
        """A notified node has this many polls of the queue."""
        waiting = self._queues.get(queue)
        if waiting is None:
            return
        if parked:
            waiting.has_polls = True
        elif waiting.is_spreading:
            waiting.to_tell_all = min(waiting.to_tell_all, waiting.soonest())
            self._ring(max(waiting.to_tell_all, self._last_round + EVERY, self._world.now()))

    def _known(self, other: Owner, queue: Queue) -> int:
        listener = self._listeners.get(other.id)
        return 0 if listener is None else listener.polls.get(queue, 0)

    # -- calls

    def _tell(self, other: Owner, queue: Queue, count: int) -> None:
        listener = self._listeners.setdefault(other.id, _Listener())
        listener.untold[queue] = count
        if not listener.is_called:
            listener.is_called = True
            self._world.spawn(self._call(other, listener), "backstay-news")

    async def _call(self, other: Owner, listener: _Listener) -> None:
        """Send a node all pending news in one call; one call at a time."""
        try:
            while listener.untold and not self._stopped:
                queues = dict(list(listener.untold.items())[:MOST])
                for queue in queues:
                    del listener.untold[queue]
                me = self._me()
                if me is None or me.address is None:
                    return
                waiting = [
                    WaitingTasks(kind=kind, namespace=namespace, queue=queue, count=count)
                    for (kind, namespace, queue), count in queues.items()
                ]
                self.counts["told"] += 1
                polls = await self._links.call(other, TellWaiting(node=me.id, address=me.address, waiting=waiting))
                for queue, parked in zip(queues, polls, strict=True):
                    listener.answered(queue, parked)
                    self._answered(queue, parked)
        except (LinkFailed, Misdirected, Refused):
            self.counts["untold"] += 1
            self._listeners.pop(other.id, None)
        finally:
            listener.is_called = False
