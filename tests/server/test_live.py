"""The live feed, as its readers see it: a real server, real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from backstay.server.operators import feed as feeding
from backstay.server.operators import feed_streams
from backstay.server.operators.feed_streams import LiveStream
from backstay.server.operators.feed_topics import FeedTopic, TopicName

from .kit import TOKEN, Api, serving, until


class Reader:
    """Reads the events of one stream."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()
        self.last_id = ""
        self.comments = 0

    async def next(self) -> tuple[str, dict[str, Any]]:
        """The next event: its name and its data."""
        name, data = "", ""
        async with asyncio.timeout(10):
            async for line in self._lines:
                if line.startswith(":"):
                    self.comments += 1
                elif line.startswith("id: "):
                    self.last_id = line[4:]
                elif line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    data = line[6:]
                elif not line and name:
                    return name, json.loads(data)
        raise AssertionError("the stream is over")

    async def moved(self, topic: str) -> dict[str, Any]:
        """The next frame of a topic."""
        while True:
            name, data = await self.next()
            assert name == "moved", (name, data)
            if data["topic"] == topic:
                return data

    async def rest(self) -> str:
        async with asyncio.timeout(10):
            return "".join([line async for line in self._lines])


@asynccontextmanager
async def listening(api: Api, *topics: str, token: str = TOKEN, **options: Any) -> AsyncGenerator[Reader]:
    headers = {"Authorization": f"Bearer {token}"} | options.pop("headers", {})
    params = httpx.QueryParams([("topic", topic) for topic in topics]).merge(options.pop("params", {}))
    async with api.http.stream("GET", "/api/live", params=params, headers=headers, **options) as response:
        if response.status_code != 200:
            await response.aread()
        yield Reader(response)


async def opened(reader: Reader) -> None:
    name, data = await reader.next()
    assert name == "open", (name, data)


async def test_a_list_is_told_how_many_runs_moved_and_up_to_where() -> None:
    async with serving() as api, listening(api, "runs") as reader:
        assert reader.response.headers["content-type"] == "text/event-stream"
        await opened(reader)
        await api.start("o-1")
        first = await reader.moved("runs")
        assert (first["changed"], first["started"], first["closed"], first["namespace"]) == (1, 1, 0, "default")
        assert "generated_at" in first
        for number in range(2, 8):
            await api.start(f"o-{number}")
        await api.control("POST", "/workflows/o-2/terminate", {})
        # The frames after the first are at least half a second apart, so these are in one or two.
        changed = started = closed = frames = 0
        while closed < 1:
            frame = await reader.moved("runs")
            frames += 1
            assert frame["sequence"] > first["sequence"]
            changed, started, closed = changed + frame["changed"], started + frame["started"], closed + frame["closed"]
        assert (started, closed) == (6, 1)
        assert 6 <= changed <= 7
        assert frames <= 2


async def test_a_quiet_list_is_told_of_a_change_together_with_what_follows_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feeding, "TOGETHER", 2.0)  # whatever else the machine does
    async with serving() as api, listening(api, "runs") as reader:
        await opened(reader)
        await api.start("o-1")
        await api.control("POST", "/workflows/o-1/terminate", {})
        frame = await reader.moved("runs")
        assert (frame["changed"], frame["started"], frame["closed"]) == (1, 1, 1)


async def test_a_run_is_told_up_to_which_event_and_its_status() -> None:
    async with serving() as api:
        started = await api.start("o-1")
        async with listening(api, "run:o-1") as reader:
            await opened(reader)
            begin = await reader.moved("run:o-1")
            events = await api.history("o-1")
            assert (begin["run_id"], begin["sequence"]) == (started["run_id"], events[-1]["sequence"])
            await api.start("o-2")  # is not listened to
            await api.control("POST", "/workflows/o-1/signal/approve", {})
            assert (await reader.moved("run:o-1"))["sequence"] > begin["sequence"]
            await api.control("POST", "/workflows/o-1/terminate", {})
            end = await reader.moved("run:o-1")
            assert end["status"] == "terminated"
            assert end["sequence"] == (await api.history("o-1"))[-1]["sequence"]


async def test_a_stream_has_several_topics_and_each_says_what_it_is_about() -> None:
    async with serving() as api:
        await api.start("o-1")
        topics = ("runs", "queues", "overview", "system", "run:o-1")
        async with listening(api, *topics) as reader:
            name, data = await reader.next()
            assert (name, data["topics"]) == ("open", list(topics))
            assert (await reader.moved("run:o-1"))["status"]
            await api.start("o-2")
            seen: dict[str, dict[str, Any]] = {}
            while len(seen) < 4:
                name, data = await reader.next()
                assert name == "moved"
                seen[data["topic"]] = data
            assert seen["queues"]["tasks"] == 1
            assert seen["system"]["engine"] == "running"
            assert set(seen) == {"runs", "queues", "overview", "system"}


async def test_a_bound_token_hears_of_the_system_what_moves_in_its_namespace() -> None:
    async with serving() as api:
        await api.control("POST", "/namespaces", {"name": "team"})
        token = (await api.control("POST", "/tokens", {"role": "viewer", "namespace": "team"})).json()["token"]
        theirs = {"X-Namespace": "team", "Authorization": f"Bearer {token}"}
        async with listening(api, "system") as reader, listening(api, "system", headers=theirs) as bound:
            await opened(reader)
            await opened(bound)
            topic = api.server.control.feed.topic(TopicName("system", "team"))
            assert topic is not None
            await api.start("o-1")
            await reader.moved("system")
            assert not topic.frames
            body = {"workflow_type": "order", "workflow_id": "x-1"}
            await api.control("POST", "/workflows", body, headers={"X-Namespace": "team"})
            assert (await bound.moved("system"))["topic"] == "system"
        refused = await api.control("GET", "/nodes", token=token, headers={"X-Namespace": "team"})
        assert (refused.status_code, refused.json()["reason"]) == (403, "forbidden")


async def test_another_namespace_is_not_heard_of() -> None:
    async with serving() as api:
        await api.control("POST", "/namespaces", {"name": "other"})
        async with listening(api, "runs") as reader, listening(api, "runs", headers={"X-Namespace": "other"}) as other:
            await opened(reader)
            await opened(other)
            body = {"workflow_type": "order", "workflow_id": "x-1"}
            await api.control("POST", "/workflows", body, headers={"X-Namespace": "other"})
            await api.start("o-1")
            assert (await other.moved("runs"))["namespace"] == "other"
            assert (await reader.moved("runs"))["started"] == 1


async def test_a_stream_that_comes_back_gets_what_it_missed() -> None:
    async with serving() as api:
        async with listening(api, "runs") as reader:
            await opened(reader)
            await api.start("o-1")
            await reader.moved("runs")
            last = reader.last_id
        await until(lambda: len(api.server.control.feed) == 0)
        await api.start("o-2")
        await api.start("o-3")
        topic = api.server.control.feed.topic(TopicName("runs", "default"))
        assert topic is not None
        await until(lambda: sum(counts.get("started") or 0 for _, counts in topic.frames) == 3)
        again: dict[str, Any]
        for again in ({"headers": {"Last-Event-ID": last}}, {"params": {"after": last}}):
            async with listening(api, "runs", **again) as reader:
                await opened(reader)
                missed = await reader.moved("runs")
                assert (missed["started"], missed["closed"]) == (2, 0)
                now = reader.last_id
        async with listening(api, "runs", headers={"Last-Event-ID": now}) as reader:
            await opened(reader)
            await api.start("o-4")
            assert (await reader.moved("runs"))["started"] == 1  # and nothing before it


async def test_a_stream_whose_gap_is_unknown_is_told_to_reload(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'live.db'}"
    async with serving(store=store) as api, listening(api, "runs") as reader:
        await opened(reader)
        await api.start("o-1")
        await reader.moved("runs")
        last = reader.last_id
        # It has not listened to this topic before.
        async with listening(api, "queues", headers={"Last-Event-ID": last}) as other:
            assert (await other.next())[0] == "reload"
    async with serving(store=store) as api:  # the next process counts from the beginning
        async with listening(api, "runs", headers={"Last-Event-ID": last}) as reader:
            name, data = await reader.next()
            assert (name, data["reason"]) == ("reload", "gap_unknown")
            await api.start("o-2")
            assert (await reader.moved("runs"))["started"] == 1
        for nonsense in ("x", "x-1", f"{last}9999999", last + "x", "-"):
            async with listening(api, "runs", headers={"Last-Event-ID": nonsense}) as reader:
                assert (await reader.next())[0] == "reload"


async def test_a_drain_ends_every_stream_at_once() -> None:
    async with serving() as api, listening(api, "runs") as reader:
        await opened(reader)
        api.server.drain()
        name, data = await reader.next()
        assert (name, data["reason"]) == ("end", "server_draining")
        assert await reader.rest() == ""
        async with listening(api, "runs") as late:
            assert (late.response.status_code, late.response.json()["reason"]) == (503, "server_draining")


async def test_a_slow_reader_is_told_to_reload_and_nothing_is_kept_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that does not read fills its socket; what moves meanwhile is not kept. When it reads again, it is told."""
    monkeypatch.setattr(feeding, "LISTS_EVERY", 0.0)
    async with serving() as api:
        port = api.http.base_url.port
        assert port is not None
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, ("127.0.0.1", port))
            request = f"GET /api/live?topic=runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
            await loop.sock_sendall(slow, request.encode())
            await until(lambda: len(api.server.control.feed) == 1)
            (stream,) = streams(api)
            topic = api.server.control.feed.topic(TopicName("runs", "default"))
            assert topic is not None
            padding = {"padding": "x" * 60_000}
            while not stream.is_slow:  # frames as large as the socket's buffer is small
                topic.position = padding
                publish(api, topic)
                await asyncio.sleep(0)
            for _ in range(1000):
                publish(api, topic)
            assert stream.unsent_bytes == 0
            topic.position = {}
            received = b""
            while b"event: reload" not in received:
                received += await asyncio.wait_for(loop.sock_recv(slow, 1 << 20), 10)
            assert b"reader_too_slow" in received
            await until(lambda: not stream.is_slow)
            await api.start("o-1")
            received = b""
            while b'"started":1' not in received:
                received += await asyncio.wait_for(loop.sock_recv(slow, 1 << 20), 10)


async def test_a_drain_does_not_wait_for_a_reader_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(drain_seconds=60) as api:
        port = api.http.base_url.port
        assert port is not None
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, ("127.0.0.1", port))
            request = f"GET /api/live?topic=runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
            await loop.sock_sendall(slow, request.encode())
            await until(lambda: len(api.server.control.feed) == 1)
            (stream,) = streams(api)
            topic = api.server.control.feed.topic(TopicName("runs", "default"))
            assert topic is not None
            while not stream.is_slow:
                topic.position = {"padding": "x" * 60_000}
                publish(api, topic)
                await asyncio.sleep(0)
            api.server.drain()
            await until(lambda: len(api.server.control.feed) == 0)


def publish(api: Api, topic: FeedTopic) -> None:
    api.server.control.feed.publish(topic)


def streams(api: Api) -> list[LiveStream]:
    return list(api.server.control.feed.streams)


async def test_streams_are_limited_in_number_and_per_address() -> None:
    async with serving(max_live_streams_per_address=2, max_live_streams=3) as api:
        async with listening(api, "runs") as one, listening(api, "runs") as two:
            await opened(one)
            await opened(two)
            async with listening(api, "runs") as third:
                answer = third.response
                assert (answer.status_code, answer.json()["reason"]) == (429, "too_many_live_streams_from_address")
                assert answer.headers["retry-after"]
        await until(lambda: len(api.server.control.feed) == 0)
        async with listening(api, "runs") as again:
            await opened(again)
    async with serving(max_live_streams=1) as api, listening(api, "runs") as one:
        await opened(one)
        async with listening(api, "runs") as second:
            assert (second.response.status_code, second.response.json()["reason"]) == (429, "too_many_live_streams")


@pytest.mark.parametrize(
    ("topics", "reason", "said"),
    [
        (("rnus",), "unknown_topic", "did you mean 'runs'"),
        (("run",), "unknown_topic", "run:ID"),
        (("runn:o-1",), "unknown_topic", "'run:o-1'"),
        (("runs", "zzz"), "unknown_topic", "there are runs"),
        ((), "missing_topic", "name at least one"),
        (tuple(f"run:{n}" for n in range(60)), "too_many_topics", "at most 50"),
    ],
)
async def test_a_topic_that_does_not_exist_is_refused_with_the_nearest(
    topics: tuple[str, ...], reason: str, said: str
) -> None:
    async with serving() as api, listening(api, *topics) as reader:
        answer = reader.response
        assert (answer.status_code, answer.json()["reason"], answer.json()["field"]) == (422, reason, "topic")
        assert said in answer.json()["message"]


async def test_a_run_that_does_not_exist_is_not_found() -> None:
    async with serving() as api, listening(api, "run:nobody") as reader:
        assert (reader.response.status_code, reader.response.json()["reason"]) == (404, "instance_not_found")


async def test_a_stream_ends_with_its_credential() -> None:
    async with serving() as api:
        made = (await api.control("POST", "/tokens", {"role": "operator"})).json()
        async with listening(api, "runs", token=made["token"]) as reader, listening(api, "runs") as mine:
            await opened(reader)
            await opened(mine)
            await api.control("DELETE", f"/tokens/{made['token_id']}")
            name, data = await reader.next()
            assert (name, data["reason"]) == ("end", "credential_ended")
            await api.start("o-1")
            assert (await mine.moved("runs"))["started"] == 1


async def test_a_stream_of_a_browser_ends_when_it_signs_out() -> None:
    async with serving() as api:
        page = {"Origin": str(api.http.base_url), "Sec-Fetch-Site": "same-origin"}
        signed_in = await api.http.post(
            "/api/session", json={"token": TOKEN}, headers=page | {"X-Durable-Workflow-Control-Plane-Version": "2"}
        )
        assert signed_in.status_code in (200, 201), signed_in.text
        async with api.http.stream("GET", "/api/live?topic=runs", headers=page) as response:
            reader = Reader(response)
            await opened(reader)
            gone = await api.http.delete(
                "/api/session", headers=page | {"X-Durable-Workflow-Control-Plane-Version": "2"}
            )
            assert gone.status_code == 200, gone.text
            name, data = await reader.next()
            assert (name, data["reason"]) == ("end", "credential_ended")


async def test_a_quiet_stream_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_streams, "HEARTBEAT", 0.1)
    async with serving() as api, listening(api, "runs") as reader:
        await opened(reader)
        waiting = asyncio.ensure_future(reader.next())
        await until(lambda: reader.comments >= 2)
        await api.start("o-1")
        assert (await waiting)[0] == "moved"


async def test_a_commit_of_another_process_is_told_as_such(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'live.db'}"
    async with serving(store=store, still=False) as holder, serving(store=store, still=False) as standby:
        assert holder.server.engine.holder
        assert not standby.server.engine.holder
        await holder.start("o-1")
        async with listening(standby, "runs", "run:o-1", "system") as reader:
            await opened(reader)
            before = await reader.moved("run:o-1")
            await holder.control("POST", "/workflows/o-1/terminate", {})
            seen: dict[str, dict[str, Any]] = {}
            while seen.keys() != {"runs", "run:o-1", "system"}:
                _, data = await reader.next()
                if data["topic"] != "run:o-1" or data["sequence"] > before["sequence"]:
                    seen[data["topic"]] = data
            assert seen["runs"]["changed"] is None
            assert seen["run:o-1"]["status"] == "terminated"
            assert seen["system"]["engine"] == "standby"


async def test_an_engine_without_listeners_does_nothing_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "LINGER", 0.0)
    async with serving() as api:
        assert not api.server.control.feed.watching
        async with listening(api, "runs") as reader:
            await opened(reader)
            assert api.server.control.feed.watching
        await until(lambda: not api.server.control.feed.watching)
