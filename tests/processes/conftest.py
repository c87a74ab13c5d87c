"""Programs that end with their test, and a place with a ledger, gates and a database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.register_assert_rewrite(f"{__package__}.program")

from .program import Program, Remote  # noqa: E402 - after its asserts are registered


class Signed(NamedTuple):
    name: str
    key: str
    attempt: int
    pid: int


def whole(place: Place) -> bool:
    """Whether SQLite finds the file sound."""
    with closing(sqlite3.connect(place.database)) as file:
        return file.execute("pragma integrity_check").fetchone() == ("ok",)


class Place:
    """Where a test happens."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.database: Path | str = directory / "app.db"
        self.ledger = str(directory / "ledger")

    def gate(self, name: str) -> str:
        return str(self.directory / name)

    def open_gate(self, name: str) -> None:
        (self.directory / name).touch()

    def signed(self, name: str | None = None) -> list[Signed]:
        """The lines of the ledger, in the order they were written."""
        path = Path(self.ledger)
        lines = [line.split("\t") for line in path.read_text().splitlines()] if path.exists() else []
        found = [Signed(what, key, int(attempt), int(pid)) for what, key, attempt, pid in lines]
        return [line for line in found if name is None or line.name == name]


BOTH = pytest.mark.parametrize("place", ["sqlite", "postgresql"], indirect=True)
"""On a file, which is what tests get without this, and on a server."""


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    place = Place(tmp_path)
    if getattr(request, "param", None) == "postgresql":
        place.database = request.getfixturevalue("postgresql_url")
    return place


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    """Every program a test starts; none outlives it."""
    started: list[Program] = []
    yield started
    for program in started:
        program.clean_up()


@pytest.fixture
def remote(place: Place, programs: list[Program]) -> Callable[..., Remote]:
    """Start a program that opens the database of this test."""

    def start(**options: Any) -> Remote:
        program = Remote(place.database, **options)
        programs.append(program)
        return program

    return start


@pytest.fixture
def program(programs: list[Program]) -> Callable[..., Program]:
    def start(module: str, *args: str) -> Program:
        started = Program(module, *args)
        programs.append(started)
        return started

    return start
