"""A counter that many feed at once: nothing is lost, nothing counts twice, whatever happens to the processes around it."""

from __future__ import annotations

import random
import signal as posix
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from talkers import Counter

from backstay import Backstay, RequestRefused

PROGRAM = Path(__file__).with_name("talkers.py")
ON_A_FILE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)  # crowds, and one kind of them is enough


def program(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, PROGRAM, *args], stdout=subprocess.PIPE, text=True)


def applied(app: Backstay, kind: str) -> list[Any]:
    return [entry.event for entry in app.history("counter") if entry.type == kind]


@pytest.mark.contract("SIG-02", "REC-02")
@ON_A_FILE
def test_a_thousand_signals_from_several_clients_are_counted(database: str, caplog: pytest.LogCaptureFixture) -> None:
    with Backstay(database, [Counter]) as app:
        run = app.start(Counter, "counter", 1000)

        def client(_: int) -> None:
            for _ in range(125):
                app.handle(Counter, "counter").signal(Counter.count, 1)

        with ThreadPoolExecutor(6) as threads:
            list(threads.map(client, range(6)))
        processes = [program("send", database, "125") for _ in range(2)]  # they send, this process counts
        assert [process.communicate(timeout=60) and process.returncode for process in processes] == [0, 0]
        assert run.result(timeout=30) == 1000
        received = [event.signal_id for event in applied(app, "SignalReceived")]
        assert [event.signal_id for event in applied(app, "SignalApplied")] == received
        assert len(set(received)) == 1000
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.contract("UPD-04", "REC-01")
@ON_A_FILE
@pytest.mark.parametrize("seed", range(2))
def test_an_update_storm_with_kills_counts_every_update_once(seed: int, database: str) -> None:
    """Processes update and are killed with signal 9. What was acknowledged counts; what was not may, once."""
    chance = random.Random(seed)
    asked: set[str] = set()
    got: set[str] = set()
    for round in range(3):
        crowd = [program("storm", database, f"{round}-{number}") for number in range(2)]
        for process in crowd:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
        time.sleep(chance.uniform(0.05, 0.2))
        for process in crowd:
            process.kill()
        for process in crowd:
            assert process.stdout is not None
            said = [line.split() for line in process.stdout.read().splitlines()]
            process.stdout.close()
            assert process.wait(30) == -posix.SIGKILL
            asked |= {line[1] for line in said if len(line) == 2 and line[0] == "ask"}
            got |= {line[1] for line in said if len(line) == 2 and line[0] == "got"}
    assert len(got) > 10
    with Backstay(database, [Counter]) as app:
        run = app.handle(Counter, "counter")
        total = _settled(run)
        assert len(got) <= total <= len(asked)
        assert len(applied(app, "UpdateApplied")) == total, "history says the same"
        for id in sorted(asked - got) + sorted(got)[:10]:  # ask again: the acknowledged ones change nothing
            app.options(request_id=id).handle(Counter, "counter").update(Counter.add, 1)
        assert run.query(Counter.look) == len(asked)
        ids = [event.update_id for event in applied(app, "UpdateApplied")]
        assert len(ids) == len(set(ids)) == len(asked)
        run.signal(Counter.close)
        assert run.result(timeout=30) == len(asked)
        assert run.query(Counter.look) == len(asked)


def _settled(run: Any) -> int:
    """Updates accepted before a kill are applied after it; one more update comes behind all of them."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        waiting = run.describe().wait_kind
        if waiting == "condition":
            return run.query(Counter.look)
        time.sleep(0.005)
    raise AssertionError(f"still waiting for {waiting}")


def test_a_closed_counter_is_still_asked_and_no_longer_told(database: str) -> None:
    with Backstay(database, [Counter]) as app:
        run = app.start(Counter, "counter", 3)
        for _ in range(3):
            run.signal(Counter.count, 1)
        assert run.result() == 3
    with Backstay(database, [Counter]) as app:
        run = app.handle(Counter, "counter")
        before = app.history("counter")
        assert run.query(Counter.look) == 3
        assert app.history("counter") == before
        for tell in (lambda: run.signal(Counter.count, 1), lambda: run.update(Counter.add, 1)):
            with pytest.raises(RequestRefused, match="has ended"):
                tell()
        assert run.query(Counter.look) == 3
