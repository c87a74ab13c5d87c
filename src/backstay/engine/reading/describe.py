"""The description of a workflow: the views of the kernel put together into one reply."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from backstay.kernel.decision import CommandRecord, RunRow
from backstay.kernel.event import Context, Event, Recorded
from backstay.kernel.features import pause
from backstay.kernel.features.memo import Memo
from backstay.kernel.features.start import Identity
from backstay.kernel.machine import Machine
from backstay.kernel.rows import run_row
from backstay.kernel.state import Instance
from backstay.kernel.task import Task
from backstay.kernel.values import Micros, instance_kind
from backstay.kernel.views.actions import actions, declared
from backstay.kernel.views.failures import failures
from backstay.kernel.views.liveness import NOTHING, liveness, missing, transport_state, wait_of
from backstay.kernel.views.messages import signals, updates
from backstay.kernel.views.summary import summarize
from backstay.kernel.views.waits import back, newest_waits, waits
from backstay.protocol.requests import Description, TaskView
from backstay.store import StoredReads

SHORT = 500  # events of a run whose lists are shown whole
SHOWN = 200  # entries of a list of a longer run


def describe_state(
    machine: Machine,
    instance: Instance,
    now: Micros,
    definition: str | None,
    is_stranded: Callable[[Task], bool] | None,
    deployed: str | None = None,
    *,
    current: bool = True,
) -> Description:
    """Describe a run by its state.

    `definition`: why its code cannot answer queries. `is_stranded`: whether no live worker could take a task. `deployed`: the
    fingerprint of today's code. `current`: it is the newest
    run of its instance; else nothing but its history was folded.
    """
    run = instance.current
    started = run.part(Identity).started
    scheduled = started is not None and instance_kind(started.parent_namespace or "") == "schedule"
    wait = wait_of(instance) if run.is_open else NOTHING
    summary = summarize(machine, instance, stamp=None if current else run.length)
    state = liveness(machine, instance, now, is_stranded)
    return Description(
        is_current_run=current,
        current_run_id=run.run_id if current else None,
        workflow_id=instance.workflow_id,
        namespace=instance.namespace,
        workflow_type=run.workflow_type,
        status=run.status,
        run=run_row(instance, run),
        memo=run.part(Memo).values,
        fingerprint=None if started is None else started.workflow_definition_fingerprint,
        execution_deadline_at=None if started is None else started.execution_deadline_at,
        run_deadline_at=None if started is None else started.run_deadline_at,
        parent_workflow_id=None if started is None or scheduled else started.parent_workflow_instance_id,
        child_call_id=None if started is None or scheduled else started.child_call_id,
        schedule_id=started.parent_workflow_instance_id if started is not None and scheduled else None,
        wait_kind=wait.kind,
        open_wait_id=wait.id,
        resume_source_kind=wait.source_kind,
        resume_source_id=wait.source_id,
        liveness_state=state,
        next_wake=instance.next_wake,
        tasks=[
            TaskView(task=task, transport_state=transport_state(task, now, not pause.allows(run)))
            for task in instance.tasks.values()
        ],
        missing_tasks=missing(machine, instance),
        actions=actions(instance, state, now, current=current, definition=definition),
        declared=declared(started),
        summary=summary,
        exception_count=summary.exception_count,
        determinism_source=_source(None if started is None else started.workflow_definition_fingerprint, deployed),
    )


def with_history(
    description: Description, history: list[Recorded], commands: list[CommandRecord], held: list[tuple[Event, Context]]
) -> Description:
    """The description of a run with the views of its history. `held`: events that are accepted and not recorded yet."""
    row = description.run
    assert row is not None, "a run that has a history has a row"
    own = [command for command in commands if command.run == row.key]
    tasks = [view.task for view in description.tasks]
    failed = failures(history, row.run_id, tasks)
    waiting = waits(history, row)
    back(waiting, tasks, description.next_wake)
    return replace(
        description,
        commands=commands,
        waits=waiting,
        signals=signals(history, own, held),
        updates=updates(history, held),
        failures=failed,
        exception_count=len(failed),
    )


def brief(description: Description) -> Description:
    """The description of a long run with the newest entries of its lists, and with how many there are in all."""
    if description.run is None or description.run.length <= SHORT:
        return description
    lists = {name: getattr(description, name) for name in ("commands", "signals", "updates", "failures")}
    cut: dict[str, Any] = {name: entries[-SHOWN:] for name, entries in lists.items() if len(entries) > SHOWN}
    if len(description.waits) > SHOWN:
        cut["waits"] = newest_waits(description.waits, SHOWN)
    if len(description.tasks) > SHOWN:
        cut["tasks"] = description.tasks[:SHOWN]
    return replace(description, **cut, totals={name: len(getattr(description, name)) for name in cut})


async def beside(store: StoredReads, namespace: str, neighbours: Iterable[str]) -> dict[str, RunRow]:
    """The runs before and after a run in its chain, if they still exist."""
    rows = [await store.run(namespace, run_id) for run_id in neighbours]
    return {row.run_id: row for row in rows if row is not None}


def _source(snapped: str | None, deployed: str | None) -> str:
    """The facts about the code of a run: known only while the code is still the one of its start."""
    if snapped is None or deployed is None:
        return "unavailable"
    return "live_definition" if snapped == deployed else "definition_drift"
