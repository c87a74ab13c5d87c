"""The SQL of the SQLite store: every named query prepares, is used, and the hot ones never read a whole table."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backstay.kernel.views.run_query import RunPlace
from backstay.store import RunFilter
from backstay.store import sqlite as dialect
from backstay.store.sql import migrations, queries
from backstay.store.sqlite.connection import connect, migrate
from backstay.store.sqlite.listing import DIALECT, select_runs
from backstay.store.views import VIEWS

from .plans import SEARCHES, statements

QUERIES = queries("backstay.store.sqlite")
TEMPLATES = {name for name, text in QUERIES.items() if text.endswith("values")}

HOT = {
    "find": "workflow_id",
    "find_all": "workflow_id",
    "load_workflow": "INTEGER PRIMARY KEY",
    "load_tasks": "PRIMARY KEY",
    "locate": "run_id",
    "history": "event_run",
    "last_event": "event_run",
    "due": "workflow_wake",
    "written_in_future": "workflow_wake",
    "ready": "task_ready",
    "mismatched": "INTEGER PRIMARY KEY",
    "run_by_id": "run_id",
    "run_by_key": "INTEGER PRIMARY KEY",
    "commands": "command_workflow",
    "last_command": "command_workflow",
    "guard": "INTEGER PRIMARY KEY",
    "guard_and_wake": "INTEGER PRIMARY KEY",
    "update_run": "INTEGER PRIMARY KEY",
    "drop_task": "PRIMARY KEY",
    "notices": "INTEGER PRIMARY KEY",
    "forget_notices": "INTEGER PRIMARY KEY",
}

COUNTED = {
    "count_states": "COVERING INDEX summary_state",
    "ready_runs": "COVERING INDEX summary_ready",
    "open_builds": "COVERING INDEX run_build",
    "attention_groups": "COVERING INDEX summary_group",
    "open_sizes": "COVERING INDEX summary_size",
    "waiting_tasks": "COVERING INDEX task_waiting",
    "wakes": "COVERING INDEX workflow_wake",
    "overdue": "COVERING INDEX workflow_wake",
    "started_and_ended": "PRIMARY KEY",
    "durations": "PRIMARY KEY",
    "schedule_counts": "run_status",
}  # what an overview asks for


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    connection = connect(":memory:")
    migrate(connection, ":memory:", migrations("backstay.store.sqlite"))
    yield connection
    connection.close()


def plan(connection: sqlite3.Connection, statement: str, parameters: list[Any] | None = None) -> list[str]:
    values = [None] * statement.count("?") if parameters is None else parameters
    return [row[3] for row in connection.execute(f"explain query plan {statement}", values)]


def columns(statement: str) -> int:
    (names,) = re.findall(r"\(([^)]*)\)\s*values$", statement)
    return names.count(",") + 1


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_prepares(connection: sqlite3.Connection, name: str) -> None:
    statement = QUERIES[name]
    if name in TEMPLATES:
        statement += " (" + ",".join("?" * columns(statement)) + ")"
    plan(connection, statement)


@pytest.mark.parametrize("name", QUERIES)
def test_no_query_numbers_its_parameters(name: str) -> None:
    """Python 3.12.0 to 3.12.3 warns of that, taking a number for a name."""
    assert not re.search(r"\?\d", QUERIES[name])


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_is_used(name: str) -> None:
    native = Path(dialect.__file__).parent
    places = [
        *native.glob("*.py"),
        native.parent / "reading.py",
        native.parent / "views.py",
        native.parent / "figures.py",
        native.parent / "measures.py",
        native.parent / "rows.py",
    ]
    # The statements of the views are named after them.
    spelt = {f'"{name}"', *(f'"{name.removesuffix(view)}{{view}}"' for view in VIEWS if name.endswith(view))}
    assert any(one in place.read_text(encoding="utf-8") for place in places for one in spelt)


@pytest.mark.parametrize("name", HOT)
def test_a_hot_query_goes_through_its_index_and_sorts_nothing(connection: sqlite3.Connection, name: str) -> None:
    steps = plan(connection, QUERIES[name])
    assert any(re.search(rf"SEARCH \w+ USING .*\b{HOT[name]}\b", step) for step in steps), steps
    # What is scanned is at most the list that was asked for.
    assert not [step for step in steps if step.startswith("SCAN") and "VIRTUAL TABLE" not in step], steps
    assert not [step for step in steps if "TEMP B-TREE" in step], steps


@pytest.mark.parametrize("name", COUNTED)
def test_an_overview_counts_by_an_index(connection: sqlite3.Connection, name: str) -> None:
    steps = plan(connection, QUERIES[name])
    assert any(re.search(rf"SEARCH \w+ USING .*\b{COUNTED[name]}\b", step) for step in steps), steps
    assert not [step for step in steps if re.match(r"SCAN (run|workflow|task|tally)", step)], steps


def test_tasks_that_have_failed_are_found_without_a_look_at_the_others(connection: sqlite3.Connection) -> None:
    assert any("USING INDEX task_failed" in step for step in plan(connection, QUERIES["failed_tasks"]))


def test_the_sweep_counts_tasks_by_their_key(connection: sqlite3.Connection) -> None:
    assert any(re.search(r"SEARCH task USING PRIMARY KEY", step) for step in plan(connection, QUERIES["mismatched"]))


@pytest.mark.parametrize(
    ("where", "index"),
    [
        (RunFilter(workflow_id="order-1"), "run_workflow"),
        (RunFilter(status="failed"), "run_status"),
        (RunFilter(business_key="b-1"), "run_business_key"),
        (RunFilter(before=7), "INTEGER PRIMARY KEY"),
    ],
    ids=["workflow id", "status", "business key", "page"],
)
def test_a_list_by_an_indexed_column_does_not_read_all_runs(
    connection: sqlite3.Connection, where: RunFilter, index: str
) -> None:
    steps = plan(connection, *select_runs(QUERIES["runs"], where))
    assert any(re.search(rf"SEARCH run USING .*\b{index}\b", step) for step in steps), steps
    assert not [step for step in steps if "TEMP B-TREE" in step], steps


def test_a_list_without_a_filter_reads_runs_in_their_order(connection: sqlite3.Connection) -> None:
    reads, *length = plan(connection, *select_runs(QUERIES["runs"], RunFilter()))
    assert reads == "SCAN run"
    assert length == ["CORRELATED SCALAR SUBQUERY 1", "SEARCH workflow USING INTEGER PRIMARY KEY (rowid=?)"]


@pytest.mark.parametrize("after", [None, RunPlace(9, 9)], ids=["first page", "next page"])
@pytest.mark.parametrize("kind", SEARCHES)
def test_a_search_reads_no_table_as_a_whole(connection: sqlite3.Connection, kind: str, after: RunPlace | None) -> None:
    query, index = SEARCHES[kind]
    steps = [step for one in statements(DIALECT, query, after) for step in plan(connection, *one)]
    assert any(re.search(rf"SEARCH \w+ USING .*\b{index}\b", step) or index == "facet" for step in steps), steps
    assert any("SEARCH facet USING PRIMARY KEY" in step for step in steps) or index != "facet"
    whole = [step for step in steps if step.startswith("SCAN")]
    assert set(whole) <= {"SCAN looked", "SCAN part", "SCAN one", "SCAN CONSTANT ROW"}, "what is scanned is bounded"
