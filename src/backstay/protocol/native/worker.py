"""The messages between our own workers and server: many tasks and many reports in one request.

A worker opens a link (on the wire a *station*), keeps one exchange parked for new tasks, and sends reports in others; any
reply may carry tasks. A lost reply ends the link: the worker opens another and lists the tasks it holds, and the server
offers its other leases to other workers. Reports that may have arrived are sent again, marked as such.

A database may have several nodes. Then a worker has a link to each of them, and divides its slots between them. These
messages of a link are optional: an older release on either side does without them.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from backstay.kernel.failure import Failure, Handled
from backstay.kernel.features.activity import ActivityAssignment, Progress
from backstay.kernel.features.start import RecordedDefinition
from backstay.kernel.limits import Breach, Limits
from backstay.kernel.task import Block, Resume
from backstay.protocol.any_command import AnyCommand
from backstay.protocol.commands import Inquiry
from backstay.protocol.native.client import Refusal
from backstay.protocol.native.events import WireEvent
from backstay.protocol.requests import Sequence

OPEN = "/api/worker/station"
EXCHANGE = "/api/worker/exchange"
HISTORY = "/api/worker/task-history"
CLOSE = "/api/worker/station/close"
PARKED = 25.0
"""Seconds that an exchange is parked."""
CLAIM = 30.0
"""Seconds after which a worker lists the tasks it holds again, while it holds any."""
TO_HEADER = "X-Backstay-To"
"""The id of the node that a request is for. Another node that gets it hands it on."""
VIA_HEADER = "X-Backstay-Via"
"""The node that has handed a request on. It is handed on once."""
OTHER_NODE = "other_node"
"""Why a request for another node is refused: that one is gone, or cannot be reached from here."""

# -- opening a link


class HeldTask(Struct, frozen=True, array_like=True, gc=False, omit_defaults=True):
    """A lease that the worker works on: its code or attempt runs, or its outcome is being reported. `key`: of its instance."""

    task_id: str
    attempt: int
    key: int = 0


class Slots(Struct, frozen=True, array_like=True, gc=False):
    """A number of tasks by the kind of slot that they take."""

    workflow: int = 0
    activity: int = 0
    awaiting: int = 0  # activities that await, and need no thread


class WorkerNode(Struct, frozen=True, array_like=True, gc=False):
    """A node of the database. `address`: where it is called; None: it is only reached where it was reached already."""

    id: int
    address: str | None
    weight: int = 1


class OpenLink(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`quiet`: types of events that live code of this worker does not need; it gets only their number.

    `total`: all slots of a worker that has links to several nodes; the slots in its opening message are the part of
    this node, and the node sends it the number of waiting tasks. `elsewhere`: the tasks that it holds through other
    links. `named_by`: the node from which the worker got the address of the node in the header `TO_HEADER`.
    """

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
    host: str | None = None
    process_id: int | None = None
    compatibility_namespace: str | None = None
    total: Slots | None = None
    elsewhere: list[HeldTask] = []
    named_by: int | None = None


class Opened(Struct, frozen=True, kw_only=True):
    """`lost`: tasks that the worker holds without a lease. `commands`: the types that this server accepts.

    `limits`, `max_body_bytes`: the limits of a run and of a request, which the worker checks before it sends. `node`: the id of
    this node, `nodes`: all nodes to which the worker may open links, this one included; none if the database has one server
    only.
    """

    station: str
    lost: list[str]
    commands: list[str]
    limits: Limits
    max_body_bytes: int
    node: int | None = None
    nodes: list[WorkerNode] = []


class Closing(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`stays`: the worker goes on with its links to other nodes."""

    worker_id: str
    station: str
    stays: bool = False


# -- reports


class Resumed(Struct, frozen=True, array_like=True, omit_defaults=True):
    """An eager resume: the commands of live code that had seen history up to `after`, with this checksum, and the result."""

    after: int
    checksum: int
    commands: list[AnyCommand]
    handled: list[Handled] = []
    met: int | None = None


class TaskDone(Struct, frozen=True, array_like=True, tag="task", omit_defaults=True):
    key: int
    task_id: str
    attempt: int
    commands: list[AnyCommand]
    handled: list[Handled] = []
    met: int | None = None
    breach: Breach | None = None  # instead of commands: one of them exceeds this limit


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
    breach: Breach | None = None  # instead of a result: it exceeds this limit


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
    """A lease that the worker returns unused."""

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
    """`again`: the reports may be repeated ones. `holding`: the leases that the worker works on, sent long before they run
    out; only those are renewed. `draining`: the worker takes no new tasks.

    `elsewhere`: the tasks that it holds through other links; None: it does not say. `slots`: the part of its slots that this
    node has from now on. `turn` grows with every change of it, so that a request which arrives late changes nothing.
    """

    worker_id: str
    station: str
    reports: list[Report] = []
    wait: float = 0
    again: bool = False
    draining: bool = False
    holding: list[HeldTask] = []
    elsewhere: list[HeldTask] | None = None
    slots: Slots | None = None
    turn: int = 0


# -- replies


class StickyState(Struct, frozen=True, array_like=True, gc=False):
    """A run after a report: its length, its checksum, and the events that its live code has not seen."""

    length: int
    checksum: int
    count: int
    events: list[WireEvent]


class Answered(Struct, frozen=True, array_like=True, omit_defaults=True):
    """`refused`: nothing was recorded. `eager_refused`: the result was recorded, the commands after it were not.

    `goes_on` answers a heartbeat. False: the attempt is to stop, because of `cancel_requested` or because it is over.
    """

    refused: Refusal | None = None
    stand: StickyState | None = None
    eager_refused: str | None = None
    goes_on: bool = True
    cancel_requested: bool = False


class TaskLease(Struct, frozen=True, array_like=True, tag="task"):
    """A workflow task. `after` 0: with history from its beginning. Otherwise with the events after it, for a sticky run."""

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
    """A query or a validator for the worker to run. `more`: the worker requests the rest of the history by `question`,
    its id."""

    question: str
    attempt: int
    inquiry: Inquiry
    history: list[WireEvent]
    more: bool = False


Delivery = TaskLease | ActivityLease | QueryTask


class Exchanged(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`closed`: runs that have closed, whose activities may stop. `withdrawn`: tasks of attempts whose result is no longer
    needed. `leaving`: the server is about to stop.

    To a worker with links to several nodes, `waiting`: how many tasks it could have here if it had more slots. `slots`: how
    many this node has given out or may give out, as of the worker's `turn`. `nodes`: all nodes, if they have changed.
    `roll_call`: the worker is to say which tasks it holds, here and elsewhere.
    """

    answers: list[Answered] = []
    deliveries: list[Delivery] = []
    closed: list[str] = []
    withdrawn: list[str] = []
    leaving: bool = False
    waiting: Slots | None = None
    slots: Slots | None = None
    turn: int = 0
    nodes: list[WorkerNode] | None = None
    roll_call: bool = False


class HistoryWanted(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`task_id`: of a workflow task or a query task. `station`: the link that brought it."""

    worker_id: str
    task_id: str
    attempt: int
    after: Sequence
    station: str = ""


class HistoryPart(Struct, frozen=True, kw_only=True):
    events: list[WireEvent]
    more: bool


encode = msgspec.json.Encoder().encode
decode_opened = msgspec.json.Decoder(Opened).decode
decode_exchanged = msgspec.json.Decoder(Exchanged).decode
decode_history = msgspec.json.Decoder(HistoryPart).decode
