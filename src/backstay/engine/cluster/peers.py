"""Peers: the other nodes of the database. A request about an instance that another node owns is handed to that node.

Where no link leads to the owner, or the link fails, the request is carried out here, through the database: that takes more
work, and is right as well. So links save time, and nothing depends on them.

Nothing is done twice. Every change has a request id before it leaves. If no reply comes, the same request is sent again, or
carried out here, and answered by its record if it has one. Reports of workers are answered from history, sends by their rows.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from backstay.engine.core.world import World
from backstay.kernel.event import HistoryDamaged
from backstay.kernel.message import Refused
from backstay.kernel.send import Send
from backstay.kernel.values import PARTITIONS, SCHEDULES, SECOND, Micros, partition_in, partition_of
from backstay.protocol import commands as tell
from backstay.protocol import requests as ask
from backstay.protocol import schedules, streams
from backstay.protocol.native.node_links import Links
from backstay.protocol.native.nodes import AwaitEvents, DeliverSend, LinkFailed, Misdirected, Owner
from backstay.store.errors import Unavailable

R = TypeVar("R")

HOPS = 2  # nodes that are called for one request, when each of them names another
LOSSES = 2  # replies that may be lost before a request is carried out here

OwnerOf = Callable[[int], Owner | None]
"""The owner of a partition; None: this node, or no node."""

Here = Callable[[Any], Awaitable[Any]]
"""Carries a request out in this process."""


# -- which partition a request is about


def _of_instance(request: Any) -> int:
    return partition_of(request.namespace, request.workflow_id)


def _of_start(request: ask.StartWorkflow) -> int | None:
    return None if request.workflow_id is None else partition_of(request.namespace, request.workflow_id)


def _of_update(request: tell.GetUpdate) -> int | None:
    return None if request.wait_seconds == 0 else _of_instance(request)


def _of_schedule(request: Any) -> int | None:
    if request.schedule_id is not None:
        return partition_of(request.namespace + SCHEDULES, request.schedule_id)
    if request.request_id:
        return partition_of(request.namespace + SCHEDULES, schedules.id_from(request.request_id))
    return None


def _of_task(request: Any) -> int:
    return partition_in(request.task_id)


def _of_attempt(request: Any) -> int:
    return partition_in(request.activity_attempt_id)


_BY_NAME = (
    *(ask.ReserveWorkflow, ask.AwaitResult, tell.QueryWorkflow),
    *(tell.SignalWorkflow, tell.AppendMessage, tell.UpdateWorkflow, *tell.OPERATOR.values()),
    *(streams.AppendStream, streams.CloseStream, streams.DescribeStream, streams.ListStreams, streams.ReadStream),
    DeliverSend,
)
_SCHEDULES = (
    *(schedules.CreateSchedule, schedules.UpdateSchedule, schedules.PauseSchedule, schedules.ResumeSchedule),
    *(schedules.TriggerSchedule, schedules.BackfillSchedule, schedules.DeleteSchedule),
)
_TASKS = (
    *(ask.ClaimWorkflowTask, ask.ClaimActivityTask, ask.GetTaskHistory),
    *(ask.CompleteTask, ask.FailTask, ask.HeartbeatTask),
)
_ATTEMPTS = (ask.CompleteActivityTask, ask.FailActivityTask, ask.HeartbeatActivityTask)

_PARTITION: dict[type[ask.Request[Any]], Callable[[Any], int | None]] = {
    ask.StartWorkflow: _of_start,
    ask.RunWorkflow: lambda request: _of_start(request.start),
    tell.SignalWithStart: lambda request: _of_start(request.start),
    tell.GetUpdate: _of_update,
    AwaitEvents: lambda request: request.workflow % PARTITIONS,
    **dict.fromkeys(_BY_NAME, _of_instance),
    **dict.fromkeys(_SCHEDULES, _of_schedule),
    **dict.fromkeys(_TASKS, _of_task),
    **dict.fromkeys(_ATTEMPTS, _of_attempt),
}


def partition_of_request(request: ask.Request[Any]) -> int | None:
    """The partition of the instance that a request is about. None: it is about none, or is answered anywhere from the database.

    It is that of the instance's name, or the one in the id of a run, a task or an attempt. For rows of old releases it is
    only a hint: then its owner carries the request out as any other node would.
    """
    find = _PARTITION.get(type(request))
    return None if find is None else find(request)


# -- requests that may be sent again


_COMMANDS = (ask.StartWorkflow, tell.ToInstance, schedules.CreateSchedule, schedules.ToSchedule)


def repeatable(request: Any, mint: Callable[[], str], origin: dict[str, Any]) -> Any:
    """The request with everything that another node needs to execute it, even twice: its request id and its caller."""
    kind: Any = request.__class__
    if kind is ask.RunWorkflow or kind is tell.SignalWithStart:
        request = replace(request, start=repeatable(request.start, mint, origin))
    elif issubclass(kind, _COMMANDS) and not request.context:
        request = replace(request, context=origin)
    if issubclass(kind, (*_COMMANDS, tell.SignalWithStart)) and request.request_id is None:
        new = {"fresh": True} if "fresh" in kind.__struct_fields__ else {}
        request = replace(request, request_id=mint(), **new)
    return request


def repeated(request: Any) -> Any:
    """The request as it is sent again: the record of an earlier try has to be looked up."""
    fields: tuple[str, ...] = request.__struct_fields__
    if "start" in fields and isinstance(request.start, ask.StartWorkflow):
        request = replace(request, start=replace(request.start, fresh=False))
    return replace(request, fresh=False) if "fresh" in fields else request


def is_repeatable(request: Any) -> bool:
    """Whether a request has the same effect twice as once. Items of a stream have, if their sender gave each a key."""
    if isinstance(request, streams.AppendStream):
        return all(item.idempotency_key is not None for item in request.items)
    return True


class _Unanswered(NamedTuple):
    """No other node has answered. `request` is to be carried out here."""

    request: Any


class Peers:
    """Hands requests to the nodes that own their instances. `owns_any`: whether this node owns any partition. `new_id`: a new
    workflow id in one of them.

    `origin`: the recorded origin of a caller that sends none, as of `Engine`.
    """

    def __init__(
        self,
        world: World,
        links: Links,
        owner_of: OwnerOf,
        *,
        owns_any: Callable[[], bool] = lambda: True,
        new_id: Callable[[str], str] | None = None,
        origin: dict[str, Any] | None = None,
    ) -> None:
        self._world = world
        self._links = links
        self.owner_of = owner_of
        self._owns_any = owns_any
        self._new_id: Callable[[str], str] = new_id or (lambda namespace: world.ids.ulid())
        self._origin = origin or {}
        self._learned: dict[
            int, Owner
        ] = {}  # by partition, owners that other nodes have named and that the map does not show yet
        self._waits: set[asyncio.Task[Any]] = set()  # calls that may wait for long
        self._stopped = False
        self.counts: Counter[str] = Counter()

    def owner(self, partition: int) -> Owner | None:
        """The other node that is to be called about a partition; None: no node is, so it is done here."""
        owner = self.owner_of(partition)
        if owner is None:
            return None
        learned = self._learned.get(partition)
        if learned is not None and learned.term > owner.term:
            owner = learned
        elif learned is not None:
            del self._learned[partition]
        return None if owner.address is None else owner

    def call(self, request: ask.Request[R], here: Callable[[Any], Awaitable[R]]) -> Awaitable[R]:
        """Carry out a request: at the owner of its instance, else `here`."""
        request = self._named(request)
        partition = partition_of_request(request)
        owner = None if partition is None or self._stopped else self.owner(partition)
        if partition is None or owner is None:
            return here(request)
        return self._forward(partition, owner, request, here)

    async def deliver(self, send: Send) -> bool:
        """Bring a stored send to the owner of its receiver. False: it has to be delivered here.

        Raises `Refused` as the receiver does. It has arrived when this returns True: its row is gone.
        """
        partition = partition_of(send.namespace, send.workflow_id)
        owner = None if self._stopped else self.owner(partition)
        if owner is None:
            return False
        answer = await self._ask(partition, owner, DeliverSend.of(send))
        return not isinstance(answer, _Unanswered)

    def misdirected(self, request: ask.Request[Any]) -> Owner | None:
        """The other node that owns the instance of a request which was sent here as to its owner."""
        partition = partition_of_request(request)
        return None if partition is None else self.owner_of(partition)

    def stop(self) -> None:
        """End all waits at other nodes: they go on here, where they end at once. Nothing more is handed on."""
        self._stopped = True
        for wait in self._waits:
            wait.cancel()

    # -- inside

    def _named(self, request: Any) -> Any:
        """The request with an id that says where it belongs. A start without one is left alone if this node owns anything:
        then it begins here, and nothing has to be looked up for it."""
        match request:
            case ask.StartWorkflow(workflow_id=None) if not self._owns_any():
                return replace(request, workflow_id=self._world.ids.ulid())
            case ask.RunWorkflow(start=start) if start.workflow_id is None and not self._owns_any():
                return ask.RunWorkflow(start=replace(start, workflow_id=self._world.ids.ulid()))
            case tell.SignalWithStart(start=start) if start.workflow_id is None:
                return replace(request, start=replace(start, workflow_id=self._new_id(start.namespace)))
            case schedules.CreateSchedule(schedule_id=None, request_id=None):
                return replace(request, schedule_id=self._new_id(request.namespace + SCHEDULES))
            case _:
                return request

    async def _forward(self, partition: int, owner: Owner, request: Any, here: Here) -> Any:
        request = repeatable(request, self._world.ids.ulid, self._origin)
        match request:
            case ask.RunWorkflow(start=start):
                ended = await self._ask(partition, owner, request, waits=True)
                if isinstance(ended, _Unanswered):
                    return await here(ended.request)
                if ended.status is not None:
                    return ended
                wait = ask.AwaitResult(workflow_id=start.workflow_id or "", namespace=start.namespace)
                return await self._wait(partition, owner, wait, here)
            case ask.AwaitResult() | tell.GetUpdate() | streams.ReadStream() | AwaitEvents():
                return await self._wait(partition, owner, request, here)
            case tell.UpdateWorkflow():
                return await self._update(partition, owner, request, here)
            case _:
                answer = await self._ask(partition, owner, request)
                return await here(answer.request) if isinstance(answer, _Unanswered) else answer

    async def _update(self, partition: int, owner: Owner, request: tell.UpdateWorkflow, here: Here) -> Any:
        until = self._until(request.wait_seconds)
        status = await self._ask(partition, owner, request, waits=True)
        if isinstance(status, _Unanswered):
            return await here(replace(status.request, wait_seconds=self._left(until)))
        if not status.wait_timed_out or status.update_id is None or self._left(until) == 0:
            return status
        wait = tell.GetUpdate(
            workflow_id=status.workflow_id,
            update_id=status.update_id,
            namespace=request.namespace,
            wait_seconds=self._left(until),
        )
        followed = await self._wait(partition, owner, wait, here)
        timeout = request.wait_seconds if followed.wait_timed_out else None
        return replace(followed, command=status.command, wait_for=request.wait_for, wait_timeout_seconds=timeout)

    async def _wait(self, partition: int, owner: Owner | None, request: Any, here: Here) -> Any:
        """Wait at the owner, repeatedly: each wait there is short, and the owner may change in between."""
        until = self._until(request.wait_seconds)
        while owner is not None and not self._stopped:
            reply = await self._ask(partition, owner, request, waits=True)
            if isinstance(reply, _Unanswered):
                break
            if _is_settled(reply) or self._left(until) == 0:
                return reply
            request = replace(request, wait_seconds=self._left(until))
            owner = self.owner(partition)
        return await here(replace(request, wait_seconds=self._left(until)))

    def _until(self, seconds: float | None) -> Micros | None:
        return None if seconds is None else self._world.ticks() + round(seconds * SECOND)

    def _left(self, until: Micros | None) -> float | None:
        return None if until is None else max(until - self._world.ticks(), 0) / SECOND

    async def _ask(self, partition: int, owner: Owner, request: Any, *, waits: bool = False) -> Any:
        """The answer of the owner, or of the node that it names, or `_Unanswered`."""
        hops = losses = 0
        while hops < HOPS and losses < LOSSES:
            try:
                answer = await (self._waiting(owner, request) if waits else self._links.call(owner, request))
            except Misdirected as misdirected:
                hops += 1
                self.counts["misdirected"] += 1
                if misdirected.owner is None or misdirected.owner.term <= owner.term:
                    break
                self._learned[partition] = misdirected.owner
            except LinkFailed as failed:
                losses += 1
                self.counts["failed"] += 1
                if failed.sent:
                    request = repeated(request)
                if failed.sent and not is_repeatable(request):
                    raise Unavailable(f"the node that owns this instance did not answer: {failed}") from None
                if not failed.sent or self._stopped:
                    break
            except (Refused, HistoryDamaged):
                self.counts["forwarded"] += 1
                raise
            else:
                self.counts["forwarded"] += 1
                return answer
            current = self.owner(partition)
            if current is None:
                break
            owner = current
        self.counts["here"] += 1
        return _Unanswered(request)

    async def _call(self, owner: Owner, request: Any) -> Any:
        return await self._links.call(owner, request)

    async def _waiting(self, owner: Owner, request: Any) -> Any:
        """Call a node, until `stop`."""
        wait = self._world.spawn(self._call(owner, request), "backstay-handed-on")
        self._waits.add(wait)
        wait.add_done_callback(self._waits.discard)
        try:
            return await wait
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._stopped and wait.cancelled() and (caller is None or not caller.cancelling()):
                raise LinkFailed("this node is stopping", sent=True) from None
            wait.cancel()
            raise


def _is_settled(reply: Any) -> bool:
    """Whether a wait has succeeded."""
    match reply:
        case ask.Result():
            return reply.status is not None
        case tell.UpdateStatus():
            return not reply.wait_timed_out and reply.update_status != "accepted"
        case streams.StreamPage():
            return bool(reply.items) or reply.terminal
        case _:
            return bool(reply)
