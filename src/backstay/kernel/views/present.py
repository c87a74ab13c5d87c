"""What a summary says now: joined with the clock, and with who could take the next task of the run."""

from __future__ import annotations

from typing import NamedTuple

from backstay.kernel.decision import RunRow
from backstay.kernel.values import Micros
from backstay.kernel.views.actions import REPAIR_REASONS
from backstay.kernel.views.summary import RunSummary

_SETTLED = ("closed", "paused", "workflow_replay_blocked", "repair_needed", "activity_running_without_task")


class Present(NamedTuple):
    liveness_state: str
    repair_blocked_reason: str | None
    task_problem: bool
    attention: tuple[str, ...]  # every cause

    @property
    def repair_attention(self) -> bool:
        reason = REPAIR_REASONS.get(self.repair_blocked_reason or "")
        return reason is not None and reason.badge_visible


def present(row: RunRow, summary: RunSummary | None, now: Micros, *, is_current: bool, untaken: bool) -> Present:
    """`untaken`: no live worker serves the queue, type and build of the next task. `summary` None: the history is damaged."""
    if summary is None:
        return Present("workflow_replay_blocked", "unsupported_history", True, ("blocked",))
    if row.closed_at is not None:
        return Present("closed", "run_closed" if is_current else "selected_run_not_current", False, ())
    state, causes, problem = summary.liveness_state, list[str](), summary.task_problem
    if summary.attention is not None:
        causes.append(summary.attention)
    waits = untaken and summary.next_task_state == "ready" and (summary.next_task_at or 0) <= now
    expires = summary.next_task_lease_expires_at
    if state not in _SETTLED:
        if waits and summary.build is not None:
            state = f"{summary.next_task_kind}_task_waiting_for_compatible_worker"
        elif expires is not None and expires <= now:
            state = "repair_needed"
            problem = True
    if waits and summary.state in ("ready", "retrying"):
        causes.append("no_worker")
    if "waiting_for_compatible_worker" in state:
        reason = "waiting_for_compatible_worker"
    else:
        reason = None if summary.can_repair or state == "repair_needed" else "repair_not_needed"
    return Present(state, reason, problem, tuple(causes))
