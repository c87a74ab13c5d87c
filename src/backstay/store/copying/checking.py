"""Reads instances as they are on disk: a digest of each kind of row, and every history folded again.

It is the same on both ends of a copy, so comparing digests finds every difference, with one row in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import msgspec

from backstay.kernel.event import HistoryDamaged, restore, unpack_buffered
from backstay.kernel.machine import Machine
from backstay.kernel.state import Instance, Run
from backstay.store import rows
from backstay.store.copying.tables import (
    COMMAND,
    EVENT,
    RUN,
    TASK,
    WORKFLOW,
    CopyEnd,
    KeyRange,
    Row,
    rows_of,
)

_encode = msgspec.msgpack.Encoder().encode

_AT = {name: index for index, name in enumerate(WORKFLOW.columns)}
_OF_RUN = {name: index for index, name in enumerate(RUN.columns)}
_SHARED = TASK.columns.index("body") + 1  # columns of a task that mean the same in every store


class StoredInstance:
    """The stored rows of an instance: a digest of its row and of each kind of rows beside it, and their damage."""

    def __init__(self, namespace: str, workflow_id: str) -> None:
        self.namespace = namespace
        self.workflow_id = workflow_id
        self.row: Row | None = None
        self.runs: dict[int, _StoredRun] = {}
        self.damage: list[str] = []
        self._digests: dict[str, Any] = {}

    def add(self, what: str, row: Row) -> None:
        if what not in self._digests:
            self._digests[what] = blake2b(digest_size=16)
        self._digests[what].update(_encode(row))

    def differences(self, other: StoredInstance) -> list[str]:
        """The kinds of its rows that differ from those of the other one."""
        mine, theirs = (
            {what: digest.digest() for what, digest in instance._digests.items()} for instance in (self, other)
        )
        return [what for what in {**mine, **theirs} if mine.get(what) != theirs.get(what)]


class _StoredRun:
    """A run whose history is being folded."""

    def __init__(self, instance: Instance, run: Run, length: int) -> None:
        self.instance = instance
        self.run = run
        self.length = length
        self.end: tuple[int, int] = (0, 0)  # sequence and checksum of the last event
        self.damage: str | None = None


async def read_instances(end: CopyEnd, machine: Machine, part: KeyRange) -> dict[int, StoredInstance]:
    """All that is stored of these instances, by key."""
    instances: dict[int, StoredInstance] = {}
    async for row in rows_of(end, WORKFLOW, part):
        stored = instances[row[0]] = StoredInstance(row[1], row[2])
        stored.row = row
        stored.add("row", row)
        held = row[_AT["held"]]
        if held is not None:
            _try(stored, "its buffered events", lambda held=held: unpack_buffered(machine.kinds, held))
    runs: dict[int, tuple[StoredInstance, _StoredRun]] = {}
    async for row in rows_of(end, RUN, part):
        stored = _known(instances, row[1], row[4], row[5])
        stored.add("runs", row)
        runs[row[0]] = stored, _opened(stored, row)
        stored.runs[row[0]] = runs[row[0]][1]
    async for row in rows_of(end, TASK, part):
        stored = _known(instances, row[0])
        stored.add("tasks", row[:_SHARED])
        _try(stored, f"its task {row[1]}", lambda body=row[4]: rows.task(body))
    async for row in rows_of(end, COMMAND, part):
        _known(instances, row[0]).add("commands", row)
    async for row in rows_of(end, EVENT, part):
        stored, run = runs[row[0]]
        stored.add("history", row)
        _fold(machine, run, row)
    for stored in instances.values():
        _check_ends(stored)
    return instances


def _known(
    instances: dict[int, StoredInstance], key: int, namespace: str = "", workflow_id: str | None = None
) -> StoredInstance:
    """The instance of this key. Rows whose instance has none are copied and compared, too."""
    if key not in instances:
        instances[key] = StoredInstance(namespace, workflow_id or f"of key {key}")
    return instances[key]


def _opened(stored: StoredInstance, row: Row) -> _StoredRun:
    instance = Instance(row[1], row[4], row[5])
    instance.workflow_type = row[6]
    if stored.row is not None and stored.row[_AT["run"]] == row[0]:
        instance.cursor = stored.row[_AT["cursor"]]
    instance.run = Run(row[0], row[2], row[3])
    return _StoredRun(instance, instance.run, row[_OF_RUN["length"]])


def _fold(machine: Machine, run: _StoredRun, row: Row) -> None:
    if run.damage is not None:
        return
    try:
        event = restore(machine.kinds, row[0], tuple(row[1:]), run.end)  # type: ignore[arg-type]
        machine.fold(run.instance, run.run, (event,))
        run.end = event.sequence, event.checksum
    except HistoryDamaged as damage:
        run.damage = f"event {damage.sequence}: {damage.why}"
    except Exception as error:  # rows that Backstay never wrote may raise anything
        run.damage = f"event {row[1]}: it does not follow from those before it ({error!r})"


def _check_ends(stored: StoredInstance) -> None:
    """Compare where histories end with what rows say."""
    current = None if stored.row is None else stored.row[_AT["run"]]
    for key, run in stored.runs.items():
        if run.damage is None and key != current and run.end[0] < run.length:
            run.damage = f"event {run.end[0] + 1}: missing, and so is everything after it"
    if stored.row is None:
        stored.damage.append("the row of the workflow is missing")
    elif current is None:
        if stored.row[_AT["length"]]:
            stored.damage.append("its row names none of its runs")
    else:
        ended = stored.row[_AT["length"]], stored.row[_AT["checksum"]]
        named = stored.runs.get(current)
        newest = max(stored.runs.values(), key=lambda run: run.run.number, default=None)
        if newest is not None and newest is not named and newest.end == ended:
            pass  # an engine takes the newest run, and mends the row
        elif named is None:
            stored.damage.append("the row of its current run is missing")
        elif named.damage is None and named.end != ended:
            named.damage = f"event {named.end[0]}: it is not the event its workflow ended with"
    stored.damage += [f"run {run.run.run_id}, {run.damage}" for run in stored.runs.values() if run.damage is not None]


def _try(stored: StoredInstance, what: str, read: Callable[[], object]) -> None:
    try:
        read()
    except Exception as error:
        stored.damage.append(f"{what} cannot be read ({error})")
