"""The views of a run as they are stored: waits, timeline, timers and lineage, each a list of plain entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backstay.kernel.decision import RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.task import Task
from backstay.kernel.values import Micros
from backstay.protocol.run_detail import lineage_view, timeline, timers_view, waits_view


def make_views(
    row: RunRow, history: Sequence[Recorded], tasks: Sequence[Task], wake: Micros | None
) -> dict[str, list[dict[str, Any]]]:
    """The views of a run from its history and rows. `wake` and `tasks` are those of its instance, if it is the current run.

    The outcomes of other runs of its chain are not part of them: they may change later.
    """
    links = lineage_view(row, history, {})
    return {
        "waits": waits_view(row, history, tasks, wake),
        "timeline": timeline(history, row.run_id),
        "timers": timers_view(row, history, wake),
        "lineage": [{"direction": "parent"} | link for link in links["parents"]]
        + [{"direction": "child"} | link for link in links["children"]],
    }
