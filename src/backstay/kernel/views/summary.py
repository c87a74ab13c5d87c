"""The summary of a run: its state in one word, what it waits for and since when, and whether it needs somebody.

It is stored after commits and compared by its stamp, so nothing in it depends on the clock or on who is connected: what does is
added when it is read (`why.py`). It is made from the state of an instance, never from a history.
"""

from __future__ import annotations

from msgspec import Struct

from backstay.kernel.values import Micros

SCHEMA = 1
"""The version of stored views. Rows of another version are made again."""

OPEN_STATES = ("waiting", "sleeping", "working", "retrying", "ready", "blocked", "paused")
CLOSED_STATES = ("completed", "failed", "cancelled", "terminated", "continued")


class RunSummary(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`stamp`: of a current run the last decision of its instance, of an older run the length of its history."""

    run: int
    workflow: int
    namespace: str
    run_id: str
    workflow_id: str
    workflow_type: str
    stamp: int
    status: str
    closed_reason: str | None = None
    is_current_run: bool = True
    state: str  # one of OPEN_STATES or CLOSED_STATES
    attention: str | None = (
        None  # blocked | repair_needed | retrying; causes that depend on clock or fleet are not stored
    )
    liveness_state: str
    wait_kind: str | None = None
    wait_name: str | None = None  # of the activity, signal, update, timer, condition or child
    open_wait_id: str | None = None
    resume_source_kind: str | None = None
    resume_source_id: str | None = None
    since: Micros  # of the state
    until: Micros | None = None  # when it changes by itself: a timer, a timeout, the next attempt
    queue: str  # of the next task, else of the run
    build: str | None = None  # that the run is pinned to
    next_task_id: str | None = None
    next_task_kind: str | None = None  # workflow | activity
    next_task_type: str | None = None  # the workflow type or activity type that a worker needs
    next_task_state: str | None = None  # ready | leased | failed
    next_task_at: Micros | None = None
    next_task_owner: str | None = None
    next_task_lease_expires_at: Micros | None = None
    attempt: int = 0  # of the activity or task that it waits for
    attempts: int | None = None  # that it may have
    last_error: str | None = None
    blocked_reason: str | None = None  # of the contract: history_shape_mismatch and others
    step: int | None = None  # the step that it waits for
    steps: int = 0  # how many of its steps are open
    task_problem: bool = False
    can_repair: bool = False
    exception_count: int = 0
    events: int
    bytes: int
    declared_entry_mode: str | None = None
    declared_contract_source: str = "unavailable"
    started_at: Micros
    closed_at: Micros | None = None
    archived_at: Micros | None = None
