"""The tables that are copied, with their columns, and how the rows of some instances are read.

Not copied: notices and writers, which belong to processes, and entries of the registry that the caller leaves out; facets, which the target makes of its runs. Stored views are copied as
they are. The next engine rebuilds missing or outdated ones, as always.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol

from backstay.kernel.decision import InstanceRow, RunRow
from backstay.store import Store
from backstay.store.views import VIEWS, SummaryRow, TallyRow, ViewRow

Row = Sequence[Any]
LAST_KEY = (1 << 63) - 1


class CopiedTable(NamedTuple):
    name: str
    columns: tuple[str, ...]
    order: str = ""  # of the rows of one run


class KeyRange(NamedTuple):
    """Some instances: those after a key, up to another one."""

    after: int
    last: int


_WORKFLOW = InstanceRow.__struct_fields__
_NAMES = {"last_decision": "last", "waits_externally": "outside", "unanswered": "awaited", "buffered_events": "held"}

WORKFLOW = CopiedTable("workflow", tuple(_NAMES.get(name, name) for name in _WORKFLOW))
RUN = CopiedTable("run", RunRow.__struct_fields__)
TASK = CopiedTable(
    "task",
    ("workflow", "id", "state", "available_at", "body", "namespace", "queue", "kind", "type", "build"),
)
COMMAND = CopiedTable("command", ("workflow", "position", "sequence", "request_id", "command_type", "body"))
EVENT = CopiedTable("event", ("run", "sequence", "type", "at", "body", "context", "checksum"), "sequence")
SUMMARY = CopiedTable("workflow_run_summaries", SummaryRow._fields)
ENTRIES = tuple(CopiedTable(table, ViewRow._fields, "position") for table in VIEWS.values())

OF_INSTANCES = (WORKFLOW, RUN, TASK, COMMAND)
OF_RUNS = (EVENT, SUMMARY, *ENTRIES)

SEND = CopiedTable("send", ("key", "sender", "namespace", "workflow_id", "kind", "body"))
REGISTRY = CopiedTable("registry", ("kind", "namespace", "name", "body"))
TALLY = CopiedTable("tally", TallyRow._fields)

WHOLE = (SEND, REGISTRY, TALLY)
COPIED = (*OF_INSTANCES, *OF_RUNS, *WHOLE)

_ORDER = {WORKFLOW: "key", RUN: "workflow, key", TASK: "workflow, id", COMMAND: "workflow, 2"}

Insert = Callable[[CopiedTable, Sequence[Row]], Awaitable[None]]
"""Insert rows within a transaction."""


class CopyEnd(Protocol):
    """One end of a copy: a store, with what only a copier does to one."""

    shown: str
    """Its address for people, without a password. Two ends with the same one are the same database."""

    position: str
    """What it calls the position of a command in the order of all commands."""

    @property
    def store(self) -> Store: ...

    async def hold(self) -> None:
        """Become the engine, so that no other process does. Raises if one is, and says which."""
        ...

    async def freeze(self) -> None:
        """Lock the database for writes, until `thaw`."""
        ...

    async def thaw(self) -> None: ...

    def rows(self, statement: str, *given: Any) -> AsyncIterator[Row]:
        """The rows of a query with `?` for a parameter, a few at a time. Only between `freeze` and `thaw`."""
        ...

    async def write(self, work: Callable[[Insert], Awaitable[None]], *before: tuple[str, Row]) -> None:
        """One transaction: statements first, then the inserts."""
        ...

    async def clear(self) -> None:
        """Remove every row that a copy may have written, and its mark."""
        ...

    async def settle(self) -> None:
        """Let the database collect statistics of the loaded rows."""
        ...

    async def close(self) -> None: ...


def columns_of(end: CopyEnd, table: CopiedTable) -> list[str]:
    return [end.position if table is COMMAND and name == "position" else name for name in table.columns]


def rows_of(end: CopyEnd, table: CopiedTable, part: KeyRange) -> AsyncIterator[Row]:
    """The rows of these instances in a table, those of one instance or run together and in order."""
    if table in OF_RUNS:
        columns = ", ".join(f"t.{column}" for column in table.columns)
        order = "run.workflow, run.key" + (f", t.{table.order}" if table.order else "")
        # Joined in this order, each run is one look into the index of the other table.
        statement = (
            f"select {columns} from run cross join {table.name} as t"
            f" where t.run = run.key and run.workflow > ? and run.workflow <= ? order by {order}"
        )
    else:
        key = "key" if table is WORKFLOW else "workflow"
        statement = (
            f"select {', '.join(columns_of(end, table))} from {table.name}"
            f" where {key} > ? and {key} <= ? order by {_ORDER[table]}"
        )
    return end.rows(statement, *part)


def all_rows(end: CopyEnd, table: CopiedTable) -> AsyncIterator[Row]:
    return end.rows(f"select {', '.join(table.columns)} from {table.name}")
