"""What our own workers and our own server tell each other: many tasks and many reports in one request.

A worker opens a *station*, then keeps one exchange parked for what comes, and sends what it has done in others; any reply
may carry tasks. A lost reply ends the station: the worker opens another and says what it holds, and the server gives
everything else that was leased to it to whoever is there. Reports that may have arrived are sent again, marked so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

import msgspec
from msgspec import Struct

from backstay.kernel.command import Command
from backstay.kernel.failure import Failure
from backstay.kernel.features.activity import ActivityAssignment, Progress
from backstay.kernel.features.start import RecordedDefinition
from backstay.kernel.limits import Breach, Limits
from backstay.kernel.machine import Machine
from backstay.kernel.task import Block, Resume
from backstay.protocol.commands import Inquiry
from backstay.protocol.native.client import Refusal
from backstay.protocol.native.events import WireEvent
from backstay.protocol.requests import Int64

OPEN = "/api/worker/station"
EXCHANGE = "/api/worker/exchange"
HISTORY = "/api/worker/task-history"
CLOSE = "/api/worker/station/close"
PARKED = 25.0
"""Seconds that an exchange waits for something to come."""
CLAIM = 30.0
"""Seconds after which a worker says again what it holds, while it holds anything."""

if TYPE_CHECKING:
    AnyCommand = Command
else:
    AnyCommand = Union[tuple(Machine().commands)]  # noqa: UP007 - of as many as there are

# -- opening a station


class HeldTask(Struct, frozen=True, array_like=True, gc=False):
    """A lease that the worker has and works on: its code or attempt runs, or what became of it is being reported."""

    task_id: str
    attempt: int


class OpenLink(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`quiet`: events that live code of this worker has no use for; it is told how many there were."""

    worker_id: str
    queues: list[str]
    build_id: str | None = None
    sdk_version: str | None = None
    workflows: dict[str, RecordedDefinition] = {}
    validators: dict[str, list[str]] = {}
    activities: list[str] = []
    async_activities: list[str] = []  # those of them that await, and need no thread
    workflow_slots: int = 1000
    activity_slots: int = 100
    async_slots: int = 1000
    quiet: list[str] = []
    holding: list[HeldTask] = []


class Opened(Struct, frozen=True, kw_only=True):
    """`lost`: tasks that the worker holds and that are not its own any more. `commands`: the types this server takes.

    `limits`, `max_body_bytes`: what a run may hold, and one request. Whatever is more the worker does not even send.
    """

    station: str
    lost: list[str]
    commands: list[str]
    limits: Limits
    max_body_bytes: int


class Closing(Struct, frozen=True, kw_only=True):
    worker_id: str
    station: str


# -- what a worker has done


class Resumed(Struct, frozen=True, array_like=True, omit_defaults=True):
    """What live code did with a result, ahead of the server: it had seen history up to `after`, with this checksum."""

    after: int
    checksum: int
    commands: list[AnyCommand]
    handled: list[str] = []
    met: int | None = None


class TaskDone(Struct, frozen=True, array_like=True, tag="task", omit_defaults=True):
    key: int
    task_id: str
    attempt: int
    commands: list[AnyCommand]
    handled: list[str] = []
    met: int | None = None
    breach: Breach | None = None  # instead of commands: one of them passes this limit


class TaskFailed(Struct, frozen=True, array_like=True, tag="task_failed"):
    key: int
    task_id: str
    attempt: int
    block: Block


class AttemptDone(Struct, frozen=True, array_like=True, tag="activity", omit_defaults=True):
    key: int
    run_id: str
    step: int
    attempt: int
    result: bytes | None
    resumed: Resumed | None = None
    breach: Breach | None = None  # instead of a result: it passes this limit


class AttemptFailed(Struct, frozen=True, array_like=True, tag="activity_failed"):
    key: int
    run_id: str
    step: int
    attempt: int
    failure: Failure
    gave_up: bool = False


class Heartbeat(Struct, frozen=True, array_like=True, tag="beat"):
    key: int
    run_id: str
    step: int
    attempt: int
    progress: Progress | None


class GivenBack(Struct, frozen=True, array_like=True, tag="given_back"):
    """A lease that the worker has no use for: nothing is being done under it."""

    task_id: str
    attempt: int


class QueryAnswer(Struct, frozen=True, array_like=True, tag="told", omit_defaults=True):
    """The answer to a query task: `value` of a query, `objection` of a validator, or why there is neither."""

    question: str
    attempt: int
    value: bytes | None = None
    objection: str | None = None
    refused: Refusal | None = None


Report = TaskDone | TaskFailed | AttemptDone | AttemptFailed | Heartbeat | GivenBack | QueryAnswer


class Exchange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`again`: what is reported here may have been reported before. `holding`: the leases that the worker works on; those
    are renewed, and no others. It is said now and then, long before a lease runs out. `draining`: it takes nothing more."""

    worker_id: str
    station: str
    reports: list[Report] = []
    wait: float = 0
    again: bool = False
    draining: bool = False
    holding: list[HeldTask] = []


# -- what the server answers


class StickyState(Struct, frozen=True, array_like=True, gc=False):
    """Where a run stands after a report: its length, its checksum, and what its live code has not been shown yet."""

    length: int
    checksum: int
    count: int
    events: list[WireEvent]


class Answered(Struct, frozen=True, array_like=True, omit_defaults=True):
    """`refused`: nothing was recorded. `eager_refused`: the result was, what the code made of it was not.

    `goes_on`: of an attempt that beats. If it does not: `cancel_requested`, or it is not the current one any more.
    """

    refused: Refusal | None = None
    stand: StickyState | None = None
    eager_refused: str | None = None
    goes_on: bool = True
    cancel_requested: bool = False


class TaskLease(Struct, frozen=True, array_like=True, tag="task"):
    """A workflow task. `after` 0: history from its beginning. Otherwise what comes behind that, for code that stands there."""

    task_id: str
    attempt: int
    key: int
    run: int
    workflow_id: str
    run_id: str
    run_number: int
    run_status: str
    workflow_type: str
    last: int
    cursor: int
    upto: int | None
    resume: Resume
    after: int
    checksum: int
    count: int
    reaches: int
    more: bool
    events: list[WireEvent]


class ActivityLease(Struct, frozen=True, array_like=True, tag="activity"):
    assignment: ActivityAssignment


class QueryTask(Struct, frozen=True, array_like=True, tag="question", omit_defaults=True):
    """A query or a validator for the worker to run. `more`: it asks for the rest of the history by `question`, its id."""

    question: str
    attempt: int
    inquiry: Inquiry
    history: list[WireEvent]
    more: bool = False


Delivery = TaskLease | ActivityLease | QueryTask


class Exchanged(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`closed`: runs that are over, whose activities may stop. `withdrawn`: tasks of attempts that nobody waits for any more.
    `leaving`: the server is about to stop."""

    answers: list[Answered] = []
    deliveries: list[Delivery] = []
    closed: list[str] = []
    withdrawn: list[str] = []
    leaving: bool = False


class HistoryWanted(Struct, frozen=True, kw_only=True):
    """`task_id`: of a workflow task, or of a question."""

    worker_id: str
    task_id: str
    attempt: int
    after: Int64


class HistoryPart(Struct, frozen=True, kw_only=True):
    events: list[WireEvent]
    more: bool


encode = msgspec.json.Encoder().encode
decode_opened = msgspec.json.Decoder(Opened).decode
decode_exchanged = msgspec.json.Decoder(Exchanged).decode
decode_history = msgspec.json.Decoder(HistoryPart).decode
