"""Rows of every dialect: a batch of decisions before it is written, and stored rows as values again.

Several decisions of one instance become one guarded write (the first one's guard, the last one's values), and a task that
was created and closed inside the batch is never written.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Literal

import msgspec

from backstay.kernel.decision import CommandRecord, Decision, RunRow, TaskChange
from backstay.kernel.task import Task, TaskKind
from backstay.kernel.values import Micros, Routing

log = logging.getLogger("backstay.store")

encode = msgspec.json.Encoder().encode
task = msgspec.json.Decoder(Task).decode
_command = msgspec.json.Decoder(CommandRecord).decode
_decode_labels = msgspec.json.Decoder(dict[str, str]).decode
_decode_search = msgspec.json.Decoder(dict[str, Any]).decode

Row = Sequence[Any]


class _Place(msgspec.Struct):
    """The part of a task that names it and says when it is due."""

    id: str
    workflow: int
    run: int
    kind: TaskKind
    available_at: Micros
    created_at: Micros
    state: Literal["ready", "leased", "failed"] = "ready"
    until: Micros | None = None


_place = msgspec.json.Decoder(_Place).decode


def guarded_keep(entry: tuple[str, str, str, bytes | None, bool], before: bytes | None) -> tuple[str, tuple[Any, ...]]:
    """The statement that writes an entry of the registry if its body is `before`, and its values."""
    *key, body, _ = entry
    assert body is not None or before is not None, "there is nothing to write"
    if before is None:
        return "keep_new", (*key, body)
    if body is None:
        return "forget_after", (*key, before)
    return "keep_after", (body, *key, before)


def of_call(candidates: Iterable[Task], namespace: str, owner: str, call: str) -> list[Task]:
    """Of these tasks, those that the worker holds since that poll."""
    return [
        task
        for task in candidates
        if (task.state, task.owner, task.call) == ("leased", owner, call) and task.routing.namespace == namespace
    ]


def call_hash(namespace: str, owner: str, call: str) -> int:
    """A number for a poll of a worker. Others may have the same, so a task that is found by it is looked at."""
    digest = blake2b(msgspec.json.encode((namespace, owner, call)), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def tasks(bodies: Iterable[bytes]) -> Iterable[Task]:
    """Tasks of many instances. One that cannot be read is returned with its key fields only: loading its instance shows
    more."""
    for body in bodies:
        try:
            yield task(body)
        except msgspec.DecodeError as error:
            try:
                key = _place(body)
            except msgspec.DecodeError:
                log.error("task row cannot be read and is skipped (%s): %.200r", error, body)
            else:
                yield Task(**msgspec.structs.asdict(key), type="", routing=Routing())


def ready_task(body: bytes, available_at: Micros, workflow: int, id: str) -> Task:
    """A ready task. One that cannot be read has no type, so no worker takes it; the sweep writes it again."""
    try:
        return task(body)
    except msgspec.DecodeError:
        return Task(
            id=id,
            workflow=workflow,
            run=0,
            kind="workflow",
            type="",
            routing=Routing(),
            available_at=available_at,
            created_at=available_at,
        )


def readable_tasks(bodies: Iterable[bytes]) -> list[Task]:
    """The tasks of one instance. A row that cannot be read counts as lost: a repair writes it again from history."""
    readable: list[Task] = []
    for body in bodies:
        try:
            readable.append(task(body))
        except msgspec.DecodeError as error:
            log.error("task row cannot be read and counts as lost (%s): %.200r", error, body)
    return readable


def command(row: Row) -> CommandRecord:
    """The record of a command. A body that cannot be read is marked as unreadable, so that the other commands can be shown."""
    sequence, request_id, command_type, body = row
    try:
        return _command(body)
    except ValueError as error:  # malformed JSON, another shape, or no UTF-8
        known: dict[str, Any] = {
            "id": f"unreadable-{sequence}",
            "run": None,
            "outcome": None,
            "at": None,
            "source": "unknown",
            **_readable(body),
            "sequence": sequence,
            "request_id": request_id,
            "command_type": command_type,
            "status": "unreadable",
            "unreadable": str(error),
        }
        return CommandRecord(**known)


def _readable(body: bytes) -> dict[str, Any]:
    """The fields of a command that can be read."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except ValueError:
        return {}
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(CommandRecord):
        with suppress(ValueError):
            if field.name in fields:
                values[field.name] = msgspec.json.decode(fields[field.name], type=field.type)
    return values


class Unlinked(Exception):
    """Two decisions of one instance that do not follow each other: each needs its own guard."""


def coalesced(decisions: Iterable[Decision]) -> Iterable[Decision]:
    """A batch as one decision for each of its instances."""
    joined: dict[int, Decision] = {}
    for decision in decisions:
        key = decision.instance.key
        joined[key] = _joined(joined[key], decision) if key in joined else decision
    return joined.values()


def _joined(first: Decision, then: Decision) -> Decision:
    """Two decisions in a row as one with the same effects."""
    if then.after != first.instance.last_decision:
        raise Unlinked
    tasks = {change.task_id: change for change in first.tasks}
    for change in then.tasks:
        before = tasks.get(change.task_id, change)
        tasks[change.task_id] = TaskChange(change.task_id, change.task, before.stored)
    runs = {row.key: (is_new, row) for is_new, row in first.runs}
    for is_new, row in then.runs:
        runs[row.key] = (is_new or (row.key in runs and runs[row.key][0]), row)
    return Decision(
        then.instance,
        first.after,
        [*first.events, *then.events],
        list(tasks.values()),
        list(runs.values()),
        [*first.commands, *then.commands],
        sends=[*first.sends, *then.sends],
        taken_sends=[*first.taken_sends, *then.taken_sends],
        wake_moved=first.wake_moved or then.wake_moved,
    )


def begins(decision: Decision) -> bool:
    """Whether a run of the instance begins here; it may be of another type than the one before."""
    return any(is_new for is_new, _ in decision.runs)


def text(value: dict[str, Any]) -> str:
    return encode(value).decode()


def run(row: Row) -> RunRow:
    values = list(row)
    values[13] = {} if row[13] is None else _decode_labels(row[13])
    values[14] = {} if row[14] is None else _decode_search(row[14])
    return RunRow(*values)
