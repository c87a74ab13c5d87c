"""The outbox: delivers messages between instances after the sender's commit, until the receiver's commit takes them.

The rows are the truth: after a crash the next engine finds them. A message that is being delivered is not picked up a second
time; delivering it twice would be harmless.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

from backstay.engine.core.cache import CachedInstance
from backstay.engine.core.deliveries import Receives, delivery, hand_over, needs_records, with_records
from backstay.engine.core.world import Alarm, rest, wake
from backstay.kernel.features.delivery import Deliver, ReturnSend
from backstay.kernel.machine import Machine
from backstay.kernel.message import Message, Refused
from backstay.kernel.send import Send, unpack
from backstay.kernel.values import SECOND, partition_of
from backstay.store import Store, StoredSend
from backstay.store.errors import StoreError

log = logging.getLogger("backstay.engine")

PAGE = 500
LOOK = SECOND // 50  # between two looks at the rows of another process's sends
LOOKS = 50

Pair = tuple[int, str, str]
"""Sender and receiver: the sender's key, the receiver's namespace and workflow id."""


class Delivers(Receives, Protocol):
    """The part of an engine that the outbox delivers to: instances by name, and the rows of messages."""

    store: Store
    machine: Machine

    def owns(self, key: int) -> bool: ...


class Outbox:
    """Messages from one instance to another arrive in order: each is delivered after the one before was committed."""

    def __init__(self, engine: Delivers) -> None:
        self._engine = engine
        self._under_way: set[int] = set()
        self._queues: dict[Pair, deque[Send]] = {}
        self._again: dict[Pair, Alarm] = {}  # deliveries that failed and are retried
        self._returned: set[int] = set()  # sends whose receiver did not exist, until their sender knows
        self._behind: dict[int, list[Send]] = {}  # by sender: they leave when its earlier sends have been read
        self._read: dict[
            int, list[asyncio.Future[None]]
        ] = {}  # by sender: the callbacks that wait until they have been read
        self._stopped = False
        self._expected: dict[Pair, list[asyncio.Future[None]]] = {}
        # Brings a send to the process that owns its receiver; False: it has to be delivered here.
        self.elsewhere: Callable[[Send], Awaitable[bool]] | None = None

    def dispatch_all(self, entry: CachedInstance, sends: Sequence[Send]) -> None:
        """Bring the sends of an instance to their receivers, after those that another process has made for it before.

        That process has left a notice, which may not have been read yet. So when an instance was read from the database, its sends
        are read before the first one that is made here leaves (`tests/sim/seeds`).
        """
        key = entry.instance.key
        if entry.sends_unread and self._engine.owns(key):
            entry.sends_unread = False
            if key not in self._behind:
                self._behind[key] = []
                self._engine.world.spawn(self._read_earlier(key), "backstay-earlier-sends")
        waiting = self._behind.get(key)
        if waiting is not None:
            waiting += sends
            return
        for send in sends:
            self.dispatch(send)

    async def _read_earlier(self, key: int) -> None:
        earlier: Sequence[StoredSend] = ()
        while not self._stopped:
            try:
                earlier = await self._engine.store.sends_of([key])
                break
            except StoreError as error:
                log.warning("sends could not be read and are read again: %s", error)
                await rest(self._engine.world, SECOND)
        waiting = self._behind.pop(key)
        for read in self._read.pop(key, ()):
            wake(read)
        # A send that was refused because its receiver did not exist comes after that, if the receiver is created now.
        self._dispatch_all(row for row in earlier if row.key not in self._returned)
        for send in waiting:
            self.dispatch(send)
        self._dispatch_all(row for row in earlier if row.key in self._returned)
        self._returned.difference_update(row.key for row in earlier)

    def dispatch(self, send: Send) -> None:
        """Bring a send whose commit is on disk to its receiver."""
        if send.key in self._under_way or self._stopped or not self._engine.owns(send.sender):
            return
        self._under_way.add(send.key)
        pair = (send.sender, send.namespace, send.workflow_id)
        queue = self._queues.setdefault(pair, deque())
        queue.append(send)
        if len(queue) == 1:
            self._next(pair)

    def stop(self) -> None:
        """Deliver nothing more. Messages that did not arrive stay on disk for the next engine."""
        self._stopped = True
        for alarm in self._again.values():
            alarm.cancel()
        for pair in list(self._expected):
            self._arrived(pair)
        for waiting in self._read.values():
            for read in waiting:
                wake(read)

    async def arrival(self, sender: int, namespace: str, workflow_id: str) -> None:
        """Wait until all messages from this sender to this receiver have arrived, or a delivery has failed.

        If another process owns the sender, its rows are asked for a while.
        """
        pair = (sender, namespace, workflow_id)
        while sender in self._behind and not self._stopped:
            read: asyncio.Future[None] = self._engine.world.future()
            self._read.setdefault(sender, []).append(read)
            await read
        if not self._engine.owns(sender):
            for _ in range(LOOKS):
                left = await self._engine.store.sends_of([sender])
                if self._stopped or not any((row.namespace, row.workflow_id) == pair[1:] for row in left):
                    return
                await rest(self._engine.world, LOOK)
            return
        if pair in self._queues and not self._stopped:
            arrived: asyncio.Future[None] = self._engine.world.future()
            self._expected.setdefault(pair, []).append(arrived)
            await arrived

    def _arrived(self, pair: Pair) -> None:
        for expected in self._expected.pop(pair, ()):
            if not expected.done():
                expected.set_result(None)

    def forget(self, is_lost: Callable[[int], bool]) -> None:
        """Deliver nothing more of these senders: the process that owns them does. A send that is under way arrives
        twice at most."""
        for pair in [pair for pair in self._queues if is_lost(pair[0])]:
            self._under_way.difference_update(send.key for send in self._queues.pop(pair))
            alarm = self._again.pop(pair, None)
            if alarm is not None:
                alarm.cancel()
            self._arrived(pair)

    def _next(self, pair: Pair) -> None:
        queue = self._queues.get(pair)
        if self._stopped or queue is None:
            return
        send = queue[0]
        message = delivery(self._engine, send)
        far = self.elsewhere is not None and not self._engine.owns(partition_of(send.namespace, send.workflow_id))
        if far or needs_records(message):
            self._engine.world.spawn(self._prepare(pair, queue, message, far), "backstay-send")
        else:
            self._deliver(pair, queue, message)

    async def _prepare(self, pair: Pair, queue: deque[Send], message: Deliver, far: bool) -> None:
        """Bring a message to the process that owns its receiver. If none can be called, it is delivered here, with the records
        of the commands that it causes or asks after."""
        known: Message = message
        try:
            if far and self.elsewhere is not None and await self.elsewhere(message.send):
                self._taken(pair, queue, message.send, None)
                return
            if needs_records(message):
                known = await with_records(self._engine, message)
        except Refused as refusal:
            self._taken(pair, queue, message.send, refusal)
            return
        except Exception as error:
            self._failed(pair, queue, error)
            return
        if not self._stopped and self._queues.get(pair) is queue:
            self._deliver(pair, queue, known)

    def _deliver(self, pair: Pair, queue: deque[Send], message: Message) -> None:
        send = queue[0]
        try:
            hand_over(self._engine, send, message, lambda _, error: self._taken(pair, queue, send, error))
        except StoreError as error:
            self._failed(pair, queue, error)

    def _taken(self, pair: Pair, queue: deque[Send], send: Send, error: BaseException | None) -> None:
        if self._queues.get(pair) is not queue:
            return  # another process owns the sender, and delivers
        if isinstance(error, StoreError):
            self._failed(pair, queue, error)
            return
        if error is not None:
            log.warning("send %s to workflow %s was refused: %s", send.key, send.workflow_id, error)
            if isinstance(error, Refused) and error.reason == "workflow_not_found":
                self._give_back(pair, send)
        self._under_way.discard(send.key)
        queue.popleft()
        if queue:
            self._next(pair)
        else:
            del self._queues[pair]
            self._again.pop(pair, None)
            self._arrived(pair)

    def _give_back(self, pair: Pair, send: Send) -> None:
        """Return a send whose receiver does not exist. If the sender creates the receiver again, the send follows that."""

        def follow() -> None:
            if pair[0] in self._behind:
                return
            self._returned.discard(send.key)
            if any(other.message.creates for other in self._queues.get(pair, ())):
                self.dispatch(send)

        def returned(value: Any, error: BaseException | None) -> None:
            self._engine.world.soon(follow)  # the sender's new messages are dispatched after this answer

        self._returned.add(send.key)
        self._engine.submit(send.sender, ReturnSend(send=send), returned, again=False)

    def _failed(self, pair: Pair, queue: deque[Send], error: BaseException) -> None:
        """Retry the delivery later. The messages after it wait."""
        self._arrived(pair)
        if self._stopped or self._queues.get(pair) is not queue:
            return
        world = self._engine.world
        log.warning("a send to workflow %s could not be delivered and is retried: %s", pair[2], error)
        self._again[pair] = world.at(world.now() + SECOND, lambda: self._next(pair))

    async def pick_up(self, shards: Sequence[int] | None = None) -> None:
        """Deliver the sends on disk that are not under way, of these shards or of all."""
        after = 0
        while True:
            page = await self._engine.store.sends(after, PAGE, shards=shards)
            self._dispatch_all(page)
            if len(page) < PAGE:
                return
            after = page[-1].key

    async def pick_up_of(self, senders: Sequence[int]) -> None:
        """Deliver the sends of these instances: another process has committed to them."""
        self._dispatch_all(await self._engine.store.sends_of(senders))

    def _dispatch_all(self, rows: Iterable[StoredSend]) -> None:
        for row in rows:
            sent = unpack(self._engine.machine.outbox_message_kinds[row.kind], row.body)
            self.dispatch(Send(row.key, row.sender, row.namespace, row.workflow_id, sent))
