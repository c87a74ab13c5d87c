"""Calls that are made at the same moment go in one request; each is answered for itself, and none is done twice."""

from __future__ import annotations

import asyncio

import pytest

from backstay import AsyncClient, AsyncWorker, WorkflowAlreadyStarted, activity, workflow
from backstay.link.replies import LineReader
from backstay.protocol.native import client as calls
from backstay.server.native import call_batches

from .kit import TOKEN, House, remote
from .lossy import Lossy

ran: list[int] = []


@activity
def note(n: int) -> int:
    ran.append(n)
    return n * 2


@workflow
def noted(n: int) -> int:
    return note(n)


@pytest.fixture(autouse=True)
def _anew() -> None:
    ran.clear()


@pytest.mark.one_server("it counts batches, and nodes send each other some, too")
async def test_many_calls_share_few_requests_and_each_gets_its_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    take = call_batches.CallBatch.begin

    def counting(self: call_batches.CallBatch, asked: list[calls.BatchedCall]) -> None:
        sizes.append(len(asked))
        take(self, asked)

    monkeypatch.setattr(call_batches.CallBatch, "begin", counting)
    async with remote(noted, note) as app:
        results = await asyncio.gather(*(app.execute(noted, f"n{n}", n) for n in range(60)))
        assert results == [n * 2 for n in range(60)]
        assert sum(sizes) >= 50, "all but the first few went with others"
        assert len(sizes) <= 6
    assert sorted(ran) == list(range(60))


async def test_a_refusal_is_told_to_its_own_caller_alone() -> None:
    async with remote(noted, note) as app:
        await app.execute(noted, "n7", 7)
        results = await asyncio.gather(
            *(app.execute(noted, f"n{n}", n) for n in range(20)),
            app.history("nobody"),
            return_exceptions=True,
        )
        refused = {place for place, result in enumerate(results) if isinstance(result, Exception)}
        assert isinstance(results[7], WorkflowAlreadyStarted)
        assert refused == {7, 20}


async def test_a_reply_that_breaks_off_costs_no_answer_and_repeats_no_effect() -> None:
    async with (
        House() as house,
        AsyncWorker(house.url, [noted, note], token=TOKEN, drain=2.0),
        Lossy(house.url) as network,
        AsyncClient(network.url, token=TOKEN) as client,
    ):
        network.lose(b"x-ndjson")
        network.lose(b"[[")
        results = await asyncio.gather(*(client.execute(noted, f"n{n}", n) for n in range(40)))
        assert results == [n * 2 for n in range(40)]
        assert network.lost >= 1
    assert sorted(ran) == list(range(40)), "each of them ran once"


async def test_a_server_that_takes_no_large_body_is_asked_one_by_one() -> None:
    async with House(max_body_bytes=4096) as house, AsyncWorker(house.url, [noted, note], token=TOKEN, drain=2.0):
        async with AsyncClient(house.url, token=TOKEN) as client:
            results = await asyncio.gather(*(client.execute(noted, f"n{n}", n) for n in range(30)))
        assert results == [n * 2 for n in range(30)]


async def test_an_unknown_call_is_refused_in_its_place() -> None:
    async with House() as house, AsyncClient(house.url, token=TOKEN) as client:
        said: list[calls.BatchedReply] = []
        body = b'{"calls": [["no-such-call", {}], ["describe-workflow", {"workflow_id": 1}], ["list-workflows", {}]]}'
        http = client._transport.access.client()  # type: ignore[attr-defined]
        reply = await http.post(calls.MANY, body, 10, line=lambda line: said.extend(calls.decode_said(line)))
        http.close()
        assert reply.status == 200
        assert {(one.place, one.status) for one in said} == {(0, 404), (1, 422), (2, 200)}


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
def test_lines_are_the_same_however_the_network_cuts_them(piece: int) -> None:
    body = b"4\r\nab\nc\r\n3;x=1\r\nd\n\n\r\n2\r\nef\r\n1\r\n\n\r\n0\r\n\r\n"
    seen: list[bytes] = []
    lines = LineReader(seen.append, 100)
    over = [lines.feed(body[at : at + piece]) for at in range(0, len(body), piece)]
    assert seen == [b"ab", b"cd", b"", b"ef"]
    assert over[-1]
    assert not any(over[:-1])


def test_a_malformed_chunked_body_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        LineReader(lambda line: None, 100).feed(b"hello\r\nworld\r\n")
