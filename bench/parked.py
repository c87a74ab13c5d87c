"""What idle parked polls cost: a server process with thousands of them, its memory, and how fast a start is leased.

    python bench/parked.py [polls]     5,000 unless said otherwise; budget 250 MiB

Start to lease is measured beside the parked polls, in turns: while nothing else happens, and while a worker and a client in a
process of their own keep the server busy with hello workflows, a steady number a second. Under load p99 may be three times
what it is idle. On a machine that others use, too, both are mostly theirs: read the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import rss_mib, small

BUDGET = 250  # MiB
LOADED = 3  # times the idle p99, at most
RATE = 100  # hello workflows a second while the server is busy
TOKEN = "parked"


def start(database: Path) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-P", "-m", "backstay.cli.main", "server", "--port", "0", "--token", TOKEN]
    process = subprocess.Popen([*command, "--store", f"sqlite:{database}"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().split()[-1]


class Line:
    """One connection that asks once; written by hand, because a client library would cost more than the server."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    async def ask(self, path: str, body: dict[str, object]) -> dict[str, object]:
        content = json.dumps(body).encode()
        plane = "Protocol" if path.startswith("/api/worker") else "Control-Plane"
        version = "1.20" if plane == "Protocol" else "2"
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(
                f"POST {path} HTTP/1.1\r\nHost: {self.host}\r\nAuthorization: Bearer {TOKEN}\r\n"
                f"X-Durable-Workflow-{plane}-Version: {version}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode()
                + content
            )
            answer = await reader.read()
        finally:
            writer.close()
        return json.loads(answer.partition(b"\r\n\r\n")[2])


async def measure(url: str, pid: int, polls: int, rounds: int, each: int) -> bool:
    host, _, port = url.removeprefix("http://").partition(":")
    line = Line(host, int(port))
    await line.ask("/api/worker/register", {"worker_id": "w", "task_queue": "busy", "runtime": "python"})
    for number in range(10):
        await line.ask(
            "/api/worker/register", {"worker_id": f"idle-{number}", "task_queue": f"idle-{number}", "runtime": "python"}
        )
    before = rss_mib(pid)
    waiting: list[asyncio.Task[dict[str, object]]] = []
    for number in range(polls):
        who = f"idle-{number % 10}"
        body = {"worker_id": who, "task_queue": who, "timeout_seconds": 60}
        waiting.append(asyncio.create_task(line.ask("/api/worker/workflow-tasks/poll", body)))
        if number % 50 == 49:  # fewer than one address may have open without a credential
            await asyncio.sleep(0.05)
    await asyncio.sleep(2)
    held = rss_mib(pid)
    parked = sum(not task.done() for task in waiting)
    idle, busy = await in_turns(line, url, rounds, each)
    print(f"{parked} polls parked: {held:.0f} MiB ({before:.0f} MiB before; budget {BUDGET} MiB)")
    for name, took in (("idle", idle), (f"with {RATE} workflows/s", busy)):
        print(f"start to lease beside them, {name}: p50 {at(took, 0.5):.1f} ms, p99 {at(took, 0.99):.1f} ms")
    ratio = at(busy, 0.99) / at(idle, 0.99)
    print(f"p99 under load: {ratio:.1f} times idle (budget {LOADED})")
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return parked == polls and held < BUDGET and ratio <= LOADED


def at(took: list[float], quantile: float) -> float:
    return sorted(took)[min(int(len(took) * quantile), len(took) - 1)]


async def in_turns(line: Line, url: str, rounds: int, each: int) -> tuple[list[float], list[float]]:
    """Milliseconds from a start to its lease, idle and busy in turns."""
    load = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--load", url, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert load.stdin is not None
    assert load.stdout is not None
    await load.stdout.readline()
    found: dict[bytes, list[float]] = {b"rest": [], b"go": []}
    number = 0
    for _ in range(rounds):
        for what, took in found.items():
            load.stdin.write(what + b"\n")
            await load.stdout.readline()
            for _ in range(each):
                number += 1
                took.append(await leased(line, f"o-{number}"))
    load.stdin.close()
    await load.wait()
    return found[b"rest"], found[b"go"]


async def leased(line: Line, workflow_id: str) -> float:
    wanted = {"worker_id": "w", "task_queue": "busy", "timeout_seconds": 30}
    poll = asyncio.create_task(line.ask("/api/worker/workflow-tasks/poll", wanted))
    await asyncio.sleep(0.005)
    began = time.perf_counter()
    await line.ask("/api/workflows", {"workflow_type": "t", "workflow_id": workflow_id, "task_queue": "busy"})
    assert (await poll)["task"] is not None
    return (time.perf_counter() - began) * 1000


async def load(url: str) -> None:
    """Keep the server busy when told to: `go` and `rest` on stdin, each answered when it is so."""
    from backstay import AsyncClient, AsyncWorker, activity, workflow

    @activity
    def greet() -> str:
        return "hello"

    @workflow
    def hello() -> str:
        return greet()

    told = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(told), sys.stdin)
    async with AsyncWorker(url, [hello, greet], token=TOKEN), AsyncClient(url, token=TOKEN) as client:
        running: set[asyncio.Task[str]] = set()

        async def keep_busy() -> None:
            while True:
                task = asyncio.create_task(client.execute(hello, None))
                running.add(task)
                task.add_done_callback(running.discard)
                await asyncio.sleep(1 / RATE)

        busy: asyncio.Task[None] | None = None
        print("ready", flush=True)
        while line := await told.readline():
            if busy is not None:
                busy.cancel()
                busy = None
                await asyncio.gather(*running)
            if line == b"go\n":
                busy = asyncio.create_task(keep_busy())
                await asyncio.sleep(0.2)
            print("so", flush=True)
        if busy is not None:
            busy.cancel()
        await asyncio.gather(*running)


def main() -> int:
    if sys.argv[1:2] == ["--load"]:
        asyncio.run(load(sys.argv[2]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("polls", nargs="?", type=int, default=5000)
    small(parser)
    given = parser.parse_args()
    polls, rounds, each = (5, 1, 2) if given.small else (given.polls, 5, 100)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, polls * 2 + 1000), hard), hard))
    with tempfile.TemporaryDirectory() as directory:
        process, url = start(Path(directory) / "parked.db")
        try:
            good = asyncio.run(measure(url, process.pid, polls, rounds, each))
            return 0 if good or given.small else 1
        finally:
            process.terminate()
            process.wait(60)


if __name__ == "__main__":
    sys.exit(main())
