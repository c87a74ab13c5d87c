"""What open pages of Waterline cost a server: its CPU with 200 pages and without, in turns, at a steady rate of workflows.

    python bench/pages.py                           100 overviews, 50 lists, 50 runs; 400 workflows a second, 4 rounds
    python bench/pages.py --overviews 0 --lists 200 --runs 0
    python bench/pages.py --rate 800 --seconds 8

A server process, a worker with its client in another (`bench/live.py`), and the pages in this one. They are no browsers: each
listens to its topics, and after news asks what the screen asks, as often as the screen does (`static/js/screens`): never for more
than a tenth of the time. What pages cost a second does not depend on the rate of workflows, once there is news all the time. So
the share at 2,000 workflows a second is reckoned: what pages cost a second, by 2,000 times the CPU of a workflow without pages and
with fifty in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import live
from measuring import cpu, small

AT = 2000  # workflows a second, of which the share is told
FIELDS = "run_id,workflow_id,workflow_type,status,state,attention,why,since,until,started_at,closed_at,is_current_run"


class Connection:
    """One connection of a browser, which asks one thing at a time and knows the last answers by their tags."""

    def __init__(self, url: str) -> None:
        self._host, _, self._port = url.removeprefix("http://").partition(":")
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._known: dict[str, tuple[bytes, Any]] = {}
        self.asked = 0

    async def get(self, path: str) -> Any:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, int(self._port), limit=1 << 22)
        reader, writer = self._streams
        tag, before = self._known.get(path, (b"", None))
        head = (
            f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {live.TOKEN}\r\nAccept-Encoding: gzip\r\n"
            "X-Durable-Workflow-Control-Plane-Version: 2\r\n"
        ).encode()
        writer.write(head + (b"If-None-Match: %b\r\n" % tag if tag else b"") + b"\r\n")
        said = await reader.readuntil(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in said.split(b"\r\n")[1:] if b": " in line)
        body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
        self.asked += 1
        if said.startswith(b"HTTP/1.1 304"):
            return before
        assert said.startswith(b"HTTP/1.1 200"), (path, said, body)
        text = gzip.decompress(body) if fields.get(b"content-encoding") == b"gzip" else body
        found = json.loads(text)
        if len(self._known) > 50:
            self._known.clear()
        self._known[path] = (fields.get(b"etag", b""), found)
        return found

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


class Page:
    """A screen: `ask` is what it asks after news of its topic, `rest` the shortest time between two of these."""

    def __init__(self, url: str, topic: str, ask: Callable[[Connection], Awaitable[None]], rest: float) -> None:
        self._url = url
        self._topic = topic
        self._ask = ask
        self._rest = rest
        self._news = asyncio.Event()
        self.http = Connection(url)
        self.frames = 0

    async def open(self) -> None:
        host, _, port = self._url.removeprefix("http://").partition(":")
        reader, self._writer = await asyncio.open_connection(host, int(port))
        self._writer.write(
            f"GET /api/live?topic={self._topic} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {live.TOKEN}\r\n\r\n".encode()
        )
        await reader.readuntil(b"event: open")
        await self._ask(self.http)
        self._tasks = [asyncio.create_task(self._listen(reader)), asyncio.create_task(self._work())]

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while piece := await reader.read(1 << 16):
            if b"event: " in piece:
                self.frames += piece.count(b"event: ")
                self._news.set()

    async def _work(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            began = time.perf_counter()
            await self._ask(self.http)
            await asyncio.sleep(max(self._rest, 10 * (time.perf_counter() - began)))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._writer.close()
        self.http.close()


async def overview(http: Connection) -> None:
    await http.get("/api/overview?window=24h")


def listing() -> Callable[[Connection], Awaitable[None]]:
    shown: list[str] = []

    async def ask(http: Connection) -> None:
        nonlocal shown
        query = f"fields={FIELDS}&page_size=50&definition=0"
        found = [row["run_id"] for row in (await http.get(f"/api/flows/all?{query}"))["flows"]]
        await http.get("/api/flows/all/count?group_by=state&definition=0")
        others = [run for run in shown if run not in found]
        if others:  # rows that are shown stay where they are
            await http.get("/api/flows/all?" + "&".join(f"run_id={quote(run)}" for run in others) + "&" + query)
        shown = shown or found

    return ask


def one_run(workflow_id: str) -> Callable[[Connection], Awaitable[None]]:
    async def ask(http: Connection) -> None:
        for part in ("summary", "why", "outline"):
            await http.get(f"/api/workflows/{workflow_id}/{part}")

    return ask


def pages_of(url: str, given: argparse.Namespace) -> list[Page]:
    return [
        *(Page(url, "overview", overview, 1.0) for _ in range(given.overviews)),
        *(Page(url, "runs", listing(), 0.5) for _ in range(given.lists)),
        *(Page(url, f"run:nap-{n % 100}", one_run(f"nap-{n % 100}"), 0.1) for n in range(given.runs)),
    ]


async def measure(url: str, pid: int, given: argparse.Namespace) -> None:
    load = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, "--load", url, f"{given.rate * given.seconds}", f"{given.rate}", f"{given.fast}"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert load.stdin is not None
    assert load.stdout is not None
    await load.stdout.readline()

    async def run(mode: str) -> tuple[float, float]:
        """How long it took, and what it cost."""
        assert load.stdin is not None
        assert load.stdout is not None
        before = cpu(pid)
        load.stdin.write(f"{mode}\n".encode())
        took = float(await load.stdout.readline())
        return took, cpu(pid) - before

    each = statistics.median([(await run("fast"))[1] / given.fast for _ in range(given.rounds)])
    rounds: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * given.rounds):
        with_pages = number % 2 == 1
        pages = pages_of(url, given) if with_pages else []
        for page in pages:  # one by one: a server lets few connect at once that it does not know
            await page.open()
        asked = sum(page.http.asked for page in pages)
        took, spent = await run("pages")
        rounds[with_pages].append(spent / took)
        told = f", {(sum(page.http.asked for page in pages) - asked) / took:.0f} requests a second" if pages else ""
        rate = given.rate * given.seconds / took
        print(
            f"{len(pages):4} pages: {spent / took * 1e3:4.0f} ms of CPU a second at {rate:.0f} workflows a second{told}"
        )
        for page in pages:
            await page.close()
    load.stdin.close()
    await load.wait()
    alone, beside = (statistics.median(rounds[which]) for which in (False, True))
    cost = beside - alone
    print(
        f"a workflow {each * 1e6:.0f} us; pages {cost * 1e3:.0f} ms a second, {cost / alone:.0%} at this rate,"
        f" {cost / (AT * each):.0%} at {AT} workflows a second"
    )


def main() -> int:
    if sys.argv[1:2] == ["--load"]:
        modes = {"fast": (int(sys.argv[5]), 0), "pages": (int(sys.argv[3]), int(sys.argv[4]))}
        asyncio.run(live.load(sys.argv[2], modes))
        return 0
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--overviews", type=int, default=100)
    options.add_argument("--lists", type=int, default=50)
    options.add_argument("--runs", type=int, default=50)
    options.add_argument("--rate", type=int, default=400)
    options.add_argument("--seconds", type=int, default=6)
    options.add_argument("--rounds", type=int, default=4)
    small(options)
    given = options.parse_args()
    given.fast = 1000
    if given.small:
        given.overviews = given.lists = given.runs = given.seconds = given.rounds = 1
        given.rate = given.fast = 50
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4000), hard), hard))
    os.environ["DW_MAX_CONNECTIONS"] = "5000"
    with tempfile.TemporaryDirectory() as directory:
        process, url = live.start(Path(directory) / "pages.db")
        try:
            asyncio.run(measure(url, process.pid, given))
            return 0
        finally:
            process.terminate()
            process.wait(60)


if __name__ == "__main__":
    sys.exit(main())
