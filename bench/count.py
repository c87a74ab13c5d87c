"""Bytecodes and Python calls of one small workflow and of one more step: what the hot path costs, whatever else the machine does.

    python bench/count.py            embedded, and over HTTP the client, the server and the worker, each in its own process
    python bench/count.py --json FILE     for `run.py`, and for `tests/bench/test_budget.py`, which compares it with what was recorded

A `def` workflow with `def` activities, the client without `await`, the database in memory. Counted are the bytecodes of Backstay's
own functions, and the calls of them and by them. How often an event loop turns depends on the machine, and so does the standard
library's part of it. What the clock starts is not counted either (`BY_THE_CLOCK`), nor is a commit on a thread, which only a slow
disk causes. The workflows run one at a time, and each is counted. Most of them take the same path; one that was disturbed costs
more. So the figure is the lowest that several of them agree about, and it is the same in every run. Tracing is slow: it takes some
twenty seconds.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from measuring import small

import backstay
from backstay import Backstay, Client, Worker, activity, workflow

HOME = str(Path(backstay.__file__).parent) + "/"
ASYNCIO = "/asyncio/"
BY_THE_CLOCK = (
    "periodic.py",
    "projector.py",
    "stored_views.py",
    "world.py:LongAlarm",
    "heartbeats.py",
    "loop_watch.py",
    "all.py:Registries",
    "registries.py:Registries",
    "server.py:Server._forgotten",
)
"""Where the event loop enters work that waits for a time, and not for a message. Files are named without their folder, because an
older commit may have them elsewhere."""

WARM, COUNTED, AGREED = 30, 40, 3
STEPS = 10
STILL = 4  # looks at which nothing has moved: then a workflow is over everywhere
LOOK = 0.003  # seconds
TOKEN = "count"
PLACES = ("client", "server", "worker")
Cost = dict[str, tuple[int, int]]
"""Bytecodes and calls, by what costs them."""


@activity
def one(number: int) -> int:
    return number


@workflow
def steps(count: int) -> int:
    for number in range(count):
        one(number)
    return count


class Figures:
    """The counts of several processes, in one file that all of them see."""

    def __init__(self, file: str) -> None:
        with open(file, "r+b") as opened:
            self.values = memoryview(mmap.mmap(opened.fileno(), 16 * len(PLACES))).cast("Q")

    @staticmethod
    def make(file: Path) -> str:
        file.write_bytes(bytes(16 * len(PLACES)))
        return str(file)

    def count_here(self, place: int) -> None:
        """Count what this thread and all later ones execute."""
        values, bytecodes, calls = self.values, 2 * place, 2 * place + 1
        known: dict[CodeType, str | None] = {}

        def name(code: CodeType) -> str | None:
            """The function of ours, None for any other."""
            if code not in known:
                ours = code.co_filename.startswith(HOME)
                known[code] = f"{os.path.basename(code.co_filename)}:{code.co_qualname}" if ours else None
            return known[code]

        def is_by_the_clock(frame: FrameType | None) -> bool:
            entered = ""
            while frame is not None and ASYNCIO not in frame.f_code.co_filename:
                entered = name(frame.f_code) or entered
                frame = frame.f_back
            return entered.startswith(BY_THE_CLOCK)

        def inside(frame: FrameType, event: str, _: Any) -> Any:
            if event == "opcode":
                values[bytecodes] += 1
            return inside

        def enter(frame: FrameType, event: str, _: Any) -> Any:
            before = frame.f_back
            ours = name(frame.f_code) is not None
            if not ours and (before is None or name(before.f_code) is None):
                return None
            if is_by_the_clock(frame):
                return None
            values[calls] += 1
            if not ours:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return inside

        # Python 3.12 tells opcodes only to a trace that is set after some frame has asked for them.
        sys._getframe().f_trace_opcodes = True
        threading.settrace(enter)
        sys.settrace(enter)

    def still(self) -> list[int]:
        """The counts when nothing moves any more."""
        last, same = self.values.tolist(), 0
        while same < STILL:
            time.sleep(LOOK)
            now = self.values.tolist()
            last, same = now, same + 1 if now == last else 0
        return last


def lowest(counts: list[int], agreed: int) -> int:
    """The lowest count that several have: a lower one may have left some of its work to the next."""
    several = [count for count, times in Counter(counts).items() if times >= agreed]
    return min(several or counts)


def cost(figures: Figures, execute: Callable[[str, int], Any], places: list[str], runs: tuple[int, int, int]) -> Cost:
    """The cost of a workflow of one step, and of one more step, at each place."""
    warm, counted, agreed = runs
    found: dict[int, list[tuple[int, int]]] = {}
    for length in (1, 1 + STEPS):
        for number in range(warm):
            execute(f"warm-{length}-{number}", length)
        samples: list[list[int]] = []
        before = figures.still()
        for number in range(counted):
            execute(f"{length}-{number}", length)
            after = figures.still()
            samples.append([b - a for a, b in zip(before, after, strict=True)])
            before = after
        columns = [lowest(list(column), agreed) for column in zip(*samples, strict=True)]
        found[length] = [(columns[2 * place], columns[2 * place + 1]) for place in range(len(places))]
    told: Cost = {}
    for place, (short, long) in zip(places, zip(found[1], found[1 + STEPS], strict=True), strict=True):
        told[f"{place}: a workflow of one activity"] = short
        told[f"{place}: one more step"] = (round((long[0] - short[0]) / STEPS), round((long[1] - short[1]) / STEPS))
    return told


def all_costs(directory: Path, runs: tuple[int, int, int]) -> Cost:
    """Every count has processes of its own: Python 3.12 crashes now and then if a process begins to trace a second time."""
    http = Figures.make(directory / "http")
    processes: list[subprocess.Popen[str]] = []

    def start(*what: str) -> str:
        """What a new process says first. It ends with this one (`end_with_parent`)."""
        command = [sys.executable, __file__, "--child", *what]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        stdout = processes[-1].stdout
        assert stdout is not None
        said = stdout.readline().strip()
        assert said, f"{what[0]} says nothing"
        return said.split()[-1] if what[0] == "serve" else said

    counts = [str(number) for number in runs]
    try:
        told: Cost = json.loads(start("embedded", Figures.make(directory / "embedded"), *counts))
        url = start("serve", http)
        start("work", http, url)
        return told | json.loads(start("client", http, url, *counts))
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(60)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def end_with_parent() -> None:
    """However the process that counts has ended, none of its children stays behind."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def embedded(file: str, *runs: str) -> None:
    figures = Figures(file)
    figures.count_here(0)
    with Backstay(":memory:", [steps, one]) as app:
        told = cost(figures, lambda name, length: app.execute(steps, name, length), ["embedded"], numbers(runs))
        print(json.dumps(told), flush=True)


def client(file: str, url: str, *runs: str) -> None:
    figures = Figures(file)
    figures.count_here(PLACES.index("client"))
    with Client(url, token=TOKEN) as here:
        told = cost(figures, lambda name, length: here.execute(steps, name, length), list(PLACES), numbers(runs))
        print(json.dumps(told), flush=True)


def numbers(runs: Sequence[str]) -> tuple[int, int, int]:
    warm, counted, agreed = map(int, runs)
    return warm, counted, agreed


def serve(file: str) -> None:
    from backstay.cli.main import dw

    Figures(file).count_here(PLACES.index("server"))
    dw(["server", "--port", "0", "--token", TOKEN, "--store", "sqlite::memory:"])


def work(file: str, url: str) -> None:
    Figures(file).count_here(PLACES.index("worker"))
    worker = Worker(url, [steps, one], token=TOKEN)
    print("up", flush=True)
    worker.run()


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        end_with_parent()
        {"embedded": embedded, "serve": serve, "work": work, "client": client}[sys.argv[2]](*sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="append the result to it")
    small(parser)
    options = parser.parse_args()
    runs = (1, 2, 1) if options.small else (WARM, COUNTED, AGREED)
    with tempfile.TemporaryDirectory() as directory:
        told = all_costs(Path(directory), runs)
    if options.json:
        results = {what: {"bytecodes": bytecodes, "calls": calls} for what, (bytecodes, calls) in told.items()}
        with open(options.json, "a") as file:
            file.write(json.dumps({"results": results}) + "\n")
    for what, (bytecodes, calls) in told.items():
        print(f"{what}: {bytecodes} bytecodes, {calls} calls")


if __name__ == "__main__":
    main()
