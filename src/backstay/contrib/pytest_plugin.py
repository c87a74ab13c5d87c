"""The plugin for pytest: apps as fixtures, their seed, recorded histories as tests, and the timelines of all runs in the report
of a failed test.

It is loaded by its entry point, in every project that has Backstay installed. So it imports nothing before a test asks for it.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Generator, Iterator
from contextlib import AsyncExitStack, ExitStack
from functools import wraps
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from backstay.sdk.replay.replayer import Judge
    from backstay.testing import AsyncTestBackstay, TestBackstay

ASYNC = "async_backstay"
EXPLORED = "backstay_crashes"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("backstay").addoption(
        "--backstay-seed",
        metavar="N",
        type=_seed,
        default=0,
        help="the seed of ids and random numbers in tests of workflows, or 'random' (default: 0)",
    )
    parser.getgroup("backstay").addoption(
        "--backstay-crash",
        metavar="SCHEDULE",
        help="repeat one trial of a crash exploration, as its report says it, such as 5 or o3-1+5.2",
    )
    parser.addini(
        "backstay_histories", "a folder of recorded histories; each file in it is a test that replays it", default=""
    )
    parser.addini(
        "backstay_app", "the Python file with the workflows that `backstay_histories` is replayed with", default=""
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "crashes(bound=50, seed=None, store='memory'): run the test again with its process killed at each commit, and in"
        " other orders of what happens at once (backstay.testing.explore)",
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
    """Open `async_backstay` on the loop that runs the test, whichever plugin brings that loop. Explore the crashes of a test."""
    if not isinstance(item, pytest.Function):
        return (yield)
    function: Any = item.obj
    marked = item.get_closest_marker("crashes")
    if marked is not None:
        item.obj = _explored(item, marked)
    elif _is_async_test(item):
        app = cast("AsyncTestBackstay", item.funcargs[ASYNC])

        @wraps(function)
        async def opened(*args: Any, **kwargs: Any) -> Any:
            async with app:
                return await function(*args, **kwargs)

        item.obj = opened
    try:
        return (yield)
    finally:
        item.obj = function


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test that no other plugin runs."""
    if not _is_async_test(pyfuncitem):
        return None
    names = pyfuncitem._fixtureinfo.argnames  # pyright: ignore[reportPrivateUsage]  # as every plugin for async tests does
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def _is_async_test(item: pytest.Function) -> bool:
    return ASYNC in item.funcargs and iscoroutinefunction(item.obj)


# -- crashes


def _explored(item: pytest.Function, marked: pytest.Mark) -> Any:
    """Return a test that runs this one in every trial of an exploration. Each trial opens the apps of its fixtures anew."""
    from backstay.testing.crashes.exploration import Exploration
    from backstay.testing.crashes.progress import TrialProgress

    function: Any = item.obj
    fixture = ASYNC if iscoroutinefunction(function) else "backstay"
    apps: list[Any] = [item.funcargs[fixture]] if fixture in item.funcargs else []
    exploration = Exploration(
        f"pytest {item.nodeid}",
        only=item.config.getoption("backstay_crash"),
        failures=(Exception, pytest.fail.Exception),
        values=item.funcargs,
        progress=TrialProgress(
            _Writer(item.config) if item.config.pluginmanager.has_plugin("terminalreporter") else None
        ),
        **marked.kwargs,
    )
    states = [app.doubles() for app in apps]

    def renewed() -> list[Any]:
        for app, state in zip(apps, states, strict=True):
            app.begin_anew(state)
        return apps

    def over() -> None:
        item.user_properties.append((EXPLORED, str(exploration.result)))

    @wraps(function)
    def explored(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        for app in apps:
            app.close()
        for trial in exploration:
            with trial, ExitStack() as stack:
                for app in renewed():
                    stack.enter_context(app)
                function(*args, **kwargs)
        over()

    @wraps(function)
    async def async_explored(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        for trial in exploration:
            with trial:
                async with AsyncExitStack() as stack:
                    for app in renewed():
                        await stack.enter_async_context(app)
                    await function(*args, **kwargs)
        over()

    return async_explored if iscoroutinefunction(function) else explored


class _Writer:
    """The terminal of pytest, which a test cannot write to by itself."""

    def __init__(self, config: pytest.Config) -> None:
        self._writer = config.get_terminal_writer()
        self.write = self._writer.write
        self.flush = self._writer.flush

    def isatty(self) -> bool:
        return self._writer.hasmarkup


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for report in terminalreporter.stats.get("passed", ()):
        for name, value in report.user_properties if report.when == "call" else ():
            if name == EXPLORED:
                terminalreporter.write_line(f"backstay: {report.nodeid}: killed at {value}")


# -- recorded histories


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> HistoryFile | None:
    """Make a test of each recorded history."""
    folder = parent.config.getini("backstay_histories")
    if not folder or file_path.suffix != ".json":
        return None
    if not file_path.is_relative_to((parent.config.rootpath / folder).resolve()):
        return None
    return HistoryFile.from_parent(parent, path=file_path)  # pyright: ignore[reportUnknownMemberType]  # pytest leaves it untyped


class HistoryFile(pytest.File):
    """A recorded history as a file of tests, with one test."""

    def collect(self) -> Iterator[pytest.Item]:
        yield HistoryTest.from_parent(self, name="replay")  # pyright: ignore[reportUnknownMemberType]  # as above


class HistoryTest(pytest.Item):
    """The replay of one recorded history with the code of today."""

    def runtest(self) -> None:
        judge = _judge(self.config)
        from backstay.sdk.replay.history_files import UnreadableHistory, read_run

        try:
            found = judge.judge(read_run(self.path, judge.machine))
        except UnreadableHistory as problem:
            raise HistoryDoesNotFit(str(problem)) from None
        if found is not None:
            raise HistoryDoesNotFit(str(found))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, HistoryDoesNotFit):
            return f"{excinfo.value}\n(recorded in {self.path.name})"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"replay of {self.path.name}"


class HistoryDoesNotFit(AssertionError):
    """The code would block the recorded run, or the file cannot be replayed."""


_JUDGE = pytest.StashKey["Judge"]()


def _judge(config: pytest.Config) -> Judge:
    """The judge of this session. Its code is imported with the first history."""
    if _JUDGE not in config.stash:
        from backstay.cli.loading import judge_of, load

        app = config.getini("backstay_app")
        if not app:
            raise pytest.UsageError("backstay_histories needs backstay_app, the Python file with the workflows")
        judge = config.stash[_JUDGE] = judge_of(load(config.rootpath / app))
        config.add_cleanup(judge.close)
    return config.stash[_JUDGE]


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
        kept.begin(config.getoption("backstay_seed"), config.getoption("backstay_crash"))
