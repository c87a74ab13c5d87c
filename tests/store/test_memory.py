"""The simulator's store: what it says about owners is what the stores of databases say, so what holds there holds here."""

from __future__ import annotations

import pytest

from ..kernel.given import MACHINE
from ..sim.disk import Disk, MemoryStore, Seam
from .ownership_conformance import OfShards, Owning


class Handles:
    where = "memory"

    def __init__(self) -> None:
        self.disk = Disk()

    async def open(self) -> MemoryStore:
        return MemoryStore(self.disk, MACHINE.kinds, Seam())

    async def sql(self, statement: str) -> None:
        raise NotImplementedError

    async def silence(self, store: MemoryStore, length: int) -> None:
        store.row.heard = self.disk.ownership.clock() - length

    async def lose_session(self, store: MemoryStore) -> None:
        store.lose_connection()


class TestMemory(OfShards, Owning):
    retains = False

    @pytest.fixture
    def database(self) -> Handles:
        return Handles()
