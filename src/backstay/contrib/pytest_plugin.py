"""The plugin for pytest: apps as fixtures, their seed, and the timelines of all runs in the report of a failed test.

It is loaded by its entry point, in every project that has Backstay installed. So it imports nothing before a test asks for it.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Generator, Iterator
from functools import wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from backstay.testing import AsyncTestBackstay, TestBackstay

ASYNC = "async_backstay"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("backstay").addoption(
        "--backstay-seed",
        metavar="N",
        type=_seed,
        default=0,
        help="the seed of ids and random numbers in tests of workflows, or 'random' (default: 0)",
    )


def _seed(given: str) -> int:
    return random.getrandbits(32) if given == "random" else int(given)


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("backstay_seed")
    return f"backstay: --backstay-seed={seed}" if seed else None


@pytest.fixture
def backstay_register() -> list[Any]:
    """What `backstay` and `async_backstay` register: override it, or call `register()` in the test."""
    return []


@pytest.fixture
def backstay(backstay_register: list[Any], pytestconfig: pytest.Config) -> Iterator[TestBackstay]:
    """The real engine in memory on virtual time, for code without `await`: an open `TestBackstay`."""
    from backstay.testing import TestBackstay

    _begin(pytestconfig)
    with TestBackstay(register=backstay_register) as app:
        yield app


@pytest.fixture
def async_backstay(backstay_register: list[Any], pytestconfig: pytest.Config) -> AsyncTestBackstay:
    """The real engine in memory on virtual time, for `async def` tests. It is opened on the loop of the test."""
    from backstay.testing import AsyncTestBackstay

    _begin(pytestconfig)
    return AsyncTestBackstay(register=backstay_register)


# -- async tests


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Open `async_backstay` on the loop that runs the test, whichever plugin brings that loop."""
    test = _async_test(item)
    if test is None:
        return (yield)
    function, app = test.obj, cast("AsyncTestBackstay", test.funcargs[ASYNC])

    @wraps(function)
    async def opened(*args: Any, **kwargs: Any) -> Any:
        async with app:
            return await function(*args, **kwargs)

    test.obj = opened
    try:
        return (yield)
    finally:
        test.obj = function


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test that no other plugin runs."""
    if _async_test(pyfuncitem) is None:
        return None
    names = pyfuncitem._fixtureinfo.argnames  # pyright: ignore[reportPrivateUsage]  # as every plugin for async tests does
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def _async_test(item: pytest.Item) -> pytest.Function | None:
    found = isinstance(item, pytest.Function) and ASYNC in item.funcargs and iscoroutinefunction(item.obj)
    return item if found else None  # pyright: ignore[reportReturnType]  # the first condition was just asked


# -- reports


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _begin(item.config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    kept: Any = sys.modules.get("backstay.testing.kept")
    if kept is not None and call.when == "call" and report.failed:
        told = kept.told()
        if told:
            report.sections.append(("runs of backstay", told))
    return report


def _begin(config: pytest.Config) -> None:
    """Forget the histories of the last test, and set the seed; if nothing of Backstay is loaded, there is nothing to do."""
    kept: Any = sys.modules.get("backstay.testing.kept")
    if kept is not None:
        kept.begin(config.getoption("backstay_seed"))
