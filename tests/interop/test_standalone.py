"""Standalone activities of the published package: jobs that its activity workers run without a workflow."""

from __future__ import annotations

from typing import Any

import pytest
from durable_workflow import Client
from durable_workflow.errors import WorkflowCancelled, WorkflowFailed
from durable_workflow.history_bundle_verify import verify_bundle

from .conftest import TOKEN, Running
from .test_published_sdk import working


async def ended(handle: Any) -> Any:
    return await handle.result(poll_interval=0.02, timeout=50)


async def test_a_job_of_the_published_client_is_run_listed_and_exported(server: Running) -> None:
    async with working(server, workflows=[]) as desk:
        client = desk.client
        handle = await client.start_activity(
            activity_type="add",
            task_queue="q",
            activity_id="sum",
            input=[2, 3],
            business_key="b",
            activity_class="Sums",
        )
        assert await ended(handle) == 5
        found = await handle.describe()
        assert (found.status, found.activity_status, found.attempt_count, found.result) == (
            "completed",
            "completed",
            1,
            5,
        )
        assert (found.workflow_run_id, found.activity_execution_id, found.activity_class, found.business_key) == (
            handle.workflow_run_id,
            handle.activity_execution_id,
            "Sums",
            "b",
        )
        tried = await client.start_activity(
            activity_type="broken", task_queue="q", retry_policy={"max_attempts": 2, "backoff_seconds": [0]}
        )
        with pytest.raises(WorkflowFailed):
            await ended(tried)
        failed = await tried.describe()
        assert (failed.status, failed.activity_status) == ("failed", "failed")
        listed = await client.list_activities(status="failed")
        assert [job.activity_id for job in listed.activities] == [tried.activity_id]
        report = verify_bundle(await client.export_history("sum", handle.workflow_run_id or ""))
        assert (report["status"], report["findings"]) == ("ok", []), report


async def test_a_job_survives_the_death_of_its_server(server: Running) -> None:
    async with Client(server.url, token=TOKEN) as client:
        await client.start_activity(
            activity_type="add", task_queue="q", activity_id="sum", input=[2, 3], schedule_to_close_timeout_seconds=600
        )
        unwanted = await client.start_activity(activity_type="add", task_queue="other", activity_id="unwanted")
        server.kill()
        server.restart()
        await unwanted.cancel(reason="not needed")
        with pytest.raises(WorkflowCancelled):
            await ended(unwanted)
        waiting = await client.list_activities(status="running")
        assert [job.activity_id for job in waiting.activities] == ["sum"]
        assert waiting.activities[0].schedule_to_close_deadline_at is not None
    async with working(server, workflows=[]) as desk:
        assert await ended(desk.client.get_activity_handle("sum")) == 5
