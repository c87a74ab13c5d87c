"""What one batch amounts to, before any dialect writes it; and rows as values again.

Several decisions of one instance become one guarded write (the first one's guard, the last one's values), and a task that
was born and closed inside the batch never touches the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.kernel.decision import CommandRecord, Decision, RunRow, WorkflowRow
from holdfast.kernel.task import Task

encode = msgspec.json.Encoder().encode
task = msgspec.json.Decoder(Task).decode
command = msgspec.json.Decoder(CommandRecord).decode
_decode_labels = msgspec.json.Decoder(dict[str, str]).decode
_decode_search = msgspec.json.Decoder(dict[str, Any]).decode

Row = Sequence[Any]


class Unlinked(Exception):
    """Two decisions of one instance that were not made one on top of the other: each needs its own guard."""


class Coalesced:
    """The instances, tasks and runs of a batch, each with where it begins and where it ends."""

    __slots__ = ("instances", "moved", "runs", "tasks")

    def __init__(self) -> None:
        self.instances: dict[int, tuple[int, WorkflowRow]] = {}  # (the first one's guard, the last one's row)
        self.moved: set[int] = set()  # instances whose wake or type is written, too
        self.tasks: dict[str, tuple[int, bool, Task | None]] = {}  # (instance, is stored, what is left of it)
        self.runs: dict[int, tuple[bool, RunRow]] = {}  # (is new, row)

    def add(self, decision: Decision) -> int:
        """Take the next decision of the batch; the key of its instance."""
        workflow = decision.workflow
        key = workflow.key
        guard = decision.after
        instances = self.instances
        if key in instances:
            first, before = instances[key]
            if guard != before.last:
                raise Unlinked
            guard = first
        instances[key] = (guard, workflow)
        if decision.wake_moved:
            self.moved.add(key)
        tasks = self.tasks
        for change in decision.tasks:
            id = change.task_id
            tasks[id] = (key, tasks[id][1] if id in tasks else change.stored, change.task)
        for is_new, row in decision.runs:
            if is_new:
                self.moved.add(key)  # the next run may be of another type, which is written with the wake
            elif row.key in self.runs:
                is_new = self.runs[row.key][0]
            self.runs[row.key] = (is_new, row)
        return key


def text(value: dict[str, Any]) -> str:
    return encode(value).decode()


def run(row: Row) -> RunRow:
    values = list(row)
    values[13] = {} if row[13] is None else _decode_labels(row[13])
    values[14] = {} if row[14] is None else _decode_search(row[14])
    return RunRow(*values)
