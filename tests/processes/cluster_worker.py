"""A worker before several nodes, in a process of its own: ours, or that of the published package. Both run the same story.

    python -m tests.processes.cluster_worker ours|published URL LEDGER

Every activity leaves a line in the ledger when it begins: what it was for, which process ran it, and when.
"""

from __future__ import annotations

import asyncio
import os
import signal as signal_numbers
import sys
import time
from functools import partial
from typing import Any

import durable_workflow
from durable_workflow.retry_policy import TransportRetryPolicy

from backstay import ServerUnreachable, Worker, activity, query, signal, sleep, update, wait, workflow

from .flows import write

TOKEN = "cluster"
QUEUE = "published"
OUTAGE = TransportRetryPolicy(max_attempts=200, max_backoff_seconds=0.5)
"""The published package gives up a report after three tries by default, and its lease runs for five minutes."""

WORK = 0.02  # seconds that an activity takes: whoever is killed may have some in its hands

ledger = ""


def note(what: str) -> str:
    write(ledger, f"{what}\t{os.getpid()}\t{time.monotonic():.6f}")
    time.sleep(WORK)
    return what


# -- ours


@activity
def mark(what: str) -> str:
    return note(what)


@workflow(type="cluster-leaf")
def leaf(name: str) -> str:
    return mark(f"{name}/leaf")


@workflow(type="cluster-chain")
def chain(name: str, steps: int) -> list[str]:
    """Steps, a timer, and a child, which most often belongs to another node."""
    done = [mark(f"{name}/{step}") for step in range(steps)]
    sleep(0.05)
    return [*done, leaf(name)]


@workflow(type="cluster-box")
class Box:
    """Keeps everything that it was told, in order."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.closed = False

    @signal
    def put(self, token: str) -> None:
        self.kept.append(token)

    @update
    def add(self, token: str) -> int:
        self.kept.append(token)
        return len(self.kept)

    @query
    def holds(self, token: str) -> bool:
        return token in self.kept

    @signal
    def close(self) -> None:
        self.closed = True

    def handle(self) -> list[str]:
        wait(lambda: self.closed)
        return self.kept


def ours(url: str) -> None:
    while True:
        try:
            Worker(url, [chain, leaf, Box, mark], token=TOKEN, drain=2.0).run()
            return
        except ServerUnreachable as error:  # one that starts expects a server that is there
            print(error, file=sys.stderr, flush=True)
            time.sleep(0.2)


# -- the published package


@durable_workflow.activity.defn(name="mark")
def published_mark(what: str) -> str:
    return note(what)


@durable_workflow.workflow.defn(name="published-chain")
class PublishedChain:
    def run(self, ctx: Any, name: str, steps: int) -> Any:
        done: list[str] = []
        for step in range(steps):
            done.append((yield ctx.schedule_activity("mark", [f"{name}/{step}"])))  # noqa: PERF401
        return done


@durable_workflow.workflow.defn(name="published-box")
class PublishedBox:
    def __init__(self) -> None:
        self.kept: list[str] = []
        self.closed = False

    @durable_workflow.workflow.signal("put")
    def put(self, token: str) -> None:
        self.kept.append(token)

    @durable_workflow.workflow.update("add")
    def add(self, token: str) -> int:
        self.kept.append(token)
        return len(self.kept)

    @durable_workflow.workflow.signal("close")
    def close(self) -> None:
        self.closed = True

    def run(self, ctx: Any) -> Any:
        yield ctx.wait_condition(lambda: self.closed, key="closed", timeout=3600)
        return self.kept


_stops: set[asyncio.Task[None]] = set()


def _stop(worker: durable_workflow.Worker) -> None:
    """It finishes what it has."""
    _stops.add(asyncio.ensure_future(worker.stop()))


async def published(url: str) -> None:
    async with durable_workflow.Client(url, token=TOKEN, retry_policy=OUTAGE) as client:
        while True:
            worker = durable_workflow.Worker(
                client,
                task_queue=QUEUE,
                workflows=[PublishedChain, PublishedBox],
                activities=[published_mark],
                poll_timeout=10,
            )
            stopping = partial(_stop, worker)
            asyncio.get_running_loop().add_signal_handler(signal_numbers.SIGTERM, stopping)
            try:
                await worker.run()
                return
            except (durable_workflow.errors.DurableWorkflowError, RuntimeError) as error:
                print(error, file=sys.stderr, flush=True)  # it registers once, and the cluster may be down just then
                await asyncio.sleep(0.2)


if __name__ == "__main__":
    kind, address, ledger = sys.argv[1:]
    if kind == "ours":
        ours(address)
    else:
        asyncio.run(published(address))
