"""I/O from below workflow code is refused or warned of; what the process itself does on a strand is not."""

from __future__ import annotations

import asyncio
import configparser
import gc
import importlib
import linecache
import logging
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from backstay import (
    NonDeterminismError,
    NonDeterminismWarning,
    WorkflowFailed,
    activity,
    continue_as_new,
    logger,
    now,
    query,
    side_effect,
    signal,
    sleep,
    spawn,
    update,
    wait,
    workflow,
)

from ..kit import Evicting, eventually, evicting, memory, names

HERE = __file__

# Called through a table: the source check sees only a subscript.
CALLS: dict[str, Callable[[], Any]] = {
    "open('no-such-file')": lambda: Path("no-such-file").read_text(),
    "open('no-such.ini')": lambda: configparser.ConfigParser().read("no-such.ini"),
    "os.listdir('/')": lambda: os.listdir("/"),
    "os.scandir('/')": lambda: os.scandir("/"),
    "os.remove('no-such-file')": lambda: os.remove("no-such-file"),
    "os.mkdir('/no/such')": lambda: os.mkdir("/no/such"),
    "os.system(b'true')": lambda: os.system("true"),
    "os.putenv(b'BACKSTAY_X')": lambda: os.putenv("BACKSTAY_X", "1"),
    "shutil.rmtree('/no/such')": lambda: shutil.rmtree("/no/such"),
    "tempfile.mkdtemp(": tempfile.mkdtemp,
    "socket.__new__()": lambda: socket.socket(),
    "socket.getaddrinfo('no-such-host')": lambda: socket.getaddrinfo("no-such-host", 1),
    "urllib.Request('http://127.0.0.1:1/')": lambda: urllib.request.urlopen("http://127.0.0.1:1/"),
    "subprocess.Popen('true')": lambda: subprocess.run(["true"], check=True),
    "sqlite3.connect(':memory:')": lambda: sqlite3.connect(":memory:"),
}
if sys.version_info >= (3, 12):
    CALLS["threading.Thread.start()"] = lambda: threading.Thread(target=int).start()
if sys.version_info >= (3, 13):
    CALLS["time.sleep()"] = lambda: time.sleep(0)


@workflow(type="caught")
def caught(name: str) -> str:
    try:
        CALLS[name]()
    except NonDeterminismError as error:
        return str(error)
    return "nothing"


@workflow(type="caught_async")
async def caught_async(name: str) -> str:
    async def inner() -> str:
        await asyncio.sleep(0)
        try:
            CALLS[name]()
        except NonDeterminismError as error:
            return str(error)
        return "nothing"

    return await asyncio.create_task(inner())


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("definition", [caught, caught_async], ids=["def", "async"])
async def test_io_below_a_workflow_is_refused_and_the_message_says_what_to_write(definition: Any, call: str) -> None:
    async with memory(definition, guard="error") as app:
        message = await app.execute(definition, "w", call)
    assert message.startswith(HERE), "the author's own line is named"
    assert call in message
    assert " inside a workflow; " in message
    advice = {"os.putenv": "pass it", "threading": "backstay.spawn()", "time.sleep": "backstay.sleep()"}
    assert next((text for name, text in advice.items() if name in call), "use an activity") in message


@workflow(type="run")
def careless() -> str:
    sleep(0)
    spawn(CALLS["os.listdir('/')"]).join()
    return "careless"


@workflow(type="run")
def careful() -> str:
    sleep(0)
    return "careful"


async def test_the_task_fails_and_the_run_goes_on_with_fixed_code() -> None:
    async with memory(careless, guard="error") as app:
        handle = await app.start(careless, "w")

        async def refused() -> Any:
            return next((t.task.block for t in (await handle.describe()).tasks if t.task.block), None)

        block = await eventually(refused)
        assert block.type == "NonDeterminismError"
        assert "os.listdir('/') inside a workflow; use an activity" in block.message
        assert not block.replay_blocked
        assert names(await handle.history())[-1] == "TimerFired"
        app.registry.workflows["run"] = careful.definition
        await handle.repair()
        assert await handle.result() == "careful"


@workflow(type="warned")
def warned(times: int) -> list[bool]:
    found = []
    for _ in range(times):
        found.append("bin" in CALLS["os.listdir('/')"]())
        sleep(0)
    return found


async def test_a_warning_comes_once_per_place_and_the_call_is_made() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        async with evicting(warned) as app:
            assert await app.execute(warned, "w", 3) == [True] * 3
    (only,) = [w for w in seen if w.category is NonDeterminismWarning]
    assert str(only.message) == "os.listdir('/') inside a workflow; use an activity"
    assert only.filename == HERE
    assert "os.listdir" in (linecache.getline(only.filename, only.lineno))


@workflow(type="unchecked", unchecked=True)
def unchecked() -> bool:
    return "bin" in os.listdir("/")


@workflow(type="off")
def unguarded() -> bool:
    return "bin" in os.listdir("/")


async def test_a_workflow_that_opts_out_is_not_guarded() -> None:
    async with memory(unchecked, guard="error") as app:
        assert await app.execute(unchecked, "w")
    async with memory(unguarded, guard="off") as app:
        assert await app.execute(unguarded, "w")


# -- what is allowed


@activity(type="reads")
def reads() -> bool:
    return "bin" in os.listdir("/")


@activity(type="reads_async")
async def reads_async() -> bool:
    return "bin" in os.listdir("/")


@activity(type="reads_locally", local=True)
def reads_locally() -> bool:
    return "bin" in os.listdir("/")


@workflow(type="steps")
def steps() -> list[bool]:
    found = [reads(), reads_async.step().run(), reads_locally()]
    found.append(side_effect(lambda: "bin" in os.listdir("/")))
    sleep(0)
    return found


async def test_activities_side_effects_and_the_store_are_none_of_its_business(tmp_path: Path) -> None:
    things = [steps, reads, reads_async, reads_locally]
    async with Evicting(tmp_path / "file.db", things, guard="error") as app:
        for n in range(3):
            assert await app.execute(steps, f"w{n}") == [True] * 4


@workflow(type="imports")
def imports(name: str) -> str:
    return importlib.import_module(name).CONTENT


async def test_a_module_may_be_imported_and_may_read_files_while_it_is(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "met_late.py").write_text("with open(__file__) as file:\n    CONTENT = file.read()[:4]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    async with memory(imports, guard="error") as app:
        assert await app.execute(imports, "w", "met_late") == "with"


@workflow(type="elsewhere")
def elsewhere(zone: str) -> str:
    return str(now().astimezone(ZoneInfo(zone)).tzinfo)


async def test_a_time_zone_may_be_loaded() -> None:
    ZoneInfo.clear_cache()
    async with memory(elsewhere, guard="error") as app:
        assert await app.execute(elsewhere, "w", "Europe/Berlin") == "Europe/Berlin"


@workflow(type="asked")
class Asked:
    def __init__(self) -> None:
        self.found: list[str] = []

    @signal
    def look(self) -> None:
        try:
            CALLS["os.listdir('/')"]()
        except NonDeterminismError:
            self.found.append("refused")

    @query
    def listing(self) -> bool:
        return "bin" in CALLS["os.listdir('/')"]()

    @query
    def all(self) -> list[str]:
        return self.found

    @update
    def note(self, text: str) -> str:
        self.found.append(text)
        return text

    @note.validator
    def _check(self, text: str) -> None:
        if "bin" not in CALLS["os.listdir('/')"]():
            raise ValueError

    def handle(self) -> list[str]:
        wait(lambda: len(self.found) == 2, key="found")
        return self.found


async def test_queries_and_validators_may_look_around_and_handlers_may_not() -> None:
    async with memory(Asked, guard="error") as app:
        handle = await app.start(Asked, "w")
        assert await handle.query(Asked.listing)
        await handle.signal(Asked.look)
        assert await handle.update(Asked.note, "noted") == "noted"
        assert await handle.result() == ["refused", "noted"]
        assert await handle.query(Asked.listing), "of a closed run, too"
        assert await handle.query(Asked.all) == ["refused", "noted"], "a replay for a query is refused what life was"


@workflow(type="shows")
def shows() -> bool:
    try:
        raise ValueError("shown")
    except ValueError:
        linecache.clearcache()
        return "raise ValueError" in traceback.format_exc()


@workflow(type="warns")
def warns() -> str:
    linecache.clearcache()
    warnings.warn("look", UserWarning, stacklevel=1)
    return "warned"


@pytest.mark.filterwarnings("default:look")
async def test_tracebacks_and_warnings_may_read_the_source(monkeypatch: Any) -> None:
    shown: list[str] = []
    monkeypatch.setattr(warnings, "showwarning", lambda *args, **kwargs: shown.append(Path(HERE).read_text()[:3]))
    async with memory(shows, warns, guard="error") as app:
        assert await app.execute(shows, "w")
        assert await app.execute(warns, "x") == "warned"
    assert shown == ['"""']


@workflow(type="fails")
def fails() -> None:
    linecache.clearcache()
    raise KeyError("with a stack trace")


async def test_the_engine_may_read_the_source_to_record_a_failure() -> None:
    async with memory(fails, guard="error") as app:
        with pytest.raises(WorkflowFailed) as caught:
            await app.execute(fails, "w")
    assert isinstance(caught.value.__cause__, KeyError)


@workflow(type="second")
def second() -> str:
    return "second"


@workflow(type="first")
def first() -> None:
    linecache.clearcache()
    continue_as_new(second)


async def test_the_engine_may_read_the_source_of_what_is_continued() -> None:
    async with memory(first, second, guard="error") as app:
        second.definition.__dict__.pop("snapshot", None)
        second.definition.__dict__.pop("fingerprint", None)
        assert await app.execute(first, "w") == "second"


class Remote(logging.Handler):
    """A handler that opens what it writes to for each record."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def emit(self, record: logging.LogRecord) -> None:
        with self.path.open("a") as file:
            file.write(self.format(record) + "\n")


@workflow(type="logs")
def logs() -> str:
    logger("guard.test").warning("through the logger")
    sleep(0)
    logging.getLogger("guard.test").warning("directly")
    return "logged"


async def test_log_handlers_may_write(tmp_path: Path) -> None:
    log = logging.getLogger("guard.test")
    handlers = [Remote(tmp_path / "remote.log"), logging.FileHandler(tmp_path / "file.log", delay=True)]
    for handler in handlers:
        log.addHandler(handler)
    try:
        async with memory(logs, guard="error") as app:
            assert await app.execute(logs, "w") == "logged"
    finally:
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()
    for name in ("remote.log", "file.log"):
        assert (tmp_path / name).read_text() == "through the logger\ndirectly\n"


class Garbage:
    def __init__(self, path: str) -> None:
        self.me = self
        weakref.finalize(self, os.remove, path)


class OldGarbage:
    def __init__(self, path: str) -> None:
        self.me = self
        self.path = path

    def __del__(self) -> None:
        os.remove(self.path)


@workflow(type="collects")
def collects() -> str:
    gc.collect()
    return "collected"


async def test_garbage_that_is_collected_during_a_run_may_clean_up_after_itself(tmp_path: Path) -> None:
    async with memory(collects, guard="error") as app:
        for number, kind in enumerate((Garbage, OldGarbage)):
            path = tmp_path / kind.__name__
            path.touch()
            gc.disable()
            try:
                kind(str(path))
                assert await app.execute(collects, f"w{number}") == "collected"
            finally:
                gc.enable()
            assert not path.exists()


@workflow(type="leaves")
def leaves(path: str) -> None:
    try:
        sleep("1h")
    finally:
        TOUCH[0](path)


TOUCH: list[Callable[[str], Any]] = [lambda path: open(path, "w").close()]


async def test_code_that_is_given_up_does_no_io_on_its_way_out(tmp_path: Path) -> None:
    async with memory(leaves) as app:
        handle = await app.start(leaves, "w", str(tmp_path / "left"))

        async def asleep() -> bool:
            return "TimerScheduled" in names(await handle.history())

        await eventually(asleep)
    assert not (tmp_path / "left").exists()


LAST_WORDS = """
import os, sys
from backstay import Backstay, activity, logger, workflow

@activity
def words(which: str) -> bytes:
    return f"the {which} words".encode()

class Late:
    open, write, nothing = staticmethod(open), staticmethod(os.write), os.devnull
    words, log = staticmethod(words), logger("late")

    def __del__(self):
        self.open(self.nothing).close()
        self.log.info("nobody listens")
        self.write(2, self.words("last"))

@workflow
def one() -> int:
    return 1

with Backstay(":memory:", [one], guard="error", shims=True) as app:
    assert app.execute(one, "a") == 1
sys.modules["late"] = Late()  # kept until the modules go
"""


def test_what_code_does_while_the_interpreter_ends_is_left_alone() -> None:
    done = subprocess.run([sys.executable, "-c", LAST_WORDS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "the last words")
