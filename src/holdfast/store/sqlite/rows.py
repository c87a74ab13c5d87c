"""Decisions as rows, coalesced: what one batch writes to each table.

Several decisions of one instance become one guarded update (the first one's guard, the last one's values), and a task
that was born and closed inside the batch never touches the disk.

`sqlite3` binds integers, text and bytearrays as they are. For anything else, bytes and None too, it first searches for an
adapter, which costs more than the binding. So blobs are bytearrays here, and the statements make null of 0 and ''.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.kernel.decision import CommandRecord, Decision, RunRow
from holdfast.kernel.event import pack_held
from holdfast.kernel.send import pack
from holdfast.kernel.task import Task

_encode = msgspec.json.Encoder().encode
_decode_task = msgspec.json.Decoder(Task).decode
_decode_command = msgspec.json.Decoder(CommandRecord).decode
_decode_labels = msgspec.json.Decoder(dict[str, str]).decode
_decode_search = msgspec.json.Decoder(dict[str, Any]).decode

Row = tuple[Any, ...]

_EMPTY = bytearray()


def _blob(value: Task | CommandRecord) -> bytearray:
    return bytearray(_encode(value))


def _text(value: dict[str, Any]) -> str:
    return _encode(value).decode()


class Unlinked(Exception):
    """Two decisions of one instance that were not made one on top of the other: each needs its own guard."""


class Rows:
    """The statements' parameters of one batch: row by row for updates, all in one list for multi-row inserts."""

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
        self.events: list[Any] = []
        self.commands: list[Any] = []
        self.sends: list[Any] = []
        self.took: list[Row] = []
        first: dict[int, Decision] = {}
        last: dict[int, Decision] = {}
        moved: set[int] = set()
        tasks: dict[str, tuple[int, bool, Task | None]] = {}
        runs: dict[int, tuple[bool, RunRow]] = {}
        events = self.events
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
                context = bytearray(e.context_body) if e.context_body else _EMPTY
                events += (e.run, e.sequence, type(e.event).__name__, e.at, bytearray(e.body), context, e.checksum)
            for change in decision.tasks:
                id = change.task_id
                stored = tasks[id][1] if id in tasks else change.stored
                tasks[id] = (key, stored, change.task)
            for is_new, row in decision.runs:
                if is_new:
                    moved.add(key)  # the next run may be of another type, which is written with the wake
                before_run = runs.get(row.key)
                runs[row.key] = (is_new or (before_run is not None and before_run[0]), row)
            for s in decision.sends:
                body = bytearray(pack(s.parcel))
                self.sends += (s.key, s.sender, s.namespace, s.workflow_id, type(s.parcel).__name__, body)
            for taken in decision.took:
                self.took.append((taken,))
            for c in decision.commands:
                self.commands += (key, c.sequence, c.request_id, c.command_type, _blob(c))
        self._instances(first, last, moved)
        self._tasks(tasks)
        self._runs(runs)
        self.touched = list(last)

    def _instances(self, first: dict[int, Decision], last: dict[int, Decision], moved: set[int]) -> None:
        self.new: list[Any] = []
        self.guards: list[Row] = []
        self.wakes: list[Row] = []
        for key, decision in last.items():
            w = decision.workflow
            after = first[key].after
            if after == 0:
                self.new += (
                    key,
                    w.namespace,
                    w.workflow_id,
                    w.workflow_type,
                    w.last,
                    w.run,
                    w.command_sequence,
                    w.cursor,
                    w.next_wake or 0,
                    w.expects,
                    w.length,
                    w.checksum,
                    w.reserved_at or 0,
                    w.outside,
                    w.awaited,
                    bytearray(pack_held(w.held)) if w.held else _EMPTY,
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
                        bytearray(pack_held(w.held)) if w.held else _EMPTY,
                        w.next_wake or 0,
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
                        bytearray(pack_held(w.held)) if w.held else _EMPTY,
                        key,
                        after,
                    )
                )

    def _tasks(self, tasks: dict[str, tuple[int, bool, Task | None]]) -> None:
        self.puts: list[Any] = []
        self.drops: list[Row] = []
        for id, (key, stored, task) in tasks.items():
            if task is not None:
                self.puts += (key, id, task.state, task.available_at, _blob(task))
            elif stored:
                self.drops.append((key, id))

    def _runs(self, runs: dict[int, tuple[bool, RunRow]]) -> None:
        self.runs: list[Any] = []
        self.runs_changed: list[Row] = []
        for is_new, r in runs.values():
            search = _text(r.search_attributes) if r.search_attributes else ""
            if is_new:
                self.runs += (
                    r.key,
                    r.workflow,
                    r.run_id,
                    r.number,
                    r.namespace,
                    r.workflow_id,
                    r.workflow_type,
                    r.status,
                    r.closed_reason or "",
                    r.queue,
                    r.connection or "",
                    r.compatibility or "",
                    r.business_key or "",
                    _text(r.labels) if r.labels else "",
                    search,
                    r.started_at,
                    r.closed_at or 0,
                    r.length,
                    r.archived_at or 0,
                )
            else:
                self.runs_changed.append(
                    (r.status, r.closed_reason or "", search, r.closed_at or 0, r.length, r.archived_at or 0, r.key)
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
