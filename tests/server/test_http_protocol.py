"""HTTP/1.1 as the server speaks it, byte by byte: heads that are known, pieces, pipelining, and hostile requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from backstay.protocol.native import client as calls
from backstay.protocol.native import worker as wire
from backstay.server.http.protocol import HEADS, HttpProtocol, KnownHead

from .kit import TOKEN, Api, serving, until

OURS = {"X-Namespace": "default", calls.HEADER: str(calls.VERSION), "Content-Type": "application/json"}
EMPTY_LIST = (200, {"content-type": "application/json", "content-length": "2"}, b"[]")
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


def request(path: str, body: bytes, headers: dict[str, str] = MINE, *, parsed: bool = False) -> bytes:
    """As our own client sends it. `parsed`: in a spelling under which no head is remembered."""
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    length = "content-length" if parsed else "Content-Length"
    return f"POST {path} HTTP/1.1\r\nHost: here\r\n{head}{length}: {len(body)}\r\n\r\n".encode() + body


def call(verb: str, *, parsed: bool = False, headers: dict[str, str] = MINE, **fields: Any) -> bytes:
    return request(calls.PATH + verb, msgspec.json.encode(fields), headers, parsed=parsed)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of requests whose heads were not parsed again."""
    found: list[str] = []
    receive = HttpProtocol._receive_known

    def receive_known(self: HttpProtocol, head: KnownHead, body: bytes, proof: bytes | None) -> None:
        found.append(head.route.path)
        receive(self, head, body, proof)

    monkeypatch.setattr(HttpProtocol, "_receive_known", receive_known)
    return found


# -- heads that were seen before


BAD: dict[str, tuple[dict[str, Any], int]] = {
    "no such workflow": ({"workflow_id": "nobody"}, 409),
    "no such namespace": ({"workflow_id": "a", "headers": MINE | {"X-Namespace": "elsewhere"}}, 404),
    "no token": ({"workflow_id": "a", "headers": OURS}, 401),
    "a wrong token": ({"workflow_id": "a", "headers": OURS | {"Authorization": "Bearer guess"}}, 401),
    "another protocol": ({"workflow_id": "a", "headers": MINE | {calls.HEADER: "0"}}, 400),
    "no protocol": ({"workflow_id": "a", "headers": {"Authorization": f"Bearer {TOKEN}"}}, 400),
    "not JSON, as it says": ({"workflow_id": "a", "headers": MINE | {"Content-Type": "text/plain"}}, 415),
    "a field of another type": ({"workflow_id": 3}, 422),
    "a field missing": ({}, 422),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_request_is_refused_alike_whether_its_head_is_parsed_or_known(name: str) -> None:
    given, status = BAD[name]
    async with serving() as api, line(api) as ours:
        replies = [await ours.ask(call("describe-workflow", **given, parsed=way)) for way in (False, False, True)]
        assert [reply[0] for reply in replies] == [status] * 3
        assert replies[0] == replies[1] == replies[2]


async def test_a_request_is_answered_alike_whether_its_head_is_parsed_or_known(known: list[str]) -> None:
    async with serving() as api, line(api) as ours:
        await api.start("a")
        asked = [call("describe-workflow", workflow_id="a", parsed=way) for way in (False, False, True)]
        replies = [await ours.ask(text) for text in asked]
        assert replies[0] == replies[1] == replies[2]
        assert msgspec.json.decode(replies[0][2])["workflow_id"] == "a"
    assert known == [calls.PATH + "describe-workflow"]


@pytest.mark.parametrize("place", [0, 2, 5])
async def test_a_head_is_known_wherever_its_length_stands(place: int, known: list[str]) -> None:
    async with serving() as api, line(api) as ours:
        for body in (b"{}", b'{"limit": 1}', b'{"limit": 100}'):
            lines = [f"{name}: {value}" for name, value in (MINE | {"Host": "here"}).items()]
            lines.insert(place, f"Content-Length: {len(body)}")
            head = "\r\n".join([f"POST {calls.PATH}list-workflows HTTP/1.1", *lines])
            assert await ours.ask(head.encode() + b"\r\n\r\n" + body) == EMPTY_LIST
    assert len(known) == 2


async def test_a_head_of_the_published_protocol_is_known_too(known: list[str]) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "X-Durable-Workflow-Protocol-Version": "1.20"}
    body = msgspec.json.encode({"worker_id": "w", "task_queue": "q", "timeout_seconds": 0})
    async with serving() as api, line(api) as ours:
        await api.register("w")
        text = request("/api/worker/workflow-tasks/poll", body, headers)
        replies = [await ours.ask(text) for _ in range(2)]
        assert replies[0][0] == 200
        assert replies[0] == replies[1]
    assert known == ["/api/worker/workflow-tasks/poll"]


async def test_a_revoked_token_opens_nothing_on_an_open_connection(known: list[str]) -> None:
    async with serving() as api, line(api) as ours:
        made = (await api.control("POST", "/tokens", {"role": "operator", "name": "soon gone"})).json()
        headers = OURS | {"Authorization": f"Bearer {made['token']}"}
        await api.start("a")
        asked = call("describe-workflow", workflow_id="a", headers=headers)
        assert [(await ours.ask(asked))[0] for _ in range(2)] == [200, 200]
        await api.control("DELETE", f"/tokens/{made['token_id']}")
        assert (await ours.ask(asked))[0] == 401
    assert len(known) == 2


async def test_a_connection_remembers_a_few_heads_only() -> None:
    async with serving() as api, line(api) as ours:
        for number in range(HEADS + 5):
            reply = await ours.ask(request(calls.PATH + "list-workflows", b"{}", MINE | {"X-N": str(number)}))
            assert reply == EMPTY_LIST


async def test_a_known_head_with_a_body_that_is_too_large_is_refused() -> None:
    async with serving(max_body_bytes=500) as api, line(api) as ours:
        assert (await ours.ask(call("describe-workflow", workflow_id="nobody")))[0] == 409
        reply = await ours.ask(call("describe-workflow", workflow_id="a" * 600))
        assert (reply[0], msgspec.json.decode(reply[2])["reason"]) == (413, "payload_too_large")


# -- pieces, and several at once


@pytest.mark.parametrize("cut", [10, 60, 200, -5, -1])
async def test_a_request_in_two_pieces_is_answered(cut: int, known: list[str]) -> None:
    async with serving() as api, line(api) as ours:
        await api.start("a")
        text = call("describe-workflow", workflow_id="a")
        ours.send(text[:cut])
        await ours.writer.drain()
        for _ in range(20):
            await asyncio.sleep(0)
        ours.send(text[cut:])
        assert (await ours.reply())[0] == 200
        assert [(await ours.ask(text))[0] for _ in range(2)] == [200, 200], "the next one is read from its beginning"
    assert known


async def test_a_request_byte_by_byte_is_answered() -> None:
    async with serving() as api, line(api) as ours:
        for byte in call("list-workflows"):
            ours.send(bytes([byte]))
            await ours.writer.drain()
            await asyncio.sleep(0)
        assert await ours.reply() == EMPTY_LIST


async def test_requests_before_the_reply_are_answered_in_order() -> None:
    async with serving() as api, line(api) as ours:
        await api.start("a")
        ours.send(call("await-result", workflow_id="a"))
        await until(lambda: len(api.server.parked) == 1)
        ours.send(call("describe-workflow", workflow_id="nobody") + call("describe-workflow", workflow_id="a"))
        await api.control("POST", "/workflows/a/cancel", {})
        assert msgspec.json.decode((await ours.reply())[2])["status"] == "cancelled"
        assert [(await ours.reply())[0] for _ in range(2)] == [409, 200]


@pytest.mark.parametrize("parsed", [False, True])
async def test_requests_in_one_read_are_answered_in_order(parsed: bool) -> None:
    async with serving() as api, line(api) as ours:
        await api.start("a")
        one, other = (call("describe-workflow", workflow_id=id, parsed=parsed) for id in ("nobody", "a"))
        health = b"GET /api/health HTTP/1.1\r\nHost: here\r\n\r\n"
        ours.send((one + health + other) * 100)
        assert [(await ours.reply())[0] for _ in range(300)] == [409, 200, 200] * 100


async def test_a_request_after_one_that_closes_the_connection_is_not_answered() -> None:
    async with serving() as api, line(api) as ours:
        start = call("start-workflow", workflow_type="t", workflow_id="late")
        ours.send(call("list-workflows", headers=MINE | {"Connection": "close"}) + start)
        ours.send(start)
        status, headers, body = await ours.reply()
        assert (status, headers["connection"], body) == (200, "close", b"[]")
        assert await ours.reader.read() == b""
        assert await api.server.engine.store.find("default", "late") is None


async def test_requests_before_one_that_cannot_be_read_are_answered_first() -> None:
    async with serving() as api, line(api) as ours:
        ours.send(call("list-workflows") * 2 + b"nonsense\r\n\r\n" + call("list-workflows"))
        assert [(await ours.reply())[0] for _ in range(3)] == [200, 200, 400]
        assert await ours.reader.read() == b""


# -- bodies


async def test_a_client_that_asks_first_is_told_to_send_its_body() -> None:
    async with serving() as api, line(api) as ours:
        text = call("list-workflows", headers=MINE | {"Expect": "100-continue"})
        head, _, body = text.partition(b"\r\n\r\n")
        ours.send(head + b"\r\n\r\n")
        assert await ours.reader.readexactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        ours.send(body)
        assert await ours.reply() == EMPTY_LIST
        assert await ours.ask(text) == EMPTY_LIST, "a body that is there is not asked for"


async def test_a_client_that_asks_first_and_is_refused_sends_no_body() -> None:
    async with serving() as api, line(api) as ours:
        ours.send(call("list-workflows", headers=OURS | {"Expect": "100-continue"}).partition(b"\r\n\r\n")[0])
        ours.send(b"\r\n\r\n")
        assert (await ours.reply())[0] == 401


async def test_a_body_that_announces_too_much_is_refused_before_it_is_read() -> None:
    async with serving(max_body_bytes=500) as api, line(api) as ours:
        ours.send(call("list-workflows").replace(b"Content-Length: 2\r\n\r\n{}", b"Content-Length: 501\r\n\r\n"))
        reply = await ours.reply()
        assert (reply[0], msgspec.json.decode(reply[2])["reason"]) == (413, "payload_too_large")


async def test_a_body_in_chunks_is_read(known: list[str]) -> None:
    async with serving() as api, line(api) as ours:
        chunked = call("list-workflows", headers=MINE | {"Transfer-Encoding": "chunked"})
        text = chunked.replace(b"Content-Length: 2\r\n\r\n{}", b"\r\n1;x=y\r\n{\r\n01\r\n}\r\n0\r\nX: 1\r\n\r\n")
        assert [await ours.ask(text) for _ in range(2)] == [EMPTY_LIST, EMPTY_LIST]
    assert not known


async def test_chunks_that_cannot_be_read_end_the_connection() -> None:
    async with serving() as api, line(api) as ours:
        chunked = call("list-workflows", headers=MINE | {"Transfer-Encoding": "chunked"})
        ours.send(chunked.replace(b"Content-Length: 2\r\n\r\n{}", b"\r\n1\r\n{\r\nx\r\n"))
        status, headers, body = await ours.reply()
        assert (status, headers["connection"]) == (400, "close")
        assert msgspec.json.decode(body)["reason"] == "malformed_request"
        assert await ours.reader.read() == b""


# -- other versions and methods


async def test_a_client_of_http_1_0_is_answered_and_the_connection_closed() -> None:
    async with serving() as api, line(api) as ours:
        ours.send(b"GET /api/health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        status, headers, _ = await ours.reply()
        assert (status, headers["connection"]) == (200, "close")
        assert await ours.reader.read() == b""


async def test_a_stream_to_a_client_of_http_1_0_is_not_chunked() -> None:
    async with serving() as api, line(api) as ours:
        text = request(calls.MANY, b'{"calls":[["list-workflows",{}]]}')
        ours.send(text.replace(b"HTTP/1.1", b"HTTP/1.0"))
        head, _, body = (await ours.reader.read()).partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head
        assert body == b"[[0,[],200]]\n"


async def test_a_reply_to_head_has_no_body() -> None:
    async with serving() as api, line(api) as ours:
        ours.send(b"HEAD /api/nowhere HTTP/1.1\r\nHost: here\r\n\r\n")
        head = await ours.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 404 ")
        assert b"content-length: " in head
        assert await ours.ask(call("list-workflows")) == EMPTY_LIST


async def test_an_upgrade_is_not_made() -> None:
    upgrade = b"Upgrade: h2c\r\nConnection: Upgrade\r\n"
    async with serving() as api:
        async with line(api) as ours:
            ours.send(b"GET /api/health HTTP/1.1\r\nHost: here\r\n%b\r\nPRI * HTTP/2.0\r\n\r\n" % upgrade)
            assert (await ours.reply())[0] == 200
            assert await ours.reader.read() == b""
        async with line(api) as ours:
            ours.send(b"POST /api/calls HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n%b\r\n{}" % upgrade)
            assert (await ours.reply())[0] == 400


async def test_input_of_a_client_never_becomes_a_header_of_the_reply() -> None:
    async with serving() as api, line(api) as ours:
        for path in ("/api/x%0d%0aSet-Cookie:%20a=b", "/api/workflows/%0d%0aX:%20y"):
            status, headers, _ = await ours.ask(f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
            assert status in (401, 404)
            assert not {"set-cookie", "x"} & headers.keys()


# -- requests whose end can be understood in two ways


LIST = b'{"limit":1}'


@pytest.mark.parametrize(
    "lengths",
    [
        "Content-Length: 5\r\nContent-Length: 11",
        "content-length: 5\r\nContent-Length: 11",
        "Content-Length: 11\r\nContent-Length: 11",
        "Content-Length: +11",
        "Content-Length: -1",
        "Content-Length: 0x0b",
        "Content-Length: 99999999999999999999999",
        "Content-Length: 11, 11",
        "Content-Length: 5\r\n 6",
        "Content-Length: 11\r\n\tX: y",
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 11",
        "Transfer-Encoding: chunked\r\ncontent-length: 11",
        "Transfer-Encoding: xchunked\r\nContent-Length: 11",
        "Transfer-Encoding: identity\r\nContent-Length: 11",
        "Transfer-Encoding:\r\n chunked\r\nContent-Length: 11",
        "Transfer-Encoding : chunked\r\nContent-Length: 11",
        "X: a\rY: b\r\nContent-Length: 11",
        "X: a\nY: b\r\nContent-Length: 11",
        "X: a\r\nContent-Length: 11\nX: b",
        "X: a\0b\r\nContent-Length: 11",
        "Content-Length : 11",
        " Content-Length: 11",
    ],
)
@pytest.mark.parametrize("before", [0, 2])
async def test_a_head_that_can_be_read_in_two_ways_is_refused(lengths: str, before: int) -> None:
    """Nothing that follows it is taken for a request, whatever heads of the connection are known."""
    async with serving() as api, line(api) as ours:
        for _ in range(before):
            assert (await ours.ask(request(calls.PATH + "list-workflows", LIST)))[0] == 200
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


# -- clients that hang up


@pytest.mark.parametrize("parsed", [False, True])
async def test_a_client_that_hangs_up_is_not_waited_for(parsed: bool) -> None:
    async with serving() as api:
        await api.start("a")
        async with line(api) as ours:
            ours.send(call("await-result", workflow_id="a", parsed=parsed))
            await until(lambda: len(api.server.parked) == 1)
        await until(lambda: len(api.server.parked) == 0)
        assert not api.server.waiting


async def test_a_client_that_hangs_up_in_the_middle_of_a_stream_is_not_waited_for() -> None:
    async with serving() as api:
        await api.start("a")
        async with line(api) as ours:
            ours.send(request(calls.MANY, b'{"calls":[["await-result",{"workflow_id":"a"}],["list-workflows",{}]]}'))
            await ours.reader.readuntil(b"]]\n")
            assert len(api.server.parked) == 1
        await until(lambda: len(api.server.parked) == 0)
        assert not api.server.waiting


async def test_a_client_that_hangs_up_in_the_middle_of_a_body_leaves_nothing_behind() -> None:
    async with serving() as api:
        async with line(api) as ours:
            ours.send(call("start-workflow", workflow_type="t", workflow_id="half")[:-5])
            await until(lambda: len(api.app.connections) > 0)
        connections: Any = api.app.connections
        await until(lambda: not any(each.authenticated for each in connections))
        assert await api.server.engine.store.find("default", "half") is None
        assert not api.app.handling


# -- stations


def exchange(api: Api, station: str, wait: float, *, parsed: bool = False) -> bytes:
    body = wire.encode(wire.Exchange(worker_id="w", station=station, wait=wait))
    return request(wire.EXCHANGE, body, parsed=parsed)


async def opened(ours: Line) -> str:
    opening = wire.OpenLink(worker_id="w", queues=["q"], activities=["charge"])
    status, _, body = await ours.ask(request(wire.OPEN, wire.encode(opening)))
    assert status == 200
    return wire.decode_opened(body).station


@pytest.mark.parametrize("parsed", [False, True])
async def test_a_worker_that_hangs_up_is_not_parked_any_more(parsed: bool) -> None:
    async with serving() as api:
        async with line(api) as ours:
            station = await opened(ours)
            ours.send(exchange(api, station, 20, parsed=parsed))
            await until(lambda: len(api.server.parked) == 1)
        await until(lambda: len(api.server.parked) == 0)


@pytest.mark.parametrize("parsed", [False, True])
async def test_a_parked_exchange_is_answered_when_its_time_is_over(parsed: bool) -> None:
    async with serving() as api, line(api) as ours:
        reply = await ours.ask(exchange(api, await opened(ours), 0.01, parsed=parsed))
        assert (reply[0], wire.decode_exchanged(reply[2])) == (200, wire.Exchanged())
        assert len(api.server.parked) == 0


@pytest.mark.parametrize("parsed", [False, True])
async def test_a_server_that_is_full_says_so_to_stations(parsed: bool) -> None:
    async with serving(max_parked_polls=0) as api, line(api) as ours:
        status, headers, body = await ours.ask(exchange(api, await opened(ours), 20, parsed=parsed))
        assert (status, headers["retry-after"]) == (429, "1")
        assert msgspec.json.decode(body)["reason"] == "long_poll_capacity_exhausted"


async def test_a_server_that_stops_answers_what_is_parked_and_closes() -> None:
    async with serving() as api:
        url = api.http.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        ours = Line(reader, writer)
        ours.send(exchange(api, await opened(ours), 20))
        await until(lambda: len(api.server.parked) == 1)
    _, _, body = await ours.reply()
    assert wire.decode_exchanged(body).leaving
    assert await reader.read() == b""
    writer.close()
