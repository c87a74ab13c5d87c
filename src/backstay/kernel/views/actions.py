"""Which commands a run would accept now, and why it would not accept the others."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from backstay.kernel.features import pause, signal
from backstay.kernel.features.archive import Archived
from backstay.kernel.features.start import Identity, WorkflowStarted
from backstay.kernel.state import Instance
from backstay.kernel.values import Micros


class RepairBlocked(Struct, frozen=True, kw_only=True):
    """Why a repair would do nothing, as people read it."""

    code: str
    label: str
    description: str
    tone: str
    badge_visible: bool


class Actions(Struct, frozen=True, kw_only=True):
    can_query: bool
    query_blocked_reason: str | None = None
    can_signal: bool
    signal_blocked_reason: str | None = None
    can_update: bool
    update_blocked_reason: str | None = None
    can_repair: bool
    repair_blocked_reason: str | None = None
    repair_blocked: RepairBlocked | None = None
    repair_attention: bool = False
    task_problem: bool = False
    can_archive: bool
    archive_blocked_reason: str | None = None
    can_cancel: bool
    cancel_blocked_reason: str | None = None
    can_terminate: bool
    terminate_blocked_reason: str | None = None
    can_pause: bool
    can_unpause: bool
    can_issue_terminal_commands: bool


def actions(
    instance: Instance, state: str, now: Micros, *, current: bool = True, definition: str | None = None
) -> Actions:
    """`state`: the liveness of the run. `definition`: why its code cannot be queried. `current`: it is the newest run
    of its instance."""
    run = instance.current
    blocked = None if current else "selected_run_not_current"
    if blocked is None and not run.is_open:
        blocked = "run_closed"
    repair = blocked or _repair(state, instance)
    archived = run.part(Archived).at is not None if Archived in run.parts else False
    archive = "run_not_closed" if run.is_open else "already_archived" if archived else None
    started = run.part(Identity).started
    no_query = definition or (None if started is None else _none("queries", started.declared_queries))
    no_signal = blocked or (None if started is None else _none("signals", started.declared_signals))
    # Without live workers an update is accepted and waits. With workers that do not know the code it is rejected.
    unknown = definition if definition == "workflow_definition_unavailable" else None
    undeclared = None if started is None else _none("updates", started.declared_updates)
    no_update = blocked or undeclared or unknown or ("earlier_signal_pending" if signal.pending(instance) else None)
    paused = not pause.allows(run)
    return Actions(
        can_query=no_query is None,
        query_blocked_reason=no_query,
        can_signal=no_signal is None,
        signal_blocked_reason=no_signal,
        can_update=no_update is None,
        update_blocked_reason=no_update,
        can_repair=repair is None,
        repair_blocked_reason=repair,
        repair_blocked=None if repair is None else REPAIR_REASONS[repair],
        repair_attention=repair is not None and REPAIR_REASONS[repair].badge_visible,
        task_problem=_task_problem(instance, state, now),
        can_archive=archive is None,
        archive_blocked_reason=archive,
        can_cancel=blocked is None,
        cancel_blocked_reason=blocked,
        can_terminate=blocked is None,
        terminate_blocked_reason=blocked,
        can_pause=blocked is None and not paused,
        can_unpause=blocked is None and paused,
        can_issue_terminal_commands=blocked is None,
    )


def _none(what: str, declared: list[str] | None) -> str | None:
    """The reason if the code declares no target of this kind. An unknown contract accepts any."""
    return f"no_declared_{what}" if declared == [] else None


def _repair(state: str, instance: Instance) -> str | None:
    if state in ("repair_needed", "workflow_replay_blocked") or any(
        t.state == "failed" for t in instance.tasks.values()
    ):
        return None
    return "waiting_for_compatible_worker" if "waiting_for_compatible_worker" in state else "repair_not_needed"


def _task_problem(instance: Instance, state: str, now: Micros) -> bool:
    """A workflow task that is blocked, was repaired, has lost its worker, or is missing."""
    tasks = [task for task in instance.tasks.values() if task.kind == "workflow"]
    return state in ("repair_needed", "workflow_replay_blocked") or any(
        task.state == "failed" or task.repair_count > 0 or (task.until is not None and task.until <= now)
        for task in tasks
    )


def _said(code: str, label: str, description: str, tone: str = "secondary", badge: bool = False) -> RepairBlocked:
    return RepairBlocked(code=code, label=label, description=description, tone=tone, badge_visible=badge)


REPAIR_REASONS = {
    said.code: said
    for said in (
        _said("selected_run_not_current", "Not the current run", "Only the newest run of an instance can be repaired."),
        _said("run_closed", "Closed", "The run has ended; nothing of it moves any more."),
        _said("repair_not_needed", "Nothing to repair", "Everything the history expects exists."),
        _said(
            "unsupported_history",
            "Unsupported history",
            "The history shows a wait that it cannot explain; restore it from a backup.",
            "dark",
            badge=True,
        ),
        _said(
            "waiting_for_compatible_worker",
            "No compatible worker",
            "The run is pinned to a build that no live worker runs; start one.",
            "warning",
            badge=True,
        ),
    )
}


class Target(Struct, frozen=True, kw_only=True):
    """A declared signal, query or update, with its parameters where they are known."""

    name: str
    has_contract: bool
    parameters: list[dict[str, Any]] = []


class Declared(Struct, frozen=True, kw_only=True):
    """The targets that the run was started with, all of them or none; never those of today's code."""

    declared_contract_source: str
    declared_query_targets: list[Target] = []
    declared_signal_targets: list[Target] = []
    declared_update_targets: list[Target] = []


def declared(started: WorkflowStarted | None) -> Declared:
    """The declared targets of a run, from its start event."""
    if started is None or None in (started.declared_queries, started.declared_signals, started.declared_updates):
        return Declared(declared_contract_source="unavailable")
    queries = _targets(started.declared_queries, started.declared_query_contracts)
    updates = _targets(started.declared_updates, started.declared_update_contracts)
    if not all(target.has_contract for target in (*queries, *updates)):
        return Declared(declared_contract_source="unavailable")
    return Declared(
        declared_contract_source="durable_history",
        declared_query_targets=queries,
        declared_signal_targets=_targets(started.declared_signals, started.declared_signal_contracts),
        declared_update_targets=updates,
    )


def _targets(names: list[str] | None, contracts: list[dict[str, Any]] | None) -> list[Target]:
    known = {str(contract.get("name")): contract for contract in contracts or ()}
    return [
        Target(name=name, has_contract=name in known, parameters=known.get(name, {}).get("parameters", []))
        for name in names or ()
    ]
