"""A worker in a process of its own: ours, or one that polls as those of the published protocol do.

    python -m tests.processes.left_worker ours|polls|crashes URL TOKEN NAME

`crashes`: one of ours that ends without a word as soon as it has connected.
"""

from __future__ import annotations

import asyncio
import os
import sys

import httpx

from backstay import AsyncWorker, activity, workflow

QUEUE = "left"


@activity
def nothing() -> None:
    pass


@workflow(type="left")
def left() -> None:
    nothing()


async def ours(url: str, token: str, name: str, *, crashes: bool) -> None:
    async with AsyncWorker(url, [left, nothing], token=token, queue=QUEUE, worker_id=name):
        print("connected", flush=True)
        if crashes:
            os._exit(9)
        await asyncio.Event().wait()


async def polls(url: str, token: str, name: str) -> None:
    headers = {"Authorization": f"Bearer {token}", "X-Durable-Workflow-Protocol-Version": "1.0"}
    me = {"worker_id": name, "task_queue": QUEUE}
    async with httpx.AsyncClient(base_url=f"{url}/api/worker", headers=headers, timeout=60) as http:
        types = {"supported_workflow_types": ["left"], "supported_activity_types": ["nothing"]}
        (await http.post("/register", json=me | types | {"runtime": "python"})).raise_for_status()
        print("connected", flush=True)
        while True:
            (await http.post("/workflow-tasks/poll", json=me | {"timeout_seconds": 30})).raise_for_status()


if __name__ == "__main__":
    kind, url, token, name = sys.argv[1:]
    asyncio.run(polls(url, token, name) if kind == "polls" else ours(url, token, name, crashes=kind == "crashes"))
