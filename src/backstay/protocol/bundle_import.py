"""An export as the decision that creates its instance again: events, index row, commands, and the tasks that history expects."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from backstay.codec import avro
from backstay.kernel.decision import CommandRecord, Decision, TaskChange
from backstay.kernel.errors import BackstayError
from backstay.kernel.machine import Machine
from backstay.kernel.rows import instance_row, run_row
from backstay.kernel.state import Instance, Run
from backstay.kernel.values import Ids, partition_of
from backstay.protocol.bundle_check import ExportBundle
from backstay.protocol.bundle_reading import UnreadableEvent, micros, read_events
from backstay.protocol.recorded_run import UnreadableRun, identity_of


class CannotImport(ValueError):
    """The export cannot be read by this version. Its message says why."""


def imported(bundle: ExportBundle, machine: Machine, ids: Ids) -> Decision:
    """The whole export in one decision, under new keys."""
    try:
        workflow = identity_of(bundle)
    except UnreadableRun as error:
        raise CannotImport(str(error)) from error
    name = workflow.namespace, workflow.instance_id
    instance = Instance(ids.key(partition_of(*name)), *name)
    instance.workflow_type = workflow.workflow_type
    instance.exists = True
    run = instance.run = Run(ids.key(instance.partition), workflow.run_id, workflow.run_number)
    try:
        events = list(read_events(bundle.entries("history_events"), machine.kinds, run.key))
        machine.fold(instance, run, events)
    except UnreadableEvent as error:
        raise CannotImport(str(error)) from error
    except (BackstayError, LookupError, AttributeError, AssertionError, TypeError, ValueError) as error:
        raise CannotImport(f"its events do not follow from each other ({error!r})") from error
    try:
        commands = [_command(shown, run.key) for shown in bundle.entries("commands")]
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        raise CannotImport(f"one of its commands cannot be read ({error!r})") from error
    instance.command_sequence = max((command.sequence or 0 for command in commands), default=0)
    instance.cursor = max((entry.context.decided_after or 0 for entry in events), default=0)
    run.wake_events = [event for event in run.wake_events if event[0] > instance.cursor]
    expected = machine.expect(instance)
    for task in expected.tasks.values():
        instance.keep_task(task)
    instance.next_wake = expected.next_wake
    instance.last_decision = ids.serial()
    idle = not instance.tasks and instance.next_wake is None
    return Decision(
        instance_row(instance, 0, idle and machine.waits_externally(run)),
        0,
        events,
        [TaskChange(id, task, False) for id, task in instance.tasks.items()],
        [(True, run_row(instance, run))],
        commands,
        wake_moved=instance.next_wake is not None,
    )


def _command(shown: dict[str, Any], run: int) -> CommandRecord:
    """The record of a command as it was exported."""
    known = {name: shown[name] for name in CommandRecord.__struct_fields__ if shown.get(name) is not None}
    if "at" in known:
        known["at"] = micros(known["at"])
    payload = cast(dict[str, str] | None, known.pop("payload", None))
    found = msgspec.convert(known | {"run": run}, _Exported, strict=False)
    fields = {name: getattr(found, name) for name in _Exported.__struct_fields__}
    return CommandRecord(**fields, payload=None if payload is None else avro.from_text(payload["blob"]))


class _Exported(msgspec.Struct, kw_only=True):
    """The fields of a command's record that an export has as plain values."""

    id: str
    run: int | None
    sequence: int | None = None
    command_type: str
    status: str
    outcome: str | None = None
    at: int | None = None
    source: str = "unknown"
    target_scope: str = "instance"
    target_name: str | None = None
    requested_run_id: str | None = None
    resolved_run_id: str | None = None
    request_id: str | None = None
    fingerprint: str | None = None
    rejection_reason: str | None = None
    validation_errors: dict[str, list[str]] = {}
    context: dict[str, Any] = {}
