"""What each statement that writes on PostgreSQL needs of the database, kept by hand, for databases that are spread over machines.

Every row of an instance has the partition of its instance in its key. A statement whose rows are all of one partition, or
could as well be written partition by partition, needs nothing but commits of one partition. One that spans partitions needs a
commit over several machines, or a rule that makes up for it. A new statement that writes is classified here before it is used,
and so is whatever else not every database has: locks by name, sequences, notifications.
"""

from __future__ import annotations

import re
from pathlib import Path

import asyncpg
import pytest

from backstay.store import postgresql as dialect
from backstay.store.postgresql.connection import address, prepare, writing
from backstay.store.sql import queries

STATEMENTS = queries("backstay.store.postgresql", numbered=True)
FILES = sorted(Path(dialect.__file__).parent.rglob("*.py"))

BY_ROW = "each row stands alone: it could be written by itself, in the partition that its key names"
NO_PLACE = "the rows belong to no instance: small tables that every process reads"
OF_HANDLE = "the row of the process that writes"
OWNERSHIP = (
    "the row of one process, and then rows of shards: two small tables that belong to no instance, kept in one place"
)

WRITES = {
    # -- what is written for no instance
    **dict.fromkeys(("forget", "keep", "keep_new", "keep_after", "forget_after", "move_registry"), NO_PLACE),
    **dict.fromkeys(("count_up", "forget_tally", "begin_term"), NO_PLACE),
    **dict.fromkeys(("enrol", "fence", "alive", "tidy"), OF_HANDLE),
    **dict.fromkeys(("claim", "depose", "hand_over", "resign"), OWNERSHIP),
    # -- stored views, which can be made again
    **dict.fromkeys(("put_summary", "forget_summary"), BY_ROW),
    **dict.fromkeys(
        (f"{verb}_{view}" for verb in ("put", "forget") for view in ("waits", "timeline", "timers", "lineage")), BY_ROW
    ),
    **dict.fromkeys((f"orphans_of_{view}" for view in ("waits", "timeline", "timers", "lineage")), BY_ROW),
    "forget_notices": BY_ROW,
}
"""Statements whose correctness needs no commit over several partitions."""

WRITE_PARTS = {
    "mark": OF_HANDLE,
    "left_out": OF_HANDLE,
    "fresh": "its name is unique within its partition, which is made of the name",
    "moved": BY_ROW,
    "opened": "its id is unique, and ends with its partition",
    **dict.fromkeys(("changed", "appended", "put", "dropped", "noticed"), BY_ROW),
    "recorded": "behind the newest of the same instance, whose row is guarded",
    "sent": "with the decision of its sender, whose partition its key has",
}
"""Parts of `write` whose rows are of the partition of their instance: a batch may be cut partition by partition, each with its own mark."""

SPANNING = {
    "write: received": "a send is in the partition of its sender and is taken with a decision of its receiver; taking it later is"
    " harmless, because a send that comes twice is taken for done",
    "prune": "a send to the instance that is removed is in the partition of its sender; it stays until nobody owes anything, so one that"
    " is sent meanwhile finds no receiver, as it does when it comes a moment later",
}
"""What needs rows of two partitions in one commit, and why doing without would be no harm."""

LOCKS = {
    *("lock", "unlock", "lock_shared", "lock_for_a_moment"),
    *("lock_id", "lock_probe", "unlock_probe", "id_locked", "look", "has_engine", "depose"),
}
"""Locks by name: one engine of an earlier version, or many owners. The others only show which sessions are there; where locks are not
real, they are not asked for. Another one, in the code, keeps two processes from migrating at once."""

_WRITES = re.compile(r"\b(?:insert\s+into|delete\s+from|update\s+(?!of\b)\w+(?:\s+\w+)?\s+set|merge\s+into|truncate)\b")
_PART = re.compile(r"(?:^with|^\),) (\w+) as \(\n(.*?)(?=^\))", re.MULTILINE | re.DOTALL)


def _code(statement: str) -> str:
    return re.sub(r"--[^\n]*", "", statement).lower()


def _parts() -> dict[str, str]:
    return dict(_PART.findall(STATEMENTS["write"]))


def _writing() -> set[str]:
    return {name for name, statement in STATEMENTS.items() if _WRITES.search(_code(statement))}


def test_every_statement_that_writes_is_classified() -> None:
    classified = set(WRITES) | {name for name in SPANNING if ":" not in name} | {"write"}
    assert _writing() == classified, "say in this file what it needs, and whether it spans partitions"


def test_every_part_of_the_statement_that_writes_a_batch_is_classified() -> None:
    parts = {name for name, body in _parts().items() if _WRITES.search(_code(body))}
    spanning = {name.removeprefix("write: ") for name in SPANNING if name.startswith("write: ")}
    assert parts == set(WRITE_PARTS) | spanning, "say in this file what it needs, and whether it spans partitions"


def test_every_row_of_a_batch_depends_on_the_guard_of_its_instance() -> None:
    """What is left out of one partition leaves nothing behind in another."""
    for name, body in _parts().items():
        if name in ("mark", "fresh", "moved", "passed", "left_out"):
            continue
        assert re.search(r"from passed\b|(using|from) taken\b", _code(body)), name


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_a_statement_needs_nothing_that_not_every_database_has(name: str) -> None:
    code = _code(STATEMENTS[name])
    assert not re.search(r"\b(nextval|currval|setval|lastval|listen|unlisten|notify|pg_notify|lock table)\b", code)
    assert not re.search(r"\b(skip locked|for share|for key share|for no key update)\b", code)
    if name not in LOCKS:
        assert "advisory" not in code
    assert ("for update" in code) == (name == "prune")


def test_the_code_has_one_lock_by_name_and_writes_no_rows_by_itself() -> None:
    found = [
        (file.name, line.strip())
        for file in FILES
        for line in file.read_text(encoding="utf-8").splitlines()
        if re.search(r"pg_\w*advisory|nextval|pg_notify|\"(listen|notify) |add_listener", line)
    ]
    assert [file for file, _ in found] == ["connection.py"], found
    assert "pg_advisory_xact_lock" in found[0][1]
    rows = [
        line.strip()
        for file in FILES
        for line in file.read_text(encoding="utf-8").splitlines()
        if '"' in line and _WRITES.search(line)
    ]
    assert len(rows) == 1, rows
    assert "insert into migration values" in rows[0]


async def test_the_schema_has_no_sequence(postgresql_url: str) -> None:
    place = address(postgresql_url)
    connection = await writing(place)
    try:
        await prepare(connection, place, True)
    finally:
        await connection.close(timeout=5)
    session = await asyncpg.connect(place.dsn)
    try:
        found = await session.fetch(
            "select relname from pg_class join pg_namespace n on n.oid = relnamespace where relkind = 'S' and nspname = $1",
            place.schema,
        )
    finally:
        await session.close()
    assert [name for (name,) in found] == []
