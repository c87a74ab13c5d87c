"""Output streams of the published package: written by workflow code and by a client, followed by a reader."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from durable_workflow import Client, workflow
from durable_workflow.client import WorkflowStreamAppendItem
from durable_workflow.errors import ServerError
from durable_workflow.history_bundle_verify import verify_bundle

from .conftest import TOKEN, Running
from .test_published_sdk import working


@workflow.defn(name="narrator")
class Narrator:
    """Writes around steps that make it replay, then ends one stream well and one badly."""

    def run(self, ctx: Any, count: int) -> Any:
        for n in range(count):
            yield ctx.append_workflow_stream("out", [WorkflowStreamAppendItem({"n": n}, item_type="step")])
            yield ctx.schedule_activity("add", [n, 1])
        yield ctx.append_workflow_stream("bad", [WorkflowStreamAppendItem("half")])
        yield ctx.error_workflow_stream("bad", "broke", retention_seconds=3600)
        yield ctx.append_workflow_stream("out", [WorkflowStreamAppendItem("last"), WorkflowStreamAppendItem("item")])
        yield ctx.close_workflow_stream("out")
        return count


@workflow.defn(name="pusher")
class Pusher:
    """Writes no more than two items ahead of its reader."""

    def run(self, ctx: Any) -> Any:
        for n in range(4):
            yield ctx.append_workflow_stream("out", [WorkflowStreamAppendItem(n)], max_pending_items=2)
            yield ctx.schedule_activity("add", [n, 1])
        return "done"


async def followed(client: Client, workflow_id: str, run_id: str, name: str = "out") -> list[Any]:
    found = client.iter_workflow_stream(workflow_id, run_id, name, wait_seconds=20)
    return [item.payload async for item in found]


async def test_a_reader_follows_what_code_writes_until_it_closes(server: Running) -> None:
    async with working(server, workflows=[Narrator]) as desk:
        client = desk.client
        handle = await desk.start("narrator", 3, id="n-1")
        said = await followed(client, "n-1", handle.run_id)
        assert said == [{"n": 0}, {"n": 1}, {"n": 2}, "last", "item"]
        assert await desk.result("n-1") == 3
        out, bad = sorted(
            await client.list_workflow_streams("n-1", handle.run_id), key=lambda found: found.stream_name == "bad"
        )
        assert (out.status, out.total_items, out.last_offset) == ("closed", 5, 4)
        assert (bad.status, bad.error_reason, bad.retention_seconds) == ("errored", "broke", 3600)
        page = await client.subscribe_workflow_stream("n-1", handle.run_id, "out", from_offset=1, max_items=1)
        assert [(item.offset, item.item_type, item.origin) for item in page.items] == [(1, "step", "workflow")]
        report = verify_bundle(await client.export_history("n-1", handle.run_id))
        assert (report["status"], report["findings"]) == ("ok", []), report


async def test_code_waits_for_its_reader(server: Running) -> None:
    async with working(server, workflows=[Pusher]) as desk:
        handle = await desk.start("pusher", id="p-1")
        client = desk.client
        page = await client.subscribe_workflow_stream("p-1", handle.run_id, "out", wait_seconds=20)
        assert page.items[0].payload == 0
        statuses: list[str] = []
        while "failed" not in statuses:  # its task: the run goes on when there is room
            detail = await client._request("GET", "/workflows/p-1/detail")
            statuses = [task["status"] for task in detail["tasks"] if task["type"] == "workflow"]
        described = await client.describe_workflow_stream("p-1", handle.run_id, "out")
        assert (described.total_items, described.pending_items) == (2, 2)
        assert await followed(client, "p-1", handle.run_id) == [0, 1, 2, 3]
        assert await desk.result("p-1") == "done"


async def test_items_survive_the_death_of_the_server(server: Running) -> None:
    async with Client(server.url, token=TOKEN) as client:
        handle = await client.start_workflow(workflow_type="nobody", workflow_id="w", task_queue="q")
        assert handle.run_id is not None
        keyed = [WorkflowStreamAppendItem(n, idempotency_key=f"k{n}") for n in range(3)]
        first = await client.append_workflow_stream("w", handle.run_id, "out", keyed)
        assert (first.accepted_offsets, first.deduplicated_count) == ([0, 1, 2], 0)
        server.kill()
        server.restart()
        again = await client.append_workflow_stream("w", handle.run_id, "out", keyed)
        assert (again.accepted_count, again.deduplicated_count) == (0, 3)
        following = asyncio.create_task(followed(client, "w", handle.run_id))
        await client.append_workflow_stream("w", handle.run_id, "out", [WorkflowStreamAppendItem("more")])
        closed = await client.close_workflow_stream("w", handle.run_id, "out")
        assert (closed.terminal, closed.total_items) == (True, 4)
        assert await following == [0, 1, 2, "more"]
        with pytest.raises(ServerError, match="nothing can be appended"):
            await client.append_workflow_stream("w", handle.run_id, "out", keyed[:1])
