"""The messages between nodes: a request that one node got is carried out by the node that owns its instance.

    POST /api/node/call/signal-workflow   {"workflow_id": "order-7", "signal_name": "paid", ...}   ->   {...}

They are the requests of clients and workers, whole: with their namespace, their source and their caller. Several go in
one request, as those of clients do. A node that does not own the instance answers 421 and says which node does:

    421   {"reason": "owned_elsewhere", "owner": 17, "address": "http://10.0.0.7:8080", "term": 4}
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import Raw, Struct

from backstay.kernel.features.activity import ActivityAssignment, AttemptReply, HeartbeatReply
from backstay.kernel.features.workflow_task import TaskReply, WorkflowAssignment
from backstay.kernel.machine import Machine
from backstay.kernel.send import Send, pack, unpack
from backstay.protocol import commands as tell
from backstay.protocol import requests as ask
from backstay.protocol import schedules, streams
from backstay.protocol.native import client as calls
from backstay.protocol.native import events
from backstay.protocol.native.events import WireEvent
from backstay.protocol.native.worker import OTHER_NODE as OTHER_NODE
from backstay.protocol.native.worker import TO_HEADER as TO_HEADER

SPEAKS = (2, 2)
"""The first and the last version of these messages that this release understands. It sends the last. Version 1 had no proof of
each request."""

HEADER = "X-Backstay-Link"
OLD_SECRET_HEADER = "X-Backstay-Secret"
"""By which nodes of version 1 were known."""

PATH = "/api/node/call/"
MANY = "/api/node/calls"

ELSEWHERE = "owned_elsewhere"


def understands(speaks: tuple[int, int]) -> bool:
    """Whether a node that speaks these versions can be called by this release."""
    return speaks[0] <= SPEAKS[1] <= speaks[1]


class Owner(NamedTuple):
    """The node that owns a partition. `address`: where it is called; None: it cannot be called. `term`: of its ownership."""

    id: int
    address: str | None
    term: int


class LinkFailed(Exception):
    """A node gave no answer. `sent`: the request may have arrived, and may have been carried out."""

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


class Misdirected(Exception):
    """The node that was called does not own the instance. `owner`: the one that does, as far as it knows."""

    def __init__(self, owner: Owner | None) -> None:
        super().__init__("the node that was called does not own the instance")
        self.owner = owner


class AwaitEvents(ask.Request[bool], frozen=True, kw_only=True):
    """Wait until a run has events after the sequence `after`; False: it has none within the wait."""

    workflow: int  # the key of its instance
    run: int
    after: int
    wait_seconds: float


class WaitingTasks(Struct, frozen=True, kw_only=True):
    """So many tasks of a queue wait for workers that poll."""

    kind: str
    namespace: str
    queue: str
    count: int


class TellWaiting(ask.Request[list[int]], frozen=True, kw_only=True):
    """Tasks wait at the sender. The answer: how many polls of each of their queues are parked at the other."""

    node: int
    address: str
    waiting: list[WaitingTasks]


class FetchWorkflowTask(ask.PollWorkflowTask, frozen=True, kw_only=True):
    """A poll that is parked at another node, and does not wait here."""


class FetchActivityTask(ask.PollActivityTask, frozen=True, kw_only=True):
    """The same for activities."""


class WorkerSaid(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of a worker: `value` to a query, `objection` of a validator."""

    value: bytes | None = None
    objection: str | None = None


class AskWorker(ask.Request[WorkerSaid], frozen=True, kw_only=True):
    """Let a worker of this node answer a query or run a validator, on the history of its run up to a sequence."""

    inquiry: tell.Inquiry
    upto: int


class ReadRegistry(ask.Request[None], frozen=True, kw_only=True):
    """Read the entries of this kind again: the sender has changed one. Answered when they have been read."""

    kind: str


class QueueCounts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The counts of a node for one kind of tasks of a queue: those of the last minute, and the number of tasks by the
    bit length of their wait in microseconds."""

    kind: str
    queue: str
    added: float = 0.0
    dispatched: float = 0.0
    completed: float = 0.0
    waits: dict[int, int] = {}


class ReadRates(ask.Request[list[QueueCounts]], frozen=True, kw_only=True):
    """The counts of this node for the queues of a namespace."""

    namespace: str


class SweepShards(ask.Request[int], frozen=True, kw_only=True):
    """Look through the shards of this node for lost work. The answer: how many it owns. `owner`: its caller."""

    owner: str


class SpareWorker(ask.Request[bool], frozen=True, kw_only=True):
    """Give a worker no task for this long: the caller tries a suspect with it; 0: the trial is over. False: it has a
    suspect. `number`: a message with a lower one of the same node is older."""

    node: int
    number: int
    namespace: str
    worker_id: str
    seconds: float


class DeliverSend(ask.Request[None], frozen=True, kw_only=True):
    """Take a stored send. Its row is deleted with the commit of the receiver, so it may be delivered twice."""

    key: int
    sender: int
    namespace: str
    workflow_id: str
    kind: str
    message: Raw

    @staticmethod
    def of(send: Send) -> DeliverSend:
        return DeliverSend(
            key=send.key,
            sender=send.sender,
            namespace=send.namespace,
            workflow_id=send.workflow_id,
            kind=type(send.message).__name__,
            message=Raw(pack(send.message)),
        )

    def send(self, machine: Machine) -> Send:
        message = unpack(machine.outbox_message_kinds[self.kind], bytes(self.message))
        return Send(self.key, self.sender, self.namespace, self.workflow_id, message)


class _HistoryPage(Struct, frozen=True, kw_only=True):
    history_events: list[WireEvent]
    has_more: bool
    next_after_sequence: int | None
    total_history_events: int


def _pack_page(page: ask.HistoryPage) -> _HistoryPage:
    return _HistoryPage(
        history_events=events.pack(page.history_events),
        has_more=page.has_more,
        next_after_sequence=page.next_after_sequence,
        total_history_events=page.total_history_events,
    )


def _unpack_page(page: _HistoryPage) -> ask.HistoryPage:
    return ask.HistoryPage(
        history_events=events.unpack(page.history_events),
        has_more=page.has_more,
        next_after_sequence=page.next_after_sequence,
        total_history_events=page.total_history_events,
    )


_OF_CLIENTS = (
    *(ask.StartWorkflow, ask.ReserveWorkflow, ask.RunWorkflow, ask.AwaitResult),
    *(tell.SignalWorkflow, tell.SignalWithStart, tell.AppendMessage, tell.UpdateWorkflow, tell.GetUpdate),
    *(tell.QueryWorkflow, *tell.OPERATOR.values()),
    *(schedules.CreateSchedule, schedules.UpdateSchedule, schedules.PauseSchedule, schedules.ResumeSchedule),
    *(schedules.TriggerSchedule, schedules.BackfillSchedule, schedules.DeleteSchedule),
    *(streams.AppendStream, streams.CloseStream, streams.DescribeStream, streams.ListStreams, streams.ReadStream),
)
_OF_WORKERS: dict[type[ask.Request[Any]], Any] = {
    ask.ClaimWorkflowTask: WorkflowAssignment,
    ask.ClaimActivityTask: ActivityAssignment,
    ask.CompleteTask: TaskReply,
    ask.FailTask: TaskReply,
    ask.HeartbeatTask: TaskReply,
    ask.CompleteActivityTask: AttemptReply,
    ask.FailActivityTask: AttemptReply,
    ask.HeartbeatActivityTask: HeartbeatReply,
    AwaitEvents: bool,
    TellWaiting: list[int],
    FetchWorkflowTask: WorkflowAssignment | None,
    FetchActivityTask: ActivityAssignment | None,
    DeliverSend: None,
    AskWorker: WorkerSaid,
    ReadRegistry: None,
    ReadRates: list[QueueCounts],
    SweepShards: int,
    SpareWorker: bool,
}
_ALL: dict[type[ask.Request[Any]], calls.Verb] = {
    **{kind: calls.OF[kind] for kind in _OF_CLIENTS},
    **{kind: calls.verb(kind, reply) for kind, reply in _OF_WORKERS.items()},
    ask.GetTaskHistory: calls.verb(ask.GetTaskHistory, _HistoryPage, _pack_page, _unpack_page),
}

OF = _ALL
"""The wire form of each request that a node forwards."""

VERBS: dict[str, calls.Verb] = {verb.name: verb for verb in _ALL.values()}
"""By name."""

encode = calls.encode


def received(request: Any) -> ask.Request[Any]:
    """A request as the engine knows it, from how it crossed the wire."""
    match request:
        case schedules.UpdateSchedule():
            return request.typed()
        case _:
            return request
