"""Ids are told to everybody they concern; that must not tell anybody the next ones."""

from __future__ import annotations

import asyncio
import os

import pytest

from backstay.engine.world import AsyncioWorld


async def ids(count: int) -> list[str]:
    made = AsyncioWorld(asyncio.get_running_loop()).ids
    return [made.ulid()[10:] for _ in range(count)]


def test_every_random_bit_of_an_id_is_the_operating_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    urandom = os.urandom

    def counted(size: int) -> bytes:
        drawn.append(size)
        return urandom(size)

    monkeypatch.setattr(os, "urandom", counted)
    made = asyncio.run(ids(5000))
    assert len(set(made)) == 5000
    assert sum(drawn) >= 5000 * 10, "80 bits each, and no generator that stretches fewer"


def test_all_bits_of_an_id_vary() -> None:
    made = asyncio.run(ids(2000))
    assert [len({id[place] for id in made}) for place in range(16)] == [32] * 16
