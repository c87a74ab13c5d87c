"""Which commands a run would accept now, and why it would not accept the others."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

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
    pause_blocked_reason: str | None = None
    can_unpause: bool
    unpause_blocked_reason: str | None = None
    can_issue_terminal_commands: bool


def actions(
    instance: Instance, state: str, now: Micros, *, current: bool = True, definition: str | None = None
) -> Actions:
    """`state`: the liveness of the run. `definition`: why its code cannot be queried. `current`: it is the newest run
    of its instance."""
    run = instance.current
    archived = run.part(Archived).at is not None if Archived in run.parts else False
    started = run.part(Identity).started
    if not current:
        return earlier_actions(started, archived, definition)
    blocked = None if run.is_open else "run_closed"
    repair = blocked or _repair(state, instance)
    archive = "run_not_closed" if run.is_open else "already_archived" if archived else None
    no_query = definition or (None if started is None else _none("queries", started.declared_queries))
    no_signal = blocked or (None if started is None else _none("signals", started.declared_signals))
    # Without live workers an update is accepted and waits. With workers that do not know the code it is rejected.
    unknown = definition if definition == "workflow_definition_unavailable" else None
    undeclared = None if started is None else _none("updates", started.declared_updates)
    no_update = blocked or undeclared or unknown or ("earlier_signal_pending" if signal.pending(instance) else None)
    paused = not pause.allows(run)
    no_pause = blocked or ("already_paused" if paused else None)
    no_unpause = blocked or (None if paused else "not_paused")
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
        can_pause=no_pause is None,
        pause_blocked_reason=no_pause,
        can_unpause=no_unpause is None,
        unpause_blocked_reason=no_unpause,
        can_issue_terminal_commands=blocked is None,
    )


def earlier_actions(started: WorkflowStarted | None, archived: bool, definition: str | None) -> Actions:
    """What an earlier run of an instance allows: queries, if its code can answer them, and archiving."""
    no_query = definition or (None if started is None else _none("queries", started.declared_queries))
    return _nothing_but(NOT_CURRENT, no_query, "already_archived" if archived else None)


def _nothing_but(reason: str, no_query: str | None, no_archive: str | None) -> Actions:
    return Actions(
        can_query=no_query is None,
        query_blocked_reason=no_query,
        can_signal=False,
        signal_blocked_reason=reason,
        can_update=False,
        update_blocked_reason=reason,
        can_repair=False,
        repair_blocked_reason=reason,
        repair_blocked=REPAIR_REASONS[reason],
        repair_attention=REPAIR_REASONS[reason].badge_visible,
        can_archive=no_archive is None,
        archive_blocked_reason=no_archive,
        can_cancel=False,
        cancel_blocked_reason=reason,
        can_terminate=False,
        terminate_blocked_reason=reason,
        can_pause=False,
        pause_blocked_reason=reason,
        can_unpause=False,
        unpause_blocked_reason=reason,
        can_issue_terminal_commands=False,
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
            "No live worker has the queue, type and build of its next task; start one.",
            "warning",
            badge=True,
        ),
    )
}


NOT_CURRENT = "selected_run_not_current"
UNSUPPORTED = "unsupported_history"

UNREADABLE = replace(_nothing_but(UNSUPPORTED, UNSUPPORTED, UNSUPPORTED), task_problem=True)
"""The actions of a run whose history cannot be read: none."""


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
