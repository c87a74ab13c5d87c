"""Tasks: work for a worker under a lease. `ready` → `leased` → closed; `failed` waits for its backoff or a repair.

The row is transport, not truth: `Machine.expect` derives from history which rows must exist. A lease is a fencing token
(task, owner, attempt). A lease without `until` belongs to a worker inside the engine's own process and ends with it;
the next engine recognises it by the *incarnation* in its owner.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec import Struct, field

from backstay.kernel.session import WorkerSession
from backstay.kernel.values import Micros, Routing

SUSPECT = 2  # crashes in a row

TaskKind = Literal["workflow", "activity"]


class Resume(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Why a workflow task exists: the first event after the cursor that wakes the run."""

    workflow_wait_kind: str | None = None
    open_wait_id: str | None = None
    resume_source_kind: str | None = None
    resume_source_id: str | None = None
    workflow_update_id: str | None = None
    workflow_signal_id: str | None = None
    signal_name: str | None = None
    signal_wait_id: str | None = None
    workflow_command_id: str | None = None
    activity_execution_id: str | None = None
    activity_attempt_id: str | None = None
    activity_type: str | None = None
    child_call_id: str | None = None
    child_workflow_run_id: str | None = None
    timer_id: str | None = None
    condition_wait_id: str | None = None
    condition_key: str | None = None
    condition_definition_fingerprint: str | None = None
    workflow_sequence: int | None = None
    workflow_event_type: str | None = None


START = Resume()


NO_HISTORY = "no typed history"  # the recorded event types of a step that history has no event of


class Block(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Why a workflow task failed without failing its run. The fields are those of the contract."""

    message: str
    type: str | None = None
    stack_trace: str | None = None
    replay_blocked: bool = False
    reason: str | None = None
    workflow_sequence: int | None = None
    expected_history_shape: str | None = None
    recorded_event_types: list[str] = []
    exception_class: str | None = None
    exception_type: str | None = None
    resolution_source: str | None = None
    resolution_error: str | None = None
    difference: list[tuple[str, str]] = []
    fingerprint: str | None = None  # of the definition that was blocked
    # The worker whose code was blocked.
    worker: str | None = None
    host: str | None = None
    build: str | None = None

    @property
    def blocked_by(self) -> str | None:
        """The worker whose code was blocked, as people read it."""
        if self.worker is None:
            return None
        details = [self.host and f"host {self.host}", self.build and f"build {self.build}"]
        told = ", ".join(detail for detail in details if detail)
        return f"worker {self.worker} ({told})" if told else f"worker {self.worker}"


class Lease(Struct, frozen=True, kw_only=True, gc=False):
    """The right to work on a task. `until` None: as long as this engine lives. `call` is the id of the poll that got
    it, `node` the process that gives it, if several share the limits of its queue."""

    owner: str
    until: Micros | None = None
    call: str | None = None
    node: int | None = None


class Task(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One task row."""

    id: str
    workflow: int
    run: int
    kind: TaskKind
    type: str  # workflow or activity type
    routing: Routing
    available_at: Micros
    created_at: Micros
    state: Literal["ready", "leased", "failed"] = "ready"
    attempt: int = 0
    owner: str | None = None
    leased_at: Micros | None = None
    until: Micros | None = None
    call: str | None = None
    node: int | None = None
    seen: int | None = None  # history sequence the leased workflow task works from
    # A workflow task for one event sees history up to that event.
    history_limit: int | None = field(default=None, name="upto")
    resume: Resume = START
    step: int | None = None  # the activity's step
    session: WorkerSession | None = None  # the worker session that it must run in
    block: Block | None = None
    # The definitions whose code was blocked on this task, and the last block. Workers with other definitions may have it.
    tried: tuple[str, ...] = ()
    last_block: Block | None = None
    crashes: int = 0  # leases in a row that ended without a report; of an activity, history counts them
    repair_count: int = 0
    repair_available_at: Micros | None = None

    @property
    def is_blocked(self) -> bool:
        """Whether no code that is there now can go on with it: it waits for another definition, or for a repair."""
        return self.state == "failed" and self.block is not None and self.block.replay_blocked

    @property
    def is_suspect(self) -> bool:
        """Whether it may have killed its workers: it was lost with more than one of them in a row."""
        return self.crashes >= SUSPECT

    def is_due(self, now: Micros) -> bool:
        """Whether a worker may have the task now. A task without a pause is due even if the clock was set back
        since."""
        return self.available_at <= now or self.available_at <= self.created_at


class Expected(NamedTuple):
    """The rows that an instance needs to continue: its tasks by id, and its earliest deadline."""

    tasks: dict[str, Task]
    next_wake: Micros | None
