"""A program whose activities kill it: embedded (`embedded FILE LEDGER`), or as a worker (`worker URL TOKEN LEDGER`)."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from backstay import (
    ActivityCrashed,
    Backstay,
    Worker,
    WorkflowAlreadyStarted,
    WorkflowFailed,
    activity,
    activity_info,
    workflow,
)

LEDGER = Path(sys.argv[-1])


def die() -> None:
    with LEDGER.open("a") as ledger:
        ledger.write(f"{activity_info().type} {activity_info().number}\n")
    os._exit(9)  # as the kernel would, out of memory


@activity(max_crashes=1)
def greedy() -> str:
    die()
    return "never"


@activity(at_most_once=True)
def pay() -> str:
    die()
    return "never"


@workflow
def spend() -> list[str | int]:
    try:
        return [greedy()]
    except ActivityCrashed as crashed:
        return [crashed.crashes, str(crashed)]


@workflow
def pay_once() -> list[str | int]:
    try:
        return [pay()]
    except ActivityCrashed as crashed:
        return [crashed.crashes, str(crashed)]


@workflow
def careless() -> str:
    return pay()


REGISTER = [spend, pay_once, careless, greedy, pay]
BY_NAME = {"spend": spend, "pay_once": pay_once}


def main() -> None:
    match sys.argv[1:]:
        case ["embedded", file, name, _]:
            with Backstay(file, REGISTER) as backstay:
                with suppress(WorkflowAlreadyStarted):
                    backstay.start(BY_NAME[name], name)
                print(backstay.handle(BY_NAME[name], name).result(), flush=True)
        case ["activity", file, _]:
            with Backstay(file, REGISTER) as backstay:
                with suppress(WorkflowAlreadyStarted):
                    backstay.start_activity(pay, "job")
                try:
                    backstay.handle(pay, "job").result()
                except WorkflowFailed as failed:
                    print(repr(failed.__cause__), getattr(failed.__cause__, "crashes", None), flush=True)
        case ["worker", url, token, _]:
            Worker(url, REGISTER, token=token, worker_id="w").run()
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
