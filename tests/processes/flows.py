"""What the programs of these tests run. Gates are files: an activity waits until its gate exists, so tests set the pace."""

from __future__ import annotations

import os
import time
from pathlib import Path

from backstay import activity, activity_info, info, query, signal, sleep, update, wait, workflow


@activity
def stamp(ledger: str, name: str) -> str:
    """Leave a line that names the process, the key and the attempt."""
    sign(ledger, name)
    return f"{name} done"


@activity
def pass_gate(ledger: str, gate: str) -> str:
    sign(ledger, Path(gate).name)
    wait_for(gate)
    return f"passed {Path(gate).name}"


@activity(local=True)
def pass_gate_beside(ledger: str, gate: str) -> str:
    write(ledger, f"{Path(gate).name}\tlocal\t1\t{os.getpid()}")
    wait_for(gate)
    return f"passed {Path(gate).name}"


@workflow
def visit(ledger: str, name: str) -> str:
    return stamp(ledger, name)


@workflow
def gated(ledger: str, gate: str) -> list[str]:
    return [stamp(ledger, "before"), pass_gate(ledger, gate), stamp(ledger, "behind")]


@workflow
def gated_beside(ledger: str, gate: str) -> list[str]:
    return [pass_gate_beside(ledger, gate), stamp(ledger, "behind")]


@workflow
def nap(ledger: str, seconds: float) -> str:
    sleep(seconds)
    return stamp(ledger, info().workflow_id)


@workflow
class Counter:
    def __init__(self) -> None:
        self.total = 0
        self.done = False

    @signal
    def add(self, number: int) -> None:
        self.total += number

    @update
    def settle(self, expected: int) -> int:
        return self.total

    @settle.validator
    def _sees_the_same(self, expected: int) -> None:
        if self.total != expected:
            raise ValueError(f"{self.total} is not {expected}")

    @query
    def read(self) -> int:
        return self.total

    @signal
    def stop(self) -> None:
        self.done = True

    def handle(self) -> int:
        wait(lambda: self.done)
        return self.total


REGISTER = [visit, gated, gated_beside, nap, Counter, stamp, pass_gate, pass_gate_beside]
BY_NAME = {"counter": Counter, **{flow.type: flow for flow in (visit, gated, gated_beside, nap)}}


def sign(ledger: str, name: str) -> None:
    running = activity_info()
    write(ledger, f"{name}\t{running.idempotency_key}\t{running.number}\t{os.getpid()}")


def write(ledger: str, line: str) -> None:
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode() + b"\n")
        os.fsync(file)
    finally:
        os.close(file)


def wait_for(gate: str) -> None:
    deadline = time.monotonic() + 60
    while not Path(gate).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody opened {gate}")
        time.sleep(0.003)
