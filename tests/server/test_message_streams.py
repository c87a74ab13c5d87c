"""Message streams over HTTP: input that a workflow reads in order, told to workers as a signal of a fixed name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backstay import AsyncClient, Backstay, activity, signal, wait, workflow
from backstay.codec import avro
from backstay.codec.values import dumps, loads
from backstay.protocol import commands as tell

from .kit import TOKEN, Api, blob, serving, value

SIGNAL = "__durable_workflow_message_stream"
WAIT = {"type": "open_condition_wait", "condition_key": "message-stream:in:0"}


async def send(api: Api, id: str, *values: Any, stream: str = "in", workflow_id: str = "o-1") -> Any:
    body = {"message_id": id, **({"input": blob(list(values))} if values else {})}
    return await api.control("POST", f"/workflows/{workflow_id}/message-streams/{stream}/messages", body)


def told(events: list[dict[str, Any]]) -> list[Any]:
    """What workers are told of streams, in order."""
    found = [event["payload"] for event in events if event["event_type"] == "SignalReceived"]
    assert {payload["signal_name"] for payload in found} <= {SIGNAL}
    return [loads(avro.from_text(payload["arguments"]))[0] for payload in found]


async def test_messages_reach_the_worker_in_order_and_cursors_are_recorded() -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        await api.complete(await api.poll(), WAIT, message_stream_waits=[{"stream_name": "in", "after_position": 0}])
        first = await send(api, "a", 1, "x")
        assert (first.status_code, first.json()["position"], first.json()["duplicate"]) == (202, 1, False)
        again = (await send(api, "a", 1, "x")).json()
        assert (again["position"], again["duplicate"], again["command_id"]) == (1, True, first.json()["command_id"])
        assert (await send(api, "b")).json()["position"] == 2
        task = await api.poll()
        messages = told(task["history_events"])
        assert [(m["schema"], m["stream_name"], m["message_id"], m["position"]) for m in messages] == [
            ("durable-workflow.v2.message-stream.message", "in", "a", 1),
            ("durable-workflow.v2.message-stream.message", "in", "b", 2),
        ]
        assert [value(message["payload_envelope"]) for message in messages] == [[1, "x"], []]
        done = await api.complete(
            task,
            {"type": "continue_as_new", "arguments": blob([])},
            message_stream_cursors=[{"stream_name": "in", "through_position": 1}],
        )
        assert done.status_code == 200, done.text
        task = await api.poll()
        carried = told(task["history_events"])
        assert carried[0] == {
            "schema": "durable-workflow.v2.message-stream.cursor",
            "stream_name": "in",
            "through_position": 1,
        }
        assert [message["position"] for message in carried[1:]] == [2]
        assert (await send(api, "c")).json()["position"] == 3
        runs = (await api.control("GET", "/workflows/o-1/runs")).json()["runs"]
        page = await api.control("GET", f"/workflows/o-1/runs/{runs[0]['run_id']}/history")
        advanced = [e["payload"] for e in page.json()["events"] if e["event_type"] == "MessageCursorAdvanced"]
        assert [(e["stream_key"], e["previous_position"], e["new_position"]) for e in advanced] == [("in", 0, 1)]


async def test_senders_that_race_with_one_id_are_told_one_position() -> None:
    async with serving() as api:
        await api.start()
        answers = await asyncio.gather(*(send(api, "a", 1) for _ in range(5)), *(send(api, "b", 2) for _ in range(5)))
        assert {answer.status_code for answer in answers} == {202}
        positions = [answer.json()["position"] for answer in answers]
        assert (set(positions[:5]) | set(positions[5:]), len(set(positions[:5]))) == ({1, 2}, 1)
        assert [answer.json()["duplicate"] for answer in answers].count(False) == 2
        async with AsyncClient(str(api.http.base_url), token=TOKEN) as client:
            again = tell.AppendMessage(workflow_id="o-1", stream_name="in", message_id="a", arguments=dumps([1]))
            assert (await client.call(again)).command.repeated


@pytest.mark.parametrize(
    ("stream", "body", "status", "reason"),
    [
        ("in", {}, 422, "validation_failed"),
        ("in", {"message_id": ""}, 422, "validation_failed"),
        ("in", {"message_id": "x" * 256}, 422, "validation_failed"),
        ("in", {"message_id": "m", "input": {"a": 1}}, 422, "invalid_payload"),
        ("in", {"message_id": "m", "input": {"codec": "json", "blob": ""}}, 422, "unsupported_payload_codec"),
        ("a%20b", {"message_id": "m"}, 422, "invalid_stream_name"),
        ("in", {"message_id": "known", "input": [2]}, 409, "request_id_conflict"),
    ],
)
async def test_a_message_that_cannot_be_is_refused(stream: str, body: Any, status: int, reason: str) -> None:
    async with serving() as api:
        await api.start()
        await send(api, "known", 1)
        before = await api.types()
        answer = await api.control("POST", f"/workflows/o-1/message-streams/{stream}/messages", body)
        assert (answer.status_code, answer.json()["reason"]) == (status, reason), answer.text
        assert await api.types() == before


async def test_a_message_that_is_too_large_or_has_no_open_run_or_no_role_is_refused() -> None:
    async with serving(worker_token="w", operator_token="o") as api:
        await api.register()
        assert (await send(api, "m", workflow_id="nobody")).json()["reason"] == "instance_not_found"
        await api.control("POST", "/activities", {"activity_type": "charge", "activity_id": "job"})
        assert (await send(api, "m", workflow_id="job")).json()["reason"] == "run_not_active"
        await api.start()
        large = await send(api, "m", "x" * 2_100_000)
        assert large.json()["reason"] in ("structural_limit_exceeded", "payload_too_large")
        path = "/workflows/o-1/message-streams/in/messages"
        assert (await api.control("POST", path, {"message_id": "m"}, token="w")).status_code == 403
        await api.complete(await api.poll(), {"type": "complete_workflow"})
        over = await send(api, "m")
        assert (over.status_code, over.json()["reason"]) == (409, "run_not_active")


@pytest.mark.parametrize(
    "cursors",
    [
        [{"stream_name": "in", "through_position": 5}],
        [{"stream_name": "unknown", "through_position": 1}],
        [{"stream_name": "in", "through_position": -1}],
        [{"stream_name": "in"}],
        "in",
    ],
)
async def test_a_completion_with_a_cursor_that_cannot_be_is_refused_whole(cursors: Any) -> None:
    async with serving() as api:
        await api.register()
        await api.start()
        await send(api, "a")
        task = await api.poll()
        answer = await api.complete(task, {"type": "complete_workflow"}, message_stream_cursors=cursors)
        assert answer.status_code == 422, answer.text
        assert (await api.describe())["is_terminal"] is False


async def test_the_server_says_that_it_delivers_messages() -> None:
    async with serving() as api:
        info = (await api.control("GET", "/cluster/info")).json()
        assert info["capabilities"]["message_streams"] is True
        assert info["worker_protocol"]["server_capabilities"]["message_streams"]["signal_name"] == SIGNAL


@activity(type="add")
def add(a: int, b: int) -> int:
    return a + b


@workflow(type="busy")
class Busy:
    told = 0

    @signal
    def tell(self, n: int) -> None:
        self.told = n

    def handle(self) -> int:
        three = add(1, 2)
        wait(lambda: self.told, key="told")
        return add(three, self.told)


def test_our_own_code_is_not_disturbed_by_messages(tmp_path: Any) -> None:
    def message(app: Backstay, id: str) -> int:
        return app.call(tell.AppendMessage(workflow_id="b-1", stream_name="in", message_id=id)).position

    with Backstay(tmp_path / "busy.db", [Busy], client_only=True) as app:
        app.start(Busy, "b-1")
        assert message(app, "a") == 1
    with Backstay(tmp_path / "busy.db", [Busy, add]) as app:
        assert message(app, "b") == 2
        handle = app.handle(Busy, "b-1")
        handle.signal(Busy.tell, 3)
        assert message(app, "a") == 1
        assert handle.result() == 6
