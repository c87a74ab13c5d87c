"""A summary as of now: joined with the clock, and with the workers for the next task of the run."""

from __future__ import annotations

from msgspec import Struct

from backstay.kernel.decision import RunRow
from backstay.kernel.values import Micros
from backstay.kernel.views import why
from backstay.kernel.views.actions import REPAIR_REASONS
from backstay.kernel.views.facts import Facts
from backstay.kernel.views.summary import RunSummary

CAUSES = ("blocked", "repair_needed", "no_worker", "overdue", "throttled", "retrying")
"""Why a run needs attention."""

_SETTLED = ("paused", "workflow_replay_blocked", "repair_needed", "activity_running_without_task")


class Present(Struct, frozen=True, kw_only=True, omit_defaults=True):
    liveness_state: str
    repair_blocked_reason: str | None = None
    task_problem: bool = False
    attention: str | None = None
    why: str = ""  # in a short sentence
    damaged_state: str | None = None  # the state of a run that has no summary, because its history is damaged

    @property
    def repair_attention(self) -> bool:
        reason = REPAIR_REASONS.get(self.repair_blocked_reason or "")
        return reason is not None and reason.badge_visible


def present(row: RunRow, summary: RunSummary | None, facts: Facts, now: Micros, *, is_current: bool) -> Present:
    """`summary` None: the history of the run is damaged."""
    if summary is None:
        return Present(
            liveness_state="workflow_replay_blocked",
            repair_blocked_reason="unsupported_history",
            task_problem=True,
            attention="blocked" if row.closed_at is None else None,
            why="Its history is damaged: restore it from a backup.",
            damaged_state=why.damaged_state(row),
        )
    said = why.short(summary, facts, now)
    if row.closed_at is not None:
        reason = "run_closed" if is_current else "selected_run_not_current"
        return Present(liveness_state="closed", repair_blocked_reason=reason, why=said)
    state, problem = summary.liveness_state, summary.task_problem
    ready = summary.next_task_state == "ready" and (summary.next_task_at or 0) <= now
    expires = summary.next_task_lease_expires_at
    if state not in _SETTLED:
        if ready and facts.takers.missing is not None:
            state = f"{summary.next_task_kind}_task_waiting_for_compatible_worker"
        elif expires is not None and expires <= now:
            state, problem = "repair_needed", True
    if "waiting_for_compatible_worker" in state:
        reason = "waiting_for_compatible_worker"
    else:
        reason = None if summary.can_repair or state == "repair_needed" else "repair_not_needed"
    return Present(
        liveness_state=state,
        repair_blocked_reason=reason,
        task_problem=problem,
        attention=why.attention(summary, facts, now),
        why=said,
    )
