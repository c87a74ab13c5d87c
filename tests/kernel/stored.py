"""What is stored of an instance: fold it again from its rows, and compare two instances."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import TYPE_CHECKING, Any

import msgspec

from backstay.kernel.event import Recorded, pack_buffered, restore, unpack_buffered
from backstay.kernel.features.activity import Activities
from backstay.kernel.features.activity.records import Execution
from backstay.kernel.features.archive import Archived
from backstay.kernel.features.cancel import CancelState
from backstay.kernel.features.child import Child, Children
from backstay.kernel.features.condition import Conditions
from backstay.kernel.features.failures import Failures
from backstay.kernel.features.memo import Memo
from backstay.kernel.features.pause import Paused
from backstay.kernel.features.schedule import of as schedule_of
from backstay.kernel.features.search import SearchAttributes
from backstay.kernel.features.signal import Signals
from backstay.kernel.features.start import Identity
from backstay.kernel.features.timer import Timers
from backstay.kernel.features.update import Updates
from backstay.kernel.features.version import Versions
from backstay.kernel.groups import Group, Groups
from backstay.kernel.machine import Machine
from backstay.kernel.state import Instance, Run
from backstay.kernel.turn import add_task_deadlines
from backstay.kernel.values import Micros

from .deciding import vars_of

if TYPE_CHECKING:
    from .given import Flow


def refold(flow: Flow) -> Instance:
    """Fold the instance from its stored bytes and rows alone, as an engine does that has just started."""
    row = flow.row
    assert row is not None
    state = Instance(row.key, row.namespace, row.workflow_id)
    state.workflow_type = row.workflow_type
    state.exists = True
    state.last_decision = row.last_decision
    state.command_sequence = row.command_sequence
    state.cursor = row.cursor
    state.attempts = row.attempts
    state.next_wake = row.next_wake
    state.reserved_at = row.reserved_at
    if row.run is not None:
        index = flow.runs[row.run]
        run = state.run = Run(index.key, index.run_id, index.number)
        flow.machine.fold(state, run, reread(flow.machine, flow.histories[row.run]))
        for task in flow.rows.values():
            state.keep_task(task)
            add_task_deadlines(run, task)
    state.buffered_events = unpack_buffered(flow.machine.kinds, pack_buffered(row.buffered_events))
    return state


def reread(machine: Machine, history: Iterable[Recorded]) -> list[Recorded]:
    """Read a history back from its stored bytes and verify its checksums."""
    found: list[Recorded] = []
    previous = (0, 0)
    for entry in history:
        stored = (entry.sequence, entry.type, entry.at, entry.body, entry.context_body, entry.checksum)
        found.append(restore(machine.kinds, entry.run, stored, previous))
        previous = (entry.sequence, entry.checksum)
    return found


def snapshot(flow: Flow, state: Instance | None = None) -> dict[str, Any]:
    """The whole state of an instance as plain data.

    State that is in memory only, and may differ after a restart, is left out: heartbeats that were not recorded, and that a
    retry whose backoff is over was offered (a restart offers it again).
    """
    state = state or flow.state
    run = state.run
    found: dict[str, Any] = {
        "exists": state.exists,
        "last_decision": state.last_decision,
        "type": state.workflow_type,
        "reserved_at": state.reserved_at,
        "command_sequence": state.command_sequence,
        "cursor": state.cursor,
        "attempts": state.attempts,
        "buffered_events": list(state.buffered_events),
        "running_task": state.running_task,
        "next_wake": state.next_wake,
        "tasks": msgspec.to_builtins(state.tasks),
    }
    if run is None:
        return found
    fields = ("key", "run_id", "number", "status", "closed_reason", "workflow_type", "routing", "started_at")
    more = ("closed_at", "length", "bytes", "checksum", "last_at", "step")
    agenda = sorted(entry for entry in set(run.agenda) if _counts(flow, state, entry))
    found |= vars_of(run, fields + more)
    found |= {
        "wake_events": [entry for entry in run.wake_events if entry[0] > state.cursor],
        "own_task_events": list(run.own_task_events),
        "agenda": agenda,
        "activities": {step: _plain(execution) for step, execution in run.part(Activities).open.items()},
        "timers": (dict(run.part(Timers).pending), copy(run.part(Timers).fired)),
        "signals": (dict(run.part(Signals).received), dict(run.part(Signals).waits)),
        "conditions": dict(run.part(Conditions).open),
        "updates": dict(run.part(Updates).pending),
        "cancellation": run.part(CancelState).requested,
        "paused": run.part(Paused).entry,
        "archived": vars_of(run.part(Archived), Archived.__slots__),
        "versions": dict(run.part(Versions).markers),
        "memo": dict(run.part(Memo).values),
        "search_attributes": dict(run.part(SearchAttributes).values),
        "failures": dict(run.part(Failures).raised),
        "identity": vars_of(run.part(Identity), Identity.__slots__),
        "children": {step: vars_of(child, Child.__slots__) for step, child in run.part(Children).open.items()},
        "groups": _groups(run.part(Groups)),
        "schedule": msgspec.to_builtins(schedule_of(run)),
    }
    return found


def _counts(flow: Flow, state: Instance, entry: tuple[Micros, str, int | str]) -> bool:
    at, kind, id = entry
    if kind == "heartbeat" or (kind in ("retry", "first_task") and at <= flow.latest):
        return False
    return flow.machine.agenda.deadlines[kind].armed(state, id) == at


def _groups(groups: Groups) -> dict[str, Any]:
    found = {id: vars_of(group, Group.__slots__) for id, group in groups.groups.items()}
    return {"groups": found, "paths": dict(groups.paths), "freed": list(groups.freed)}


def _plain(execution: Execution) -> dict[str, Any]:
    return vars_of(execution, (field for field in Execution.__slots__ if field != "heard_at"))
