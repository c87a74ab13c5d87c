"""Amnesia: a failover to a standby that was behind. The last commits are gone, while processes live on with what they have in memory.

What the database has is consistent, and stays so: nobody may build on what never was, and everything must still come to its end.
What clients and workers were told of the lost commits is not true any more. So no law holds them to it: of instances that had
changed since, and of nothing else.
"""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import TYPE_CHECKING, Any

from backstay.store.errors import Unavailable

if TYPE_CHECKING:
    from .nodes import Node
    from .simulation import Simulation

FAULT = "amnesia"

WATCHED = ("runs", "sent", "taken", "at_work", "halted")
"""What the auditor knows of what was committed."""


class Amnesia:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._pending = False
        self.times = 0
        self.instances: set[int] = set()  # that have lost something
        self.names: set[tuple[str, str]] = set()  # theirs
        self.runs: set[str] = set()  # and their runs, by id
        self._unaware: dict[int, tuple[Node, int]] = {}  # rows of processes that have not looked since

    def disturb(self) -> None:
        sim = self._sim
        if sim.files is None and not self._pending and sim.disk.runs and sim.faults.fires(FAULT):
            dice = sim.faults.dice(FAULT)
            self._pending = True
            saved = sim.disk.saved(), self._watched(), set(sim.damaged), set(sim.falsified)
            sim.loop.call_later(dice.choice([0.001, 0.05, 1, 5, 20]), self._lose, saved, dice)

    def _watched(self) -> tuple[dict[str, Any], Any, Any]:
        auditor = self._sim.auditor
        known = deepcopy({name: getattr(auditor, name) for name in WATCHED})
        return known, deepcopy(auditor.schedules._lives), auditor.ownership.saved()

    def _lose(self, saved: tuple[dict[str, Any], Any, set[int], set[int]], dice: Random) -> None:
        sim = self._sim
        rows, (known, lives, owned), damaged, falsified = saved
        self._pending = False
        if sim.faults.calm or sim.damaged != damaged:  # what is damaged stays so
            return
        self._note(rows)
        self.times += 1
        sim.log(f"the database has forgotten what happened to {len(self.instances)} instances")
        sim.disk.restore(rows)
        for name, value in known.items():
            setattr(sim.auditor, name, value)
        sim.auditor.touched = set(sim.disk.workflows)
        sim.auditor.schedules._lives = lives
        sim.auditor.ownership.restore(owned)
        sim.falsified |= falsified
        sim.rows.forget()
        for told in sim.told:
            told.forgotten = told.forgotten or ("default", told.id) in self.names
        for node in sim.nodes:
            store: Any = getattr(node.app, "store", None)
            if store is not None:
                self._unaware[store.row.id] = (node, node.shards._looks if hasattr(node.app, "recovery") else 0)
                store.fail_over()
                if dice.random() < 0.5:
                    self._outage(node, store, dice.choice([0, 0.5, 4, 30]))

    def _outage(self, node: Node, store: Any, length: float) -> None:
        """This process hears of it: for a while there is no server."""
        store.lose_connection()
        store._seam.away(length)

        def hear() -> None:
            """An engine that is writing hears of it by that, unless it was done."""
            engine = getattr(node.app, "engine", None)
            if engine is not None and store._down:
                engine.on_unavailable(Unavailable("the server of the database is another one"))
                if engine.down is None:
                    node.world.later(0.5, hear)

        node.world.soon(hear)

    def _note(self, before: dict[str, Any]) -> None:
        """Which instances are not what they were."""
        disk = self._sim.disk
        for key, row in disk.workflows.items():
            old = before["workflows"].get(key)
            if old is None or old.last_decision != row.last_decision:
                self.instances.add(key)
                self.names.add((row.namespace, row.workflow_id))
        self.runs |= {run.run_id for run in disk.runs.values() if run.workflow in self.instances}

    def is_of(self, id: str) -> bool:
        """Whether an id of an attempt, of a task or of an execution is one of a run that has lost something."""
        return id.partition("-")[0] in self.runs

    def may_be_told_of(self, workflow_id: str) -> bool:
        """Whether others may have heard of an end that is lost: what it has sent was on its way, and arrives."""
        return ("default", workflow_id) in self.names

    def unaware(self, writer: int) -> bool:
        """Whether the process of a row cannot know yet: it has not looked since."""
        node, looks = self._unaware.get(writer, (None, 0))
        return node is not None and node.shards._seen <= looks
