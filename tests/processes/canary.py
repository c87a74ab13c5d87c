"""A worker whose code of one type is good or bad, of ours or of the published package: `ours|published URL TOKEN NAME good|bad`.

The bad code of `order` takes other arguments. The bad code of `desk` takes other steps than the runs that are under way.
"""

from __future__ import annotations

import asyncio
import signal as signal_numbers
import sys
from typing import Any

import durable_workflow

from backstay import Worker, activity, workflow

QUEUE = "published"


@activity
def pack(item: str) -> str:
    return f"{item}, packed"


@workflow(type="order")
def order(item: str, pieces: int) -> str:
    return pack(f"{pieces} {item}")


@workflow(type="order")
def bad_order(item: str) -> str:
    return pack(item)


CODE = {"good": order, "bad": bad_order}


def fingerprint(which: str) -> str | None:
    return CODE[which].definition.fingerprint


@durable_workflow.activity.defn(name="published-pack")
def published_pack(item: str) -> str:
    return f"{item}, packed"


@durable_workflow.workflow.defn(name="desk")
class Desk:
    def __init__(self) -> None:
        self.open = False

    @durable_workflow.workflow.signal("go")
    def go(self) -> None:
        self.open = True

    def run(self, ctx: Any, item: str) -> Any:
        packed = yield ctx.schedule_activity("published-pack", [item])
        yield ctx.wait_condition(lambda: self.open, key="open", timeout=3600)
        return packed


@durable_workflow.workflow.defn(name="desk")
class BadDesk:
    @durable_workflow.workflow.signal("go")
    def go(self) -> None: ...

    def run(self, ctx: Any, item: str) -> Any:
        yield ctx.sleep(3600)
        return item


async def published(url: str, token: str, name: str, which: str) -> None:
    async with durable_workflow.Client(url, token=token) as client:
        worker = durable_workflow.Worker(
            client,
            task_queue=QUEUE,
            workflows=[{"good": Desk, "bad": BadDesk}[which]],
            activities=[published_pack],
            worker_id=name,
            poll_timeout=2,
        )
        stops: list[asyncio.Task[None]] = []
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal_numbers.SIGTERM, lambda: stops.append(loop.create_task(worker.stop())))
        await worker.run()


if __name__ == "__main__":
    kind, url, token, name, which = sys.argv[1:]
    if kind == "ours":
        Worker(url, [CODE[which], pack], token=token, worker_id=name, compatibility=f"build-{which}").run()
    else:
        asyncio.run(published(url, token, name, which))
