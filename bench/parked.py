"""What idle parked polls cost: a server process with thousands of them, its memory, and how fast a start is leased.

python bench/parked.py [polls]     5,000 unless said otherwise; budget 250 MiB
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BUDGET = 250  # MiB
TOKEN = "parked"


def start(database: Path) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-P", "-m", "holdfast.cli.main", "server", "--port", "0", "--token", TOKEN]
    process = subprocess.Popen([*command, "--store", f"sqlite:{database}"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().split()[-1]


def resident(pid: int) -> float:
    """MiB of memory that a process holds now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


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


async def measure(url: str, pid: int, polls: int) -> bool:
    host, _, port = url.removeprefix("http://").partition(":")
    line = Line(host, int(port))
    await line.ask("/api/worker/register", {"worker_id": "w", "task_queue": "busy", "runtime": "python"})
    for number in range(10):
        await line.ask(
            "/api/worker/register", {"worker_id": f"idle-{number}", "task_queue": f"idle-{number}", "runtime": "python"}
        )
    before = resident(pid)
    waiting: list[asyncio.Task[dict[str, object]]] = []
    for number in range(polls):
        who = f"idle-{number % 10}"
        body = {"worker_id": who, "task_queue": who, "timeout_seconds": 60}
        waiting.append(asyncio.create_task(line.ask("/api/worker/workflow-tasks/poll", body)))
        if number % 250 == 249:
            await asyncio.sleep(0.05)
    await asyncio.sleep(2)
    held = resident(pid)
    parked = sum(not task.done() for task in waiting)
    took: list[float] = []
    for number in range(200):
        poll = asyncio.create_task(
            line.ask("/api/worker/workflow-tasks/poll", {"worker_id": "w", "task_queue": "busy", "timeout_seconds": 30})
        )
        await asyncio.sleep(0.005)
        began = time.perf_counter()
        await line.ask("/api/workflows", {"workflow_type": "t", "workflow_id": f"o-{number}", "task_queue": "busy"})
        assert (await poll)["task"] is not None
        took.append((time.perf_counter() - began) * 1000)
    took.sort()
    print(f"{parked} polls parked: {held:.0f} MiB ({before:.0f} MiB before; budget {BUDGET} MiB)")
    print(f"start to lease beside them: p50 {took[100]:.1f} ms, p99 {took[197]:.1f} ms")
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return parked == polls and held < BUDGET


def main() -> int:
    polls = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, polls * 2 + 1000), hard), hard))
    with tempfile.TemporaryDirectory() as directory:
        process, url = start(Path(directory) / "parked.db")
        try:
            return 0 if asyncio.run(measure(url, process.pid, polls)) else 1
        finally:
            process.terminate()
            process.wait(60)


if __name__ == "__main__":
    sys.exit(main())
