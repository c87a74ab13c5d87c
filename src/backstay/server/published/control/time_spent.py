"""Where the time of workflow types goes, from the histories of the last closed runs of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from backstay.kernel.event import HistoryDamaged, Recorded
from backstay.kernel.views.outline import Outline
from backstay.kernel.views.time_spent import KINDS, time_spent
from backstay.protocol.run_lists import SearchRuns
from backstay.server.access.auth import OPERATOR
from backstay.server.http.errors import invalid
from backstay.server.http.messages import HttpRequest
from backstay.server.http.router import Route
from backstay.server.operators.run_filters import Filters
from backstay.server.published.control.run_lists import query_in
from backstay.server.server import Server

TYPES_MAX = 20
SAMPLE = 20  # runs of a type
SAMPLE_MAX = 200
EVENTS = 20_000  # of the runs of one type that are read; a single run may have more


class TimeSpent(Struct, frozen=True, kw_only=True):
    """In milliseconds. Each moment of a run counts once."""

    code: int
    activities: int
    backoff: int
    queue: int
    timers: int
    waiting: int


class TypeTimeSpent(Struct, frozen=True, kw_only=True):
    workflow_type: str
    runs: Annotated[int, Meta(description="Closed runs that were looked at, the newest.")]
    sampled: Annotated[bool, Meta(description="Whether there are more closed runs than those.")]
    milliseconds: TimeSpent


class TimeSpentAnswer(Struct, frozen=True, kw_only=True):
    namespace: str
    sample: int
    types: list[TypeTimeSpent]


async def spent(server: Server, request: HttpRequest) -> TimeSpentAnswer:
    """How much of the time of the last closed runs went into code, activities, backoff, queues, timers and waits."""
    names = list(dict.fromkeys(request.repeated.get("workflow_type", [])))
    if not 1 <= len(names) <= TYPES_MAX:
        raise invalid("workflow_type", f"name 1 to {TYPES_MAX} workflow types, not {len(names)}")
    size = request.integer("sample", SAMPLE, 1, SAMPLE_MAX)
    return TimeSpentAnswer(
        namespace=request.namespace,
        sample=size,
        types=[await _of_type(server, request.namespace, name, size) for name in names],
    )


async def _of_type(server: Server, namespace: str, name: str, size: int) -> TypeTimeSpent:
    query = query_in(server, namespace, "all", Filters(fields={"workflow_type": name, "is_terminal": True}))
    found = await server.api.call(SearchRuns(query=query, limit=size + 1, rows_only=True, namespace=namespace))
    total = dict.fromkeys(KINDS, 0)
    runs = events = 0
    for row in (run.row for run in found.runs[:size]):
        if row.closed_at is None or (runs and events + row.length > EVENTS):
            break
        outline = Outline()

        def take(entries: Sequence[Recorded], outline: Outline = outline) -> None:
            for entry in entries:
                outline.add(entry)

        try:
            await server.api.slices.through(row.key, take)
        except HistoryDamaged:
            continue
        for kind, length in time_spent(outline, row.closed_at - row.started_at).items():
            total[kind] += length
        runs, events = runs + 1, events + row.length
    shown = TimeSpent(
        code=total["code"] // 1000,
        activities=total["activities"] // 1000,
        backoff=total["backoff"] // 1000,
        queue=total["queue"] // 1000,
        timers=total["timers"] // 1000,
        waiting=total["waiting"] // 1000,
    )
    more = len(found.runs) > runs or not found.complete
    return TypeTimeSpent(workflow_type=name, runs=runs, sampled=more, milliseconds=shown)


ROUTES = [Route("GET", "/api/time-spent", spent, "control", OPERATOR)]
