"""An activity of a published worker that backs off for an hour is tried again now; its code never knows the difference."""

from __future__ import annotations

from typing import Any

import httpx
from durable_workflow import workflow
from durable_workflow.workflow import ActivityRetryPolicy

from .conftest import TOKEN, Running
from .test_published_sdk import working

HEADERS = {"Authorization": f"Bearer {TOKEN}", "X-Durable-Workflow-Control-Plane-Version": "2"}


@workflow.defn(name="patient")
class Patient:
    def run(self, ctx: Any, key: str) -> Any:
        policy = ActivityRetryPolicy(max_attempts=5, initial_interval_seconds=3600, backoff_coefficient=1)
        tried = yield ctx.schedule_activity("flaky", [key, 1], retry_policy=policy)
        greeting = yield ctx.schedule_activity("greet", ["ada"])  # so that the code replays over what happened
        return [tried, greeting]


async def test_retry_now_ends_the_backoff_of_a_published_activity(server: Running) -> None:
    async with working(server, [Patient]) as desk, httpx.AsyncClient(base_url=server.url, headers=HEADERS) as http:
        handle = await desk.start("patient", "retry-now")
        path = f"/api/workflows/{handle.workflow_id}"
        while (why := (await http.get(f"{path}/why")).json())["verb"] != "tries_again":
            pass
        assert "flaky has failed 1 of 5 times, last with “attempt 1 fails”" in why["sentence"]
        done = await http.post(f"{path}/activities/{why['action']['target']}/retry-now", json={})
        assert done.json()["outcome"] == "retry_dispatched", done.text
        assert await desk.result(handle.workflow_id) == [2, "hello, ada"]
        types = [event["event_type"] for event in await desk.history(handle.workflow_id)]
        assert types.count("ActivityRetryRequested") == 1
