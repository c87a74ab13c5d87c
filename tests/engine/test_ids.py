"""Ids are told to everybody they concern; that must not tell anybody the next ones."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from backstay import AsyncBackstay, child, continue_as_new, emit, workflow
from backstay.engine.core.world import AsyncioWorld
from backstay.kernel.values import PARTITIONS, partition_in, partition_of


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


async def test_a_key_and_a_run_id_end_with_the_partition_of_their_instance() -> None:
    minted = AsyncioWorld(asyncio.get_running_loop()).ids
    for partition in (0, 1, 1023, 1024, PARTITIONS - 1):
        assert minted.key(partition) % PARTITIONS == partition
        assert partition_in(minted.run_id(partition)) == partition
        assert partition_in(f"{minted.run_id(partition)}-a7.2") == partition, "ids that derive from it say so, too"
    keys = [minted.key(partition) for partition in (9, 3, 4000, 0)]
    assert keys == sorted(keys), "they grow with time, whatever their partitions are"


@workflow
def packing(number: int) -> int:
    return number


@workflow
def order(left: int) -> None:
    emit("progress", left)
    child(packing, left)
    if left:
        continue_as_new(order, left - 1)


async def test_all_rows_of_a_workflow_carry_its_partition(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    async with AsyncBackstay(path, [order, packing]) as app:
        hourly = await app.schedules.options(every=3600).create(packing, "hourly", 1)
        await hourly.trigger()
        for number in range(3):
            await (await app.start(order, f"order-{number}", 2)).result()
    with closing(sqlite3.connect(path)) as rows:
        found = rows.execute("select key, namespace, workflow_id from workflow")
        instances = {key: partition_of(*name) for key, *name in found}
        runs = list(rows.execute("select workflow, key, run_id from run"))
    assert {key % PARTITIONS == partition for key, partition in instances.items()} == {True}
    assert len(runs) > len(instances) > 10
    assert {(key % PARTITIONS, partition_in(run_id)) for _, key, run_id in runs} == {(b, b) for b in instances.values()}
    assert all(key % PARTITIONS == instances[workflow] for workflow, key, _ in runs)
