"""The short way of our own callers and the ordinary way give the same answers, byte for byte after the head."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from backstay.protocol.native import client as calls
from backstay.protocol.native import worker as wire
from backstay.server import direct
from backstay.server.app import App

from .kit import TOKEN, Api, serving, until

OURS = {"X-Namespace": "default", calls.HEADER: str(calls.VERSION), "Content-Type": "application/json"}
MINE = OURS | {"Authorization": f"Bearer {TOKEN}"}


class Line:
    """One connection, and the bytes that are sent over it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, text: bytes) -> None:
        self.writer.write(text)

    async def reply(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return int(first.split()[1]), headers, await self.reader.readexactly(int(headers["content-length"]))

    async def ask(self, text: bytes) -> tuple[int, dict[str, str], bytes]:
        self.send(text)
        return await self.reply()


@asynccontextmanager
async def line(api: Api) -> AsyncIterator[Line]:
    url = api.http.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        yield Line(reader, writer)
    finally:
        writer.close()


def request(path: str, body: bytes, headers: dict[str, str] = MINE, *, ordinary: bool = False) -> bytes:
    """As our own client sends it; `ordinary`: its length is not the last that is said, so it goes the other way."""
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    last = "X-More: 1\r\n" if ordinary else ""
    return f"POST {path} HTTP/1.1\r\nHost: here\r\n{head}Content-Length: {len(body)}\r\n{last}\r\n".encode() + body


def call(verb: str, *, ordinary: bool = False, headers: dict[str, str] = MINE, **fields: Any) -> bytes:
    return request(calls.PATH + verb, msgspec.json.encode(fields), headers, ordinary=ordinary)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which way each request went."""
    went: list[str] = []
    take, ordinary = direct.Protocol._take, App._send

    def short(self: direct.Protocol, *given: Any) -> None:
        went.append("short")
        take(self, *given)

    async def long(self: App, *given: Any) -> None:
        went.append("ordinary")
        await ordinary(self, *given)

    monkeypatch.setattr(direct.Protocol, "_take", short)
    monkeypatch.setattr(App, "_send", long)
    return went


# What is wrong, and whether that is found out on the short way.
BAD: dict[str, tuple[dict[str, Any], int, bool]] = {
    "no such workflow": ({"workflow_id": "nobody"}, 409, True),
    "no such namespace": ({"workflow_id": "a", "headers": MINE | {"X-Namespace": "elsewhere"}}, 404, True),
    "no token": ({"workflow_id": "a", "headers": OURS}, 401, True),
    "a wrong token": ({"workflow_id": "a", "headers": OURS | {"Authorization": "Bearer guess"}}, 401, True),
    "another protocol": ({"workflow_id": "a", "headers": MINE | {calls.HEADER: "0"}}, 400, False),
    "no protocol": ({"workflow_id": "a", "headers": {"Authorization": f"Bearer {TOKEN}"}}, 400, False),
    "not JSON, as it says": ({"workflow_id": "a", "headers": MINE | {"Content-Type": "text/plain"}}, 415, False),
    "a field of another type": ({"workflow_id": 3}, 422, True),
    "a field missing": ({}, 422, True),
}


@pytest.mark.parametrize("name", BAD)
async def test_what_is_refused_is_refused_alike(name: str, ways: list[str]) -> None:
    given, status, short = BAD[name]
    async with serving() as api, line(api) as ours:
        replies = [await ours.ask(call("describe-workflow", **given, ordinary=other)) for other in (False, True)]
        assert [reply[0] for reply in replies] == [status, status]
        assert replies[0] == replies[1]
    assert ways == ["short" if short else "ordinary", "ordinary"]


async def test_what_is_answered_is_answered_alike(ways: list[str]) -> None:
    async with serving() as api, line(api) as ours:
        await api.start("a")
        ways.clear()
        replies = [await ours.ask(call("describe-workflow", workflow_id="a", ordinary=way)) for way in (False, True)]
        assert replies[0] == replies[1]
        assert msgspec.json.decode(replies[0][2])["workflow_id"] == "a"
    assert ways == ["short", "ordinary"]


async def test_a_token_that_is_revoked_opens_nothing_on_an_open_connection(ways: list[str]) -> None:
    async with serving() as api, line(api) as ours:
        made = (await api.control("POST", "/tokens", {"role": "operator", "name": "soon gone"})).json()
        headers = OURS | {"Authorization": f"Bearer {made['token']}"}
        await api.start("a")
        ways.clear()
        asked = call("describe-workflow", workflow_id="a", headers=headers)
        assert (await ours.ask(asked))[0] == 200
        assert ways == ["short"]
        await api.control("DELETE", f"/tokens/{made['token_id']}")
        assert (await ours.ask(asked))[0] == 401


@pytest.mark.parametrize("cut", [10, 60, 200, -5, -1])
async def test_a_request_in_pieces_goes_the_ordinary_way(cut: int, ways: list[str]) -> None:
    async with serving() as api, line(api) as ours:
        await api.start("a")
        ways.clear()
        text = call("describe-workflow", workflow_id="a")
        ours.send(text[:cut])
        await ours.writer.drain()
        for _ in range(20):
            await asyncio.sleep(0)
        ours.send(text[cut:])
        assert (await ours.reply())[0] == 200
        assert (await ours.ask(text))[0] == 200, "and the next one is read from its beginning"
    assert ways[-1] == "short"


async def test_requests_that_come_before_the_reply_are_answered_in_order() -> None:
    async with serving() as api, line(api) as ours:
        await api.start("a")
        ours.send(call("await-result", workflow_id="a"))
        await until(lambda: api.server.parked == 1)
        ours.send(call("describe-workflow", workflow_id="nobody") + call("describe-workflow", workflow_id="a"))
        await api.control("POST", "/workflows/a/cancel", {})
        assert msgspec.json.decode((await ours.reply())[2])["status"] == "cancelled"
        assert [(await ours.reply())[0] for _ in range(2)] == [409, 200]


async def test_several_at_once_are_answered_in_order() -> None:
    async with serving() as api, line(api) as ours:
        await api.start("a")
        ours.send(call("describe-workflow", workflow_id="nobody") + call("describe-workflow", workflow_id="a"))
        assert [(await ours.reply())[0] for _ in range(2)] == [409, 200]


async def test_who_hangs_up_waits_no_longer() -> None:
    async with serving() as api:
        await api.start("a")
        async with line(api) as ours:
            ours.send(call("await-result", workflow_id="a"))
            await until(lambda: api.server.parked == 1)
        await until(lambda: api.server.parked == 0)
        assert not api.server.waiting


async def test_a_body_that_is_too_large_is_refused(ways: list[str]) -> None:
    async with serving(max_body_bytes=500) as api, line(api) as ours:
        reply = await ours.ask(call("describe-workflow", workflow_id="a" * 600))
        assert (reply[0], msgspec.json.decode(reply[2])["reason"]) == (413, "payload_too_large")
    assert ways == ["ordinary"]


@pytest.mark.parametrize("header", ["Transfer-Encoding: chunked", "Content-Length: 3", "Connection: close"])
async def test_a_head_that_says_otherwise_is_for_the_ordinary_way(header: str, ways: list[str]) -> None:
    """Two readers who find different ends to a request let somebody put a request of their own in between."""
    name, _, value = header.partition(": ")
    async with serving() as api, line(api) as ours:
        ours.send(call("describe-workflow", workflow_id="nobody", headers=MINE | {name: value}))
        status, headers, _ = await ours.reply()
        assert status in (400, 409)
        assert headers["connection"] == "close"
    assert "short" not in ways


LIST = b'{"limit":1}'
TWO_LENGTHS = "Content-Length: 4\r\nTransfer-Encoding: chunked"


@pytest.mark.parametrize(
    "lengths",
    [
        "Content-Length: 5\r\nContent-Length: 11",
        "content-length: 5\r\nContent-Length: 11",
        "Content-Length: +11",
        "Content-Length: -1",
        "Content-Length: 99999999999999999999999",
        "Content-Length: 11, 11",
        f"{TWO_LENGTHS}",
        "Transfer-Encoding: chunked\r\nContent-Length: 11",
        "Transfer-Encoding: xchunked\r\nContent-Length: 11",
        "Transfer-Encoding:\r\n chunked\r\nContent-Length: 11",
        "Transfer-Encoding : chunked\r\nContent-Length: 11",
        "X: a\rY: b\r\nContent-Length: 11",
        "X: a\0b\r\nContent-Length: 11",
    ],
)
async def test_a_head_that_can_be_read_in_two_ways_is_read_in_none(lengths: str) -> None:
    """Of what stands behind it nothing may be taken for a request."""
    async with serving() as api, line(api) as ours:
        smuggled = call("start-workflow", workflow_type="t", workflow_id="smuggled")
        head = "".join(f"{name}: {value}\r\n" for name, value in MINE.items())
        first = f"POST {calls.PATH}list-workflows HTTP/1.1\r\nHost: here\r\n{head}{lengths}\r\n\r\n".encode()
        ours.send(first + LIST + smuggled)
        ours.writer.write_eof()
        answers = await asyncio.wait_for(ours.reader.read(), 30)
        assert answers.startswith(b"HTTP/1.1 400"), answers[:100]
        assert answers.count(b"HTTP/1.1 ") == 1
        assert await api.server.engine.store.find("default", "smuggled") is None
        assert (await api.http.get("/api/health")).status_code == 200


# -- stations


def exchange(api: Api, station: str, wait: float, *, ordinary: bool = False) -> bytes:
    body = wire.encode(wire.Exchange(worker_id="w", station=station, wait=wait))
    return request(wire.EXCHANGE, body, ordinary=ordinary)


async def opened(ours: Line) -> str:
    opening = wire.OpenLink(worker_id="w", queues=["q"], activities=["charge"])
    status, _, body = await ours.ask(request(wire.OPEN, wire.encode(opening)))
    assert status == 200
    return wire.decode_opened(body).station


@pytest.mark.parametrize("ordinary", [False, True])
async def test_a_worker_that_hangs_up_is_not_parked_any_more(ordinary: bool) -> None:
    async with serving() as api:
        async with line(api) as ours:
            station = await opened(ours)
            ours.send(exchange(api, station, 20, ordinary=ordinary))
            await until(lambda: api.server.parked == 1)
        await until(lambda: api.server.parked == 0)


@pytest.mark.parametrize("ordinary", [False, True])
async def test_a_parked_exchange_is_answered_when_its_time_is_over(ordinary: bool) -> None:
    async with serving() as api, line(api) as ours:
        reply = await ours.ask(exchange(api, await opened(ours), 0.01, ordinary=ordinary))
        assert (reply[0], wire.decode_exchanged(reply[2])) == (200, wire.Exchanged())
        assert api.server.parked == 0


@pytest.mark.parametrize("ordinary", [False, True])
async def test_a_server_that_is_full_says_so_to_stations(ordinary: bool) -> None:
    async with serving(max_parked_polls=0) as api, line(api) as ours:
        status, headers, body = await ours.ask(exchange(api, await opened(ours), 20, ordinary=ordinary))
        assert (status, headers["retry-after"]) == (429, "1")
        assert msgspec.json.decode(body)["reason"] == "long_poll_capacity_exhausted"


async def test_a_server_that_stops_answers_what_is_parked_and_closes() -> None:
    async with serving() as api:
        url = api.http.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        ours = Line(reader, writer)
        ours.send(exchange(api, await opened(ours), 20))
        await until(lambda: api.server.parked == 1)
    _, _, body = await ours.reply()
    assert wire.decode_exchanged(body).leaving
    assert await reader.read() == b""
    writer.close()
