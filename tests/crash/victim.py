"""The program that is killed: an app on one file that starts workflows, waits for them and says how they ended.

It is killed by itself, so that the moment is exact: right before the statements of its n-th commit, between those
statements and the commit (`open`), or right after the commit and before anybody heard of it. It also takes a time.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from backstay import Backstay, WorkflowAlreadyStarted
from backstay.engine.core.outbox import Outbox
from backstay.engine.core.world import Alarm, AsyncioWorld
from backstay.kernel.send import Send
from backstay.kernel.values import SECOND
from backstay.store.sqlite.writer import SqliteWriter

from . import ledger, workflows

Side = Literal["before", "open", "after"]


class Job(msgspec.Struct, kw_only=True):
    """What a victim is to do."""

    directory: str
    starts: list[tuple[str, str, list[Any]]]  # workflow type, id, arguments
    side: Side | None = None
    commit: int = 0
    after_seconds: float | None = None  # die then, wherever that is
    die_started: bool = False  # die once everything is started
    die_at: str | None = None  # die once the ledger has a line of this kind that this process wrote
    die_sending: tuple[str, int] | None = (
        None  # die when so many sends of this kind are on disk, and the last not taken
    )
    wait: bool = True
    schedule: str | None = None  # an overlap policy: let a schedule have its few runs, on a clock that goes fast
    settle: bool = False  # wait until nothing is on its way between workflows, too
    deadline: int = 30


class Report(msgspec.Struct, kw_only=True):
    results: dict[str, Any]
    commits: int


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Boundaries:
    """Counts commits, and dies at one of them."""

    def __init__(self, side: Side | None, commit: int) -> None:
        self.side = side
        self.commit = commit
        self.written = 0
        self.committed = 0

    def install(self) -> None:
        write, commit = SqliteWriter._write, SqliteWriter._commit

        def counted_write(writer: SqliteWriter, *args: Any) -> Any:
            self.written += 1
            if self.side == "before" and self.written == self.commit:
                die()
            return write(writer, *args)

        def counted_commit(writer: SqliteWriter, *args: Any) -> Any:
            self.committed += 1
            if self.committed != self.commit:
                return commit(writer, *args)
            if self.side == "open":
                die()
            result = commit(writer, *args)
            if self.side == "after":
                die()
            return result

        SqliteWriter._write, SqliteWriter._commit = counted_write, counted_commit  # type: ignore[method-assign]


def run(job: Job) -> None:
    signal.alarm(job.deadline)  # a victim that hangs is a failure of its own: it ends as -SIGALRM
    directory = Path(job.directory)
    ledger.open_at(str(directory / "ledger"))
    boundaries = Boundaries(job.side, job.commit)
    boundaries.install()
    if job.after_seconds is not None:
        threading.Timer(job.after_seconds, die).start()
    if job.die_at is not None:
        _die_at(job.die_at)
    if job.die_sending is not None:
        _die_sending(*job.die_sending)
    if job.schedule is not None:
        _hurry(directory)
    with Backstay(directory / "app.db", workflows.REGISTER, guard="off") as app:
        for type, id, args in job.starts:
            with suppress(WorkflowAlreadyStarted):  # an earlier victim got this far
                app.start(workflows.BY_NAME[type], id, *args)
        if job.schedule is not None:
            _scheduled(app, job.schedule)
        if job.die_started:
            die()
        handles = [app.handle(workflows.BY_NAME[type], id) for type, id, _ in job.starts]
        results = {handle.id: handle.result(timeout=job.deadline) for handle in handles} if job.wait else {}
        while job.settle and _unsettled(directory / "app.db"):
            time.sleep(0.01)
    report = Report(results=results, commits=boundaries.committed)
    (directory / "report.json").write_text(json.dumps(msgspec.to_builtins(report)))


RUNS = 4  # of the schedule
FASTER = 40


def _hurry(directory: Path) -> None:
    """Time goes faster, for all victims of a trial alike: the schedule of every second fires often."""
    began = round((directory / "began").stat().st_mtime * SECOND)

    def now(world: AsyncioWorld) -> int:
        return began + (time.time_ns() // 1000 - began) * FASTER

    def at(world: AsyncioWorld, when: int, call: Callable[[], None]) -> Alarm:
        return world.loop.call_later(max(when - world.now(), 0) / FASTER / SECOND, call)

    AsyncioWorld.now, AsyncioWorld.at = now, at  # type: ignore[method-assign]


def _scheduled(app: Backstay, overlap: Any) -> None:
    """Create it, or find it created, and wait until it has had its runs."""
    schedules = app.options(request_id="create").schedules.options(every="1s", overlap=overlap, max_runs=RUNS)
    schedule = schedules.create(workflows.BY_NAME["errand"], "every-second", "milk")
    while schedule.describe().status != "ended":
        time.sleep(0.002)


def _die_sending(kind: str, count: int) -> None:
    dispatch = Outbox.dispatch
    left = [count]

    def dispatch_or_die(outbox: Outbox, send: Send) -> None:
        if type(send.message).__name__ == kind:
            left[0] -= 1
            if left[0] == 0:
                die()
        dispatch(outbox, send)

    Outbox.dispatch = dispatch_or_die  # type: ignore[method-assign]


def _unsettled(path: Path) -> bool:
    """Whether something is on its way, or not everybody has come to an end."""
    with closing(sqlite3.connect(path, timeout=5)) as connection:
        (count,) = connection.execute(
            "select (select count(*) from send) + (select count(*) from workflow where awaited)"
            " + (select count(*) from run where closed_reason is null)"
        ).fetchone()
    return bool(count)


def _die_at(what: str) -> None:
    write = ledger.write

    def write_and_die(key: str, attempt: int, kind: str) -> None:
        write(key, attempt, kind)
        if kind == what:
            die()

    ledger.write = write_and_die
