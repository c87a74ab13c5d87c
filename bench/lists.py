"""Lists and counts of a million runs, 100,000 of them open, over HTTP: how long each takes, and how long it holds the server.

    python bench/lists.py                      a million runs on SQLite
    python bench/lists.py --runs 100000        fewer
    python bench/lists.py --keep FILE          make the world once and use it again
    python bench/lists.py --store postgresql://user@host/database?schema=bench

The runs are rows without histories, with the summaries that a projector would have stored: lists read nothing else. While each
list is asked, `GET /api/health` is asked all the time on another connection; the longest of its answers is how long the engine's
thread was held, at most. The CPU is that of the whole server, with those questions after its health.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

import msgspec
from measuring import cpu, small

from backstay.engine.views.run_views import summary_row
from backstay.kernel.task import Block, Task
from backstay.kernel.values import KEY_BITS, KEY_EPOCH, SECOND, Routing
from backstay.kernel.views.summary import RunSummary
from backstay.store.postgresql.connection import address
from backstay.store.sqlite.connection import open_database
from backstay.ulid import PAIRS

TOKEN = "lists"
OPEN = 10  # one run in so many is open
TYPES = [f"type-{n}" for n in range(40)]
TEAMS = [f"team-{n}" for n in range(20)]
NOW = time.time_ns() // 1000
DAY = 86_400 * SECOND
ASKED = 10  # times each

LISTS = (
    "/api/flows/all",
    "/api/flows/running",
    "/api/flows/failed",
    "/api/flows/all?page_size=200",
    "/api/flows/all?workflow_type=type-7",
    "/api/flows/running?workflow_type=type-7",
    "/api/flows/failed?workflow_type=type-7&label[team]=team-3",
    "/api/flows/all?label[team]=team-3",
    "/api/flows/all?label[team]=team-3&label[tier]=gold",
    "/api/flows/all?attribute[amount]=42",
    "/api/flows/all?business_key=key-77",
    "/api/flows/all?q=flow-99",
    "/api/flows/all?q=flow-",
    "/api/flows/all?q=nothing-like-it",
    "/api/flows/running?state=waiting",
    "/api/flows/running?state=blocked&state=paused",
    "/api/flows/running?state=retrying&workflow_type=type-7",
    "/api/flows/running?attention=blocked",
    "/api/flows/running?attention=no_worker",
    "/api/flows/running?attention=retrying&label[team]=team-3",
    "/api/flows/running?wait_kind=signal",
    "/api/flows/running?wait_kind=child",
    "/api/flows/running?liveness_state=timer_scheduled",
    "/api/flows/running?view=system:running-repair-blocked",
    "/api/flows/running?view=system:running-task-problems",
    "/api/flows/all?sort=closed",
    "/api/flows/failed?sort=closed&order=asc",
    "/api/flows/all?sort=duration",
    "/api/flows/running?sort=since&order=asc",
    "/api/flows/all?compatibility=build-9",
    "/api/flows/all?workflow_type=type-7&status=cancelled&queue=nowhere",
    "/api/flows/all?started_after=AFTER&started_before=BEFORE",
    "/api/flows/completed?closed_after=AFTER&closed_before=BEFORE&workflow_type=type-7",
    "/api/workflows?query=" + quote("WorkflowType = 'type-7' AND State IN ('waiting', 'sleeping')"),
)
COUNTS = (
    "/api/flows/all/count",
    "/api/flows/all/count?group_by=status",
    "/api/flows/running/count?group_by=state",
    "/api/flows/running/count?group_by=attention",
    "/api/flows/all/count?group_by=workflow_type",
    "/api/flows/all/count?group_by=label:team",
    "/api/flows/running/count?group_by=queue",
    "/api/flows/running/count?workflow_type=type-7&group_by=state",
    "/api/flows/failed/count?label[team]=team-3&group_by=workflow_type",
    "/api/flows/running/count?attention=blocked",
    "/api/suggest?field=instance_id&prefix=flow-9",
    "/api/suggest?field=label:team&prefix=team-1",
)


class Rows:
    """The rows of one run."""

    def __init__(self, number: int, runs: int, chance: random.Random) -> None:
        at = NOW - 30 * DAY + number * (30 * DAY // runs)
        self.key = key = (at - KEY_EPOCH) << KEY_BITS | 7
        self.is_open = number % OPEN == 0
        kind, queue = TYPES[chance.randrange(len(TYPES))], f"queue-{chance.randrange(5)}"
        build = f"build-{chance.randrange(10)}" if number % 3 == 0 else None
        state, wait, task = self._state(number, chance)
        status = "waiting" if self.is_open else chance.choice(("completed",) * 8 + ("failed", "cancelled"))
        closed = None if self.is_open else at + chance.randrange(SECOND, 3600 * SECOND)
        run_id, id = ulid(at, chance), f"flow-{number}"
        wake = NOW + 60 * DAY if state == "sleeping" else None
        self.task = self._task(key, kind, queue, build, at, state) if task else None
        labels = {"team": TEAMS[chance.randrange(len(TEAMS))], "tier": chance.choice(("gold", "plain"))}
        attributes = {"amount": chance.randrange(500)} if number % 4 == 0 else None
        events = chance.randrange(6, 60)
        self.workflow = (
            *(key, "default", id, kind, number + 1, key, 0, 0, wake, int(task), events, 0, None),
            *(int(self.is_open and wake is None and not task), 0, None),
        )
        self.run = (
            *(key, key, run_id, 1, "default", id, kind, status, None if self.is_open else status, queue, None, build),
            *(f"key-{number % 5000}", text(labels), text(attributes), at, closed, events, None),
        )
        ready = self.task
        self.summary = summary_row(
            RunSummary(
                run=key,
                workflow=key,
                namespace="default",
                run_id=run_id,
                workflow_id=id,
                workflow_type=kind,
                stamp=number + 1,
                status=status,
                closed_reason=None if self.is_open else status,
                state=state if self.is_open else status,
                attention={"blocked": "blocked", "retrying": "retrying"}.get(state) if self.is_open else None,
                liveness_state=liveness(state) if self.is_open else "closed",
                wait_kind=wait if self.is_open else None,
                since=at + SECOND if closed is None else closed,
                wait_since=at if self.is_open else None,
                queue=queue,
                build=build,
                next_task_id=None if ready is None else ready.id,
                next_task_kind=None if ready is None else ready.kind,
                next_task_type=None if ready is None else ready.type,
                next_task_state=None if ready is None else ready.state,
                next_task_at=None if ready is None else ready.available_at,
                task_problem=state == "blocked",
                can_repair=state == "blocked",
                until=ready.available_at if ready is not None and state == "retrying" else wake,
                last_error="it failed" if state in ("blocked", "retrying") else None,
                events=events,
                bytes=events * 200,
                started_at=at,
                closed_at=closed,
                wake=wake,
                tasks=int(task),
            )
        )

    def _state(self, number: int, chance: random.Random) -> tuple[str, str | None, bool]:
        """State, wait and whether there is a task row."""
        if not self.is_open:
            return "", None, False
        match chance.randrange(100):
            case 0:
                return "blocked", "workflow-task", True
            case 1 | 2:
                return "ready", "activity", True
            case 3 | 4 | 5:
                return "retrying", "activity", True
            case 6:
                return "paused", "signal", False
            case 7:
                return "waiting", "child", False
            case n if n < 40:
                return "sleeping", "timer", False
            case _:
                return "waiting", "signal", False

    def _task(self, key: int, kind: str, queue: str, build: str | None, at: int, state: str) -> Task:
        routing = Routing(queue=queue, compatibility=build)
        is_workflow = state == "blocked"
        return Task(
            id=f"task-{key}",
            workflow=key,
            run=key,
            kind="workflow" if is_workflow else "activity",
            type=kind if is_workflow else "charge",
            routing=routing,
            available_at=NOW + 30 * DAY if state == "retrying" else at,
            created_at=at,
            state="failed" if is_workflow else "ready",
            block=Block(message="no", reason="history_shape_mismatch", replay_blocked=True) if is_workflow else None,
        )


def liveness(state: str) -> str:
    return {
        "blocked": "workflow_replay_blocked",
        "ready": "activity_task_ready",
        "retrying": "activity_task_ready",
        "paused": "paused",
        "sleeping": "timer_scheduled",
    }.get(state, "waiting_for_signal")


def ulid(at: int, chance: random.Random) -> str:
    milliseconds = at // 1000
    front = "".join(PAIRS[milliseconds >> shift & 1023] for shift in (40, 30, 20, 10, 0))
    return front + "".join(PAIRS[chance.getrandbits(10)] for _ in range(8))


def text(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def world(runs: int) -> Iterator[list[Rows]]:
    chance = random.Random(1)
    for start in range(0, runs, 5000):
        yield [Rows(number, runs, chance) for number in range(start, min(start + 5000, runs))]


def tables(part: list[Rows]) -> dict[str, list[tuple[Any, ...]]]:
    tasks = [one.task for one in part if one.task is not None]
    return {
        "workflow": [one.workflow for one in part],
        "run": [one.run for one in part],
        "task": [
            (
                *(t.workflow, t.id, t.state, t.available_at, msgspec.json.encode(t), "default", t.routing.queue),
                *(t.kind, t.type, t.routing.compatibility or ""),
            )
            for t in tasks
        ],
        "workflow_run_summaries": [tuple(one.summary) for one in part],
    }


def make_file(path: str, runs: int) -> None:
    connection = open_database(path)
    connection.execute("pragma synchronous = off")
    for part in world(runs):
        connection.execute("begin")
        for table, found in tables(part).items():
            if found:
                names = [name for _, name, *_ in connection.execute(f"pragma table_info({table})")][: len(found[0])]
                values = ",".join("?" * len(names))  # later columns have defaults
                connection.executemany(f"insert into {table} ({','.join(names)}) values ({values})", found)
        connection.execute("commit")
    connection.execute(ATTRIBUTE.format("?", "?", "?", "?"), ("search_attribute", "default", "amount", b'"int"'))
    connection.close()


COLUMNS = """
select column_name from information_schema.columns where table_schema = $1 and table_name = $2 order by ordinal_position
"""
ATTRIBUTE = "insert into registry (kind, namespace, name, body) values ({}, {}, {}, {})"


async def make_schema(url: str, runs: int) -> None:
    from backstay.store.postgresql.connection import connect, prepare

    place = address(url)
    connection: Any = await connect(place)
    await prepare(connection, place, True)
    for part in world(runs):
        async with connection.transaction():
            await connection.execute("set local synchronous_commit = off")
            for table, found in tables(part).items():
                if found:
                    listed = await connection.fetch(COLUMNS, place.schema, table)
                    names = [row[0] for row in listed][: len(found[0])]
                    await connection.copy_records_to_table(
                        table, schema_name=place.schema, records=found, columns=names
                    )
    await connection.execute(
        ATTRIBUTE.format("$1", "$2", "$3", "$4"), "search_attribute", "default", "amount", b'"int"'
    )
    await connection.execute("analyze")
    await connection.close()


def serve(store: str) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-m", "backstay.cli.main", "server", "--port", "0", "--token", TOKEN, "--store", store]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "http://" in line:
            return process, int(line.rpartition(":")[2].strip().split("/")[0].split()[0])
    raise SystemExit("the server did not start")


class Pulse(threading.Thread):
    """Asks for the health of the server all the time, and remembers how long the longest answer took."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._http = HTTPConnection("127.0.0.1", port)
        self.longest = 0.0
        self.stopped = False

    def run(self) -> None:
        while not self.stopped:
            began = time.perf_counter()
            self._http.request("GET", "/api/health")
            self._http.getresponse().read()
            self.longest = max(self.longest, time.perf_counter() - began)
            time.sleep(0.0005)


def ask(http: HTTPConnection, path: str) -> tuple[float, bytes]:
    headers = {"Authorization": f"Bearer {TOKEN}", "X-Durable-Workflow-Control-Plane-Version": "2"}
    began = time.perf_counter()
    http.request("GET", path, headers=headers)
    answer = http.getresponse()
    body = answer.read()
    took = time.perf_counter() - began
    assert answer.status == 200, (path, answer.status, body[:500])
    return took, body


def measure(port: int, pid: int) -> None:
    http = HTTPConnection("127.0.0.1", port)
    pulse = Pulse(port)
    pulse.start()
    after, before = (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime((NOW - n * DAY) / SECOND)) for n in (3, 2))
    print(
        f"{'median ms':>10} {'worst ms':>9} {'CPU ms':>7} {'held ms':>8} {'KB':>6} {'found':>7} {'looked at':>10}  what"
    )
    time.sleep(1)
    worst = 0.0
    for path in (*LISTS, *COUNTS):
        named = path.replace("AFTER", after).replace("BEFORE", before)
        ask(http, named)
        pulse.longest = 0.0
        times: list[float] = []
        used = cpu(pid)
        body = b""
        for _ in range(ASKED):
            took, body = ask(http, named)
            times.append(took * 1000)
        used = (cpu(pid) - used) * 1000 / ASKED
        told = msgspec.json.decode(body)
        number = told.get("flow_count", told.get("count", told.get("workflow_count", len(told.get("suggestions", [])))))
        more = "" if told.get("complete", True) else "+"
        held = pulse.longest * 1000
        worst = max(worst, held)
        print(
            f"{median(times):10.1f} {max(times):9.1f} {used:7.1f} {held:8.1f} {len(body) / 1024:6.0f} {f'{number}{more}':>7}"
            f" {told.get('looked_at', ''):>10}  {path}"
        )
    pulse.stopped = True
    print(f"held at most {worst:.1f} ms")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=1_000_000)
    options.add_argument("--keep", type=Path)
    options.add_argument("--store")
    small(options)
    given = options.parse_args()
    if given.small:
        given.runs = 200
    with tempfile.TemporaryDirectory() as place:
        file = given.keep or Path(place) / "lists.db"
        store = given.store or f"sqlite:{file}"
        if given.store or not file.exists():
            began = time.perf_counter()
            if given.store:
                asyncio.run(make_schema(given.store, given.runs))
            else:
                make_file(str(file), given.runs)
            print(f"{given.runs} runs made in {time.perf_counter() - began:.0f} s")
        process, port = serve(store)
        try:
            measure(port, process.pid)
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
