"""Every story is told on every kind of database; with `--nodes 3` by three apps on PostgreSQL."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.many_apps import Apps
from tests.many_nodes import Chosen, store_of


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if Chosen.shape.many:
        chosen = any(mark.args[0] == "database" for mark in request.node.iter_markers("parametrize"))
        if request.param == "sqlite" and not chosen:
            pytest.skip("told on the other kind")
        return store_of(tmp_path / "story.db")
    if request.param == "postgresql":
        return request.getfixturevalue("postgresql_url")
    return str(tmp_path / "story.db")


@pytest.fixture(autouse=True)
def _by_several_apps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if Chosen.shape.many:
        monkeypatch.setattr(sys.modules[request.function.__module__], "Backstay", Apps, raising=False)
