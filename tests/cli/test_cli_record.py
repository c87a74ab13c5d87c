"""`dw record`: a sample of histories, one for each path, which `dw replay` and the plugin for pytest replay."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from dw_support import Place, mistaken

from backstay import Backstay, Signal, activity, wait, workflow
from backstay.kernel.machine import Machine
from backstay.sdk.replay.path_taken import path_digest, path_taken
from backstay.testing import TestBackstay, replay

approved = Signal[str]("approved")

CODE = """
from backstay import Signal, activity, wait, workflow

approved = Signal[str]("approved")

@activity(type="pack")
def pack(item: str) -> str:
    return item

@workflow(type="order.v1", signals=[approved])
def order(items: list[str], asks: bool) -> str:
    for item in items:
        pack(item)
    return wait(approved) if asks else "done"
"""


@activity(type="pack")
def pack(item: str) -> str:
    return item


@workflow(type="order.v1", signals=[approved])
def order(items: list[str], asks: bool) -> str:
    for item in items:
        pack(item)
    return wait(approved) if asks else "done"


@pytest.fixture
def shop(place: Place) -> Place:
    """A place with orders in its database: two that went the same way, one that waits, and one that was approved."""
    with Backstay(place.directory / "backstay.db", [order, pack]) as app:
        app.execute(order, "o-1", ["lamp"], False)
        app.execute(order, "o-2", ["lamp", "bulb", "cable"], False)
        waits, approves = (app.start(order, id, ["sofa"], True) for id in ("o-3", "o-4"))
        approves.signal(approved, "ann")
        approves.result()
        while waits.describe().wait_kind != "signal":
            pass
    return place


def test_one_history_is_recorded_of_each_path(shop: Place) -> None:
    said = shop.ask("record", "--out", "histories")
    assert said.stdout == "4 runs of 1 workflow type looked at: 3 paths, 3 new files in histories\n"
    files = sorted((shop.directory / "histories").iterdir())
    assert [file.name.rpartition("-")[0] for file in files] == ["order-v1"] * 3
    assert replay(shop.directory / "histories", [order, pack]).runs == 3
    assert replay(shop.directory / "histories", [order, pack]).fits
    again = shop.ask("record", "--out", "histories")
    assert "3 paths, 0 new files" in again.stdout, "what is there is not recorded again"
    assert "1 path, 1 new file" in shop.ask("record", "--out", "few", "--each", "1", "--type", "order.v1").stdout


def test_a_history_that_could_not_be_replayed_is_not_recorded(shop: Place) -> None:
    shop.write("veil.py", "def gone(value, context):\n    return '[gone]'\n")
    said = mistaken(shop.ask("record", "--out", "histories", "--redactor", "veil:gone"))
    assert "is not recorded" in said
    assert "let the redactor return a payload" in said
    assert not list((shop.directory / "histories").iterdir())


def test_recorded_histories_are_tests(shop: Place) -> None:
    assert shop.ask("record", "--out", "tests/histories").returncode == 0
    shop.write("app.py", CODE)
    shop.write("pytest.ini", "[pytest]\nbackstay_histories = tests/histories\nbackstay_app = app.py\n")
    plugin = "-p no:backstay -p backstay.contrib.pytest_plugin"  # here it may be installed, or not
    pytest_ = f"{sys.executable} -m pytest -q -p no:cacheprovider -p no:xdist {plugin} tests"
    fits = shop.shell(pytest_)
    assert "3 passed" in fits.stdout, fits.stdout + fits.stderr
    shop.write("app.py", CODE.replace("    for item in items:\n", "    wait(approved)\n    for item in items:\n"))
    failed = shop.shell(pytest_)
    assert "3 failed" in failed.stdout, failed.stdout + failed.stderr
    assert "(order.v1) would be blocked: replay diverged at step 1" in failed.stdout
    assert "app.py:12: wait(approved)" in failed.stdout
    assert "  history          | code" in failed.stdout
    shop.write("pytest.ini", "[pytest]\nbackstay_histories = tests/histories\n")
    assert "backstay_histories needs backstay_app" in shop.shell(pytest_).stdout


def test_what_a_loop_repeats_counts_once_in_a_path() -> None:
    def path_of(items: list[str], asks: bool) -> list[str]:
        with TestBackstay(register=[order, pack]) as app:
            app.start(order, "o-1", items, asks)
            app.settle()
            return path_taken(Machine(), app.history("o-1"))

    assert path_of(["a"], False) == path_of(["a", "b", "c", "d"], False)
    assert path_of(["a"], False) != path_of([], False)
    assert path_of(["a"], False) != path_of(["a"], True)
    assert len(path_digest(Machine(), [])) == 10


def test_a_file_is_named_after_a_type_whatever_the_type_is(place: Place) -> None:
    odd = workflow(type="../..:odd")(lambda: 1)
    with Backstay(place.directory / "backstay.db", [odd]) as app:
        app.execute(odd, "x-1")
    assert place.ask("record", "--out", "histories").returncode == 0
    (file,) = (place.directory / "histories").iterdir()
    assert file.name.startswith("odd-")
    assert list(Path(place.directory).glob("*.json")) == []
