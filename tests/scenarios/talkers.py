"""A counter that others feed, and the programs that feed it: each runs in a process of its own."""

from __future__ import annotations

import sys
from contextlib import suppress

from backstay import Backstay, RequestRefused, WorkflowAlreadyStarted, query, signal, update, wait, workflow


@workflow(type="counter")
class Counter:
    def __init__(self) -> None:
        self.total = 0
        self.closed = False

    @signal
    def count(self, n: int) -> None:
        self.total += n

    @update
    def add(self, n: int) -> int:
        self.total += n
        return self.total

    @signal
    def close(self) -> None:
        self.closed = True

    @query
    def look(self) -> int:
        return self.total

    def handle(self, wanted: int) -> int:
        wait(lambda: self.closed or self.total == wanted)
        return self.total


def send(database: str, count: int) -> None:
    """Send signals, one after another; whoever has the file open first runs the workflow."""
    with Backstay(database, [Counter]) as app:
        run = app.handle(Counter, "counter")
        for _ in range(count):
            run.signal(Counter.count, 1)


def storm(database: str, name: str) -> None:
    """Update until killed. Each has an id of its own, so that sending it again after a crash does nothing twice."""
    with Backstay(database, [Counter]) as app:
        with suppress(WorkflowAlreadyStarted):
            app.start(Counter, "counter", -1)
        print("up", flush=True)
        for number in range(100_000):
            id = f"{name}-{number}"
            print("ask", id, flush=True)
            with suppress(RequestRefused):
                app.options(request_id=id).handle(Counter, "counter").update(Counter.add, 1)
                print("got", id, flush=True)


if __name__ == "__main__":
    {"send": lambda d, n: send(d, int(n)), "storm": storm}[sys.argv[1]](*sys.argv[2:])
