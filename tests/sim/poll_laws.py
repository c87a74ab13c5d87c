"""What is true of polls that several nodes serve."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from backstay.kernel.decision import Decision

if TYPE_CHECKING:
    from .simulation import Simulation

QUIET = frozenset({"slow commit", "evicted", "moved to thread", "worker fails", "storm", "join"})
"""Faults by which no poll, fetch or reply gets lost. By others a worker may get a second task before the first is released."""


def one_task_each(sim: Simulation, decision: Decision, must: Callable[[bool, str, object], None]) -> None:
    """A poll holds one task at a time, whichever nodes have reserved it, fetched it, or repeated the poll."""
    if not sim.faults.on <= QUIET:
        return
    for change in decision.tasks:
        task = change.task
        if task is None or task.call is None or task.state != "leased":
            continue
        poll = (task.owner, task.call)
        others = {one.id for one in sim.disk.all_tasks() if one.state == "leased" and (one.owner, one.call) == poll}
        must(not others - {task.id}, "S8 a poll gets one task", (poll, task.id, others))
