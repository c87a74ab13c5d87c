"""Message streams of the published package: received in order, once, over continue-as-new and the death of the server."""

from __future__ import annotations

from typing import Any

from durable_workflow import Client, workflow
from durable_workflow.history_bundle_verify import verify_bundle

from .conftest import TOKEN, Running
from .test_published_sdk import working


@workflow.defn(name="reader")
class Reader:
    """Adds up what comes, continuing as new after every second message, until told to stop."""

    def run(self, ctx: Any, so_far: list[Any]) -> Any:
        stream = ctx.message_stream("numbers")
        for _ in range(2):
            message = yield from stream.receive_one()
            if message.arguments == ["stop"]:
                rest = yield from ctx.message_stream("rest").receive(10)
                return [*so_far, [found.arguments[0] for found in rest]]
            so_far = [*so_far, [message.position, *message.arguments]]
            yield ctx.schedule_activity("add", [message.position, 1])
        yield ctx.continue_as_new(so_far)


async def say(client: Client, id: str, *arguments: Any, stream: str = "numbers") -> Any:
    return await client.append_message_stream("r-1", stream, id, args=list(arguments))


async def test_messages_are_read_once_in_order_over_many_runs(server: Running) -> None:
    async with working(server, workflows=[Reader]) as desk:
        client = desk.client
        first = await desk.start("reader", [], id="r-1")
        for n in range(5):
            assert (await say(client, f"m{n}", n))["position"] == n + 1
        assert (await say(client, "m0", 0))["position"] == 1, "once"
        await say(client, "r0", "x", stream="rest")
        await say(client, "r1", "y", stream="rest")
        await say(client, "end", "stop")
        result = await desk.result("r-1")
        assert result == [[1, 0], [2, 1], [3, 2], [4, 3], [5, 4], ["x", "y"]]
        runs = await client.list_workflow_runs("r-1")
        assert runs.run_count == 3
        for run in runs.runs:
            report = verify_bundle(await client.export_history("r-1", run.run_id))
            assert (report["status"], report["findings"]) == ("ok", []), report
        history = (await client.get_history("r-1", first.run_id))["events"]
        moved = [
            event["payload"]["new_position"] for event in history if event["event_type"] == "MessageCursorAdvanced"
        ]
        assert moved == [1, 2]


async def test_messages_survive_the_death_of_the_server(server: Running) -> None:
    async with Client(server.url, token=TOKEN) as client:
        await client.start_workflow(workflow_type="reader", workflow_id="r-1", task_queue="q", input=[[]])
        await say(client, "m0", 7)
        server.kill()
        server.restart()
        assert (await say(client, "m0", 7))["duplicate"] is True
        await say(client, "r0", "rest", stream="rest")
        await say(client, "end", "stop")
    async with working(server, workflows=[Reader]) as desk:
        assert await desk.result("r-1") == [[1, 7], ["rest"]]
