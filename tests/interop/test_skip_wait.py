"""A published worker sleeps for a day, and an operator ends that: its code sees the timer fire, as ever."""

from __future__ import annotations

from typing import Any

import httpx
from durable_workflow import workflow

from .conftest import TOKEN, Running
from .test_published_sdk import working

HEADERS = {"Authorization": f"Bearer {TOKEN}", "X-Durable-Workflow-Control-Plane-Version": "2"}


@workflow.defn(name="sleepy")
class Sleepy:
    def run(self, ctx: Any, key: str) -> Any:
        yield ctx.sleep(86400)
        return (yield ctx.schedule_activity("greet", ["ada"]))  # so that the code replays over the skipped timer


async def test_the_timer_of_a_published_workflow_is_skipped(server: Running) -> None:
    async with working(server, [Sleepy]) as desk, httpx.AsyncClient(base_url=server.url, headers=HEADERS) as http:
        handle = await desk.start("sleepy", "skip-wait")
        path = f"/api/workflows/{handle.workflow_id}"
        while (await http.get(f"{path}/why")).json()["verb"] != "sleeps":
            pass
        done = await http.post(f"{path}/skip-wait", json={"reason": "no need"})
        assert done.json()["outcome"] == "wait_skipped", done.text
        assert await desk.result(handle.workflow_id) == "hello, ada"
        types = [event["event_type"] for event in await desk.history(handle.workflow_id)]
        assert types.index("TimerFired") == types.index("WaitSkipped") + 1
