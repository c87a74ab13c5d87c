"""Decisions as columns: one array per column of each table, in the order in which the statement `write` takes them.

Every row names its instance first, so that the statement can leave out what belongs to a guard that did not match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from backstay.kernel.decision import Decision, InstanceRow, RunRow
from backstay.kernel.event import pack_buffered
from backstay.kernel.send import pack
from backstay.kernel.task import Task
from backstay.kernel.values import KEY_BITS, KEY_EPOCH
from backstay.store.rows import call_hash, coalesced, encode, text

Row = tuple[Any, ...]


WIDTHS = (17, 15, 19, 8, 8, 12, 2, 6, 2, 7)
"""How many columns each table takes, in the order of `shapes.TABLES`."""


class Columns:
    """`asked` are the instances; `tables` says which tables have rows, as a mask (`shapes.TABLES`).

    `mint` gives positions to commands. `latest` is the time of the latest key that was minted for it; 0: none was.
    """

    __slots__ = ("_rows", "asked", "latest", "tables")

    def __init__(self, decisions: Iterable[Decision], mint: Callable[[], int]) -> None:
        batch = {decision.instance.key: decision for decision in coalesced(decisions)}
        events: list[Row] = []
        commands: list[Row] = []
        took: list[Row] = []
        sends: list[Row] = []
        opened: list[Row] = []
        changed: list[Row] = []
        puts: list[Row] = []
        drops: list[Row] = []
        for key, decision in batch.items():
            events += [
                (key, e.run, e.sequence, e.type, e.at, e.body, e.context_body, e.checksum) for e in decision.events
            ]
            commands += [(key, mint(), c.sequence, c.request_id, c.command_type, encode(c)) for c in decision.commands]
            took += [(key, taken) for taken in decision.taken_sends]
            for s in decision.sends:
                kind = type(s.message).__name__
                sends.append((key, s.key, s.sender, s.namespace, s.workflow_id, kind, pack(s.message)))
            for is_new, r in decision.runs:
                if is_new:
                    opened.append((r.workflow, *_run(r)))
                else:
                    changed.append((r.workflow, *_changed(r)))
            for change in decision.tasks:
                task = change.task
                if task is not None:
                    puts.append(
                        (
                            key,
                            change.task_id,
                            task.state,
                            task.available_at,
                            encode(task),
                            task.until,
                            call_of(task),
                            *_wanted(task),
                        )
                    )
                elif change.stored:
                    drops.append((key, change.task_id))
        self.asked = list(batch)
        new, guards = _instances(batch)
        minted = [row[0] for row in new] + [row[1] for row in opened] + [row[1] for row in sends]
        self.latest = (max(minted) >> KEY_BITS) + KEY_EPOCH if minted else 0
        self._rows = (
            new,
            guards,
            opened,
            changed,
            events,
            puts,
            drops,
            commands,
            took,
            sends,
        )
        self.tables = sum(1 << bit for bit, rows in enumerate(self._rows) if rows)

    def arrays(self, tables: int) -> list[list[Any]]:
        """The parameters of a statement that takes the rows of these tables."""
        arrays: list[list[Any]] = []
        for bit, (rows, width) in enumerate(zip(self._rows, WIDTHS, strict=True)):
            if rows:
                arrays += [list(column) for column in zip(*rows, strict=True)]
            elif tables >> bit & 1:
                arrays += [[]] * width
        return arrays


def call_of(t: Task) -> int | None:
    """The key by which a worker finds the task of an earlier poll again."""
    if t.call is None or t.owner is None:
        return None
    return call_hash(t.routing.namespace, t.owner, t.call)


def _wanted(t: Task) -> Row:
    """The workers that a task waits for."""
    routing = t.routing
    return routing.namespace, routing.queue, t.kind, t.type, routing.compatibility or ""


def _instances(batch: Mapping[int, Decision]) -> tuple[list[Row], list[Row]]:
    """New ones and guarded ones. In the order of their keys, so that two writers never wait for each other in a circle."""
    new: list[Row] = []
    guards: list[Row] = []
    for key in sorted(batch):
        decision = batch[key]
        if decision.after == 0:
            new.append(_new(decision.instance))
        else:
            guards.append(_guard(decision.instance, decision.after))
    return new, guards


def _new(w: InstanceRow) -> Row:
    return (
        w.key,
        w.namespace,
        w.workflow_id,
        w.workflow_type,
        w.last_decision,
        w.run,
        w.command_sequence,
        w.cursor,
        w.next_wake,
        w.expects,
        w.length,
        w.checksum,
        w.reserved_at,
        w.waits_externally,
        w.unanswered,
        w.attempts,
        pack_buffered(w.buffered_events) if w.buffered_events else None,
    )


def _guard(w: InstanceRow, after: int) -> Row:
    # An indexed column that is set to what it was costs nothing here, so the wake is always written.
    return (
        w.key,
        after,
        w.last_decision,
        w.run,
        w.command_sequence,
        w.cursor,
        w.next_wake,
        w.expects,
        w.length,
        w.checksum,
        w.waits_externally,
        w.unanswered,
        w.attempts,
        pack_buffered(w.buffered_events) if w.buffered_events else None,
        w.workflow_type,
    )


def _run(r: RunRow) -> Row:
    return (
        r.key,
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
        text(r.labels) if r.labels else None,
        text(r.search_attributes) if r.search_attributes else None,
        r.started_at,
        r.closed_at,
        r.length,
        r.archived_at,
    )


def _changed(r: RunRow) -> Row:
    search = text(r.search_attributes) if r.search_attributes else None
    return (r.key, r.status, r.closed_reason, search, r.closed_at, r.length, r.archived_at)
