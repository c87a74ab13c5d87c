"""One run with everything that happened in it: the same whether it is looked at or exported.

All of it is folded from typed history. Only tasks are rows, and what is said of them comes from history as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from backstay.kernel.decision import CommandRecord, RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.features.memo import MemoUpserted
from backstay.kernel.features.start import WorkflowStarted
from backstay.kernel.views import actions
from backstay.kernel.views.activities import activities
from backstay.kernel.views.failures import failures
from backstay.kernel.views.lineage import lineage
from backstay.kernel.views.messages import signals, updates
from backstay.kernel.views.timers import timers
from backstay.kernel.views.waits import waits
from backstay.protocol import detail as show
from backstay.protocol.requests import Description

_DECLARED = tuple(
    f"declared_{what}"
    for what in ("queries", "query_contracts", "signals", "signal_contracts", "updates", "update_contracts")
)


PROJECTION_SOURCES = dict.fromkeys(
    (f"{view}_projection_source" for view in ("waits", "timeline", "timers", "lineage")), "typed_history"
)
"""Views are folded whenever somebody looks; there is nothing stored that could be behind."""


def selected(
    row: RunRow,
    history: list[Recorded],
    commands: list[CommandRecord],
    held: Description | None,
    chain: Mapping[str, RunRow],
) -> dict[str, Any]:
    """`held`: the run is the current one of its instance, which is described by this. `chain`: the runs beside it."""
    done = activities(history)
    waiting = held.waits if held else waits(history, row)
    wake = held.next_wake if held else None
    family = lineage(history, row.number, chain)
    return {
        "commands": [show.plain(command) for command in commands],
        "signals": [show.plain(view) for view in (held.signals if held else signals(history, commands))],
        "updates": [show.plain(view) for view in (held.updates if held else updates(history))],
        "waits": [show.plain(view) | show.AUTHORITY for view in waiting],
        "tasks": [
            *(show.shown_task(view, row.run_id, done) for view in (held.tasks if held else [])),
            *(show.missing_task(task, row.run_id, done) for task in (held.missing_tasks if held else [])),
            *(show.timer_tasks(waiting, wake) if held else []),
        ],
        "timeline": show.timeline(history, row.run_id),
        "activities": [show.shown_activity(view) for view in done],
        "timers": [show.shown_timer(view) for view in timers(history, row, wake)],
        "failures": [show.plain(view) for view in failures(history, row.run_id)],
        "parents": [show.shown_link(link) for link in family.parents],
        "children": [show.shown_link(link) for link in family.children],
    }


def memo(history: Iterable[Recorded]) -> dict[str, bytes]:
    """The memo of a run as its history leaves it."""
    found: dict[str, bytes] = {}
    for entry in history:
        match entry.event:
            case WorkflowStarted(memo=begun):
                found = begun
            case MemoUpserted(merged=merged):
                found = merged
            case _:
                pass
    return found


def declared(history: list[Recorded]) -> dict[str, Any]:
    """What the run's code offered when it began: targets as operators use them, and the lists as they were recorded."""
    started = next((entry.event for entry in history if isinstance(entry.event, WorkflowStarted)), None)
    return show.plain(actions.declared(started)) | {name: getattr(started, name, None) or [] for name in _DECLARED}
