"""With shims, clocks and randomness in a workflow answer from its run, and from nowhere else outside."""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from backstay import NonDeterminismError, activity, now, side_effect, sleep, workflow
from backstay.sdk.replay.guard import shims

from ..kit import evicting, memory

REAL = (time.time, random.random, os.urandom, time.sleep, threading.Thread.start)


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    yield
    shims.remove()
    assert (time.time, random.random, os.urandom, time.sleep, threading.Thread.start) == REAL


@dataclass
class Order:
    id: uuid.UUID = field(default_factory=uuid.uuid4)


seen: list[list[object]] = []


@workflow(type="values", unchecked=True)
def values() -> bool:
    found: list[object] = []
    for _ in range(3):
        assert time.time() == time.monotonic() == now().timestamp()
        assert time.time_ns() == time.perf_counter_ns()
        found += [time.time_ns(), random.random(), random.choice(range(10**9)), os.urandom(4), uuid.uuid4(), Order().id]
        sleep(0.001)
    seen.append(found)
    return len(set(found)) == len(found)


async def test_a_replay_sees_the_same_clock_and_the_same_randomness() -> None:
    seen.clear()
    async with evicting(values, shims=True) as app:
        assert await app.execute(values, "w")
        assert await app.execute(values, "other")
    first, other = seen
    assert not {*first} & {*other}


@activity(type="real")
def real() -> float:
    return time.time()


@workflow(type="outside", unchecked=True)
def outside() -> list[float]:
    return [real(), side_effect(time.time), time.time()]


async def test_outside_workflow_code_everything_is_real() -> None:
    before = REAL[0]()
    async with memory(real, outside, shims=True) as app:
        for moment in await app.execute(outside, "w"):
            assert before - 1 <= moment <= REAL[0]() + 1
    assert before <= time.time() <= REAL[0]()
    assert random.random() != random.random()
    assert len(os.urandom(3)) == 3
    time.sleep(0)
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


FORBIDDEN = {"sleep": lambda: time.sleep(0), "thread": lambda: threading.Thread(target=int).start()}


@workflow(type="forbidden")
def forbidden(name: str) -> str:
    try:
        FORBIDDEN[name]()
    except NonDeterminismError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize(("name", "advice"), [("sleep", "use backstay.sleep()"), ("thread", "use backstay.spawn()")])
async def test_a_call_without_a_durable_value_is_refused(name: str, advice: str) -> None:
    async with memory(forbidden, guard="error", shims=True) as app:
        assert advice in await app.execute(forbidden, "w", name)


async def test_an_app_that_does_not_ask_for_them_has_none() -> None:
    async with memory(outside):
        assert time.time is REAL[0]
