"""What the workloads of peers measure with: their command line, CPU and memory of processes, and one JSON object as the result."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

WORKLOADS = ("w1", "w2", "w3", "w4", "w5", "w6", "w7")
SIZES = {
    "w1-n": (2000, 3),
    "concurrency": (100, 2),
    "w2-steps": (100, 2),
    "w2-one": (100, 2),
    "w2-parallel": (50, 2),
    "w3-n": (1000, 3),
    "w4-n": (300, 2),
    "w5-n": (100, 2),
    "w6-n": (1000, 2),
    "w7-n": (10_000, 2),
    "flat-n": (1000, 10),
    "disk-n": (2000, 3),
}
"""Of each workload, and with `--small`."""
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def parser(name: str) -> argparse.ArgumentParser:
    """The command line of every peer. `settle`: the seconds that a workload rests before it reads memory or begins."""
    made = argparse.ArgumentParser(prog=name)
    made.add_argument("--workloads", default=",".join(WORKLOADS), help="some of w1 to w7")
    for size, (usual, _) in SIZES.items():
        made.add_argument(f"--{size}", type=int, default=usual)
    made.add_argument("--w6-sleep", type=float, default=30.0, help="seconds that the workflows of W6 sleep")
    made.add_argument("--w6-timeout", type=float, default=180.0, help="seconds until W6 is given up")
    made.add_argument("--idle", type=float, default=10.0, help="seconds in which nothing happens")
    made.add_argument("--repeat", type=int, default=1, help="the median of so many")
    made.add_argument("--json", help="a file to append the result to")
    small(made)
    return made


def small(made: argparse.ArgumentParser) -> None:
    """The option that every script has. The tests start each of them with it."""
    made.add_argument("--small", action="store_true", help="does it run at all? ends within ten seconds")


def parsed(made: argparse.ArgumentParser) -> argparse.Namespace:
    options = made.parse_args()
    options.settle = None
    if options.small:
        vars(options).update({size.replace("-", "_"): least for size, (_, least) in SIZES.items()})
        vars(options).update(settle=0.0, w6_sleep=0.1, idle=0.2)
    return options


def latencies(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    shown = {f"p{part}_ms": ordered[round(part / 100 * (len(ordered) - 1))] for part in (50, 90, 99)}
    shown["mean_ms"] = statistics.fmean(seconds)
    return {"n": len(seconds), **{name: round(value * 1e3, 3) for name, value in shown.items()}}


def rss_mib(pid: int) -> float:
    """Memory that a process holds now."""
    return round(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 2**20, 1)


def cpu(pid: int) -> float:
    """CPU of a process in seconds, user and system, also of its threads that have ended: its clock, in nanoseconds."""
    return time.clock_gettime(~pid << 3 | 2)


def cpu_with_children(pid: int) -> float:
    """CPU of a process and of its children, also of those that have ended, for a server with a process for each session."""
    used = cpu(pid)
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(OSError):  # it has just ended
            used += cpu(int(child))
    ended = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[13:15]
    return used + sum(map(int, ended)) / TICK


Meters = dict[str, Callable[[], float]]
"""How to read the CPU seconds of each process of a peer."""


class Cpu:
    """CPU of processes. On a machine that others use, rates wander; the CPU of an operation does not."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._before, self._began = self._read(), time.perf_counter()

    def _read(self) -> dict[str, float]:
        return {name: read() for name, read in self._meters.items()}

    def seconds(self) -> dict[str, float]:
        return {name: now - self._before[name] for name, now in self._read().items()}

    def stop(self, operations: int) -> dict[str, Any]:
        used, took = self.seconds(), time.perf_counter() - self._began
        each = {name: round(value * 1e3 / max(1, operations), 5) for name, value in used.items()}
        told: dict[str, Any] = {"cpu_ms_per_op": round(sum(used.values()) * 1e3 / max(1, operations), 5)}
        if len(each) > 1:
            told["cpu_ms"] = each
        return {**told, "own_cores": round(sum(used.values()) / took, 2)}


def postmaster(url: str) -> int:
    """The process of the PostgreSQL server of this machine that listens at the port of the URL."""
    port = re.search(r":(\d+)/", url)
    assert port is not None, f"no port in {url}"
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = place.read_text().split("\0")
            if line[0].endswith("/postgres") and port[1] in line:
                return int(place.parent.name)
    raise LookupError(f"no PostgreSQL server of this machine listens at port {port[1]}")


def machine() -> dict[str, Any]:
    return {"cpus": os.cpu_count(), "python": platform.python_version(), "load1": round(os.getloadavg()[0], 2)}


def tell(file: str | None, peer: str, versions: dict[str, str], durability: str, results: Any) -> None:
    told = {"peer": peer, "versions": versions, "durability": durability, "machine": machine(), "results": results}
    print(json.dumps(told, indent=1))
    if file:
        with open(file, "a") as opened:
            opened.write(json.dumps(told) + "\n")


def log(*words: object) -> None:
    print(*words, file=sys.stderr, flush=True)


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
