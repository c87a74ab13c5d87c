"""The description of a workflow: the views of the kernel put together into one reply."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from backstay.kernel.decision import CommandRecord, RunRow
from backstay.kernel.event import Recorded
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
from backstay.kernel.views.lineage import continued
from backstay.kernel.views.liveness import NOTHING, liveness, missing, transport_state, wait_of
from backstay.kernel.views.messages import signals, updates
from backstay.kernel.views.waits import waits
from backstay.protocol.requests import Description, TaskView
from backstay.store import Store


def describe(
    machine: Machine,
    instance: Instance,
    history: list[Recorded],
    commands: list[CommandRecord],
    now: Micros,
    definition: str | None,
    is_stranded: Callable[[Task], bool] | None,
    deployed: str | None = None,
) -> Description:
    """Describe an instance. `definition`: why its code cannot answer queries; `is_stranded`: whether no live
    worker could take a task; `deployed`: the fingerprint of today's code."""
    run = instance.run
    if run is None:
        return Description(
            workflow_id=instance.workflow_id,
            namespace=instance.namespace,
            workflow_type=instance.workflow_type,
            status="reserved",
            run=None,
            liveness_state="reserved",
            commands=commands,
        )
    started = run.part(Identity).started
    scheduled = started is not None and instance_kind(started.parent_namespace or "") == "schedule"
    wait = wait_of(instance) if run.is_open else NOTHING
    own = [command for command in commands if command.run == run.key]
    failed = failures(history, run.run_id)
    state = liveness(machine, instance, now, is_stranded)
    return Description(
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
        commands=commands,
        waits=waits(history, run),
        signals=signals(history, own, instance.buffered_events),
        updates=updates(history, instance.buffered_events),
        actions=actions(instance, state, now, definition=definition),
        declared=declared(started),
        failures=failed,
        exception_count=len(failed),
        determinism_source=_source(None if started is None else started.workflow_definition_fingerprint, deployed),
    )


async def beside(store: Store, namespace: str, history: Iterable[Recorded]) -> dict[str, RunRow]:
    """The runs before and after a run in its chain, if they still exist."""
    found = [await store.run(namespace, run_id) for run_id in continued(history)]
    return {row.run_id: row for row in found if row is not None}


def _source(snapped: str | None, deployed: str | None) -> str:
    """What may be said about the code of a run: only code that is still the one it was started with says anything."""
    if snapped is None or deployed is None:
        return "unavailable"
    return "live_definition" if snapped == deployed else "definition_drift"
