"""A database that another program has locked is a cause while the commit still waits, and none any more when it is free."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from .conftest import Place
from .program import eventually
from .test_left_workers import SOON, Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    started = Node(Place(tmp_path))
    yield started
    started.end()


def test_a_locked_database_is_a_cause_until_it_is_free(node: Node, tmp_path: Path) -> None:
    def names() -> set[str]:
        return {cause["name"] for cause in node.get("/causes")["causes"]}

    def locked() -> set[str]:
        return names() & {"database_slow", "database_unavailable"}

    assert not locked()
    with (
        closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        other.execute("begin immediate")
        started = pool.submit(node.start, "waits")
        eventually("the lock is a cause", locked, SOON)
        assert node.get("/causes")["verdict"]["status"] == "error"
        other.execute("rollback")
        eventually("it is none any more", lambda: not locked(), SOON)
        started.exception()  # refused, or started when the lock was free
    node.start("starts")
