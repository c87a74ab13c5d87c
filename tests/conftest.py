"""Collects which rows of the contract have a passing test. With `--contract FILE` the result is written there."""

from __future__ import annotations

import json
import os
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx._transports import default as httpx_transport

from . import postgresql, selection
from .many_nodes import Chosen, Shape

# Each client of httpx reads the certificates of all authorities, which takes longer than most requests of a test. Nobody here
# changes what it reads, so one process reads it once.
setattr(httpx_transport, "create_ssl_context", cache(httpx.create_ssl_context))  # noqa: B010 - it is not exported

KNOWN = frozenset((Path(__file__).parent.parent / "docs" / "contract-ids.txt").read_text().split())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--contract", metavar="FILE", help="write which contract rows passed to FILE")
    parser.addoption("--nodes", type=int, default=1, help="how many nodes tests have instead of one server")
    parser.addoption("--links", choices=("on", "off"), default="on", help="whether nodes call each other")
    parser.addoption("--sessions", choices=("yes", "no"), default="yes", help="whether sessions show who is alive")


LEFT_TO_TEST_ALL = pytest.StashKey[list[str]]()
"""The rows of the contract that only tests marked `full` prove; known when all tests were collected."""


@pytest.hookimpl(tryfirst=True)  # before `-m "not full"` takes tests away
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    if any(tests.is_relative_to((config.rootpath / argument).resolve()) for argument in config.args):
        config.stash[LEFT_TO_TEST_ALL] = selection.left_to_test_all(items)
    for item in items:
        left_out = item.get_closest_marker("full")
        if left_out is not None and not left_out.args:
            raise pytest.UsageError(f"{item.nodeid}: why is it only in `make test-all`? Say so: full('why')")
        why = item.get_closest_marker("one_server")
        if why is not None and Chosen.shape.many:
            item.add_marker(pytest.mark.skip(reason=f"one server: {why.args[0]}"))
        linked = item.get_closest_marker("needs_links")
        if linked is not None and Chosen.shape.many and not Chosen.shape.links:
            item.add_marker(pytest.mark.skip(reason=f"needs links: {linked.args[0]}"))
        ids = [id for mark in item.iter_markers("contract") for id in mark.args]
        unknown = [id for id in ids if id not in KNOWN]
        if unknown:
            raise pytest.UsageError(f"{item.nodeid}: the contract has no row {', '.join(unknown)}")
        item.user_properties += [("contract", id) for id in ids]


class _Rows:
    """Which test proves which row. A row holds only if every test that names it passed."""

    def __init__(self) -> None:
        self.outcomes: dict[str, dict[str, bool]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            for name, id in report.user_properties:
                if name == "contract":
                    tests = self.outcomes.setdefault(str(id), {})
                    tests[report.nodeid] = report.passed and tests.get(report.nodeid, True)


def pytest_configure(config: pytest.Config) -> None:
    options = config.option
    Chosen.shape = Shape(options.nodes, options.links == "on", options.sessions == "yes")
    if hasattr(config, "workerinput"):
        return
    selection.choose_commit()
    postgresql.begin_session()
    if config.getoption("--contract", None):
        config.pluginmanager.register(_Rows(), "contract-rows")


@pytest.fixture(scope="session")
def postgresql_server() -> str:
    """The URL of a PostgreSQL server."""
    try:
        return postgresql.server_url()
    except postgresql.NoServer as missing:
        pytest.skip(str(missing))


_numbers = count(1)


@pytest.fixture
def postgresql_url(postgresql_server: str) -> str:
    """The URL of an empty schema, which nobody else uses."""
    return postgresql.with_schema(postgresql_server, f"test_{os.getpid()}_{next(_numbers)}")


def pytest_sessionfinish(session: Any) -> None:
    rows: _Rows | None = session.config.pluginmanager.get_plugin("contract-rows")
    if rows is not None:
        Path(session.config.getoption("--contract")).write_text(json.dumps(rows.outcomes, indent=1, sort_keys=True))
