"""Bytecodes and Python calls of one small workflow and of one step, over all threads: they do not depend on the machine's load.

    python bench/count.py

Embedded, on a SQLite file, with a `def` workflow, a `def` activity and the client without `await`. Tracing is slow: it takes a
few seconds.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from backstay import Backstay, activity, workflow

WARM, WORKFLOWS, LONG, STEPS = 30, 100, 20, 20


@activity
def one(number: int) -> int:
    return number


@workflow
def steps(count: int) -> int:
    for number in range(count):
        one(number)
    return count


class Count:
    """What the threads that were started since have executed."""

    def __init__(self) -> None:
        self.bytecodes = 0
        self.calls = 0

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "call":
            self.calls += 1
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            self.bytecodes += 1
        return self.trace


def per_workflow(app: Backstay, count: Count, name: str, runs: int, length: int) -> tuple[float, float]:
    for number in range(WARM):
        app.execute(steps, f"{name}-warm-{number}", length)
    bytecodes, calls = count.bytecodes, count.calls
    for number in range(runs):
        app.execute(steps, f"{name}-{number}", length)
    return (count.bytecodes - bytecodes) / runs, (count.calls - calls) / runs


def main() -> None:
    count = Count()
    threading.settrace(count.trace)
    with tempfile.TemporaryDirectory() as directory, Backstay(Path(directory) / "count.db", [steps, one]) as app:
        short = per_workflow(app, count, "short", WORKFLOWS, 1)
        long = per_workflow(app, count, "long", LONG, 1 + STEPS)
    print(f"a workflow of one activity: {short[0]:.0f} bytecodes, {short[1]:.0f} calls")
    print(f"one more step: {(long[0] - short[0]) / STEPS:.0f} bytecodes, {(long[1] - short[1]) / STEPS:.0f} calls")


if __name__ == "__main__":
    main()
