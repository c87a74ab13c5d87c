"""The plugin for pytest: fixtures, seed and reports. Each test runs a pytest of its own on a file of tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SHOP = """
import pytest
from backstay import activity, rng, sleep, workflow
from backstay.testing import TestBackstay

@activity(type="charge")
def charge(name: str) -> str:
    return f"receipt for {name}"

@workflow(type="order")
def order(name: str) -> str:
    sleep("30d")
    return charge(name)

@workflow(type="lucky")
def lucky() -> int:
    return rng().randrange(1_000_000)

@pytest.fixture
def backstay_register():
    return [order, charge, lucky]
"""


def pytest_says(tests: str, directory: Path, *options: str) -> str:
    """The output of pytest, which has no other plugins than ours and those of asyncio."""
    (directory / "test_shop.py").write_text(SHOP + tests, encoding="utf-8")
    plugin = ("-p", "no:backstay", "-p", "backstay.contrib.pytest_plugin")  # here it may be installed, or not
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *plugin, *options, "test_shop.py"],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


def test_the_fixtures_are_open_apps(tmp_path: Path) -> None:
    said = pytest_says(
        """
def test_sync(backstay):
    assert backstay.execute(order, "o-1", "a map") == "receipt for a map"

async def test_async(async_backstay):
    async_backstay.fake(charge, returns="fake")
    assert await async_backstay.execute(order, "o-1", "a map") == "fake"

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_async_with_another_plugin(async_backstay, anyio_backend):
    assert await async_backstay.execute(order, "o-1", "a map") == "receipt for a map"

class TestOrders:
    async def test_async_in_a_class(self, async_backstay):
        assert await async_backstay.execute(order, "o-1", "a map") == "receipt for a map"
""",
        tmp_path,
        "-W",
        "error",
    )
    assert "4 passed" in said, said


def test_a_failed_test_shows_the_timeline_of_every_run(tmp_path: Path) -> None:
    said = pytest_says(
        """
def test_fixture(backstay):
    backstay.execute(order, "in-a-fixture", "a map")
    assert False

async def test_async(async_backstay):
    await async_backstay.execute(order, "in-an-async-fixture", "a map")
    assert False

@pytest.fixture
def own():
    with TestBackstay(register=[order, charge]) as app:
        yield app

def test_own(own):
    own.start(order, "in-an-own-fixture", "a map")
    assert False

def test_closed():
    with TestBackstay(register=[order, charge]) as app:
        app.execute(order, "in-a-closed-app", "a map")
    assert False

def test_passes(own):
    own.start(order, "never-shown", "a map")
""",
        tmp_path,
    )
    assert "4 failed, 1 passed" in said, said
    assert said.count("- runs of backstay -") == 4, said
    for id in ("in-a-fixture", "in-an-async-fixture", "in-an-own-fixture", "in-a-closed-app"):
        assert f"{id}  order  run 1" in said, said
    assert "timer of 30 d, due in 30 d" in said
    assert "never-shown" not in said


def test_the_seed_is_an_option(tmp_path: Path) -> None:
    tests = """
def test_seed(backstay):
    print("number", backstay.execute(lucky, "l-1"))
"""

    def number(*options: str) -> str:
        said = pytest_says(tests, tmp_path, "-s", *options)
        assert "1 passed" in said, said
        return next(line for line in said.splitlines() if "number" in line)

    assert number() == number("--backstay-seed=0") != number("--backstay-seed=7")
    assert "--backstay-seed=7" in pytest_says(tests, tmp_path, "--backstay-seed=7")
    assert "backstay: --backstay-seed=" in pytest_says(tests, tmp_path, "--backstay-seed=random")


def test_the_apps_need_no_pytest(tmp_path: Path) -> None:
    program = tmp_path / "test_shop.py"
    program.write_text(
        """
import sys, unittest
from backstay import sleep, workflow
from backstay.testing import TestBackstay, assert_history

@workflow
def nap() -> str:
    sleep("1w")
    return "rested"

class TestNap(unittest.TestCase):
    def setUp(self) -> None:
        self.app = self.enterContext(TestBackstay(register=[nap]))

    def test_nap(self) -> None:
        self.assertEqual(self.app.execute(nap, "n-1"), "rested")
        assert_history(self.app, "n-1").slept("1w").completed("rested")
        self.assertNotIn("pytest", sys.modules)

unittest.main()
""",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


CRASHES = """
from backstay import activity_info
from backstay.testing import effects

@activity
def pay(name: str) -> str:
    effects.once(f"pay {name}", activity_info().idempotency_key if "safe" in name else None)
    return name

@workflow
def paying(name: str) -> str:
    return pay(charge(name))

@pytest.fixture
def backstay_register():
    return [paying, charge, pay]

@pytest.mark.crashes
def test_safe(backstay):
    fake = backstay.fake(charge, returns="safe")
    assert backstay.execute(paying, "p-1", "a map") == "safe"
    assert fake.count >= 1

@pytest.mark.crashes(bound=2, store="sqlite")
async def test_unsafe(async_backstay):
    assert await async_backstay.execute(paying, "p-1", "a map") == "receipt for a map"

@pytest.mark.crashes
def test_own_app():
    with TestBackstay(register=[paying, charge, pay]) as app:
        app.fake(charge, calls=lambda name: pytest.fail("this test fails"))
        app.execute(paying, "p-1", "a map")
"""


def test_a_marked_test_is_explored(tmp_path: Path) -> None:
    said = pytest_says(CRASHES, tmp_path, "-W", "error", "-k", "test_safe")
    assert "1 passed" in said, said
    assert "test_safe: killed at 5 of 5 points" in said, said


def test_what_a_crash_breaks_is_reported_and_repeated(tmp_path: Path) -> None:
    said = pytest_says(CRASHES, tmp_path, "-W", "error", "-k", "test_unsafe")
    assert "1 failed" in said, said
    assert "Activity 'pay' needs its idempotency key" in said
    assert "--backstay-crash=5" in said, said
    assert said.count("paying  run 1") == 1  # of the trial that failed
    again = pytest_says(CRASHES, tmp_path, "-k", "test_unsafe", "--backstay-crash=5")
    assert "'pay receipt for a map' was done 2 times" in again, again
    elsewhere = pytest_says(CRASHES, tmp_path, "-k", "test_unsafe", "--backstay-crash=1")
    assert "1 passed" in elsewhere, elsewhere
