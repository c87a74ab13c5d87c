"""The readable part of a run whose history is damaged, before it is shown (`damaged_run.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from backstay.kernel.decision import CommandRecord, RunRow
from backstay.kernel.event import HistoryDamaged, Recorded
from backstay.kernel.task import Task
from backstay.kernel.values import Micros

Entry = dict[str, Any]


class Remains(Struct, frozen=True, kw_only=True):
    """The readable part of a damaged run.

    `events` are those before the damage. `stored` are its stored views, by name, as far as their rows are intact. `linked` are the
    runs that rows name, by run id. `unanswered`: how many other instances owe this one an answer.
    """

    row: RunRow
    damage: HistoryDamaged
    events: Sequence[Recorded] = ()
    tasks: Sequence[Task] = ()
    wake: Micros | None = None
    unanswered: int = 0
    is_current: bool = True
    current_run_id: str | None = None
    commands: Sequence[CommandRecord] = ()
    stored: Mapping[str, Sequence[Entry]] = {}
    linked: Mapping[str, RunRow] = {}

    @property
    def named_runs(self) -> set[str]:
        """The runs that rows name beside this one."""
        return {run_id for task in self.tasks if (run_id := task.resume.child_workflow_run_id) is not None}
