"""What live streams cost a server: CPU a second and a frame, and for one small workflow.

    python bench/live.py [streams]...     0, 200 and 1,000 unless said otherwise

A server process, a worker with its client in another, and the readers in this one. Half of the streams listen to `runs`, a
quarter to `overview`, `queues` and `system`, and a quarter to a run of their own that does not move. Three modes, in turns:
`trickle`, ten workflows a second, where what streams cost a second stands out; frames are coalesced, so that does not grow with
the rate of workflows. `steady`, at a fixed rate, and `fast`, with fifty in flight, tell the CPU of a workflow. On a machine that
others use those two vary by more than streams cost: read their spread before their ratio. What 1,000 streams may cost is 0.3
times the CPU of a workflow at 1,000 workflows a second.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from measuring import cpu, small

IN_FLIGHT = 50
MODES = {"trickle": (80, 10), "steady": (1000, 200), "fast": (1000, 0)}
LEAST = {"trickle": (3, 10), "steady": (6, 20), "fast": (50, 0)}
"""How many workflows, and how many of them a second; 0: as fast as they go."""
TOKEN = "live"


def start(database: Path) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-P", "-m", "backstay.cli.main", "server", "--port", "0", "--token", TOKEN]
    limits = {"DW_MAX_LIVE_STREAMS": "5000", "DW_MAX_LIVE_STREAMS_PER_ADDRESS": "5000"}
    process = subprocess.Popen(
        [*command, "--store", f"sqlite:{database}"], stdout=subprocess.PIPE, text=True, env={**os.environ, **limits}
    )
    assert process.stdout is not None
    return process, process.stdout.readline().split()[-1]


class Stream:
    """One stream of the feed; written by hand, because a client library would cost more than the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.frames = 0
        self._reading = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while piece := await reader.read(1 << 16):
            self.frames += piece.count(b"event: moved")

    async def close(self) -> None:
        self._reading.cancel()
        self._writer.close()
        await asyncio.gather(self._reading, return_exceptions=True)


async def listen(url: str, topics: list[str]) -> Stream:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    query = "&".join(f"topic={topic}" for topic in topics)
    writer.write(f"GET /api/live?{query} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    await reader.readuntil(b"event: open")
    return Stream(reader, writer)


def topics_of(number: int) -> list[str]:
    if number % 4 == 2:
        return ["overview", "queues", "system"]
    return [f"run:nap-{number % 100}"] if number % 4 == 3 else ["runs"]


async def measure(url: str, pid: int, counts: list[int], *, least: bool) -> None:
    modes = LEAST if least else MODES
    load = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        "--load",
        url,
        *(["--small"] if least else []),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert load.stdin is not None
    assert load.stdout is not None
    await load.stdout.readline()
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    for mode, count in [(mode, count) for _ in range(1 if least else 4) for mode in modes for count in counts]:
        streams = [await listen(url, topics_of(number)) for number in range(count)]
        before = cpu(pid)
        load.stdin.write(mode.encode() + b"\n")
        took = float(await load.stdout.readline())
        spent = cpu(pid) - before
        frames = sum(stream.frames for stream in streams) / took
        found.setdefault((mode, count), []).append((spent / took, spent / modes[mode][0], frames))
        for stream in streams:
            await stream.close()
    load.stdin.close()
    await load.wait()
    for (mode, count), rounds in found.items():
        a_second, each, frames = zip(*rounds, strict=True)
        print(
            f"{mode}, {count} streams: {span(a_second, 1e3)} ms of CPU a second, {span(each, 1e6)} us a workflow,"
            f" {span(frames, 1)} frames a second"
        )


def span(values: Sequence[float], unit: float) -> str:
    """The smallest, the median and the largest of the rounds."""
    return f"{min(values) * unit:.0f}/{statistics.median(values) * unit:.0f}/{max(values) * unit:.0f}"


async def load(url: str, modes: dict[str, tuple[int, int]], naps: int = 100) -> None:
    """Run workflows when told to (`go` on stdin), and say how many seconds it took."""
    from backstay import AsyncClient, AsyncWorker, activity, sleep, workflow

    @activity
    def greet() -> str:
        return "hello"

    @workflow
    def hello() -> str:
        return greet()

    @workflow
    def nap() -> None:
        sleep("1d")

    told = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(told), sys.stdin)
    async with AsyncWorker(url, [hello, nap, greet], token=TOKEN), AsyncClient(url, token=TOKEN) as client:
        for number in range(naps):
            await client.start(nap, f"nap-{number}")

        async def steadily(count: int, rate: int) -> None:
            began, running = loop.time(), list[asyncio.Task[str]]()
            for number in range(count):
                running.append(asyncio.create_task(client.execute(hello, None)))
                await asyncio.sleep(max(began + (number + 1) / rate - loop.time(), 0))
            await asyncio.gather(*running)

        await steadily(2 * naps, 200)
        print("ready", flush=True)

        async def some(count: int) -> None:
            for _ in range(count):
                await client.execute(hello, None)

        while line := await told.readline():
            began = loop.time()
            count, rate = modes[line.decode().strip()]
            if rate:
                await steadily(count, rate)
            else:
                await asyncio.gather(*(some(count // IN_FLIGHT) for _ in range(IN_FLIGHT)))
            print(loop.time() - began, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", nargs="*", type=int)
    small(parser)
    parser.add_argument("--load", metavar="URL", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load:
        asyncio.run(load(given.load, LEAST, 4) if given.small else load(given.load, MODES))
        return 0
    counts = given.streams or ([0, 4] if given.small else [0, 200, 1000])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, max(counts) * 2 + 1000), hard), hard))
    with tempfile.TemporaryDirectory() as directory:
        process, url = start(Path(directory) / "live.db")
        try:
            asyncio.run(measure(url, process.pid, counts, least=given.small))
            return 0
        finally:
            process.terminate()
            process.wait(60)


if __name__ == "__main__":
    sys.exit(main())
