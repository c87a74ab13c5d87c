"""The commands that a run would accept now, and the reasons against the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, defstruct
from msgspec.structs import replace

from backstay.kernel.features import signal
from backstay.kernel.features.archive import Archived
from backstay.kernel.features.start import Identity, WorkflowStarted
from backstay.kernel.features.workflow_task import REPLAY_BLOCKED
from backstay.kernel.operator_command import OperatorCommand, PartList
from backstay.kernel.operators import OPERATOR_COMMANDS
from backstay.kernel.state import Instance
from backstay.kernel.values import Micros


class RepairBlocked(Struct, frozen=True, kw_only=True):
    """Why a repair would do nothing, as people read it."""

    code: str
    label: str
    description: str
    tone: str
    badge_visible: bool


class MessageActions(Struct, frozen=True, kw_only=True):
    """The messages that a run would accept, and the problems of its tasks."""

    can_query: bool
    query_blocked_reason: str | None = None
    can_signal: bool
    signal_blocked_reason: str | None = None
    can_update: bool
    update_blocked_reason: str | None = None
    repair_blocked: RepairBlocked | None = None
    repair_attention: bool = False
    task_problem: bool = False
    can_issue_terminal_commands: bool


if TYPE_CHECKING:
    Actions = MessageActions
else:
    Actions = defstruct(
        "Actions",
        [
            field
            for command in OPERATOR_COMMANDS.values()
            for field in ((f"can_{command.able}", bool), (f"{command.able}_blocked_reason", str | None, None))
        ],
        bases=(MessageActions,),
        module=__name__,
        frozen=True,
        kw_only=True,
    )
    """The same, with `can_...` and `..._blocked_reason` of each operator command."""


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
    closed = None if run.is_open else RUN_CLOSED
    undeclared_query = None if started is None else _none("queries", started.declared_queries)
    cannot_replay = any(task.is_blocked for task in instance.tasks.values())
    no_query = undeclared_query or (REPLAY_BLOCKED if cannot_replay else definition)
    no_signal = closed or (None if started is None else _none("signals", started.declared_signals))
    # Without live workers, only an update that has no validator is accepted, and waits. With workers that do not know the
    # code, or whose code does not fit the history, every update is rejected.
    unanswered = definition is not None and not _has_unseen_update(started)
    unknown = NO_DEFINITION if cannot_replay or unanswered or definition == NO_DEFINITION else None
    undeclared = None if started is None else _none("updates", started.declared_updates)
    no_update = closed or undeclared or unknown or ("earlier_signal_pending" if signal.pending(instance) else None)
    blocked = {command.able: _blocked(command, instance, state, now) for command in OPERATOR_COMMANDS.values()}
    return _actions(blocked, no_query, no_signal, no_update, closed=closed, problem=_task_problem(instance, state, now))


def _has_unseen_update(started: WorkflowStarted | None) -> bool:
    """Whether the run has recorded an update that is accepted without asking its code."""
    if started is None or not started.declared_updates or started.declared_update_validators is None:
        return False
    return not set(started.declared_updates) <= set(started.declared_update_validators)


def _blocked(command: OperatorCommand, instance: Instance, state: str, now: Micros) -> str | None:
    """Why the newest run of an instance would not accept a command."""
    if instance.current.is_open != command.current_run and not command.open_or_closed:
        return RUN_CLOSED if command.current_run else "run_not_closed"
    return None if command.blocked is None else command.blocked(instance, state, now)


def _actions(
    blocked: Mapping[str, str | None],
    no_query: str | None,
    no_signal: str | None,
    no_update: str | None,
    *,
    closed: str | None,
    problem: bool = False,
) -> Actions:
    """`blocked`: why each command would not be accepted, None if it would; `closed`: why the run cannot be ended."""
    repair = blocked["repair"]
    commands: dict[str, Any] = {f"can_{name}": reason is None for name, reason in blocked.items()}
    commands |= {f"{name}_blocked_reason": reason for name, reason in blocked.items()}
    return Actions(
        can_query=no_query is None,
        query_blocked_reason=no_query,
        can_signal=no_signal is None,
        signal_blocked_reason=no_signal,
        can_update=no_update is None,
        update_blocked_reason=no_update,
        repair_blocked=None if repair is None else REPAIR_REASONS[repair],
        repair_attention=repair is not None and REPAIR_REASONS[repair].badge_visible,
        task_problem=problem,
        can_issue_terminal_commands=closed is None,
        **commands,
    )


def part_actions(list: PartList, view: Any, *, is_open: bool) -> dict[str, Any]:
    """Whether an operator command would be accepted for one entry of a list of a run, by the entry's view."""
    found: dict[str, Any] = {}
    for command in OPERATOR_COMMANDS.values():
        rule = command.parts.get(list)
        if rule is not None:
            reason = rule(view) if is_open else RUN_CLOSED
            found |= {f"can_{command.able}": reason is None, f"{command.able}_blocked_reason": reason}
    return found


def blocked_part_actions(list: PartList, reason: str) -> dict[str, Any]:
    """The same for every entry of a run that takes no command."""
    names = [command.able for command in OPERATOR_COMMANDS.values() if list in command.parts]
    return {
        name: value for able in names for name, value in ((f"can_{able}", False), (f"{able}_blocked_reason", reason))
    }


def earlier_actions(started: WorkflowStarted | None, archived: bool, definition: str | None) -> Actions:
    """The commands to an earlier run of an instance: queries, if its code can answer them, and archiving."""
    no_query = definition or (None if started is None else _none("queries", started.declared_queries))
    return _nothing_but(NOT_CURRENT, no_query, "already_archived" if archived else None, None)


def _nothing_but(reason: str, no_query: str | None, not_closed: str | None, not_any: str | None) -> Actions:
    """`not_closed`: why a command to any closed run would not be accepted; `not_any`: one to any run."""
    blocked = {
        command.able: reason if command.current_run else not_any if command.open_or_closed else not_closed
        for command in OPERATOR_COMMANDS.values()
    }
    return _actions(blocked, no_query, reason, reason, closed=reason)


def _none(what: str, declared: list[str] | None) -> str | None:
    """The reason if the code declares no target of this kind. An unknown contract accepts any."""
    return f"no_declared_{what}" if declared == [] else None


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
        _said("run_closed", "Closed", "The run has ended, so there is nothing to repair."),
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


RUN_CLOSED = "run_closed"
NOT_CURRENT = "selected_run_not_current"
NO_DEFINITION = "workflow_definition_unavailable"
UNSUPPORTED = "unsupported_history"

UNREADABLE = replace(_nothing_but(UNSUPPORTED, UNSUPPORTED, UNSUPPORTED, UNSUPPORTED), task_problem=True)
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
