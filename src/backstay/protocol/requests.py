"""Requests and replies of clients, and of workflow and activity workers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import Meta, Struct

from backstay.kernel.decision import CommandRecord, RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.failure import Failure
from backstay.kernel.features.activity import (
    ActivityAssignment,
    AttemptReply,
    HeartbeatReply,
    Progress,
    ScheduleActivity,
)
from backstay.kernel.features.start import DuplicatePolicy, RecordedDefinition, ReserveReply, StartReply
from backstay.kernel.features.workflow_task import TaskReply, WorkflowAssignment
from backstay.kernel.message import Message
from backstay.kernel.names import Name
from backstay.kernel.task import Block, Task
from backstay.kernel.values import Micros, Routing, moment
from backstay.kernel.views.actions import Actions, Declared
from backstay.kernel.views.failures import FailureView
from backstay.kernel.views.messages import SignalView, UpdateView
from backstay.kernel.views.summary import RunSummary
from backstay.kernel.views.waits import WaitView
from backstay.kernel.views.why import Why
from backstay.protocol.any_command import AnyCommand

R = TypeVar("R")

Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""A number that fits a query of a database."""

Sequence = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""The place of an event in its run; 0: before the first."""

Sought = str | Int64 | float | bool

PAGE_DEFAULT = 500
PAGE_MAX = 1000


class Request(Struct, Generic[R], frozen=True, kw_only=True):
    """A request whose reply is an R."""


class WorkerVerb(Request[R], Generic[R], frozen=True, kw_only=True):
    """A request about a task, by its id. A task of another namespace does not exist for this worker."""

    namespace: str = "default"


# -- clients


class StartWorkflow(Request[StartReply], frozen=True, kw_only=True):
    workflow_type: str
    workflow_id: str | None = None
    namespace: str = "default"
    arguments: bytes | None = None
    routing: Routing = Routing()
    business_key: str | None = None
    visibility_labels: dict[str, str] = {}
    memo: dict[str, bytes] = {}
    search_attributes: dict[str, Any] = {}
    execution_timeout_seconds: float | None = None
    run_timeout_seconds: float | None = None
    duplicate_policy: DuplicatePolicy = "reject_duplicate"
    definition: RecordedDefinition | None = None
    request_id: Name | None = None
    fresh: bool = False  # this request id is new, so no record of an earlier attempt has to be looked up
    source: str = "python"
    context: dict[str, Any] = {}  # its caller, for the record of the command
    activity: ScheduleActivity | None = None  # the run is this activity and nothing else
    traceparent: str | None = None  # the trace of the caller


class ReserveWorkflow(Request[ReserveReply], frozen=True, kw_only=True):
    workflow_type: str
    workflow_id: str
    namespace: str = "default"


class Result(Struct, frozen=True, kw_only=True):
    """How a run ended; `event` is its terminal event. `status` None: it has not ended within the wait."""

    workflow_id: str
    run_id: str
    status: str | None
    closed_reason: str | None = None
    event: Recorded | None = None


class AwaitResult(Request[Result], frozen=True, kw_only=True):
    """The end of the chain of runs of an instance: continued runs are followed."""

    workflow_id: str
    namespace: str = "default"
    wait_seconds: float | None = None


class RunWorkflow(Request[Result], frozen=True, kw_only=True):
    """Start and wait for the end in one request."""

    start: StartWorkflow


class TaskView(Struct, frozen=True, kw_only=True):
    """An open task as an operator sees it."""

    task: Task
    transport_state: str


class Description(Struct, frozen=True, kw_only=True):
    """A workflow instance and its current run, from typed history. `run` None: the id is reserved, and nothing has started."""

    workflow_id: str
    namespace: str
    workflow_type: str
    status: str
    run: RunRow | None
    memo: dict[str, bytes] = {}
    fingerprint: str | None = None
    execution_deadline_at: Micros | None = None
    run_deadline_at: Micros | None = None
    wait_kind: str | None = None
    open_wait_id: str | None = None
    resume_source_kind: str | None = None
    resume_source_id: str | None = None
    liveness_state: str = "closed"
    next_wake: Micros | None = None
    tasks: list[TaskView] = []
    missing_tasks: list[Task] = []  # expected by history, but without a row
    commands: list[CommandRecord] = []
    waits: list[WaitView] = []
    signals: list[SignalView] = []
    updates: list[UpdateView] = []
    failures: list[FailureView] = []
    actions: Actions | None = None
    declared: Declared | None = None
    parent_workflow_id: str | None = None
    child_call_id: str | None = None
    schedule_id: str | None = None  # that started it
    exception_count: int = 0
    is_current_run: bool = True
    current_run_id: str | None = None
    current_run_source: str = "continue_as_new_lineage"  # or run_order_fallback: the instance's row names another run
    determinism_source: str = "unavailable"  # live_definition | definition_drift | unavailable
    summary: RunSummary | None = None
    totals: dict[str, int] = {}  # how many there are, of the lists above that were cut to their newest entries

    @property
    def blocked(self) -> bool:
        """Whether the current code does not fit the run's history."""
        return self.liveness_state == "workflow_replay_blocked"

    @property
    def next_wake_at(self) -> datetime | None:
        """When it goes on by itself: the earliest of its timers, retries and timeouts."""
        return None if self.next_wake is None else moment(self.next_wake)

    def __repr__(self) -> str:
        """The state of the workflow in one line."""
        said = [f"workflow {self.workflow_type} {self.workflow_id!r}: {self.status}"]
        if self.run is not None:
            said.append(f"run {self.run.number} since {self.run.started:%F %T} UTC")
        waits = [wait for wait in self.waits if wait.status == "open"]
        said += [f"waits for {wait.kind} {wait.target_name or ''}".rstrip() for wait in waits[:3]]
        if self.next_wake_at is not None:
            said.append(f"wakes at {self.next_wake_at:%F %T} UTC")
        said += [f"{view.task.kind} task {view.task.type} is {view.transport_state}" for view in self.tasks][:3]
        return f"<{', '.join(said)}>"

    @property
    def open_wait_count(self) -> int:
        return sum(wait.status == "open" for wait in self.waits)


class DescribeWorkflow(Request[Description], frozen=True, kw_only=True):
    workflow_id: str
    namespace: str = "default"


Status = Literal["open", "pending", "waiting", "blocked", "completed", "failed", "cancelled", "terminated"]
"""The fields by which runs can be listed. `open` is pending, waiting and blocked; one that timed out has failed."""

OPEN = ("pending", "waiting")


class ListWorkflows(Request[list[RunRow]], frozen=True, kw_only=True):
    """`tells_blocked`: a run whose code does not fit its history has the status `blocked`, and is found by that. `after` is
    inclusive, `before` is not, except that `before` itself is the key of the last row of the page before."""

    namespace: str = "default"
    workflow_id: str | None = None
    workflow_type: str | None = None
    status: str | None = None
    statuses: tuple[str, ...] | None = None
    current: bool = False
    queue: str | None = None
    business_key: str | None = None
    label: tuple[str, str] | None = None
    search: tuple[str, Sought] | None = None
    searches: tuple[tuple[str, Sought], ...] = ()
    labels: dict[str, str] = {}
    states: tuple[str, ...] | None = None
    attention: tuple[str, ...] | None = None
    started_after: Micros | None = None
    started_before: Micros | None = None
    closed_after: Micros | None = None
    closed_before: Micros | None = None
    run_id: str | None = None
    compatibility: str | None = None
    before: Int64 | None = None
    limit: int = 100
    tells_blocked: bool = False


class GetHistory(Request[list[Recorded]], frozen=True, kw_only=True):
    """The events of a run (the current one unless named) after the sequence `after`."""

    workflow_id: str
    namespace: str = "default"
    run_id: str | None = None
    after: Sequence = 0
    limit: int | None = None


class ExplainWorkflow(Request[Why], frozen=True, kw_only=True):
    """Why a run (the current one unless named) is where it is; with `event`, why that event was recorded."""

    workflow_id: str
    namespace: str = "default"
    run_id: str | None = None
    event: Int64 | None = None


class ExportHistory(Request[str], frozen=True, kw_only=True):
    """A run (the current one unless named) as one verifiable file: its text, byte for byte as it was summed up."""

    workflow_id: str
    namespace: str = "default"
    run_id: str | None = None


# -- workers: workflow tasks


class PollWorkflowTask(Request[WorkflowAssignment | None], frozen=True, kw_only=True):
    worker_id: str
    queue: str = "default"
    namespace: str = "default"
    connection: str | None = None
    compatibility: frozenset[str] | None = None
    workflow_types: frozenset[str] | None = None
    wait_seconds: float = 0
    poll_request_id: str | None = None


class ClaimWorkflowTask(WorkerVerb[WorkflowAssignment], frozen=True, kw_only=True):
    """`compatibility` None: the worker has no build, and may claim only tasks that are not pinned to one."""

    task_id: str
    worker_id: str
    connection: str | None = None
    compatibility: frozenset[str] | None = None


class ClaimStatus(Struct, frozen=True, kw_only=True):
    """Whether a task could be claimed right now, and if not, why."""

    task_id: str
    claimable: bool
    reason: str | None = None


class GetClaimStatus(WorkerVerb[ClaimStatus], frozen=True, kw_only=True):
    """Describes the calling worker; another worker may get another answer."""

    task_id: str
    kind: str = "workflow"
    connection: str | None = None
    compatibility: frozenset[str] | None = None


class HistoryPage(Struct, frozen=True, kw_only=True):
    history_events: list[Recorded]
    has_more: bool
    next_after_sequence: int | None
    total_history_events: int


class GetTaskHistory(WorkerVerb[HistoryPage], frozen=True, kw_only=True):
    """History for a claimed task: all of it, or page by page with `page_size`, or with at most `page_bytes` in each."""

    task_id: str
    lease_owner: str
    workflow_task_attempt: int
    after_sequence: int = 0
    page_size: int | None = PAGE_DEFAULT
    page_bytes: int | None = None


class ExecuteWorkflowTask(WorkerVerb[TaskReply], frozen=True, kw_only=True):
    """Claim a task and run it here, with the workflows registered in this process."""

    task_id: str


class CompleteTask(WorkerVerb[TaskReply], frozen=True, kw_only=True):
    """The completion of a workflow task, as the engine's API accepts it and a node hands it to another one.

    A published worker sends `CompleteTaskBody`, whose payloads and commands are decoded first. One of our own sends
    `wire.TaskDone`, an array. The kernel decides `CompleteWorkflowTask`, which no node sends: it has the lease of this node.
    """

    task_id: str
    lease_owner: str
    workflow_task_attempt: int
    commands: list[AnyCommand]
    handled_failures: list[str] = []
    numbered: bool = True
    met: int | None = None  # how far code that has ended had read the history it was sent


class FailTask(WorkerVerb[TaskReply], frozen=True, kw_only=True):
    task_id: str
    lease_owner: str
    workflow_task_attempt: int
    failure: Block


class ReportTask(WorkerVerb[Any], frozen=True, kw_only=True):
    """The report of one of our own workers about a task or an attempt, as the message that the kernel decides.

    It may be a repeated one, and a completion may have no commands.
    """

    message: Message


class HeartbeatTask(WorkerVerb[TaskReply], frozen=True, kw_only=True):
    task_id: str
    lease_owner: str
    workflow_task_attempt: int


# -- workers: activity tasks


class PollActivityTask(Request[ActivityAssignment | None], frozen=True, kw_only=True):
    worker_id: str
    activity_types: frozenset[str]
    queue: str = "default"
    namespace: str = "default"
    connection: str | None = None
    compatibility: frozenset[str] | None = None
    wait_seconds: float = 0
    poll_request_id: str | None = None


class ClaimActivityTask(WorkerVerb[ActivityAssignment], frozen=True, kw_only=True):
    task_id: str
    worker_id: str
    connection: str | None = None
    compatibility: frozenset[str] | None = None


class CompleteActivityTask(WorkerVerb[AttemptReply], frozen=True, kw_only=True):
    """`lease_owner` None: the attempt id is enough to identify the holder. The same for the other requests."""

    activity_attempt_id: str
    lease_owner: str | None
    result: bytes | None = None


class FailActivityTask(WorkerVerb[AttemptReply], frozen=True, kw_only=True):
    activity_attempt_id: str
    lease_owner: str | None
    failure: Failure
    gave_up: bool = False


class HeartbeatActivityTask(WorkerVerb[HeartbeatReply], frozen=True, kw_only=True):
    activity_attempt_id: str
    lease_owner: str | None
    progress: Progress | None = None


class GetActivityStatus(WorkerVerb[HeartbeatReply], frozen=True, kw_only=True):
    """Liveness and cancellation of an attempt, without renewing its lease."""

    activity_attempt_id: str
    lease_owner: str | None
