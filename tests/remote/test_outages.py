"""A server that is away: commands are given up after a while, waits go on, and a caller's own timeout holds whatever happens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from backstay import (
    AsyncClient,
    AsyncHandle,
    AsyncWorker,
    ServerUnreachable,
    Signal,
    UpdateTimeout,
    emit,
    update,
    wait,
    workflow,
)
from backstay.link import http
from backstay.sdk.remote import transport
from backstay.server.server import Server

from ..sdk.kit import eventually
from .kit import TOKEN, House
from .lossy import Lossy


class Network(Lossy):
    """`away`: nothing listens there."""

    away = False
    server: Server

    async def target(self) -> tuple[str, int]:
        if self.away:
            raise OSError
        return await super().target()

    def dead(self) -> None:
        self.away = True
        self.cut()

    def black_hole(self) -> None:
        self.hole = True

    def back(self) -> None:
        self.away = self.hole = False


Outage = Callable[[Network], None]
OUTAGES = [pytest.param(Network.dead, id="dead"), pytest.param(Network.black_hole, id="a black hole")]


@workflow
class Parcel:
    arrived = Signal[str]()

    def __init__(self) -> None:
        self.weight = 0

    @update
    def weigh(self, grams: int) -> int:
        self.weight = grams
        return grams

    def handle(self) -> str:
        emit("places", "depot")
        place = wait(self.arrived)
        emit("places", place)
        return place


@asynccontextmanager
async def parcel(patience: float) -> AsyncIterator[tuple[Network, AsyncHandle[str], AsyncHandle[str]]]:
    """A network, a handle across it and a handle that needs none."""
    async with (
        House() as house,
        AsyncWorker(house.url, [Parcel], token=TOKEN),
        Network(house.url) as network,
        AsyncClient(house.url, token=TOKEN) as near,
    ):
        network.server = house.server
        access = transport.Access(network.url, TOKEN, "default")
        async with AsyncClient(transport.HttpTransport(access, patience=patience)) as far:
            yield network, await far.start(Parcel, "p"), near.handle(Parcel, "p")


@pytest.fixture(autouse=True)
def posted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What is asked, from when it is on its way."""
    asked: list[tuple[str, Any]] = []
    post = http.HttpClient.post

    async def watched(self: http.HttpClient, path: str, body: bytes, *more: Any, **options: Any) -> http.Reply:
        asked.append((path.rpartition("/")[2], msgspec.json.decode(body)))
        return await post(self, path, body, *more, **options)

    monkeypatch.setattr(http.HttpClient, "post", watched)
    monkeypatch.setattr(http, "SILENT", 0.2)
    return asked


@pytest.mark.parametrize("outage", OUTAGES)
async def test_the_timeout_of_a_wait_is_the_bound_of_it(outage: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    async with parcel(patience=1) as (network, handle, near):
        submitted = await handle.submit(Parcel.weigh, 7)
        monkeypatch.setattr(transport, "GRACE", 30)  # a busy machine is slow, not away
        with pytest.raises(TimeoutError, match="has not ended yet"):
            await handle.result(timeout=0.01)
        outage(network)
        monkeypatch.setattr(transport, "GRACE", 0.05)
        with pytest.raises(TimeoutError, match="unknown whether workflow 'p' has ended") as told:
            await handle.result(timeout=0.05)
        assert network.url in str(told.value), "and why"
        with pytest.raises(UpdateTimeout, match="was accepted") as late:
            await submitted.result(timeout=0.05)
        assert (late.value.workflow_id, late.value.update_id) == ("p", submitted.id)
        network.back()
        assert await submitted.result(timeout=60) == 7
        await near.signal(Parcel.arrived, "home")
        assert await handle.result(timeout=60) == "home"


@pytest.mark.parametrize("outage", OUTAGES)
async def test_an_update_without_an_answer_may_not_have_arrived(
    outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "GRACE", 0.05)
    async with parcel(patience=60) as (network, handle, _):
        hasty = handle._client.options(update_timeout=0.05).handle(Parcel, "p")
        outage(network)
        with pytest.raises(ServerUnreachable):
            await hasty.update(Parcel.weigh, 7)
        network.back()
        assert await hasty._client.options(update_timeout=60).handle(Parcel, "p").update(Parcel.weigh, 8) == 8


async def test_a_wait_does_not_begin_anew_with_every_try(posted: list[tuple[str, Any]]) -> None:
    def asked() -> list[float]:
        return [request["wait_seconds"] for verb, request in posted if verb == "await-result"]

    async with parcel(patience=60) as (network, handle, near):
        waiting = asyncio.ensure_future(handle.result(timeout=500))
        seen: set[Any] = set()
        for _ in range(3):
            await eventually(lambda: not seen.issuperset(network.server.waiting))
            seen.update(network.server.waiting)
            network.cut()
        await near.signal(Parcel.arrived, "home")
        assert await waiting == "home"
    assert asked() == sorted(set(asked()), reverse=True), "each time only what is left"
    assert asked()[0] <= 500


@pytest.mark.parametrize("outage", OUTAGES)
async def test_a_wait_without_a_timeout_goes_on_when_the_server_is_back(
    outage: Outage, caplog: pytest.LogCaptureFixture, posted: list[tuple[str, Any]]
) -> None:
    caplog.set_level(logging.INFO, "backstay.client")

    def said() -> list[tuple[str, str]]:
        return [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "backstay.client"]

    async def items(handle: AsyncHandle[str]) -> list[Any]:
        return [item async for item in handle.stream("places")]

    async with parcel(patience=0.1) as (network, handle, near):
        waits = [asyncio.ensure_future(handle.result()), asyncio.ensure_future(items(handle))]
        await eventually(lambda: {"await-result", "read-stream"} <= {verb for verb, _ in posted})
        outage(network)
        await eventually(lambda: bool(said()))
        with pytest.raises(ServerUnreachable):
            await handle.signal(Parcel.arrived, "nowhere")
        await near.signal(Parcel.arrived, "home")
        network.back()
        assert await asyncio.gather(*waits) == ["home", ["depot", "home"]]
    assert [level for level, _ in said()] == ["WARNING", "INFO"], "once, however many wait"
    assert all(network.url in message for _, message in said())


async def test_a_server_that_was_never_there_is_not_waited_for() -> None:
    async with House() as house:
        url = house.url
    client = AsyncClient(transport.HttpTransport(transport.Access(url, TOKEN, "default"), patience=0.05))
    with pytest.raises(ServerUnreachable):
        await client.handle(Parcel, "p").result()
    with pytest.raises(ServerUnreachable):
        async for _ in client.handle(Parcel, "p").stream("places"):
            pass


async def test_a_stream_goes_on_in_the_next_run_when_the_server_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server goes where a reader looks for the run that follows."""
    async with parcel(patience=0.05) as (network, handle, near):
        await near.signal(Parcel.arrived, "home")
        await near.result()
        listed: list[str] = []
        ask = AsyncClient.list

        async def looks(self: AsyncClient, **about: Any) -> Any:
            network.dead()
            try:
                return await ask(self, **about)
            except ServerUnreachable as error:
                listed.append(str(error))
                monkeypatch.undo()
                network.back()
                raise

        monkeypatch.setattr(AsyncClient, "list", looks)
        assert [item async for item in handle.stream("places")] == ["depot", "home"]
        assert len(listed) == 1
