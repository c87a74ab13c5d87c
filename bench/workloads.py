"""The seven workloads, written once: what is timed is the same for Backstay in its own process, over HTTP, and for every peer.

A peer says how it starts and ends, and what one operation is. A workload that a peer does not support is left out; one that fails
is told, and the script fails with it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from measuring import Cpu, Meters, latencies, log, tell

WARM = 200
"""Operations before the clock runs: by then the interpreter knows the code, and an engine what it learns about it."""


class Peer:
    """A system that runs workflows."""

    name = "peer"
    durability = ""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    def versions(self) -> dict[str, str]:
        return {}

    async def start(self) -> None:
        """Start server and worker on a new database, and connect a client."""

    async def stop(self) -> None: ...

    async def hello(self, key: str) -> None:
        """A workflow of one step, until its result is here."""
        raise NotImplementedError

    async def seq(self, key: str, steps: int) -> None:
        raise NotImplementedError

    async def fan(self, key: str, n: int) -> None:
        raise NotImplementedError

    async def sig_open(self, key: str, n: int) -> None:
        """Start a workflow that ends with its nth signal."""
        raise NotImplementedError

    async def sig_send(self, key: str, i: int) -> None:
        raise NotImplementedError

    async def sig_result(self, key: str) -> None:
        raise NotImplementedError

    async def sleepers(self, prefix: str, n: int, seconds: float) -> None:
        """Start so many workflows that sleep."""
        raise NotImplementedError

    async def sleepers_done(self, prefix: str, n: int) -> int:
        raise NotImplementedError

    async def crash(self) -> None:
        """`kill -9` to everything but the database."""
        raise NotImplementedError

    async def restart(self) -> None:
        raise NotImplementedError

    def meters(self) -> Meters:
        """The CPU of this peer: that of all its processes."""
        return {"process": time.process_time}

    def idle_meters(self) -> Meters:
        """The CPU that it uses while nothing happens."""
        raise NotImplementedError

    async def children(self, key: str, n: int) -> None:
        """A workflow with so many children."""
        raise NotImplementedError

    def disk(self) -> int:
        """Bytes of its database that are in use."""
        raise NotImplementedError

    def memory(self) -> dict[str, float]:
        """MiB by process."""
        raise NotImplementedError


def key(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


async def at_a_time(n: int, limit: int, do: Callable[[int], Awaitable[Any]]) -> tuple[float, list[float]]:
    """Do it n times, so many at a time: the seconds of all, and of each."""
    numbers, took = iter(range(n)), list[float]()

    async def lane() -> None:
        for number in numbers:
            began = time.perf_counter()
            await do(number)
            took.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(min(limit, n))))
    return time.perf_counter() - began, took


async def w1(peer: Peer, o: argparse.Namespace) -> dict[str, Any]:
    await at_a_time(min(WARM, o.w1_n), o.concurrency, lambda _: peer.hello(key("warm")))
    rates, each, cpu = list[float](), list[float](), Cpu(peer.meters())
    for _ in range(o.repeat):
        wall, took = await at_a_time(o.w1_n, o.concurrency, lambda _: peer.hello(key("w1")))
        rates.append(round(o.w1_n / wall, 1))
        each += took
    told = {"workflows_s": statistics.median(rates), "runs": rates, "n": o.w1_n, "latency": latencies(each)}
    return {**told, **cpu.stop(o.repeat * o.w1_n)}


async def w2(peer: Peer, o: argparse.Namespace) -> dict[str, Any]:
    await peer.seq(key("warm"), min(WARM, o.w2_one))
    one, many, used, alone = list[float](), list[float](), dict[str, Any](), dict[str, Any]()
    for _ in range(o.repeat):
        cpu, began = Cpu(peer.meters()), time.perf_counter()
        await peer.seq(key("w2"), o.w2_one)
        one.append(round(o.w2_one / (time.perf_counter() - began), 1))
        alone = cpu.stop(o.w2_one)
        cpu = Cpu(peer.meters())
        wall, _ = await at_a_time(o.w2_parallel, o.w2_parallel, lambda _: peer.seq(key("w2p"), o.w2_steps))
        used = cpu.stop(o.w2_parallel * o.w2_steps)
        many.append(round(o.w2_parallel * o.w2_steps / wall, 1))
    return {
        "one_steps_s": statistics.median(one),
        "parallel_steps_s": statistics.median(many),
        "one_cpu_ms": alone["cpu_ms_per_op"],
        "runs": [one, many],
        **used,
    }


async def w3(peer: Peer, o: argparse.Namespace) -> dict[str, Any]:
    await peer.fan(key("warm"), min(WARM, o.w3_n))
    walls, cpu = list[float](), Cpu(peer.meters())
    for _ in range(o.repeat):
        began = time.perf_counter()
        await peer.fan(key("w3"), o.w3_n)
        walls.append(round(time.perf_counter() - began, 3))
    wall = statistics.median(walls)
    return {"wall_s": wall, "activities_s": round(o.w3_n / wall, 1), "runs": walls, **cpu.stop(o.repeat * o.w3_n)}


async def w4(peer: Peer, o: argparse.Namespace) -> dict[str, Any]:
    await at_a_time(min(WARM, o.w4_n), o.concurrency, lambda _: peer.hello(key("warm")))
    await _settle(o, 1)
    cpu = Cpu(peer.meters())
    _, took = await at_a_time(o.w4_n, 1, lambda _: peer.hello(key("w4")))
    return {**latencies(took), **cpu.stop(o.w4_n)}


async def w5(peer: Peer, o: argparse.Namespace) -> dict[str, Any]:
    rates, acknowledged, cpu = list[float](), list[float](), Cpu(peer.meters())
    for round_number in range(o.repeat + 1):
        if round_number == 1:
            cpu = Cpu(peer.meters())  # the first one has warmed up
        run, n = key("w5"), o.w5_n if round_number else min(WARM, o.w5_n)
        await peer.sig_open(run, n)
        began = time.perf_counter()
        for number in range(n):
            sent = time.perf_counter()
            await peer.sig_send(run, number)
            if round_number:
                acknowledged.append(time.perf_counter() - sent)
        await peer.sig_result(run)
        if round_number:
            rates.append(round(n / (time.perf_counter() - began), 1))
    told = {"signals_s": statistics.median(rates), "runs": rates, "ack": latencies(acknowledged)}
    return {**told, **cpu.stop(o.repeat * o.w5_n)}


async def w6(peer: Peer, o: argparse.Namespace) -> dict[str, Any]:
    prefix, began = key("w6"), time.perf_counter()
    await peer.sleepers(prefix, o.w6_n, o.w6_sleep)
    started = time.perf_counter()
    await _settle(o, 1)
    early = await peer.sleepers_done(prefix, o.w6_n)
    await peer.crash()
    # Down until every timer is overdue: so what is measured is the recovery.
    await asyncio.sleep(max(0.0, started + o.w6_sleep + (1 if o.settle is None else o.settle) - time.perf_counter()))
    down = time.perf_counter()
    await peer.restart()
    up, done = time.perf_counter() - down, 0
    while done < o.w6_n and time.perf_counter() - down < o.w6_timeout:
        done = await peer.sleepers_done(prefix, o.w6_n)
        await asyncio.sleep(0.02)
    return {
        "n": o.w6_n,
        "start_rate_s": round(o.w6_n / (started - began), 1),
        "done_before_kill": early,
        "restart_to_up_s": round(up, 3),
        "restart_to_all_done_s": round(time.perf_counter() - down, 3),
        "lost": o.w6_n - done,
    }


async def w7(peer: Peer, o: argparse.Namespace) -> dict[str, Any]:
    await peer.sleepers(key("warm"), 10, 3600.0)
    base, began = peer.memory(), time.perf_counter()
    await peer.sleepers(key("w7"), o.w7_n, 3600.0)
    took = time.perf_counter() - began
    await _settle(o, 5)
    full = peer.memory()
    return {
        "n": o.w7_n,
        "start_rate_s": round(o.w7_n / took, 1),
        "rss_before_mib": base,
        "rss_open_mib": full,
        "kib_per_workflow": round((sum(full.values()) - sum(base.values())) * 1024 / o.w7_n, 2),
    }


async def children(peer: Peer, o: argparse.Namespace) -> dict[str, Any]:
    """W3 with children instead of activities, and whether the cost of one depends on how many there are."""
    few = max(1, o.w3_n // 10)
    await peer.children(key("warm"), few)
    cpu = Cpu(peer.meters())
    for _ in range(10):
        await peer.children(key("few"), few)
    narrow = cpu.stop(10 * few)
    cpu, began = Cpu(peer.meters()), time.perf_counter()
    await peer.children(key("many"), o.w3_n)
    wall, wide = time.perf_counter() - began, cpu.stop(o.w3_n)
    return {"wall_s": round(wall, 3), **wide, "against_few": wide["cpu_ms_per_op"] / narrow["cpu_ms_per_op"]}


async def flat(peer: Peer, o: argparse.Namespace) -> dict[str, Any]:
    """The CPU of one long run against that of ten short ones: 1 if the cost of a step does not grow with history."""

    async def signals(run: str, n: int) -> None:
        await peer.sig_open(run, n)
        for number in range(n):
            await peer.sig_send(run, number)
        await peer.sig_result(run)

    told: dict[str, Any] = {}
    for name, work, few, times in (("steps", peer.seq, o.flat_n, 1), ("signals", signals, o.flat_n // 10, 5)):
        await work(key("warm"), min(WARM, 10 * few))
        ratios: list[float] = []
        for _ in range(times):
            cpu = Cpu(peer.meters())
            for _ in range(10):
                await work(key("short"), few)
            short = sum(cpu.seconds().values())
            cpu = Cpu(peer.meters())
            await work(key("long"), 10 * few)
            ratios.append(sum(cpu.seconds().values()) / short)
        told[name] = round(statistics.median(ratios), 3)
    return told


async def disk(peer: Peer, o: argparse.Namespace) -> dict[str, Any]:
    await at_a_time(min(WARM, o.disk_n), o.concurrency, lambda _: peer.hello(key("warm")))
    await _settle(o, 1)  # what is written later
    before = peer.disk()
    await at_a_time(o.disk_n, o.concurrency, lambda _: peer.hello(key("disk")))
    await _settle(o, 1)
    return {"bytes_per_workflow": round((peer.disk() - before) / o.disk_n)}


async def idle(peer: Peer, o: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of CPU a second while nothing happens, after a while in which nothing happened."""
    meters = peer.idle_meters()
    await _settle(o, 5)
    cpu, began = Cpu(meters), time.perf_counter()
    await asyncio.sleep(o.idle)
    took = time.perf_counter() - began
    return {f"{name}_ms_s": round(used * 1e3 / took, 3) for name, used in cpu.seconds().items()}


async def _settle(o: argparse.Namespace, seconds: float) -> None:
    await asyncio.sleep(seconds if o.settle is None else o.settle)


ALL = {"w1": w1, "w2": w2, "w3": w3, "w4": w4, "w5": w5, "w6": w6, "w7": w7}
OURS = {"children": children, "flat": flat, "disk": disk, "idle": idle}
"""What no peer is asked for."""


async def _measure(peer: Peer) -> bool:
    """Run the workloads; False if one has failed. The others are measured all the same."""
    options, results, good = peer.options, dict[str, Any](), True
    load = os.getloadavg()[0]
    for name in options.workloads.split(","):
        began = time.perf_counter()
        try:
            await peer.start()
            try:
                results[name] = await (ALL | OURS)[name](peer, options)
            finally:
                await peer.stop()
        except NotImplementedError:
            results[name] = {"skipped": "not supported"}
        except Exception as error:
            traceback.print_exc()
            results[name], good = {"error": repr(error)[:300]}, False
        log(f"{peer.name} {name} ({time.perf_counter() - began:.1f} s): {results[name]}")
    results["load_before"] = round(load, 2)
    tell(options.json, peer.name, peer.versions(), peer.durability, results)
    return good


def run(peer: Peer) -> int:
    return 0 if asyncio.run(_measure(peer)) else 1
