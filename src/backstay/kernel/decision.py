"""A Decision: all effects of the messages of one turn on one instance, applied entirely or not at all.

The set of effects is closed: append events, put or close tasks, set the next wake, record a command, write index rows,
send, reply. The store persists exactly these shapes and knows no feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct, field

from backstay.kernel.event import Context, Event, Recorded
from backstay.kernel.send import Send
from backstay.kernel.task import Task
from backstay.kernel.values import Micros, moment


class InstanceRow(Struct, frozen=True, gc=False):
    """The instance row after a decision.

    `last_decision` is the guard. `expects` is how many task rows must exist. `attempts` is how often the next step of the
    code was handed to a worker: it outlives the row of the workflow task, so no late report passes for one of a new attempt. `length` and `checksum` say where the
    history of the current run ends, so that lost events are noticed. `buffered_events` were accepted in the middle of a
    task and are recorded when it ends.
    """

    key: int
    namespace: str
    workflow_id: str
    workflow_type: str
    last_decision: int
    run: int | None
    command_sequence: int
    cursor: int
    next_wake: Micros | None
    expects: int
    length: int
    checksum: int
    reserved_at: Micros | None
    waits_externally: int = 0  # 1: only something from outside makes the run go on
    unanswered: int = 0  # how many other instances owe this one an answer
    attempts: int = 0
    buffered_events: Sequence[tuple[Event, Context]] = ()


class RunRow(Struct, frozen=True, gc=False):
    """The index row of a run: the fields by which lists filter and sort."""

    key: int
    workflow: int
    run_id: str
    number: int
    namespace: str
    workflow_id: str
    workflow_type: str
    status: str
    closed_reason: str | None
    queue: str
    connection: str | None
    compatibility: str | None
    business_key: str | None
    labels: dict[str, str]
    search_attributes: dict[str, Any]
    started_at: Micros
    closed_at: Micros | None
    length: int
    archived_at: Micros | None = None

    @property
    def is_open(self) -> bool:
        return self.closed_at is None

    @property
    def started(self) -> datetime:
        return moment(self.started_at)

    @property
    def closed(self) -> datetime | None:
        return None if self.closed_at is None else moment(self.closed_at)

    def __repr__(self) -> str:
        """The fields that a list shows, not all of them."""
        end = "" if self.closed_at is None else f", {self.closed_reason} {moment(self.closed_at):%F %T}"
        return (
            f"<run {self.number} of {self.workflow_type} {self.workflow_id!r} ({self.run_id}):"
            f" {self.status}, started {self.started:%F %T}{end} UTC>"
        )


class CommandRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The audit trail of one accepted or rejected command."""

    id: str
    run: int | None
    sequence: int | None
    command_type: str
    status: str  # accepted | rejected | unreadable
    outcome: str | None
    at: Micros | None
    source: str
    target_scope: str = "instance"
    target_name: str | None = None  # of the signal or update
    requested_run_id: str | None = None
    resolved_run_id: str | None = None
    request_id: str | None = None
    fingerprint: str | None = None  # of the request, so that a request id cannot mean two things
    rejection_reason: str | None = None
    validation_errors: dict[str, list[str]] = {}
    context: dict[str, Any] = {}
    payload: bytes | None = None
    # The length of the run's history when the command was accepted: the search for its events begins there.
    history_length: int | None = field(default=None, name="behind")
    unreadable: str | None = None  # why its row cannot be read; fields that are not known are then empty

    def may_be_of(self, run: int) -> bool:
        """Whether the record may belong to this run. One whose row cannot be read may belong to any."""
        return self.run == run or (self.run is None and self.unreadable is not None)


class TaskChange(Struct, frozen=True, gc=False):
    """A change of one task row. `task` None deletes it. `stored`: the row existed before this decision."""

    task_id: str
    task: Task | None
    stored: bool


class ChainEnd(Struct, frozen=True, gc=False):
    """How the last run of an instance closed. It is part of the decision, because the state may have changed since."""

    run_id: str
    status: str
    closed_reason: str
    event: Recorded


class Decision(Struct, gc=False):
    """The rows for the store, and the effects for the engine after the commit."""

    instance: InstanceRow
    after: int  # the decision that this one is based on; 0 creates the instance
    events: Sequence[Recorded] = ()
    tasks: Sequence[TaskChange] = ()
    runs: Sequence[tuple[bool, RunRow]] = ()  # (is new, row)
    commands: Sequence[CommandRecord] = ()
    reply: Any = None  # to the last message
    leased: Sequence[Task] = ()  # tasks that were leased, to be delivered after the commit
    closed: Sequence[str] = ()  # runs that closed in this decision
    ended: ChainEnd | None = None  # the chain of runs ended in this decision
    sends: Sequence[Send] = ()
    taken_sends: Sequence[int] = ()  # keys of the sends that were received with this decision
    notifications: Sequence[tuple[str, Any]] = ()  # (topic, value) for the waiters of that topic of this instance
    withdrawn: Sequence[str] = ()  # activity tasks whose attempts are over, which their workers do not know yet
    wake_moved: bool = False  # `next_wake` differs from before
