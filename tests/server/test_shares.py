"""Laws of what accounts share: connections, memory and waits. Whoever takes no more than others is never displaced by them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from backstay.server.access import tokens
from backstay.server.http.buffered_bytes import BufferedBytes
from backstay.server.http.connections import OpenConnections
from backstay.server.http.errors import HttpError
from backstay.server.http.messages import ClientDisconnected, HttpRequest
from backstay.server.http.parked_requests import ParkedRequests
from backstay.server.http.reading_turns import AT_ONCE, ReadingTurns
from backstay.server.registries.registry import StoredRegistry
from backstay.server.workers import sessions

from .kit import ME, serving

PATIENCE = 30
ACCOUNTS = st.sampled_from("abcd")


class Connection:
    """One that notes that it was closed."""

    def __init__(self, account: str, closed: list[Connection]) -> None:
        self.account = self.address = account
        self.idle = True
        self._closed = closed

    def drop(self) -> None:
        self._closed.append(self)

    make_room = shutdown = drop


@given(st.lists(st.tuples(ACCOUNTS, st.booleans()), max_size=60), st.integers(2, 12))
def test_connections_are_taken_from_the_account_with_the_most(steps: list[tuple[str, bool]], most: int) -> None:
    closed: list[Connection] = []
    connections = OpenConnections(most + 1, 1, 1)
    held: list[Connection] = []
    for account, idle in steps:
        new = Connection(account, closed)
        connections.add(new)
        before = Counter(one.account for one in [*held, new])
        connections.mark_authenticated(new)
        new.idle = idle
        held.append(new)
        if closed:
            (gone,) = closed
            assert before[gone.account] == max(before.values())
            ours = [one for one in held if one.account == gone.account]
            assert gone is next((one for one in ours if one.idle or one is new), ours[0])
            held.remove(gone)
            closed.clear()
        assert len(connections) == len(held) <= most


@given(st.lists(st.tuples(ACCOUNTS, st.integers(0, 9), st.integers(0, 50)), max_size=60))
def test_memory_is_taken_from_the_account_with_the_most(steps: list[tuple[str, int, int]]) -> None:
    closed: list[Connection] = []
    buffered = BufferedBytes(100, 60)
    connections = {(account, number): Connection(account, closed) for account in "abcd" for number in range(10)}
    held: Counter[Connection] = Counter()
    for account, number, count in steps:
        one = connections[account, number]
        held[one] = count
        wanted = Counter[str]()
        for other, size in held.items():
            wanted[other.account] += size
        buffered.set(one, account, count)
        for gone in closed:
            assert wanted[gone.account] > 60 or wanted[gone.account] == max(wanted.values())
            wanted[gone.account] -= held.pop(gone)
        closed.clear()
        assert buffered.total == sum(held.values()) <= 100
        assert all(buffered.of(name) <= 60 for name in "abcd")


@given(st.lists(st.tuples(ACCOUNTS, st.booleans()), max_size=80), st.integers(1, 12))
def test_waits_are_taken_from_the_largest_share(steps: list[tuple[str, bool]], most: int) -> None:
    parked = ParkedRequests(most)
    waiting: dict[int, str] = {}
    gone: list[int] = []
    for number, (account, leaves) in enumerate(steps):
        share = ("n", account)
        mine = [one for one, other in waiting.items() if other == account]
        if leaves and mine:
            parked.leave(share, mine[0])
            del waiting[mine[0]]
            continue
        sizes = Counter(waiting.values())
        admitted = parked.admits(share)
        assert admitted is (len(waiting) < most or sizes[account] + 1 < max(sizes.values()))
        for one in gone:
            assert sizes[waiting.pop(one)] == max(sizes.values())
        gone.clear()
        if admitted:
            parked.enter(share, number, lambda number=number: gone.append(number))
            waiting[number] = account
        assert len(parked) == len(waiting) <= most


# -- registries


class Kept(Struct):
    text: str


async def test_a_registry_has_room_for_so_many_entries_and_bytes_of_a_namespace() -> None:
    async with serving() as api:
        kept = StoredRegistry(api.server.store, "kept", Kept, most=3, most_bytes=100)
        for name in "abc":
            await kept.put("one", name, Kept("x"))
        with pytest.raises(HttpError, match="already has 3 entries"):
            await kept.put("one", "d", Kept("x"))
        await kept.put("one", "a", Kept("y"))
        await kept.put("two", "d", Kept("x"))
        with pytest.raises(HttpError, match="may keep 100 bytes"):
            await kept.put("one", "a", Kept("y" * 100))
        assert not await kept.change("one", "e", None)
        await kept.remove("one", "b")
        await kept.put("one", "d", Kept("x" * 30))
        await kept.put("one", "d", Kept("x"))
        again = StoredRegistry(api.server.store, "kept", Kept, most=3)
        await again.load()
        assert (again.count("one"), again.count("two"), again.count("three")) == (3, 1, 0)
        with pytest.raises(HttpError):
            await again.change("one", "e", Kept("x"))


async def test_a_namespace_has_a_bounded_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MOST_BOUND", 2)
    async with serving() as api:

        async def made(**more: Any) -> int:
            return (await api.control("POST", "/tokens", {"role": "viewer", **more})).status_code

        assert [await made(namespace="default") for _ in range(3)] == [201, 201, 429]
        assert [await made() for _ in range(3)] == [201, 201, 201]


async def test_sessions_that_have_ended_are_forgotten_and_others_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST", 4)
    monkeypatch.setattr(sessions, "ENDED_KEPT", 1)
    async with serving() as api:
        await api.register()

        async def opened(name: str) -> int:
            return (await api.worker("sessions", {"worker_id": ME, "session_id": name})).status_code

        for name in "abcd":
            assert await opened(name) == 201
        refused = await api.worker("sessions", {"worker_id": ME, "session_id": "e"})
        assert (refused.status_code, refused.json()["reason"]) == (429, "session_capacity_exhausted")
        for name in "abc":
            await api.world.advance(1)
            assert (await api.worker(f"sessions/{name}", {"worker_id": ME}, "DELETE")).status_code == 200
        await api.server.sessions.forget()
        assert {session.options.session_id for session in api.server.sessions.of("default")} == {"c", "d"}
        assert await opened("e") == 201


# -- turns of requests that read


class Reading(HttpRequest):
    """A request of an account."""

    def __init__(self, account: str) -> None:
        super().__init__("GET", "/", {})
        self.address = account


async def test_answers_of_one_account_leave_the_loop_to_others() -> None:
    """Also if none of them waits for anything while it is made."""
    turns, made = ReadingTurns(), Counter[str]()

    async def read(account: str) -> None:
        async with turns.turn(Reading(account)):
            made[account] += 1

    many = [asyncio.ensure_future(read("a")) for _ in range(200)]
    await asyncio.gather(*(read("b") for _ in range(3)))
    assert made["a"] <= 3 * AT_ONCE
    for _ in range(5):
        await asyncio.sleep(0)
    assert made["a"] < 10 * AT_ONCE
    await asyncio.gather(*many)
    assert made["a"] == 200
    await asyncio.sleep(0)
    assert (turns._busy, turns._waiting, turns._held) == ({}, {}, {})


async def test_a_request_that_waits_for_news_has_no_turn_meanwhile() -> None:
    turns, news = ReadingTurns(), asyncio.Event()

    async def follow() -> None:
        request = Reading("a")
        async with turns.turn(request), turns.rest(request):
            await news.wait()

    async def read() -> None:
        async with turns.turn(Reading("a")):
            pass

    followers = [asyncio.ensure_future(follow()) for _ in range(5 * AT_ONCE)]
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(read() for _ in range(3 * AT_ONCE)))
        news.set()
        await asyncio.gather(*followers)
    await asyncio.sleep(0)
    assert (turns._busy, turns._waiting, turns._held) == ({}, {}, {})


async def test_a_caller_that_hangs_up_gives_up_its_place() -> None:
    turns, done = ReadingTurns(), asyncio.Event()

    async def read(request: HttpRequest) -> None:
        async with turns.turn(request):
            await done.wait()

    requests = [Reading("a") for _ in range(AT_ONCE + 3)]
    reads = [asyncio.ensure_future(read(request)) for request in requests]
    await asyncio.sleep(0)
    requests[AT_ONCE].disconnect()
    reads[AT_ONCE + 1].cancel()
    outcomes = await asyncio.gather(*reads[AT_ONCE : AT_ONCE + 2], return_exceptions=True)
    assert [type(one) for one in outcomes] == [ClientDisconnected, asyncio.CancelledError]
    done.set()
    await asyncio.gather(*reads[:AT_ONCE], reads[-1])
    await asyncio.sleep(0)
    assert (turns._busy, turns._waiting, turns._held) == ({}, {}, {})
