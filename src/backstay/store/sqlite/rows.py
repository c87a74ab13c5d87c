"""Decisions as rows: the rows of one batch for each table.

`sqlite3` binds integers, text and bytearrays as they are. For anything else, bytes and None too, it first searches for an
adapter, which costs more than the binding. So blobs are bytearrays here, and the statements make null of 0 and ''.

The tuples name their columns one by one, although PostgreSQL's name nearly the same: one is built at every step, and a
getter or a function that both share takes twice as long for it (0.9 instead of 0.4 microseconds).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from backstay.kernel.decision import Decision, RunRow
from backstay.kernel.event import pack_buffered
from backstay.kernel.send import pack
from backstay.store.rows import begins, coalesced, encode, text

Row = tuple[Any, ...]

_EMPTY = bytearray()


class Rows:
    """The statements' parameters of one batch: row by row for updates, all in one list for multi-row inserts."""

    __slots__ = (
        "batch",
        "commands",
        "drops",
        "events",
        "faceted",
        "guards",
        "new",
        "puts",
        "ready",
        "runs",
        "runs_changed",
        "runs_closed",
        "sends",
        "took",
        "wakes",
    )

    def __init__(self, decisions: Iterable[Decision]) -> None:
        events: list[Any] = []
        puts: list[Any] = []
        indexed: list[tuple[bool, RunRow]] = []
        self.events, self.puts = events, puts
        self.ready: list[Any] = []
        self.drops: list[Row] = []
        self.commands: list[Any] = []
        self.sends: list[Any] = []
        self.took: list[Row] = []
        self.batch = coalesced(decisions)
        for decision in self.batch:
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
            for change in decision.tasks:
                task = change.task
                if task is None:
                    if change.stored:
                        self.drops.append((decision.instance.key, change.task_id))
                elif task.state != "ready":
                    puts += (
                        decision.instance.key,
                        change.task_id,
                        task.state,
                        task.available_at,
                        bytearray(encode(task)),
                        task.routing.namespace,
                    )
                else:
                    routing = task.routing
                    self.ready += (
                        decision.instance.key,
                        change.task_id,
                        task.state,
                        task.available_at,
                        bytearray(encode(task)),
                        routing.namespace,
                        routing.queue,
                        task.kind,
                        task.type,
                        routing.compatibility or "",
                    )
            if decision.runs:
                indexed += decision.runs
            if decision.commands:
                self._commands(decision)
            if decision.sends or decision.taken_sends:
                self._sends(decision)
        self._instances()
        self._runs(indexed)

    def _commands(self, decision: Decision) -> None:
        key = decision.instance.key
        for c in decision.commands:
            self.commands += (key, c.sequence, c.request_id, c.command_type, bytearray(encode(c)))

    def _sends(self, decision: Decision) -> None:
        for s in decision.sends:
            body = bytearray(pack(s.message))
            self.sends += (s.key, s.sender, s.namespace, s.workflow_id, type(s.message).__name__, body)
        for taken in decision.taken_sends:
            self.took.append((taken,))

    def _instances(self) -> None:
        new: list[Any] = []
        self.new = new
        guards: list[Row] = []
        self.guards = guards
        self.wakes: list[Row] = []
        for decision in self.batch:
            w = decision.instance
            after = decision.after
            held = bytearray(pack_buffered(w.buffered_events)) if w.buffered_events else _EMPTY
            if after == 0:
                new += (
                    w.key,
                    w.namespace,
                    w.workflow_id,
                    w.workflow_type,
                    w.last_decision,
                    w.run,
                    w.command_sequence,
                    w.cursor,
                    w.next_wake or 0,
                    w.expects,
                    w.length,
                    w.checksum,
                    w.reserved_at or 0,
                    w.waits_externally,
                    w.unanswered,
                    w.attempts,
                    held,
                )
            elif decision.wake_moved or (decision.runs and begins(decision)):
                self.wakes.append(
                    (
                        w.last_decision,
                        w.run,
                        w.command_sequence,
                        w.cursor,
                        w.expects,
                        w.length,
                        w.checksum,
                        w.waits_externally,
                        w.unanswered,
                        w.attempts,
                        held,
                        w.next_wake or 0,
                        w.workflow_type,
                        w.key,
                        after,
                    )
                )
            else:
                guards.append(
                    (
                        w.last_decision,
                        w.run,
                        w.command_sequence,
                        w.cursor,
                        w.expects,
                        w.length,
                        w.checksum,
                        w.waits_externally,
                        w.unanswered,
                        w.attempts,
                        held,
                        w.key,
                        after,
                    )
                )

    def _runs(self, indexed: Iterable[tuple[bool, RunRow]]) -> None:
        runs: list[Any] = []
        self.runs = runs
        self.runs_changed: list[Row] = []
        self.runs_closed: list[Row] = []
        self.faceted: list[Row] = []
        for is_new, r in indexed:
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
                if search or r.labels:
                    self.faceted.append((r.key, r.key))
            elif r.closed_at and not search:
                self.runs_closed.append(
                    (r.status, r.closed_reason or "", r.closed_at, r.length, r.archived_at or 0, r.key)
                )
            else:
                self.runs_changed.append(
                    (r.status, r.closed_reason or "", search, r.closed_at or 0, r.length, r.archived_at or 0, r.key)
                )
