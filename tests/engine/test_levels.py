"""What a database has reached: an older release does not begin where a newer one has been."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backstay.store.errors import IncompatibleStore
from tests.sdk.kit import eventually
from tests.sim.disk import Disk
from tests.sim.virtual import run

from .two_processes import OnDisk


class OfLevel(OnDisk):
    def __init__(self, disk: Disk, level: int) -> None:
        super().__init__(disk, level, [])
        self._level = level

    def _deployed(self) -> None:
        super()._deployed()
        self._node.facts = replace(self._node.facts, level=self._level)


def test_an_older_process_is_refused_though_no_newer_one_lives() -> None:
    async def story(_: object) -> None:
        disk = Disk()
        async with OfLevel(disk, 1) as old:
            assert old._node.shards.level == 1
        async with OfLevel(disk, 2) as new:
            await eventually(lambda: new._node.shards.level == 2, "the database remembers it")
        with pytest.raises(IncompatibleStore, match="reached level 2, this one has 1"):
            await OfLevel(disk, 1).__aenter__()

    run(1, story)


def test_a_level_that_one_process_cannot_read_is_not_reached() -> None:
    async def story(_: object) -> None:
        disk = Disk()
        async with OfLevel(disk, 1) as old, OfLevel(disk, 2) as new:
            await eventually(lambda: len(old._node.shards.nodes) == 2, "both are there")
            assert (old._node.shards.level, new._node.shards.level) == (1, 1)
        async with OfLevel(disk, 1):
            pass

    run(1, story)
