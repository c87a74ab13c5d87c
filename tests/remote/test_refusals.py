"""What can be wrong about a server, and what the SDK says then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from backstay import (
    AccessDenied,
    AsyncClient,
    AsyncWorker,
    Client,
    RequestRefused,
    ServerTooOld,
    ServerUnreachable,
    Worker,
    WorkflowAlreadyStarted,
    workflow,
)
from backstay.link import http
from backstay.protocol.native import client as calls
from backstay.sdk.remote import transport
from backstay.sdk.remote import worker as workers

from ..sdk.kit import eventually
from .kit import TOKEN, House
from .lossy import Lossy


@workflow
def hello(name: str) -> str:
    return f"hello {name}"


async def both(url: str, **options: Any) -> list[str]:
    """What a client and a worker say that use a server like this."""
    said: list[str] = []
    with pytest.raises(options.pop("error")) as met:
        await AsyncClient(url, **options).start(hello, "h", "ann")
    said.append(str(met.value))
    with pytest.raises(type(met.value)) as met:
        await AsyncWorker(url, [hello], **options).__aenter__()
    return [*said, str(met.value)]


async def test_a_wrong_token_says_where_the_right_one_goes() -> None:
    async with House() as house:
        for said in await both(house.url, token="wrong", error=AccessDenied):
            assert "token=" in said
            assert "wrong" in said
            assert house.url in said
        await both(house.url, error=AccessDenied)


async def test_a_token_without_the_role_says_which_one_is_needed() -> None:
    async with House(worker_token="w", operator_token="o") as house:
        with pytest.raises(AccessDenied, match="operator"):
            await AsyncClient(house.url, token="w").start(hello, "h", "ann")
        with pytest.raises(AccessDenied, match="worker"):
            await AsyncWorker(house.url, [hello], token="o").__aenter__()


async def test_a_namespace_that_is_not_there_is_named() -> None:
    async with House() as house:
        for said in await both(house.url, token=TOKEN, namespace="nowhere", error=RequestRefused):
            assert "'nowhere'" in said


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("ftp://example.com", "not the address"),
        ("http://", "names no host"),
        ("http://u:p@host", "token="),
    ],
)
def test_an_address_that_is_none_is_refused_where_it_is_written(url: str, said: str) -> None:
    for use in (lambda: Client(url), lambda: Worker(url, [hello])):
        with pytest.raises(ValueError, match=said):
            use()


async def test_where_nothing_listens_is_said_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "FIRST_OPEN", 0.1)
    async with House() as house:
        url = house.url
    client = AsyncClient(transport.HttpTransport(transport.Access(url, TOKEN, "default"), patience=0.1))
    with pytest.raises(ServerUnreachable, match="nothing listens there; is `dw server` running"):
        await client.start(hello, "h", "ann")
    with pytest.raises(ServerUnreachable, match="nothing listens"):
        await AsyncWorker(url, [hello]).__aenter__()


async def test_a_wire_that_swallows_everything_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "SILENT", 0.2)
    async with House() as house, Lossy(house.url) as network:
        access = transport.Access(network.url, TOKEN, "default")
        client = AsyncClient(transport.HttpTransport(access, patience=0.6))
        assert (await client.start(hello, "h", "ann")).id == "h"
        network.hole = True
        for _ in range(2):  # on a connection that stood, and on one that does not come to stand
            with pytest.raises(ServerUnreachable, match="nothing answers there"):
                await client.start(hello, "i", "bob")
        network.hole = False
        assert (await client.start(hello, "i", "bob")).id == "i", "and that it is well again, too"
        await client.close()


async def test_a_worker_notices_that_nothing_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "SILENT", 0.2)
    async with House() as house, Lossy(house.url) as network, AsyncClient(house.url, token=TOKEN) as client:
        async with AsyncWorker(network.url, [hello], token=TOKEN, drain=0.1) as worker:
            assert await client.execute(hello, "h", "ann") == "hello ann"
            network.hole = True
            await eventually(lambda: worker.link.lost, "it gave the connection up")
            network.hole = False
            assert await client.execute(hello, "i", "bob") == "hello bob"


async def test_a_long_wait_for_a_server_that_is_there_is_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "SILENT", 0.05)
    pings: list[bool] = []
    ping = http.HttpClient.ping

    async def watched(self: http.HttpClient, seconds: float) -> bool:
        pings.append(await ping(self, 20.0))  # a busy machine is slow, not silent
        return pings[-1]

    monkeypatch.setattr(http.HttpClient, "ping", watched)
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        waiting = asyncio.create_task(client.execute(hello, "h", "ann"))
        await eventually(lambda: len(pings) > 3, "the server was asked whether it is there")
        async with AsyncWorker(house.url, [hello], token=TOKEN) as worker:
            assert await waiting == "hello ann"
            seen = len(pings)
            await eventually(lambda: len(pings) > seen + 3, "by the worker, too")
            assert worker.link.lost == 0
    assert all(pings)


async def answering(reply: bytes) -> tuple[asyncio.Server, str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(reply)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    "reply",
    [b"220 mail.example.com ESMTP\r\n\r\n", b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nNot Found"],
    ids=["no HTTP", "another web server"],
)
async def test_an_error_says_that_the_url_is_no_backstay_server(reply: bytes) -> None:
    server, url = await answering(reply)
    async with server:
        for said in await both(url, error=ServerUnreachable):
            assert "no Backstay server" in said


async def test_a_server_of_another_version_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with House() as house:
        monkeypatch.setattr(calls, "VERSION", 99)
        for said in await both(house.url, token=TOKEN, error=ServerTooOld):
            assert "same release" in said


async def test_replies_may_come_in_chunks() -> None:
    body = b'{"workflow_id":"h","run_id":"r","accepted":true,"outcome":"started_new","command_id":"c"}'
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    server, url = await answering(head + b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (9, body[:9], len(body) - 9, body[9:]))
    async with server:
        assert (await AsyncClient(url).start(hello, "h", "ann")).run_id == "r"


def in_a_thread(work: Callable[[str], None]) -> None:
    async def around() -> None:
        async with House() as house:
            await asyncio.to_thread(work, house.url)

    asyncio.run(around())


def test_without_await_it_is_the_same() -> None:
    def work(url: str) -> None:
        with Worker(url, [hello], token=TOKEN), Client(url, token=TOKEN) as client:
            assert client.execute(hello, "h", "ann") == "hello ann"
            assert client.start(hello, None, "bob").result() == "hello bob"
            assert [row.workflow_type for row in client.list(type="hello")] == ["hello", "hello"]
            with pytest.raises(WorkflowAlreadyStarted):
                client.start(hello, "h", "again")

    in_a_thread(work)
