"""A program in which one run kills the process, and its neighbours do not: `worker URL TOKEN`, or `embedded FILE`.

Runs named `code-…` have workflow code that kills or not, runs named `work-…` an activity. The killer waits until its neighbours
have begun, and they take longer than that: whenever they run together, they die together.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

from backstay import Backstay, Worker, WorkflowAlreadyStarted, WorkflowFailed, activity, workflow

NEIGHBOURS = 4
CRASHES = 3


@workflow(unchecked=True)
def code_poison() -> str:
    os._exit(9)


@workflow
def code_innocent() -> str:
    return "done"


@activity(max_crashes=CRASHES)
def kill() -> str:
    time.sleep(0.3)
    os._exit(9)


@activity(max_crashes=CRASHES)
def work() -> str:
    time.sleep(0.6)
    return "done"


@workflow
def work_poison() -> str:
    return kill()


@workflow
def work_innocent() -> str:
    return work()


REGISTER = [code_poison, code_innocent, work_poison, work_innocent, kill, work]
NAMES = [f"work-{number}" for number in range(NEIGHBOURS)]


def embedded(file: str) -> None:
    with Backstay(file, REGISTER) as backstay:
        with suppress(WorkflowAlreadyStarted):
            backstay.start(work_poison, "work-poison")
        for name in NAMES:
            with suppress(WorkflowAlreadyStarted):
                backstay.start(work_innocent, name)
        for name in NAMES:
            print(name, backstay.handle(work_innocent, name).result(), flush=True)
        try:
            backstay.handle(work_poison, "work-poison").result()
        except WorkflowFailed as failed:
            print("work-poison", repr(failed.__cause__), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["worker", url, token]:
            Worker(url, REGISTER, token=token, worker_id="w").run()
        case ["embedded", file]:
            embedded(file)
        case _:
            raise SystemExit(__doc__)
