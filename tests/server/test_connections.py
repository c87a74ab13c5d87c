"""Limits of connections: size, time and number are bounded for every client, and authenticated clients have room."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from backstay.protocol.native import client as calls
from backstay.server.http.protocol import HttpProtocol
from backstay.sockets import DEAD

from .kit import TOKEN, Api, serving, until
from .test_http_protocol import MINE, Line, call, exchange, line, opened

HEALTH = b"GET /api/health HTTP/1.1\r\nHost: here\r\n"
PATIENCE = 30


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[HttpProtocol]:
    """The connections that a server has, at its end."""
    found: list[HttpProtocol] = []
    made, lost = HttpProtocol.connection_made, HttpProtocol.connection_lost

    def connection_made(self: HttpProtocol, transport: asyncio.Transport) -> None:
        found.append(self)
        made(self, transport)

    def connection_lost(self: HttpProtocol, error: Exception | None) -> None:
        found.remove(self)
        lost(self, error)

    monkeypatch.setattr(HttpProtocol, "connection_made", connection_made)
    monkeypatch.setattr(HttpProtocol, "connection_lost", connection_lost)
    return found


async def status(ours: Line) -> int:
    """Of the reply, after which the connection is over."""
    async with asyncio.timeout(PATIENCE):
        first = (await ours.reader.readuntil(b"\r\n")).split()
        await ended(ours)
    return int(first[1])


async def ended(ours: Line) -> None:
    async with asyncio.timeout(PATIENCE):
        try:
            while await ours.reader.read(65536):
                pass
        except ConnectionResetError:
            pass


# -- size


ENDLESS = {
    "a header": (HEALTH + b"X: ", b"a" * 65536),
    "headers": (HEALTH, b"".join(b"A%d: b\r\n" % n for n in range(6000))),
    "the name of a header": (HEALTH, b"a" * 65536),
    "a URL": (b"GET /api/health?", b"a" * 65536),
    "a method": (b"", b"A" * 65536),
    "empty lines": (b"", b"\r\n" * 32768),
    "trailers": (b"POST /api/calls HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"A: b\r\n" * 10000),
    "a trailer": (b"POST /api/calls HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: ", b"a" * 65536),
    "what is said of a chunk": (
        b"POST /api/calls HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;",
        b"a" * 65536,
    ),
}


@pytest.mark.parametrize("what", ENDLESS)
async def test_the_parts_before_and_after_a_body_are_bounded(what: str, lines: list[HttpProtocol]) -> None:
    start, more = ENDLESS[what]
    async with serving(head_seconds=2, idle_seconds=1, body_seconds=2) as api, line(api) as ours:
        ours.send(start)
        sent = 0
        with suppress(ConnectionError):
            while sent < 64 << 20:
                ours.send(more)
                await ours.writer.drain()
                sent += len(more)
        assert sent < 64 << 20, "it was cut off, whatever the buffers between us took"
        await until(lambda: not lines)
        assert (await api.http.get("/api/health")).status_code == 200


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (HEALTH + b"X: " + b"a" * 60_000 + b"\r\n", 200),
        (HEALTH + b"X: " + b"a" * 66_000 + b"\r\n", 431),
        (HEALTH + b"".join(b"A%d: b\r\n" % n for n in range(98)), 200),
        (HEALTH + b"".join(b"A%d: b\r\n" % n for n in range(99)), 431),
        (b"GET /api/health?%b HTTP/1.1\r\n" % (b"a" * 16_000), 200),
        (b"GET /api/health?%b HTTP/1.1\r\n" % (b"a" * 17_000), 414),
    ],
)
@pytest.mark.parametrize("piece", [1 << 20, 1000])
async def test_a_head_has_its_limits(head: bytes, expected: int, piece: int) -> None:
    async with serving() as api, line(api) as ours:
        text = head + b"Connection: close\r\n\r\n"
        for at in range(0, len(text), piece):
            ours.send(text[at : at + piece])
        assert await status(ours) == expected


async def test_a_refused_head_says_why_in_json() -> None:
    async with serving(max_headers=3) as api:
        answer = await api.http.get("/api/health", headers={"A": "1", "B": "2", "C": "3"})
        assert (answer.status_code, answer.json()["reason"]) == (431, "head_too_large")
        long = await api.http.get("/api/health?" + "a" * 20_000)
        assert (long.status_code, long.json()["configured_limit"]) == (414, 16 << 10)


async def test_a_large_body_in_small_chunks_is_read() -> None:
    """What is around chunks is no head."""
    async with serving() as api:
        body = b'{"workflow_type": "order", "workflow_id": "o-1", "input": ["' + b"a" * 300_000 + b'"]}'

        async def bytewise() -> AsyncIterator[bytes]:
            for at in range(0, len(body), 7):
                yield body[at : at + 7]

        headers = {"Authorization": f"Bearer {TOKEN}", "X-Durable-Workflow-Control-Plane-Version": "2"}
        answer = await api.http.post("/api/workflows", content=bytewise(), headers=headers)
        assert answer.status_code == 201, answer.text


async def test_trailers_are_no_headers() -> None:
    """Whoever looks at heads on the way here would not have seen them."""
    async with serving() as api, line(api) as ours:
        ours.send(
            b"POST /api/workflows HTTP/1.1\r\nHost: here\r\nX-Durable-Workflow-Control-Plane-Version: 2\r\n"
            b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\n{}\r\n0\r\n"
            b"Authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
        )
        assert await status(ours) == 401


# -- time


@pytest.mark.parametrize("said", [b"", b"\r\n", b"G", b"GET /api/he", HEALTH, HEALTH + b"X: y"])
async def test_a_client_that_sends_nothing_or_half_a_request_is_disconnected(
    said: bytes, lines: list[HttpProtocol]
) -> None:
    async with serving(head_seconds=0.2) as api, line(api) as ours:
        ours.send(said)
        await until(lambda: len(lines) == 1)
        if said.strip():
            assert await status(ours) == 408
        else:
            await ended(ours)
        await until(lambda: not lines)


async def test_a_client_that_sends_byte_by_byte_is_disconnected() -> None:
    async with serving(head_seconds=0.3) as api, line(api) as ours:
        ours.send(HEALTH + b"X: ")
        said = asyncio.create_task(status(ours))
        while not said.done():
            ours.send(b"a")
            await asyncio.sleep(0.01)
        assert await said == 408


async def test_between_two_requests_a_connection_waits_for_a_while() -> None:
    async with serving(idle_seconds=2, head_seconds=2) as api, line(api) as ours:
        for _ in range(2):
            assert (await ours.ask(call("describe-workflow", workflow_id="nobody")))[0] == 409
        await ended(ours)
        async with line(api) as other:
            assert (await other.ask(HEALTH + b"\r\n"))[0] == 200
            other.send(HEALTH)  # and the head of a later request has its time, too
            async with asyncio.timeout(PATIENCE):
                await ended(other)


async def test_the_system_looks_whether_the_other_end_is_still_there(lines: list[HttpProtocol]) -> None:
    """A machine that vanishes says nothing, and who waits for an answer is not expected to."""
    async with serving() as api, line(api) as ours:
        assert (await ours.ask(HEALTH + b"\r\n"))[0] == 200
        (there,) = lines
        made = there._transport.get_extra_info("socket")
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, interval, count = (
            made.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + interval * count <= DEAD + 1
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == DEAD * 1000


@pytest.mark.parametrize("parsed", [False, True])
async def test_a_connection_that_waits_for_an_answer_is_not_idle(parsed: bool) -> None:
    async with serving(idle_seconds=2, head_seconds=2) as api, line(api) as ours, line(api) as other:
        await api.start("a")
        ours.send(exchange(api, await opened(ours), 4, parsed=parsed))
        other.send(call("await-result", workflow_id="a", wait_seconds=4, parsed=parsed))
        assert [(await each.reply())[0] for each in (ours, other)] == [200, 200]


async def test_a_body_that_is_not_read_ends_as_well(lines: list[HttpProtocol]) -> None:
    """A refused request is answered before its body has come; what does not come is not waited for."""
    async with serving(body_seconds=0.2, idle_seconds=60) as api:
        for head in (
            b"POST /api/workflows HTTP/1.1\r\nHost: here\r\nContent-Length: 1000000\r\n\r\n{",
            b"GET /api/health HTTP/1.1\r\nHost: here\r\nContent-Length: 1000000\r\n\r\n{",
        ):
            async with line(api) as ours:
                ours.send(head)
                assert (await ours.reply())[0] in (200, 401)
                await ended(ours)


async def test_a_body_that_never_begins_is_not_waited_for() -> None:
    async with serving(body_seconds=0.2) as api, line(api) as ours:
        head = "".join(f"{name}: {value}\r\n" for name, value in MINE.items())
        ours.send(f"POST /api/calls HTTP/1.1\r\nHost: here\r\n{head}Content-Length: 10\r\n\r\n".encode())
        assert (await ours.reply())[0] == 408


@pytest.mark.parametrize("coding", [b"Content-Length: 3000000", b"Transfer-Encoding: chunked"])
async def test_a_client_that_is_busy_sending_gets_the_refusal(coding: bytes) -> None:
    """What is still to come is ignored for a while: a connection that was reset would take the reply with it."""
    async with serving() as api, line(api) as ours:
        ours.send(b"POST /api/workflows HTTP/1.1\r\nHost: here\r\n" + coding + b"\r\n\r\n")
        for _ in range(30):
            ours.send((b"186a0\r\n" if b"chunked" in coding else b"") + b"a" * 100_000 + b"\r\n")
            await ours.writer.drain()
        assert (await ours.reply())[0] == 401
        await ended(ours)


async def test_after_a_refused_body_has_come_the_connection_goes_on() -> None:
    async with serving() as api, line(api) as ours:
        ours.send(b"POST /api/workflows HTTP/1.1\r\nHost: here\r\nContent-Length: 5\r\n\r\n{")
        assert (await ours.reply())[0] == 401
        ours.send(b"    " + HEALTH + b"\r\n")
        assert (await ours.reply())[0] == 200


# -- number


@asynccontextmanager
async def silent(api: Api, count: int) -> AsyncIterator[list[Line]]:
    url = api.http.base_url
    found = [Line(*await asyncio.open_connection(url.host, url.port)) for _ in range(count)]
    try:
        yield found
    finally:
        for ours in found:
            ours.writer.close()


@pytest.mark.parametrize("limit", ["max_anonymous_connections", "max_anonymous_connections_per_address"])
async def test_an_authenticated_client_has_room_beside_anonymous_connections(
    limit: str, lines: list[HttpProtocol]
) -> None:
    settings: dict[str, Any] = {limit: 5}
    async with serving(**settings) as api, line(api) as ours, line(api) as other:
        assert (await ours.ask(call("describe-workflow", workflow_id="nobody")))[0] == 409
        assert (await other.ask(call("describe-workflow", workflow_id="nobody", parsed=True)))[0] == 409
        async with silent(api, 20) as strangers:
            await until(lambda: len(lines) == 7)
            for stranger in strangers[:15]:
                await ended(stranger)  # the oldest go
            async with line(api) as late:
                assert (await late.ask(call("describe-workflow", workflow_id="nobody")))[0] == 409
            for known in (ours, other):
                assert (await known.ask(call("describe-workflow", workflow_id="nobody")))[0] == 409
        await until(lambda: len(lines) == 2)


async def test_a_wrong_token_is_none() -> None:
    async with serving(max_anonymous_connections=1) as api, line(api) as ours:
        wrong = MINE | {"Authorization": "Bearer guess"}
        assert (await ours.ask(call("describe-workflow", workflow_id="nobody", headers=wrong)))[0] == 401
        async with silent(api, 1):
            await ended(ours)


async def test_all_together_are_bounded(lines: list[HttpProtocol]) -> None:
    async with serving(max_connections=6, max_anonymous_connections=2) as api:
        async with AsyncExitStack() as known:
            for _ in range(10):
                ours = await known.enter_async_context(line(api))
                assert (await ours.ask(call("describe-workflow", workflow_id="nobody")))[0] == 409
            async with silent(api, 10):
                await until(lambda: len(lines) == 6)
                assert sum(each.authenticated for each in lines) == 4
        await until(lambda: not lines)
        async with line(api) as ours:
            assert (await ours.ask(HEALTH + b"\r\n"))[0] == 200


async def test_the_account_with_the_most_connections_makes_room(lines: list[HttpProtocol]) -> None:
    """Its oldest idle one goes; one that waits for an answer only if there is no other."""
    async with serving(max_connections=6, max_anonymous_connections=2, viewer_token="v", still=False) as api:
        await api.start("a")
        as_viewer = b"GET /api/cluster/info HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer v\r\n\r\n"
        async with AsyncExitStack() as known:
            admin = await known.enter_async_context(line(api))
            assert (await admin.ask(call("describe-workflow", workflow_id="a")))[0] == 200
            waiting = await known.enter_async_context(line(api))
            waiting.send(call("await-result", workflow_id="a", wait_seconds=60))
            await until(lambda: len(api.server.parked) == 1)
            viewers: list[Line] = []
            for _ in range(8):
                viewers.append(await known.enter_async_context(line(api)))
                assert (await viewers[-1].ask(as_viewer))[0] == 200
            for one in viewers[:6]:
                await ended(one)
            assert (await admin.ask(call("describe-workflow", workflow_id="a")))[0] == 200
            assert (await viewers[7].ask(as_viewer))[0] == 200
            for _ in range(3):
                late = await known.enter_async_context(line(api))
                assert (await late.ask(call("describe-workflow", workflow_id="a")))[0] == 200
            assert len(api.server.parked) == 1, "it is not idle"
            assert (await viewers[7].ask(as_viewer))[0] == 200, "its account has one connection left"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (b"Host: here", b"Host: elsewhere", 400),
        (b"host: here", b"HOST: here", 400),
        (b"Authorization: Bearer a", b"authorization: Bearer b", 400),
        (b"X-Namespace: a", b"X-Namespace: b", 400),
        (b"Accept: a", b"Accept: b", 200),
    ],
)
async def test_headers_that_say_who_and_where_come_once(first: bytes, second: bytes, expected: int) -> None:
    async with serving() as api, line(api) as ours:
        ours.send(b"GET /api/health HTTP/1.1\r\n%b\r\n%b\r\nConnection: close\r\n\r\n" % (first, second))
        assert await status(ours) == expected


# -- who does not read


async def test_a_client_that_reads_nothing_is_cut_off(lines: list[HttpProtocol]) -> None:
    async with serving(idle_seconds=0.2, default_namespace="n" * 100) as api:
        await asyncio.to_thread(flooded, api, request(True), 64 << 20, hold=lambda: bool(lines))
        await until(lambda: not lines)


def flooded(api: Api, request: bytes, most: int, hold: Callable[[], bool] = lambda: False) -> int:
    """How many bytes of requests a caller gets rid of who reads no answer. `hold`: whether the caller stays."""
    with socket.create_connection((api.http.base_url.host, api.http.base_url.port or 0)) as ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ours.settimeout(1)
        sent = 0
        try:
            while sent < most:
                sent += ours.send(request * 100)
        except TimeoutError:
            while hold():
                time.sleep(0.01)
        except ConnectionError:
            pass
        return sent


@pytest.mark.parametrize("parsed", [False, True])
async def test_a_client_that_does_not_read_is_not_read_from(parsed: bool, lines: list[HttpProtocol]) -> None:
    async with serving(default_namespace="n" * 100) as api:
        held: list[int] = []
        done = asyncio.create_task(asyncio.to_thread(flooded, api, request(parsed), 64 << 20))
        while not done.done():
            held += [sum(map(len, each._unread)) + 1000 * len(each._queue) for each in lines]
            await asyncio.sleep(0.005)
        assert await done < 64 << 20
        assert max(held) < 2 << 20


def request(parsed: bool) -> bytes:
    headers = MINE | {"X-Namespace": "n" * 100}
    return call("describe-workflow", workflow_id="nobody" * 20, headers=headers, parsed=parsed)


# -- descriptors


@pytest.fixture
def few_descriptors(tmp_path: Path) -> Iterator[str]:
    command = [sys.executable, "-P", "-m", "backstay.cli.main", "server", "--port", "0", "--token", TOKEN]
    process = subprocess.Popen(
        ["/bin/sh", "-c", 'ulimit -n 256; exec "$@"', "sh", *command], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


def test_a_server_with_few_descriptors_is_not_locked_by_strangers(few_descriptors: str) -> None:
    url = httpx.URL(few_descriptors)
    strangers = [socket.create_connection((url.host, url.port or 0)) for _ in range(400)]
    try:
        headers = MINE | {calls.HEADER: str(calls.VERSION)}
        for _ in range(3):
            answer = httpx.post(f"{url}/api/call/list-workflows", json={}, headers=headers, timeout=PATIENCE)
            assert (answer.status_code, answer.json()) == (200, [])
    finally:
        for stranger in strangers:
            stranger.close()
