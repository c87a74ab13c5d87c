"""The readable part of a run whose history is damaged: its events up to the damage, and rows, as evidence only.

Such a run does not continue and is not repaired, because only history determines its next step. Steps that the readable
events have opened and closed stand. Claims of rows are marked: `mutable_open_fallback` for work that seems open,
`unsupported_terminal_without_history` for an end that no readable event has, `failure_row_fallback` for a failure that
only the index knows of. Detail and export show the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from backstay.kernel.decision import RunRow
from backstay.kernel.features.start import WorkflowStarted
from backstay.kernel.task import Resume, Task
from backstay.kernel.values import Micros, execution_id
from backstay.kernel.views.activities import activities
from backstay.kernel.views.lineage import lineage
from backstay.kernel.views.liveness import transport_state
from backstay.kernel.views.timers import timers
from backstay.kernel.views.waits import waits
from backstay.protocol.history import iso
from backstay.protocol.remains import Entry, Remains
from backstay.protocol.requests import TaskView
from backstay.protocol.run_detail import (
    PROJECTION_SOURCES,
    declared,
    shown_activity,
    shown_commands,
    shown_link,
    shown_timer,
    shown_wait,
    timeline,
)
from backstay.protocol.run_tasks import replay_block, shown_task
from backstay.protocol.tasks import optional_iso

_MISSING = {
    "activity": "terminal_activity_row_without_typed_history",
    "timer": "terminal_timer_row_without_typed_history",
    "child": "terminal_child_link_without_typed_parent_history",
}
"""Kinds of work whose end a workflow task delivers, and the message if no event records that end."""

_OPEN = ("open", "pending", "running", "waiting")


def evidence(found: Remains, now: Micros) -> dict[str, list[Entry]]:
    """The lists of the run. A readable event wins over a row, and a task over a stored view."""
    row, events = found.row, found.events
    failures = [_failure(row)] if row.status == "failed" else []
    shown_waits = _waits(found)
    return {
        "commands": shown_commands(found.commands, (), ()),
        "signals": [],
        "updates": [],
        "waits": shown_waits,
        "tasks": [
            shown_task(TaskView(task=task, transport_state=transport_state(task, now)), row.run_id, {})
            for task in found.tasks
        ],
        "timeline": timeline(events, row.run_id),
        "activities": _steps(
            (shown_activity(view) for view in activities(events)), shown_waits, "activity", "activity_execution_id"
        ),
        "timers": _steps(
            (shown_timer(view) for view in timers(events, _Open(), None)), shown_waits, "timer", "timer_id"
        ),
        "failures": failures,
        **_links(found, shown_waits),
    }


def about_damage(found: Remains) -> Entry:
    """The fields beside the lists: those that need the whole history are unknown."""
    return {
        **declared([]),
        **PROJECTION_SOURCES,
        "is_current_run": found.is_current,
        "current_run_id": found.current_run_id,
        "workflow_determinism_source": "unavailable",
        "open_wait_count": 0,
        "exception_count": 1 if found.row.status == "failed" else 0,
        "replay_block": replay_block(found.tasks),
        "history_damage": {"sequence": found.damage.sequence, "message": str(found.damage)},
    }


class _Open:
    """The unknown end of a run: history is missing after the damage."""

    is_open = True
    closed_at: Micros | None = None
    closed_reason: str | None = None


def _waits(found: Remains) -> list[Entry]:
    told = {view.wait_id: shown_wait(view) for view in waits(found.events, _Open())}
    claims = {wait["wait_id"]: wait for wait in _claims(found)}
    still_open = [wait["kind"] for wait in (told | claims).values() if wait["status"] == "open"]
    # The row of the instance has only two numbers for the future: its wake, and the number of answers that it waits
    # for.
    if found.wake is not None and "timer" not in still_open and not _explains_wake(found, (told | claims).values()):
        claims["timer:wake"] = _claim("timer:wake", "timer", "pending", deadline_at=iso(found.wake))
    for number in range(still_open.count("child") + 1, found.unanswered + 1):
        claims[f"child:{number}"] = _claim(f"child:{number}", "child", "waiting")
    shown = [wait if wait["status"] != "open" else claims.get(id) or _remembered(wait) for id, wait in told.items()]
    shown += [claim for id, claim in claims.items() if id not in told]
    return sorted(shown, key=lambda wait: wait["status"] not in ("open", "unsupported"))


def _explains_wake(found: Remains, known: Iterable[Entry]) -> bool:
    """Whether the instance may wake for something else than a timer: a lease or a pause of a task, a deadline of the run, the
    timeout of a wait that is known."""
    started = next((entry.event for entry in found.events if isinstance(entry.event, WorkflowStarted)), None)
    of_run = () if started is None else (started.run_deadline_at, started.execution_deadline_at)
    timeouts = (wait.get("deadline_at") for wait in known)
    return bool(found.tasks) or found.wake in of_run or iso(found.wake or 0) in timeouts


def _claims(found: Remains) -> Iterable[Entry]:
    """The waits in stored views and task rows, tasks last."""
    for wait in found.stored.get("waits", ()):
        if wait["kind"] in _MISSING:
            yield _remembered(wait)
    for task in found.tasks:
        yield _of_task(task, found)


def _remembered(wait: Entry) -> Entry:
    """A wait as a stored view has it, or as the readable events left it: whether it has ended since, they do not say."""
    is_open = wait["status"] == "open"
    kind, source = wait["kind"], wait.get("resume_source_id")
    if kind not in _MISSING:
        return wait | _doubt(None)
    return _claim(
        wait["wait_id"],
        kind,
        wait.get("source_status"),
        None if is_open else kind,
        sequence=wait.get("sequence"),
        opened_at=wait.get("opened_at"),
        deadline_at=wait.get("deadline_at"),
        target_name=wait.get("target_name"),
        target_type=wait.get("target_type"),
        activity_execution_id=source if kind == "activity" else None,
        timer_id=source if kind == "timer" else None,
        child_call_id=wait.get("child_call_id"),
        child_workflow_run_id=source if kind == "child" else None,
    )


def _of_task(task: Task, found: Remains) -> Entry:
    """The apparent wait or delivery of a task row. Nothing in it could resume the run."""
    resume = task.resume
    scheduled = None if task.kind != "activity" or task.step is None else execution_id(found.row.run_id, task.step)
    ended = None if scheduled is not None else _ended(resume)
    execution = scheduled or resume.activity_execution_id
    child = found.linked.get(resume.child_workflow_run_id or "")
    return _claim(
        f"activity:{execution}" if execution is not None else resume.open_wait_id or f"workflow-task:{task.id}",
        "activity" if scheduled is not None else ended or resume.workflow_wait_kind or "workflow-task",
        task.state if ended is None else _END.get(resume.workflow_event_type or "", task.state),
        ended,
        target_name=task.type
        if scheduled is not None
        else resume.activity_type or resume.signal_name or (None if child is None else child.workflow_id),
        target_type=None if child is None else child.workflow_type,
        activity_execution_id=execution,
        timer_id=resume.timer_id,
        child_call_id=resume.child_call_id,
        child_workflow_run_id=resume.child_workflow_run_id,
    )


def _claim(wait_id: str, kind: str, row_status: str | None, ended: str | None = None, **about: Any) -> Entry:
    """A wait that only rows speak of. `ended`: the kind of work whose end they claim."""
    return {
        **dict.fromkeys(("sequence", "opened_at", "deadline_at", "target_name", "target_type")),
        **dict.fromkeys(("activity_execution_id", "timer_id", "child_call_id", "child_workflow_run_id")),
        **about,
        "wait_id": wait_id,
        "kind": kind,
        "status": "open" if ended is None else "unsupported",
        "source_status": row_status if ended is None else "unsupported",
        "row_status": row_status,
        **_doubt(ended),
    }


def _doubt(ended: str | None) -> Entry:
    return {
        "resume_source_kind": None,
        "resume_source_id": None,
        "history_authority": "mutable_open_fallback" if ended is None else "unsupported_terminal_without_history",
        "history_unsupported_reason": None if ended is None else _MISSING[ended],
        "diagnostic_only": True,
    }


def _ended(resume: Resume) -> str | None:
    """The kind of work whose end a workflow task delivers, if any."""
    if resume.activity_execution_id is not None:
        return "activity"
    if resume.workflow_wait_kind == "child":
        return "child"
    return "timer" if resume.timer_id is not None and resume.condition_wait_id is None else None


_END = {
    "ActivityCompleted": "completed",
    "ActivityFailed": "failed",
    "ActivityTimedOut": "failed",
    "ActivityCancelled": "cancelled",
    "TimerFired": "fired",
    "ChildRunCompleted": "completed",
    "ChildRunFailed": "failed",
    "ChildRunCancelled": "cancelled",
    "ChildRunTerminated": "terminated",
}


def _steps(told: Iterable[Entry], shown_waits: Sequence[Entry], kind: str, id_name: str) -> list[Entry]:
    """Activities or timers: those of readable events, and the claims of rows as such, without result and end."""
    claimed = {wait[id_name]: wait for wait in shown_waits if wait["kind"] == kind and wait["diagnostic_only"]}
    found: list[Entry] = []
    for entry in told:
        claim = claimed.pop(entry["id"], None)
        is_open = entry["status"] in _OPEN
        found.append(_claimed_step(claim, entry["id"]) if is_open and claim is not None else entry)
    return [*found, *(_claimed_step(claim, id) for id, claim in claimed.items())]


def _claimed_step(claim: Entry, id: str | None) -> Entry:
    return claim | {"id": id, "activity_type": claim["target_name"], "result": None, "closed_at": None, "attempts": []}


def _links(found: Remains, shown_waits: Sequence[Entry]) -> dict[str, list[Entry]]:
    """The links that readable events have, and those that only a stored view or a child wait still names."""
    told = lineage(found.events, found.row.number, {})
    sides = {"parent": [*map(shown_link, told.parents)], "child": [*map(shown_link, told.children)]}
    known = {link["id"] for side in sides.values() for link in side}
    for link in found.stored.get("lineage", ()):
        if link["id"] not in known:
            is_open = link.get("status") in _OPEN
            doubt = {} if link["link_type"] != "child_workflow" else _doubt(None if is_open else "child")
            sides[link["direction"]].append(link | doubt | {"diagnostic_only": True})
            known.add(link["id"])
    for wait in shown_waits:
        if wait["kind"] == "child" and wait.get("child_call_id") not in (None, *known):
            sides["child"].append(_link_of(wait))
    return {"parents": sides["parent"], "children": sides["child"]}


def _link_of(wait: Entry) -> Entry:
    return {
        "id": wait["child_call_id"],
        "link_type": "child_workflow",
        "child_call_id": wait["child_call_id"],
        "sequence": wait["sequence"],
        "workflow_instance_id": wait["target_name"],
        "workflow_run_id": wait["child_workflow_run_id"],
        "workflow_type": wait["target_type"],
        "status": None,
        "status_bucket": None,
        "row_status": wait["row_status"],
        "history_authority": wait["history_authority"],
        "history_unsupported_reason": wait["history_unsupported_reason"],
        "diagnostic_only": True,
    }


def _failure(row: RunRow) -> Entry:
    """The failure of the run. The index says that it failed; only history says why."""
    return {
        "failure_id": None,
        "source_kind": "workflow_run",
        "source_id": row.run_id,
        "propagation_kind": "terminal",
        "message": None,
        "file": None,
        "line": None,
        "trace": [],
        "recorded_at": optional_iso(row.closed_at),
        "history_authority": "failure_row_fallback",
        "diagnostic_only": True,
    }
