"""What happens to those who share the work: they stand still, are taken for dead, join, leave, and shards move all the time."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

from backstay.engine.cluster.draining import KIND, wish
from backstay.kernel.values import SECOND, Micros
from backstay.store.errors import StoreError
from backstay.store.ownership import Ownership

from .ownership import WriterRow

if TYPE_CHECKING:
    from .nodes import Node
    from .simulation import Simulation

MOST = 5
"""Nodes at a time."""

STEPS = ("begin", "lost", "ends", "row", "given")
"""Where a node that hands shards over may die: before it does anything, behind each of its steps, and when it is done."""


def shards_of(seed: int) -> int:
    """Where there are few, all that happens meets in them."""
    return Random(f"{seed}:shards").choice([2, 4, 16, 256])


NEWER = 2
"""The level of a release that writes what earlier ones cannot read."""


def level_of(sim: Simulation) -> int:
    """Of a node that begins now."""
    if not sim.faults.has("older level"):
        return 1
    return 1 if sim.faults.fires("older level") else NEWER


class Sharing:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._jump: Micros = 0
        self._looks: dict[int, Ownership] = {}  # what each saw before
        rows = sim.disk.ownership
        rows.clock = self._clock
        rows.evidence = self._evidence
        self.evidence = not sim.faults.fires("no evidence")

    def _clock(self) -> Micros:
        return self._sim.true_time() + self._jump

    def _evidence(self, row: WriterRow) -> bool | None:
        if not self.evidence:
            return None
        return row.session != self._sim.faults.fires("evidence lies")

    def looked(self, found: Ownership) -> Ownership:
        """A look may be late: it shows what was so before."""
        before = self._looks.get(found.me, found)
        self._looks[found.me] = found
        return before if self._sim.faults.fires("stale map") else found

    def calm(self) -> None:
        for node in self._sim.nodes:
            node.life.go_on()

    @property
    def draining(self) -> set[str]:
        """Rows of processes that somebody wishes to drain, as the registry has them."""
        return {name for kind, _, name in self._sim.disk.registry if kind == KIND}

    # -- trouble

    def disturb(self) -> None:
        faults = self._sim.faults
        nodes = [node for node in self._sim.nodes if node.serving and not node.life.paused]
        if not nodes:
            return
        if faults.fires("paused"):
            self._pause(faults.dice("paused").choice(nodes), faults.dice("paused"))
        if faults.fires("falsely dead"):
            self.fence(faults.dice("falsely dead").choice(nodes))
        if faults.fires("storm"):
            self._storm(self._sim.loop.time() + faults.dice("storm").choice([0.5, 3, 10]))
        if len(self._sim.nodes) < MOST and faults.fires("join"):
            self._join(faults.dice("join"))
        if faults.fires("database clock"):
            self._jump = faults.dice("database clock").choice([0, 5, 20, 400, -5, -400]) * SECOND
            self._sim.log(f"the clock of the database is off by {self._jump // SECOND} s")
        if faults.fires("node drain"):
            self._drain(faults.dice("node drain").choice(nodes), faults.dice("node drain"))

    def _pause(self, node: Node, dice: Random) -> None:
        length = dice.choice([0.1, 0.5, 3, 12, 18, 60])
        self._sim.log(f"{node.name} stands still for {length} s")
        node.life.pause()
        self._sim.loop.call_later(length, node.life.go_on)

    def fence(self, node: Node) -> None:
        """Somebody takes a node for dead that is not."""
        row = node.app.store.row  # type: ignore[attr-defined]
        if not row.fenced:
            self._sim.log(f"{node.name} is taken for dead")
            self._sim.disk.ownership.fence(row)

    def _join(self, dice: Random) -> None:
        place = min(set(range(self._sim.places, self._sim.places + MOST)) - {node.place for node in self._sim.nodes})
        self._sim.open(place)
        self._sim.loop.call_later(dice.choice([1, 10, 60]), self._leave, place)

    def _leave(self, place: int) -> None:
        for node in self._sim.nodes:
            if node.place == place and node.serving:
                self._sim.log(f"{node.name} leaves")
                node.stop()

    def _drain(self, node: Node, dice: Random) -> None:
        self._wish(node, True)
        length = dice.choice([1, 5, 20, 90, None])
        if length is not None:
            self._sim.loop.call_later(length, self._take_back, node)

    def _take_back(self, node: Node) -> None:
        if not self._sim.faults.calm:
            self._wish(node, False)

    def resume(self) -> bool:
        """In calm the operator takes back what was asked of those who are still there; False: nothing was."""
        drained = [node for node in self._sim.nodes if node.serving and node.app._node.facts.draining]
        for node in drained:
            self._wish(node, False)
        return bool(drained)

    def _wish(self, node: Node, drains: bool) -> None:
        """An operator asks at any process, and finds a node by the row that it has now."""
        asked = next((one for one in reversed(self._sim.nodes) if one.serving and not one.life.paused), None)
        if asked is not None and node.serving:
            self._sim.log(f"{node.name} is told to {'drain' if drains else 'resume'}")
            asked.world.spawn(_wish(asked, node.shards.me, drains), "operator")

    def _storm(self, until: float) -> None:
        """Shards move at random every few milliseconds, each handed over by its owner."""
        sim = self._sim
        dice = sim.faults.dice("storm")
        if sim.faults.calm or sim.loop.time() > until:
            return
        sim.loop.call_later(dice.choice([0.002, 0.01, 0.05]), self._storm, until)
        able = [node for node in sim.nodes if node.serving and not node.life.paused and node.app.engine.holder]
        if not able:
            return
        node = dice.choice(able)
        shards: Any = node.shards
        owned = [shard for shard, mine in enumerate(node.app.engine.owned) if mine]
        heirs = [row for row in sim.disk.ownership.writers if row != shards.me]
        if owned and heirs and node.app.engine.down is None:
            moved = dice.sample(owned, min(len(owned), dice.choice([1, 1, 2, 8])))
            node.world.spawn(_move(shards, moved, dice.choice(heirs)), "storm")


async def _wish(asked: Node, row: int, drains: bool) -> None:
    with suppress(StoreError):
        await wish(asked.world, asked.app.store, row, drains)


async def _move(shards: Any, moved: list[int], to: int) -> None:
    with suppress(StoreError):
        await shards._give(moved, to)
