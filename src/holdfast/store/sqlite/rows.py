"""Decisions as rows: what one batch writes to each table.

`sqlite3` binds integers, text and bytearrays as they are. For anything else, bytes and None too, it first searches for an
adapter, which costs more than the binding. So blobs are bytearrays here, and the statements make null of 0 and ''.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.kernel.decision import CommandRecord, Decision
from holdfast.kernel.event import pack_held
from holdfast.kernel.send import pack
from holdfast.kernel.task import Task
from holdfast.store.rows import Coalesced, encode, text

Row = tuple[Any, ...]

_EMPTY = bytearray()


def _blob(value: Task | CommandRecord) -> bytearray:
    return bytearray(encode(value))


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
        events: list[Any] = []
        self.events = events
        self.commands: list[Any] = []
        self.sends: list[Any] = []
        self.took: list[Row] = []
        batch = Coalesced()
        for decision in decisions:
            key = batch.add(decision)
            for e in decision.events:
                context = e.context_body
                events += (
                    e.run,
                    e.sequence,
                    e.type,
                    e.at,
                    bytearray(e.body),
                    bytearray(context) if context else _EMPTY,
                    e.checksum,
                )
            for c in decision.commands:
                self.commands += (key, c.sequence, c.request_id, c.command_type, _blob(c))
            if decision.sends or decision.took:
                self._sends(decision)
        self._instances(batch)
        self._tasks(batch)
        self._runs(batch)
        self.touched = list(batch.instances)

    def _sends(self, decision: Decision) -> None:
        for s in decision.sends:
            body = bytearray(pack(s.parcel))
            self.sends += (s.key, s.sender, s.namespace, s.workflow_id, type(s.parcel).__name__, body)
        for taken in decision.took:
            self.took.append((taken,))

    def _instances(self, batch: Coalesced) -> None:
        new: list[Any] = []
        self.new = new
        guards: list[Row] = []
        self.guards = guards
        self.wakes: list[Row] = []
        moved = batch.moved
        for key, (after, w) in batch.instances.items():
            held = bytearray(pack_held(w.held)) if w.held else _EMPTY
            if after == 0:
                new += (
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
                    held,
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
                        held,
                        w.next_wake or 0,
                        w.workflow_type,
                        key,
                        after,
                    )
                )
            else:
                guards.append(
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
                        held,
                        key,
                        after,
                    )
                )

    def _tasks(self, batch: Coalesced) -> None:
        puts: list[Any] = []
        self.puts = puts
        self.drops: list[Row] = []
        for id, (key, stored, task) in batch.tasks.items():
            if task is not None:
                puts += (key, id, task.state, task.available_at, _blob(task))
            elif stored:
                self.drops.append((key, id))

    def _runs(self, batch: Coalesced) -> None:
        runs: list[Any] = []
        self.runs = runs
        self.runs_changed: list[Row] = []
        for is_new, r in batch.runs.values():
            search = text(r.search_attributes) if r.search_attributes else ""
            if is_new:
                runs += (
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
                    text(r.labels) if r.labels else "",
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
