"""The model of owners that the simulator has: the same stream of requests, from three handles, is answered as on a real server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backstay.kernel.features.activity import ScheduleActivity
from backstay.kernel.values import SECOND
from backstay.store import Applied
from backstay.store.errors import Deposed
from backstay.store.ownership import SILENT, NodeFacts

from ..postgresql import with_schema
from . import test_memory, test_postgresql
from .instances import UNHURRIED, StoredFlow, apply
from .ownership_conformance import Nodes, placed

HANDLES = 3
SHARDS = 4  # few, so that they meet

Step = tuple[int, str, int, int]
"""Which handle, what it does, and two numbers: shards, other handles, lengths of time."""

VERBS = (
    *("claim", "claim", "claim", "give", "free", "depose", "depose gone", "mark", "write", "write", "probe"),
    *("fall silent", "lose session", "own", "disown", "notices", "open again", "engine"),
)


class Side:
    """One of the two databases. Ids are told by the number of the handle that has or had them."""

    def __init__(self, database: Nodes) -> None:
        self._database = database
        self._stores: list[Any] = []
        self._ids: dict[int, str] = {}

    async def begin(self) -> None:
        for _ in range(HANDLES):
            self._stores.append(await self._open())

    async def _open(self) -> Any:
        store = await self._database.open()
        await store.mark(NodeFacts(), SECOND)
        return store

    async def end(self) -> None:
        for store in self._stores:
            await store.close()

    async def _named(self) -> None:
        for number, store in enumerate(self._stores):
            id = (await store.look()).me
            self._ids.setdefault(id, f"{number}.{sum(name.startswith(f'{number}.') for name in self._ids.values())}")

    async def rows(self) -> Any:
        """All that any handle can see."""
        await self._named()
        seen = await self._stores[0].look()
        shards = [(self._ids.get(row.owner, row.owner), row.term, row.clock) for row in seen.shards[: SHARDS + 1]]
        nodes = sorted((self._ids[node.id], node.facts.weight, node.silent >= SILENT) for node in seen.nodes)
        return shards, nodes, [self._ids[(await store.look()).me] for store in self._stores]

    async def do(self, step: Step, flows: list[StoredFlow], number: int) -> Any:
        answer = await self._do(step, flows, number)
        if step[1] in ("claim", "give", "free", "probe"):
            # On a server any change is a sign of life; the model counts only what a process does to be heard.
            await self._database.silence(self._stores[step[0]], 0)
        return answer

    async def _do(self, step: Step, flows: list[StoredFlow], number: int) -> Any:
        at, verb, first, second = step
        store = self._stores[at]
        other = self._stores[second % HANDLES]
        shards = sorted({first % SHARDS, (first + second) % SHARDS})
        id: int = (await other.look()).me
        now = (number + 2) * SECOND
        match verb:
            case "claim":
                return {shard: row.term for shard, row in (await store.claim(shards)).items()}
            case "give":
                return sorted(await store.hand_over(shards, id, now))
            case "free":
                return sorted(await store.hand_over(shards, None, now))
            case "depose":
                return other is not store and await store.depose(id)
            case "depose gone":
                return other is not store and await store.depose(id, gone=True)
            case "mark":
                return await store.mark(NodeFacts(weight=second), now)
            case "write":
                result: Applied = await apply(store, *flows[first % len(flows)].decisions[second % 2 : second % 2 + 1])
                return result.stale, len(result.failed), type(result.down)
            case "probe":
                return await store.probe()
            case "fall silent":
                return await self._database.silence(store, SILENT if second % 2 else SILENT - 9 * SECOND)
            case "lose session":
                return await self._database.lose_session(store)
            case "own" | "disown":
                store.owned[first % SHARDS] = verb == "own"
                return None
            case "notices":
                return sorted(await store.notices(shards=shards))
            case "engine":
                return await store.has_engine()
            case _:
                await store.hand_over(range(SHARDS), None, now)  # a model that closes leaves them behind
                await store.close()
                self._stores[at] = await self._open()
                return None


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def url(postgresql_server: str) -> str:
    return with_schema(postgresql_server, f"alike_{os.getpid()}")


STEPS = st.tuples(st.integers(0, HANDLES - 1), st.sampled_from(VERBS), st.integers(0, 7), st.integers(0, 7))


@given(steps=st.lists(STEPS, min_size=5, max_size=25))
@settings(max_examples=40, deadline=None, suppress_health_check=UNHURRIED)
def test_the_model_answers_as_a_server_does(url: str, loop: asyncio.Runner, steps: list[Step]) -> None:
    loop.run(_alike(url, steps))


async def _alike(url: str, steps: list[Step]) -> None:
    server = test_postgresql.Handles(url)
    await test_postgresql.empty(server)
    model: Any = test_memory.Handles()
    sides = [Side(server), Side(model)]
    try:
        for side in sides:
            await side.begin()
        await _compare(sides, steps)
    finally:
        for side in sides:
            await side.end()


async def _compare(sides: list[Side], steps: list[Step]) -> None:
    flows = [placed(shard) for shard in range(SHARDS)]
    for flow in flows:
        flow.step(ScheduleActivity(activity_type="charge"))
    done: list[Any] = []
    for number, step in enumerate(steps):
        # A handle that has lost its session finds out with the next thing it does; the model wants to be asked to.
        if step[1] == "lose session":
            step = (*step[:1], "probe", *step[2:])
            for side in sides:
                await side.do((step[0], "lose session", *step[2:]), flows, number)
                before = await side.rows()
                done.append(before)
            assert done[-1] == done[-2], (step, done)
        answers = [await side.do(step, flows, number) for side in sides]
        done.append((step, answers[0]))
        assert answers[0] == answers[1], done
        if isinstance(answers[0], tuple) and answers[0][2] is Deposed:
            assert [await side.do((step[0], "probe", 0, 0), flows, number) for side in sides] == [None, None]
        rows = [await side.rows() for side in sides]
        assert rows[0] == rows[1], done
