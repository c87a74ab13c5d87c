"""The public face of the package: its names, and what importing it costs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import backstay

HEAVY = (
    "asyncpg",
    "starlette",
    "httptools",
    "uvloop",
    "rich",
    "click",
    "fastavro",
    "pydantic",
    "hypothesis",
    "sqlite3",
    "importlib.metadata",
    "concurrent.futures.thread",
    "xml",
    "urllib.request",
    "http.client",
    "unittest",
)
OURS = (
    "backstay.engine",
    "backstay.store",
    "backstay.cli",
    "backstay.sdk.client.client",
    "backstay.sdk.client.sync",
    "backstay.sdk.embedded",
    "backstay.sdk.worker.executor",
    "backstay.sdk.replay.source.visit",
)


def imported_by(program: str) -> set[str]:
    """The modules that a fresh interpreter has after this program."""
    code = f"{program}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(run.stdout))


def test_every_public_name_is_there() -> None:
    assert sorted(backstay.__all__) == backstay.__all__
    assert len(set(backstay.__all__)) == len(backstay.__all__)
    for name in backstay.__all__:
        assert getattr(backstay, name) is not None, name


def test_no_public_name_hides_a_builtin() -> None:
    import builtins

    assert not set(backstay.__all__) & set(dir(builtins))


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'gather_all'"):
        backstay.gather_all  # noqa: B018


def test_a_star_import_gives_exactly_the_public_names() -> None:
    found: dict[str, object] = {}
    exec("from backstay import *", found)
    assert {name for name in found if name != "__builtins__"} == set(backstay.__all__)


def test_importing_the_package_is_cheap() -> None:
    found = imported_by("import backstay")
    assert sorted(found & set(HEAVY)) == []
    assert sorted(name for name in found if name.startswith(OURS)) == []


def test_declaring_workflows_needs_no_engine() -> None:
    found = imported_by(
        "from backstay import activity, workflow\n"
        "@activity(retries=3)\n"
        "def charge(n: int) -> int: return n\n"
        "@workflow(type='order')\n"
        "def order(n: int) -> int: return charge(n)\n"
        "assert order(3) == 3\n"
    )
    assert sorted(name for name in found if name.startswith(OURS)) == []
    assert "sqlite3" not in found


def test_the_engine_is_imported_when_it_is_asked_for() -> None:
    found = imported_by("from backstay import Backstay")
    assert {"backstay.engine.core.engine", "backstay.store.sqlite"} <= found
    assert sorted(found & {"rich", "click", "fastavro", "pydantic", "asyncpg", "starlette"}) == []
