"""Output streams of runs over HTTP: appended by callers and by code, read from any offset, held until there is more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from backstay.store import RunFilter

from .kit import Api, blob, serving, settle, until, value


class Out:
    """One stream of one run."""

    def __init__(self, api: Api, run_id: str, name: str = "out", workflow_id: str = "o-1") -> None:
        self.api = api
        self.path = f"/workflows/{workflow_id}/runs/{run_id}/streams/{name}"

    async def append(self, *values: Any, **more: Any) -> Any:
        items = [{"payload": blob(value), "payload_codec": "avro"} for value in values]
        return await self.api.control("POST", f"{self.path}/items", {"items": items, **more})

    async def keyed(self, *keys: str, **more: Any) -> Any:
        items = [{"payload": blob(key), "idempotency_key": key} for key in keys]
        return await self.api.control("POST", f"{self.path}/items", {"items": items, **more})

    async def read(self, begin: int = 0, **more: Any) -> Any:
        asked = "&".join(f"{name}={given}" for name, given in {"from": begin, **more}.items())
        return (await self.api.control("GET", f"{self.path}/items?{asked}")).json()

    async def values(self, begin: int = 0, **more: Any) -> list[Any]:
        return [value(item["payload"]) for item in (await self.read(begin, **more))["items"]]

    async def close(self, **body: Any) -> Any:
        return await self.api.control("POST", f"{self.path}/close", body)

    async def describe(self) -> Any:
        return await self.api.control("GET", self.path)


async def reading(api: Api) -> None:
    """Wait until a reader waits, for a stream or for its run."""
    await until(lambda: len(api.server.parked) == 1 and len(list(api.server.engine.waiters)) > 0)
    await settle()


async def opened(api: Api, workflow_id: str = "o-1") -> Out:
    await api.register()
    return Out(api, (await api.start(workflow_id))["run_id"], workflow_id=workflow_id)


def written(operation: str = "append", *values: Any, name: str = "out", task: str = "t", **more: Any) -> dict[str, Any]:
    items = [
        {"payload": blob(value), "payload_codec": "avro", "idempotency_key": f"dw-stream:{task}:{value}"}
        for value in values
    ]
    directive = {"operation": operation, "stream_name": name, "command_identity": task, "command_ordinal": 0, **more}
    if items:
        directive["items"] = items
    return {"type": "record_side_effect", "result": blob(None)["blob"], "workflow_stream": directive}


async def test_items_keep_their_offsets_and_are_read_from_any_of_them() -> None:
    async with serving() as api:
        out = await opened(api)
        answer = (await out.append("a", {"n": 1}, item_type=None)).json()
        assert (answer["accepted_offsets"], answer["accepted"], answer["deduped"]) == ([0, 1], 2, 0)
        extra = {"payload": blob("c"), "item_type": "row", "content_type": "text/plain", "payload_reference": "s3://x"}
        await api.control("POST", f"{out.path}/items", {"items": [extra]})
        page = await out.read()
        assert [value(item["payload"]) for item in page["items"]] == ["a", {"n": 1}, "c"]
        assert (page["next_offset"], page["terminal"], page["stream"]["status"]) == (3, False, "open")
        last = page["items"][2]
        assert (last["offset"], last["item_type"], last["content_type"], last["payload_reference"], last["origin"]) == (
            2,
            "row",
            "text/plain",
            "s3://x",
            "api",
        )
        assert await out.values(1, max_items=1) == [{"n": 1}]
        assert (await out.read(7))["next_offset"] == 7
        found = (await out.describe()).json()["stream"]
        assert (found["total_items"], found["last_offset"], found["closed_at"]) == (3, 2, None)
        listed = (await api.control("GET", out.path.removesuffix("/out"))).json()
        assert [stream["stream_name"] for stream in listed["streams"]] == ["out"]
        assert (await api.types())[2:] == [], "the history of the run does not grow with its streams"


async def test_a_key_is_taken_once() -> None:
    async with serving() as api:
        out = await opened(api)
        await out.keyed("a", "b")
        again = (await out.keyed("b", "c")).json()
        assert (again["accepted_offsets"], again["offsets"], again["deduped"]) == ([2], [1, 2], 1)
        assert await out.values() == ["a", "b", "c"]


async def test_a_full_stream_takes_more_when_a_reader_has_gone_on() -> None:
    async with serving() as api:
        out = await opened(api)
        await out.append(1, 2, max_pending_items=2)
        refused = await out.append(3, max_pending_items=2)
        assert (refused.status_code, refused.json()["reason"], refused.json()["pending_items"]) == (
            409,
            "stream_full",
            2,
        )
        await out.read(0)
        assert (await out.append(3, max_pending_items=2)).status_code == 409, "read, but not gone past"
        await out.read(1)
        assert (await out.append(3, max_pending_items=2)).status_code == 200
        assert (await out.describe()).json()["stream"]["pending_items"] == 2


async def test_code_writes_in_the_commit_of_its_task_and_ends_its_streams() -> None:
    async with serving() as api:
        out = await opened(api)
        task = await api.poll()
        answer = await api.complete(
            task,
            written("append", "a", "b"),
            written("error", name="bad", error_reason="broke", retention_seconds=60),
            {"type": "start_timer", "delay_seconds": 60},
        )
        assert answer.status_code == 200, answer.text
        assert await out.values() == ["a", "b"]
        item = (await out.read())["items"][0]
        assert (item["origin"], item["origin_reference"]) == ("workflow", "t")
        bad = (await api.control("GET", out.path.replace("/out", "/bad"))).json()["stream"]
        assert (bad["status"], bad["error_reason"], bad["retention_seconds"], bad["total_items"]) == (
            "errored",
            "broke",
            60,
            0,
        )
        assert (await api.types())[2:] == ["SideEffectRecorded", "SideEffectRecorded", "TimerScheduled"]
        again = await api.complete(task, written("append", "a", "b"))
        assert again.status_code in (200, 409)
        assert await out.values() == ["a", "b"]


@pytest.mark.parametrize(
    ("commands", "reason"),
    [
        ([written("append", "a", name="closed")], "stream_closed"),
        ([written("append", "a", "b", max_pending_items=1)], "stream_full"),
        ([written("append", "a"), written("append", "b", task="u", max_pending_items=1)], "stream_full"),
        ([written("close"), written("append", "a")], "stream_closed"),
        ([written("append")], "invalid_stream_items"),
        ([written("append", "a", name="a b")], "invalid_stream_name"),
        ([written("error")], "invalid_commands"),
        ([written("replace", "a")], "validation_failed"),
    ],
)
async def test_a_completion_that_cannot_write_is_refused_whole(commands: list[Any], reason: str) -> None:
    async with serving() as api:
        out = await opened(api)
        await Out(api, out.path.split("/")[4], "closed").close()
        answer = await api.complete(await api.poll(), *commands, {"type": "complete_workflow"})
        assert answer.json()["reason"] == reason, answer.text
        assert 400 <= answer.status_code < 500
        assert (await api.types())[2:] == []
        assert (await out.describe()).status_code == 404


async def test_a_reader_is_held_until_there_is_an_item_or_an_end() -> None:
    async with serving() as api:
        out = await opened(api)
        await out.append("first")
        held = asyncio.create_task(out.read(1, wait_seconds=60))
        await reading(api)
        await out.append("second")
        assert [value(item["payload"]) for item in (await held)["items"]] == ["second"]
        held = asyncio.create_task(out.read(2, wait_seconds=60))
        await reading(api)
        await out.close()
        page = await held
        assert (page["items"], page["terminal"], page["stream"]["status"]) == ([], True, "closed")
        later = await out.read(0)
        assert (len(later["items"]), later["terminal"]) == (2, True)
        assert (await out.read(0, max_items=1))["terminal"] is False, "there is more to read"


async def test_a_reader_may_come_before_the_stream_and_outlive_the_run() -> None:
    async with serving() as api:
        out = await opened(api)
        assert (await out.read())["stream"]["status"] == "open"
        held = asyncio.create_task(out.read(0, wait_seconds=60))
        await reading(api)
        await out.append("a")
        await api.world.advance(0.2)
        assert len((await held)["items"]) == 1
        held = asyncio.create_task(out.read(1, wait_seconds=60))
        await reading(api)
        await api.complete(await api.poll(), written("append", "b"), {"type": "complete_workflow"})
        page = await held
        if not page["terminal"]:
            page = await out.read(page["next_offset"])
        assert (page["terminal"], page["stream"]["status"]) == (True, "closed")
        assert await out.values() == ["a", "b"]
        late = await out.append("c")
        assert (late.status_code, late.json()["reason"]) == (409, "stream_closed")
        assert (await Out(api, out.path.split("/")[4], "other").describe()).status_code == 404


async def test_a_reader_is_answered_when_its_time_is_over_or_the_server_drains() -> None:
    async with serving() as api:
        out = await opened(api)
        await out.append("a")
        held = asyncio.create_task(out.read(1, wait_seconds=5))
        await reading(api)
        await api.world.advance(6)
        assert ((await held)["items"], (await held)["next_offset"]) == ([], 1)
        held = asyncio.create_task(out.read(1, wait_seconds=60))
        await reading(api)
        api.server.drain()
        assert (await held)["items"] == []


async def test_a_long_stream_is_read_over_its_parts() -> None:
    async with serving() as api:
        out = await opened(api)
        for begin in range(0, 2300, 460):
            await out.append(*range(begin, begin + 460))
        assert await out.values(990, max_items=500) == list(range(990, 1490))
        assert await out.values(2299) == [2299]
        assert len((await out.read(0, max_items=900))["items"]) == 500


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"items": []}, "validation_failed"),
        ({"items": [{"payload": blob(1)}] * 501}, "validation_failed"),
        ({"items": [{}]}, "invalid_stream_items"),
        ({"items": [{"payload": {"codec": "json", "blob": "e30="}}]}, "unsupported_payload_codec"),
        ({"items": [{"payload": 1, "payload_codec": "json"}]}, "unsupported_payload_codec"),
        ({"items": [{"payload": {"codec": "avro", "blob": "!"}}]}, "invalid_payload_framing"),
        ({"items": [{"payload": {"codec": "avro", "external_storage": {}}}]}, "external_payload_unsupported"),
        ({"items": [{"payload": 1, "idempotency_key": ""}]}, "validation_failed"),
        ({"items": [{"payload": 1}], "max_pending_items": 0}, "validation_failed"),
    ],
)
async def test_a_stream_item_that_cannot_be_appended_is_refused(body: Any, reason: str) -> None:
    async with serving() as api:
        out = await opened(api)
        answer = await api.control("POST", f"{out.path}/items", body)
        assert (answer.status_code, answer.json()["reason"]) == (422, reason), answer.text
        assert (await out.describe()).json()["reason"] == "stream_not_found"


async def test_a_stream_request_with_an_unknown_run_a_malformed_name_or_a_wrong_role_is_refused() -> None:
    async with serving(worker_token="w", operator_token="o") as api:
        out = await opened(api)
        assert (await Out(api, "nobody").append(1)).json()["reason"] == "run_not_found"
        assert (await Out(api, out.path.split("/")[4], workflow_id="other").describe()).json()[
            "reason"
        ] == "run_not_found"
        assert (await Out(api, out.path.split("/")[4], "no%20name").append(1)).json()["reason"] == "invalid_stream_name"
        long = Out(api, out.path.split("/")[4], "x" * 129)
        for answer in (await long.append(1), await long.close(), await long.describe()):
            assert (answer.status_code, answer.json()["reason"]) == (422, "invalid_stream_name")
        assert (await long.read())["reason"] == "invalid_stream_name"
        for query in ("from=-1", "max_items=0", "wait_seconds=x"):
            answer = await api.control("GET", f"{out.path}/items?{query}")
            assert (answer.status_code, answer.json()["reason"]) == (422, "validation_failed")
        large = await out.append("x" * 2_100_000)
        assert large.json()["reason"] in ("structural_limit_exceeded", "payload_too_large")
        await out.close(error_reason="broke")
        assert (await out.close()).json()["reason"] == "stream_closed"
        assert (await out.close(error_reason="broke")).status_code == 200
        forbidden = await api.control("GET", out.path, token="w")
        assert forbidden.status_code == 403


async def test_streams_go_when_they_were_to_be_kept_no_longer_and_with_their_run() -> None:
    async with serving() as api:
        out = await opened(api)
        short = Out(api, out.path.split("/")[4], "short")
        await short.append(*range(10))
        await short.close(retention_seconds=60)
        await out.append("kept")
        await api.complete(await api.poll(), {"type": "complete_workflow"})
        assert (await short.read())["terminal"] is True
        await api.world.advance(61)
        assert (await short.describe()).status_code == 404
        await api.control("POST", "/system/retention/pass", {})
        assert await streams(api) == [out.path.rpartition("/")[2]]
        await api.world.advance(40 * 86_400)
        await api.control("POST", "/system/retention/pass", {})
        assert await streams(api) == []


async def streams(api: Api) -> list[str]:
    """The names of all that are stored."""
    rows = await api.server.engine.store.runs(RunFilter(namespace="default/streams"))
    return [row.workflow_id.partition(":")[2] for row in rows]


async def test_the_server_says_what_it_keeps() -> None:
    async with serving() as api:
        info = (await api.control("GET", "/cluster/info")).json()
        assert info["capabilities"]["workflow_streams"] is True
        assert info["worker_protocol"]["server_capabilities"]["workflow_streams"]["supported"] is True
