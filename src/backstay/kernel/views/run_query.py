"""The query of a list or a count, and whether a run matches it.

A store answers the fields of its columns from an index, or within a bound; `fits` decides, on the current run. Times of
starts are those of keys: a key is made from the time of its start, so lists are in the order of starts without another index.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from backstay.kernel.decision import RunRow
from backstay.kernel.features.search import valid_key
from backstay.kernel.message import Refused
from backstay.kernel.values import KEY_BITS, KEY_EPOCH, Micros
from backstay.kernel.views.present import Present
from backstay.kernel.views.summary import CLOSED_STATES, OPEN_STATES, RunSummary

Sort = Literal["started", "closed", "duration", "events", "since"]
SORTS: tuple[Sort, ...] = ("started", "closed", "duration", "events", "since")
GROUPS = ("status", "state", "attention", "workflow_type", "queue", "compatibility")
"""The fields by which runs can be counted, besides `label:KEY` and `attribute:KEY`."""

STATUSES = ("pending", "running", "waiting", "completed", "failed", "cancelled", "terminated")
OPEN = ("pending", "running", "waiting")
CLOSED = ("completed", "failed", "cancelled", "terminated")

Value = str | int | float | bool

COLUMNS = {
    "instance_id": "workflow_id",
    "run_id": "run_id",
    "workflow_type": "workflow_type",
    "business_key": "business_key",
    "compatibility": "compatibility",
    "connection": "connection",
    "queue": "queue",
    "status": "status",
    "closed_reason": "closed_reason",
}
"""The fields of the index row of a run, and their columns."""

VIEWED = ("state", "attention", "wait_kind", "declared_entry_mode", "declared_contract_source")
"""The fields of its summary."""

PRESENT = ("liveness_state", "repair_blocked_reason")
"""The fields that also depend on the clock and on connected workers. So does `attention`."""

SQL_VIEWED = ("state", "wait_kind")
"""The fields of its summary that have a column, and depend on nothing else."""

FLAGS = ("is_terminal", "is_current_run", "archived", "continue_as_new_recommended", "task_problem", "repair_attention")


class RunQuery(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`fields` and `labels`: each has one of these values. `after` is inclusive and `before` is not. `budget`: the events and
    bytes from which on a run should continue as new; 0 disables one."""

    namespace: str = "default"
    q: str | None = None  # the beginning of an id, or a type, business key or run id
    fields: dict[str, tuple[str, ...]] = {}
    flags: dict[str, bool] = {}
    labels: dict[str, tuple[str, ...]] = {}
    attributes: dict[str, tuple[Value, ...]] = {}
    started_after: Micros | None = None
    started_before: Micros | None = None
    closed_after: Micros | None = None
    closed_before: Micros | None = None
    budget: tuple[int, int] = (0, 0)
    sort: Sort = "started"
    descending: bool = True

    def over(self, other: RunQuery) -> RunQuery:
        """Both queries together; for a field of both, this one counts. Statuses of both count."""
        fields = other.fields | self.fields
        if "status" in self.fields and "status" in other.fields:
            fields["status"] = tuple(one for one in self.fields["status"] if one in other.fields["status"])
        mine = {
            name: getattr(self, name)
            for name in ("q", "started_after", "started_before", "closed_after", "closed_before")
            if getattr(self, name) is not None
        }
        if self.sort != "started" or not self.descending:
            mine |= {"sort": self.sort, "descending": self.descending}
        return replace(
            other,
            fields=fields,
            flags=other.flags | self.flags,
            labels=other.labels | self.labels,
            attributes=other.attributes | self.attributes,
            **mine,
        )

    @property
    def needs_present(self) -> bool:
        """Whether no column tells if a run fits."""
        if "attention" in self.fields and not set(self.fields["attention"]) <= {"blocked", "repair_needed"}:
            return True
        told = (*SQL_VIEWED, "attention")
        return any(name in self.fields for name in (*VIEWED, *PRESENT) if name not in told) or any(
            name in self.flags for name in FLAGS[4:]
        )

    @property
    def needs_summary(self) -> bool:
        """Whether only the summary of a run tells if it fits."""
        return (
            any(name in self.fields for name in (*VIEWED, *PRESENT))
            or any(name in self.flags for name in FLAGS[3:])
            or self.sort == "since"
        )


MOST = {"values": 1000, "labels": 50, "attributes": 50}
"""How much one search may name. Each value is a parameter of a statement, and each label and attribute a condition."""


def check(query: RunQuery, place: RunPlace | None = None, group_by: str | None = None) -> None:
    """Refuse values that no database can query."""
    named = {"labels": len(query.labels), "attributes": len(query.attributes)}
    named["values"] = sum(
        len(several) for part in (query.fields, query.labels, query.attributes) for several in part.values()
    )
    for name, number in named.items():
        if number > MOST[name]:
            raise Refused(
                "invalid_query", f"a search has at most {MOST[name]} {name}, not {number}; ask for fewer", field=name
            )
    numbers: dict[str, object] = {name: getattr(query, name) for name in _TIMES}
    numbers |= {f"after[{position}]": value for position, value in enumerate(place or ())}
    numbers |= {f"attributes.{name}": one for name, several in query.attributes.items() for one in several}
    for name, value in numbers.items():
        if isinstance(value, int) and not -LAST_KEY <= value <= LAST_KEY:
            raise Refused("invalid_query", f"{name} is below -(2^63-1) or above 2^63-1", field=name)
    kind, _, key = (group_by or "").partition(":")
    if group_by is not None and group_by not in GROUPS and not (kind in ("label", "attribute") and valid_key(key)):
        known = ", ".join((*GROUPS, "label:KEY", "attribute:KEY"))
        raise Refused(
            "invalid_query", f"runs are counted by one of {known}, not by {group_by[:80]!r}", field="group_by"
        )


_TIMES = ("started_after", "started_before", "closed_after", "closed_before")


class RunPlace(NamedTuple):
    """Where a page ended: the value that the list is ordered by, and the key of its last run. `top`: the newest run that the
    list looked at, if it has an order of its own."""

    value: int
    key: int
    top: int | None = None


class TaskGroup(NamedTuple):
    """The queue, type and build that a worker needs for the next task of a run."""

    queue: str
    kind: str
    type: str
    build: str | None


LAST_KEY = (1 << 63) - 1


def sort_timestamp(key: int) -> Micros:
    """The time of a run's start by which lists are ordered. No two runs of an engine have the same."""
    return KEY_EPOCH + (key >> KEY_BITS)


def key_at(at: Micros) -> int:
    """The first key of that time. Times too early or too late for keys have the first or last of all."""
    return min(max(at - KEY_EPOCH, 0) << KEY_BITS, LAST_KEY)


def sort_value(query: RunQuery, row: RunRow, summary: RunSummary | None, now: Micros) -> int:
    """The number by which a list orders this run."""
    match query.sort:
        case "closed":
            return row.closed_at or 0
        case "duration":
            return (row.closed_at or now) - row.started_at
        case "events":
            return row.length
        case "since":
            return summary.since if summary is not None and row.closed_at is None else row.closed_at or row.started_at
        case _:
            return row.key


def state_of(row: RunRow) -> str | None:
    """The state of a run that has closed."""
    if row.closed_at is None:
        return None
    return "continued" if row.closed_reason == "continued" else row.status


def states_as_statuses(states: tuple[str, ...]) -> tuple[str, ...]:
    """The statuses that runs in these states can have."""
    found = {"completed" if state == "continued" else state for state in states if state in CLOSED_STATES}
    return (*(OPEN if any(state in OPEN_STATES for state in states) else ()), *sorted(found))


def fits_row(query: RunQuery, row: RunRow, *, is_current: bool) -> bool:
    """Whether the index row of a run matches."""
    if row.namespace != query.namespace or (query.q is not None and not _is_about(query.q, row)):
        return False
    for name, column in COLUMNS.items():
        if name in query.fields and getattr(row, column) not in query.fields[name]:
            return False
    told = {
        "is_terminal": row.closed_at is not None,
        "is_current_run": is_current,
        "archived": row.archived_at is not None,
    }
    if any(query.flags[name] != value for name, value in told.items() if name in query.flags):
        return False
    if any(row.labels.get(name) not in values for name, values in query.labels.items()):
        return False
    if not all(_has(row.search_attributes.get(name), values) for name, values in query.attributes.items()):
        return False
    started = sort_timestamp(row.key)
    return (
        (query.started_after is None or started >= query.started_after)
        and (query.started_before is None or started < query.started_before)
        and (query.closed_after is None or (row.closed_at or 0) >= query.closed_after)
        and (query.closed_before is None or 0 < (row.closed_at or 0) < query.closed_before)
        and (query.sort != "closed" or row.closed_at is not None)
    )


def fits_summary(query: RunQuery, summary: RunSummary | None, present: Present) -> bool:
    """Whether the state and the wait of a run match. `summary` None: its history cannot be read."""
    for name in VIEWED:
        if name in query.fields:
            value = None if summary is None else getattr(summary, name)
            if name == "state" and summary is None:
                value = present.damaged_state
            if (present.attention if name == "attention" else value) not in query.fields[name]:
                return False
    if any(name in query.fields and getattr(present, name) not in query.fields[name] for name in PRESENT):
        return False
    told = {
        "continue_as_new_recommended": summary is not None and over_budget(query.budget, summary.events, summary.bytes),
        "task_problem": present.task_problem,
        "repair_attention": present.repair_attention,
    }
    return all(query.flags[name] == value for name, value in told.items() if name in query.flags)


def over_budget(budget: tuple[int, int], events: int, size: int) -> bool:
    return bool((budget[0] and events >= budget[0]) or (budget[1] and size >= budget[1]))


def _is_about(text: str, row: RunRow) -> bool:
    return row.workflow_id.startswith(text) or text in (row.workflow_type, row.business_key, row.run_id)


def _has(value: object, wanted: tuple[Value, ...]) -> bool:
    """True is not 1, "1" is not 1, but 1.0 is."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in wanted)
