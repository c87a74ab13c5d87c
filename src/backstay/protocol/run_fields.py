"""The fields of a run that stand flat at the top of its detail, its description and its export, under the names of the contract.

They are the same for any run: open or closed, current or earlier, damaged or not.
"""

from __future__ import annotations

from typing import Any

import msgspec

from backstay.kernel.decision import RunRow
from backstay.kernel.views.actions import UNREADABLE
from backstay.kernel.views.summary import RunSummary
from backstay.protocol.history import iso
from backstay.protocol.requests import Description
from backstay.protocol.tasks import optional_iso


class HistoryBudget(msgspec.Struct, frozen=True):
    """From how many events or bytes on a run should continue as new; 0: it does not matter."""

    events: int = 10_000
    size: int = 5 * 1024 * 1024

    def is_used_up(self, events: int, size: int) -> bool:
        return bool((self.events and events >= self.events) or (self.size and size >= self.size))


BUDGET = HistoryBudget()


def run_fields(row: RunRow, found: Description | None, budget: HistoryBudget = BUDGET) -> dict[str, Any]:
    """`found` describes the run; None: its history cannot be read."""
    summary = None if found is None else found.summary
    actions = UNREADABLE if found is None or found.actions is None else found.actions
    allowed = msgspec.to_builtins(actions)
    return (
        _identity(row, found, budget)
        | (_UNKNOWN if found is None or summary is None else _resume(found, summary))
        | {"actions": allowed}
        | allowed
    )


def _identity(row: RunRow, found: Description | None, budget: HistoryBudget) -> dict[str, Any]:
    started = iso(row.started_at)
    size = 0 if found is None or found.summary is None else found.summary.bytes
    return {
        "id": row.run_id,
        "instance_id": row.workflow_id,
        "queue": row.queue,
        "is_current_run": found is None or found.is_current_run,
        "archived": row.archived_at is not None,
        "archived_at": optional_iso(row.archived_at),
        "sort_timestamp": started,
        "sort_key": f"{started}#{row.run_id}",
        "duration_ms": None if row.closed_at is None else (row.closed_at - row.started_at) // 1000,
        "history_event_count": row.length,
        "history_size_bytes": size,
        "continue_as_new_recommended": budget.is_used_up(row.length, size),
    }


def _resume(found: Description, summary: RunSummary) -> dict[str, Any]:
    """The activity or wait of a run, and the event that will end it."""
    waits = summary.wait_kind is not None
    return {
        "state": summary.state,
        "attention": summary.attention,
        "state_since": iso(summary.since),
        "state_until": optional_iso(summary.until),
        "declared_entry_mode": summary.declared_entry_mode,
        "declared_contract_source": summary.declared_contract_source,
        "liveness_state": found.liveness_state,
        "wait_kind": found.wait_kind,
        "wait_reason": wait_reason(summary),
        "wait_started_at": optional_iso(summary.wait_since) if waits else None,
        "wait_deadline_at": optional_iso(summary.wait_until) if waits else None,
        "open_wait_id": found.open_wait_id,
        "resume_source_kind": found.resume_source_kind,
        "resume_source_id": found.resume_source_id,
        "next_task_id": summary.next_task_id,
        "next_task_type": summary.next_task_kind,
        "next_task_status": summary.next_task_state,
        "next_task_at": optional_iso(summary.next_task_at),
        "next_task_lease_expires_at": optional_iso(summary.next_task_lease_expires_at),
        "next_wake_at": optional_iso(found.next_wake),
        "attempt": summary.attempt,
        "attempts": summary.attempts,
        "last_error": summary.last_error,
        "exception_count": found.exception_count,
    }


_UNKNOWN: dict[str, Any] = {
    "state": "blocked",
    "attention": "blocked",
    **dict.fromkeys(("state_since", "state_until", "declared_entry_mode")),
    "declared_contract_source": "unavailable",
    "liveness_state": "workflow_replay_blocked",
    **dict.fromkeys(("wait_kind", "wait_reason", "wait_started_at", "wait_deadline_at", "open_wait_id")),
    **dict.fromkeys(("resume_source_kind", "resume_source_id", "next_task_id", "next_task_type", "next_task_status")),
    **dict.fromkeys(("next_task_at", "next_task_lease_expires_at", "next_wake_at")),
    "attempt": 0,
    "attempts": None,
    "last_error": None,
    "exception_count": 0,
}


def wait_reason(summary: RunSummary) -> str | None:
    """The wait of an open run, in words."""
    name = "" if summary.wait_name is None else f" {summary.wait_name!r}"
    match summary.wait_kind:
        case None:
            return None
        case "activity" if summary.state == "retrying":
            return f"waits for the next attempt of activity{name}"
        case "activity" | "child" | "signal":
            return f"waits for {summary.wait_kind}{name}"
        case "timer":
            return "waits for a timer"
        case "condition":
            return f"waits until condition{name} is true" if name else "waits until a condition is true"
        case "update":
            return f"waits for a worker to apply update{name}"
        case "workflow-task":
            return (
                "a worker runs its code"
                if summary.next_task_state == "leased"
                else "waits for a worker to run its code"
            )
        case other:
            return f"waits for {other}"
