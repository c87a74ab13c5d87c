"""Questions to workflow code, and connections that break under them: who is there to answer is asked, and once is enough."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from backstay import AsyncClient, AsyncHandle, AsyncWorker, RequestRefused
from backstay.kernel.values import SECOND
from backstay.sdk.remote import transport
from backstay.server.native import worker_link
from backstay.server.workers import remote_queries

from ..sdk.kit import eventually
from .account import Account
from .kit import TOKEN, House
from .lossy import Lossy

ASKED = b'"deliveries":[["question"'


class Gone(Lossy):
    """Once something was lost, nobody gets through any more."""

    async def target(self) -> tuple[str, int]:
        if self.lost:
            raise OSError
        return await super().target()


async def opened(client: AsyncClient) -> AsyncHandle[int]:
    account = await client.start(Account, "a")
    assert await account.query(Account.total) == 0
    return account


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda account: account.query(Account.total), id="a query"),
        pytest.param(lambda account: account.update(Account.deposit, 5), id="whether an update would be taken"),
    ],
)
@pytest.mark.one_server("its worker calls nodes at their own addresses, past the network of the test")
async def test_a_question_that_got_lost_is_asked_again(ask: Callable[[AsyncHandle[int]], Any]) -> None:
    async with (
        House() as house,
        Lossy(house.url) as network,
        AsyncWorker(network.url, [Account], token=TOKEN) as worker,
        AsyncClient(house.url, token=TOKEN) as client,
    ):
        account = await opened(client)
        network.lose(ASKED)
        assert await ask(account) in (0, 5)
        assert network.lost == 1
        assert worker.link.lost == 1, "it opened another station"


@pytest.mark.one_server("its worker calls nodes at their own addresses, past the network of the test")
async def test_a_question_at_a_worker_that_is_gone_is_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_link, "UNSEEN", SECOND // 50)
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client, Gone(house.url) as network:
        async with AsyncWorker(network.url, [Account], token=TOKEN, drain=0):
            account = await opened(client)
            network.lose(ASKED)
            asking = asyncio.ensure_future(account.query(Account.total))
            await eventually(lambda: network.lost == 1)
            async with AsyncWorker(house.url, [Account], token=TOKEN):
                assert await asking == 0


async def test_a_question_that_no_worker_survives_is_asked_of_a_few_workers_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_link, "UNSEEN", SECOND // 50)
    async with House() as house, AsyncExitStack() as fleet:
        client = await fleet.enter_async_context(AsyncClient(house.url, token=TOKEN))
        async with AsyncWorker(house.url, [Account], token=TOKEN):
            account = await opened(client)
        networks = [await fleet.enter_async_context(Gone(house.url)) for _ in range(remote_queries.SPREAD + 2)]
        for network in networks:
            await fleet.enter_async_context(AsyncWorker(network.url, [Account], token=TOKEN, drain=0))
            network.lose(ASKED)
        asking = asyncio.ensure_future(account.query(Account.total))
        await eventually(lambda: [q.attempt for q in house.server.questions.waiting] == [remote_queries.SPREAD])
        assert sum(network.lost for network in networks) == remote_queries.SPREAD
        async with AsyncWorker(house.url, [Account], token=TOKEN):
            assert await account.query(Account.total) == 0, "another question, and somebody who lives"
        assert not asking.done()
        asking.cancel()


@pytest.mark.parametrize("first", [True, False], ids=["the first time", "the second time"])
@pytest.mark.one_server("its worker calls nodes at their own addresses, past the network of the test")
async def test_whichever_answer_comes_first_counts(first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker has been asked, loses its connection, and is asked the same once more."""
    async with (
        House() as house,
        Lossy(house.url) as network,
        AsyncWorker(network.url, [Account], token=TOKEN) as worker,
        AsyncClient(house.url, token=TOKEN) as client,
    ):
        account = await opened(client)
        answers: list[asyncio.Future[bytes]] = []
        true = worker.executor.inquire

        async def held(*asked: Any) -> Any:
            answers.append(asyncio.get_running_loop().create_future())
            await answers[-1]
            return await true(*asked)

        monkeypatch.setattr(worker.executor, "inquire", held)
        asking = asyncio.ensure_future(account.query(Account.total))
        await eventually(lambda: len(answers) == 1)
        network.cut()
        await eventually(lambda: len(answers) == 2)
        answers[0 if first else 1].set_result(b"")
        assert await asking == 0
        answers[1 if first else 0].set_result(b"")
        await eventually(lambda: worker.link.idle)
        monkeypatch.undo()
        assert await account.query(Account.total) == 0


async def test_a_server_beside_the_engine_says_that_it_is_not_the_one_to_ask() -> None:
    async with House() as house, AsyncWorker(house.url, [Account], token=TOKEN):
        access = transport.Access(house.url, TOKEN, "default")
        async with AsyncClient(transport.HttpTransport(access, patience=0.05)) as client:
            account = await opened(client)
            house.server.engine.owned[:] = bytes(256)
            with pytest.raises(RequestRefused, match="this server cannot ask a worker") as refused:
                await account.query(Account.total)
            assert refused.value.reason == "engine_elsewhere"
            house.server.engine.owned[:] = b"\1" * 256
            assert await account.query(Account.total) == 0
