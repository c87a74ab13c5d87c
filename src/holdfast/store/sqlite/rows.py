"""Decisions as rows, coalesced: what one batch writes to each table.

Several decisions of one instance become one guarded update (the first one's guard, the last one's values), and a task
that was born and closed inside the batch never touches the disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.kernel.decision import CommandRecord, Decision, RunRow
from holdfast.kernel.send import pack
from holdfast.kernel.task import Task

_encode = msgspec.json.Encoder().encode
_decode_task = msgspec.json.Decoder(Task).decode
_decode_command = msgspec.json.Decoder(CommandRecord).decode
_decode_labels = msgspec.json.Decoder(dict[str, str]).decode
_decode_search = msgspec.json.Decoder(dict[str, Any]).decode

Row = tuple[Any, ...]


class Unlinked(Exception):
    """Two decisions of one instance that were not made one on top of the other: each needs its own guard."""


class Rows:
    """The statements' parameters of one batch."""

    __slots__ = (
        "commands",
        "drops",
        "events",
        "guards",
        "new",
        "puts",
        "runs",
        "runs_changed",
        "sends",
        "took",
        "touched",
        "wakes",
    )

    def __init__(self, decisions: Iterable[Decision]) -> None:
        self.events: list[Row] = []
        self.commands: list[Row] = []
        self.sends: list[Row] = []
        self.took: list[Row] = []
        first: dict[int, Decision] = {}
        last: dict[int, Decision] = {}
        moved: set[int] = set()
        tasks: dict[tuple[int, str], tuple[bool, Task | None]] = {}
        runs: dict[int, tuple[bool, RunRow]] = {}
        for decision in decisions:
            key = decision.workflow.key
            previous = last.get(key)
            if previous is None:
                first[key] = decision
            elif decision.after != previous.workflow.last:
                raise Unlinked
            last[key] = decision
            if decision.wake_moved:
                moved.add(key)
            for e in decision.events:
                self.events.append(
                    (e.run, e.sequence, type(e.event).__name__, e.at, e.body, e.context_body, e.checksum)
                )
            for change in decision.tasks:
                place = (key, change.task_id)
                before = tasks.get(place)
                tasks[place] = (change.stored if before is None else before[0], change.task)
            for is_new, row in decision.runs:
                if is_new:
                    moved.add(key)  # the next run may be of another type, which is written with the wake
                before_run = runs.get(row.key)
                runs[row.key] = (is_new or (before_run is not None and before_run[0]), row)
            for s in decision.sends:
                self.sends.append(
                    (s.key, s.sender, s.namespace, s.workflow_id, type(s.parcel).__name__, pack(s.parcel))
                )
            for taken in decision.took:
                self.took.append((taken,))
            for c in decision.commands:
                self.commands.append((key, c.sequence, c.request_id, c.command_type, _encode(c)))
        self._instances(first, last, moved)
        self._tasks(tasks)
        self._runs(runs)
        self.touched = list(last)

    def _instances(self, first: dict[int, Decision], last: dict[int, Decision], moved: set[int]) -> None:
        self.new: list[Row] = []
        self.guards: list[Row] = []
        self.wakes: list[Row] = []
        for key, decision in last.items():
            w = decision.workflow
            after = first[key].after
            if after == 0:
                self.new.append(
                    (
                        w.key,
                        w.namespace,
                        w.workflow_id,
                        w.workflow_type,
                        w.last,
                        w.run,
                        w.command_sequence,
                        w.cursor,
                        w.next_wake,
                        w.expects,
                        w.length,
                        w.checksum,
                        w.reserved_at,
                        w.outside,
                        w.awaited,
                        w.held,
                    )
                )
            elif key in moved:
                self.wakes.append(
                    (
                        w.last,
                        w.run,
                        w.command_sequence,
                        w.cursor,
                        w.expects,
                        w.length,
                        w.checksum,
                        w.outside,
                        w.awaited,
                        w.held,
                        w.next_wake,
                        w.workflow_type,
                        key,
                        after,
                    )
                )
            else:
                self.guards.append(
                    (
                        w.last,
                        w.run,
                        w.command_sequence,
                        w.cursor,
                        w.expects,
                        w.length,
                        w.checksum,
                        w.outside,
                        w.awaited,
                        w.held,
                        key,
                        after,
                    )
                )

    def _tasks(self, tasks: dict[tuple[int, str], tuple[bool, Task | None]]) -> None:
        self.puts: list[Row] = []
        self.drops: list[Row] = []
        for place, (stored, task) in tasks.items():
            if task is not None:
                self.puts.append((*place, task.state, task.available_at, _encode(task)))
            elif stored:
                self.drops.append(place)

    def _runs(self, runs: dict[int, tuple[bool, RunRow]]) -> None:
        self.runs: list[Row] = []
        self.runs_changed: list[Row] = []
        for is_new, r in runs.values():
            search = _encode(r.search_attributes).decode() if r.search_attributes else None
            if is_new:
                self.runs.append(
                    (
                        r.key,
                        r.workflow,
                        r.run_id,
                        r.number,
                        r.namespace,
                        r.workflow_id,
                        r.workflow_type,
                        r.status,
                        r.closed_reason,
                        r.queue,
                        r.connection,
                        r.compatibility,
                        r.business_key,
                        _encode(r.labels).decode() if r.labels else None,
                        search,
                        r.started_at,
                        r.closed_at,
                        r.length,
                        r.archived_at,
                    )
                )
            else:
                self.runs_changed.append(
                    (r.status, r.closed_reason, search, r.closed_at, r.length, r.archived_at, r.key)
                )


def task(body: bytes) -> Task:
    return _decode_task(body)


def command(body: bytes) -> CommandRecord:
    return _decode_command(body)


def run(row: Row) -> RunRow:
    values = list(row)
    values[13] = {} if row[13] is None else _decode_labels(row[13])
    values[14] = {} if row[14] is None else _decode_search(row[14])
    return RunRow(*values)
