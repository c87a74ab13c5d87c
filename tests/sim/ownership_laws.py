"""Laws of many nodes: who commits what, who owns what in the end, and in which order sends are made and taken."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from backstay.engine.cluster.levels import KIND
from backstay.kernel.decision import Decision
from backstay.kernel.values import KEY_BITS, KEY_EPOCH

from .sharing import NEWER

if TYPE_CHECKING:
    from .ownership import WriterRow
    from .simulation import Simulation

SETTLED = 25.0
"""Seconds of calm within which every shard has an owner: here everybody looks every two seconds only."""

Pair = tuple[int, str, str]

COMMITTED = ("_endless", "_last", "_made", "_pairs")
"""What is known of what was committed."""


class OwnershipLaws:
    def __init__(self, sim: Simulation, must: Callable[[bool, str, object], None]) -> None:
        self._sim = sim
        self._must = must
        self._endless: set[tuple[str, int]] = set()  # leases without an end: the task, and its attempt
        self._last: dict[int, int] = {}  # the newest send of each sender
        self._made: dict[Pair, list[int]] = {}  # sends from one to another, in the order made
        self._pairs: dict[int, Pair] = {}
        self._lost: set[Pair] = set()
        self._excused: set[int] = set()  # senders for whom a guest with another clock has sent something

    def saved(self) -> Any:
        return deepcopy({name: getattr(self, name) for name in COMMITTED})

    def restore(self, saved: Any) -> None:
        for name, value in saved.items():
            setattr(self, name, value)

    # -- after every commit

    def authored(self, decision: Decision, writer: int, told: bool) -> None:
        self._sent(decision, told, writer)
        rows = self._sim.disk.ownership
        author, key = rows.writers.get(writer), decision.instance.key
        if author is None:
            return  # a model of a file
        shard = key & (len(rows.shards) - 1)
        owner = rows.owner(shard)
        about = (decision.instance.workflow_id, f"shard {shard}", f"by {writer}", owner and owner.id)
        # Who owned it before the database forgot that finds it out at its next look; until then guards hold.
        unaware = self._sim.amnesia.unaware(writer)
        self._must(told or unaware or owner is author, "S1 who commits without a notice owns the shard", about)
        self._must(not author.fenced, "S2 nobody who is fenced commits", about)
        if self._sim.faults.has("older level"):
            self._writes_what_all_can_read(author)
        for change in decision.tasks:
            task = change.task
            if task is None or task.state != "leased" or task.until is not None:
                self._endless = {lease for lease in self._endless if lease[0] != change.task_id}
            elif (task.id, task.attempt) not in self._endless:
                self._endless.add((task.id, task.attempt))
                holds = owner is author or unaware or key in self._sim.sabotaged
                self._must(holds, "S4 who gives a lease without an end owns the shard", (*about, task.id))

    def _writes_what_all_can_read(self, author: WriterRow) -> None:
        """Who believes that all are of the newer level would write by it. Who was taken for dead, and is back, is judged no more."""
        sim = self._sim
        node = next((node for node in sim.nodes if node.level == NEWER and _row_of(node) == author.id), None)
        if node is None or not node.serving or node.shards.level < NEWER or self._looks_wrong():
            return
        if node.first_row != author.id:
            return  # while it was taken for dead, an older one may have found nobody and begun
        if any(one.level < NEWER and one.serving and _row_of(one) != one.first_row for one in sim.nodes):
            return  # an older one that was taken for dead is back, and others may have begun by the sight of it
        older = [name for name, _ in self._older()]
        self._must(not older, "S16 nothing is written that somebody cannot read", (node.name, older))

    def _older(self) -> list[tuple[str, WriterRow]]:
        rows = self._sim.disk.ownership.writers
        older = [node for node in self._sim.nodes if node.level < NEWER and node.serving and node.first_row in rows]
        return [(node.name, rows[node.first_row]) for node in older if not rows[node.first_row].fenced]

    def refused(self, node: Any) -> None:
        """Who is refused is older than all others that are known to have been let in."""
        if not self._looks_wrong():
            older = [name for name, row in self._older() if row.facts is not None and not row.facts.joining]
            reached = self._sim.disk.registry.get((KIND, "", KIND))
            older = [] if reached is not None and int(reached.body or b"0") > node.level else older
            self._must(
                node.level < NEWER and not older, "S16 only who is older than all is refused", (node.name, older)
            )

    def _looks_wrong(self) -> bool:
        fired = self._sim.faults.fired
        return fired["stale map"] + fired["amnesia"] > 0

    def _sent(self, decision: Decision, told: bool, author: int) -> None:
        """Who owns the sender mints keys behind those of all owners before it, by whichever clock; a guest only if clocks agree."""
        sends = self._sim.disk.sends
        for send in decision.sends:
            pair = self._pairs[send.key] = (send.sender, send.namespace, send.workflow_id)
            self._made.setdefault(pair, []).append(send.key)
            if (told or self._decided_before_it_was_owned(send.key, author)) and self._clocks_differ():
                self._excused.add(send.sender)
                continue
            before = self._last.get(send.sender, 0)
            self._must(send.key > before, "S12 keys grow for each sender", (send.sender, before, send.key))
            self._last[send.sender] = send.key
        for key in decision.taken_sends:
            pair = self._pairs.get(key, (0, "", ""))
            made = self._made.get(pair, [])
            if key in made and pair not in self._lost and pair[0] not in self._excused:
                earlier = [other for other in made[: made.index(key)] if other in sends]
                about = (key, earlier, [other >> KEY_BITS for other in made])
                self._must(not earlier, "S7 sends of one pair are taken in the order made", about)

    def _decided_before_it_was_owned(self, key: int, author: int) -> bool:
        """A guest may become the owner while what it has decided is on its way."""
        node = next((node for node in self._sim.nodes if _row_of(node) == author), None)
        return node is not None and (key >> KEY_BITS) + KEY_EPOCH <= getattr(node, "gained_at", 0)

    def keeps_order(self, sender: int) -> bool:
        """Whether what this instance has sent arrives in order: all who sent for it had clocks that agree, or owned it."""
        return sender not in self._excused

    def lost(self, send: Any) -> None:
        """What is made again comes after what was sent meanwhile."""
        self._lost.add((send.sender, send.namespace, send.workflow_id))

    def _clocks_differ(self) -> bool:
        fired = self._sim.faults.fired
        return fired["clock"] + fired["clock step"] > 0

    def handed_over(self, row: WriterRow, given: list[int]) -> None:
        """Nobody works under a lease without an end any more that is of a shard just given away."""
        node = next((node for node in self._sim.nodes if getattr(node.app.store, "row", None) is row), None)
        if node is None:
            return
        within = self._sim.disk.within(given)
        held, executor_of = node.app.engine.held_tasks(), node.app.engine.matching.executor_of
        left = [
            task.id
            for task in self._sim.disk.all_tasks()
            if within(task.workflow) and task.state == "leased" and task.until is None and task.id in held
            if executor_of(task.owner or "") is not None  # it may also hold an attempt that is over
        ]
        sabotaged = any(within(key) for key in self._sim.sabotaged | self._sim.amnesia.instances)
        self._must(sabotaged or not left, "S4 a lease without an end is its shard owner's", (node.name, left))

    # -- in calm

    def moves(self) -> bool:
        """Whether somebody still has to hand shards over."""
        sim = self._sim
        if sim.files is not None:
            return False
        shards = [shard.owner for shard in sim.disk.ownership.shards]
        nodes = [node for node in sim.nodes if node.serving]
        able = [node for node in nodes if not node.app._node.facts.draining]
        drained = any(_row_of(node) in shards for node in nodes if node not in able) and bool(able)
        share = -(-len(shards) // max(1, len(able)))
        return drained or (sim.far and any(shards.count(_row_of(node)) > share + 1 for node in able))

    def settled(self) -> None:
        """Every shard has an owner that lives, and nobody has too many."""
        sim = self._sim
        rows = sim.disk.ownership
        if sim.faults.fired["database clock"]:
            return  # who died before it was set back seems to be alive when that time comes again
        nodes = {node.app.store.row.id: node for node in sim.nodes if node.serving}  # type: ignore[attr-defined]
        owners = [row and row.id for row in (rows.owner(shard) for shard in range(len(rows.shards)))]
        free = [shard for shard, owner in enumerate(owners) if owner not in nodes]
        self._must(not free, "S3 in calm every shard has an owner", (free, owners, sorted(nodes)))
        draining = {id for id, node in nodes.items() if node.app._node.facts.draining}
        counts = {node.name: owners.count(id) for id, node in nodes.items()}
        if draining < set(nodes):  # else nobody can take them, and all keep what they have
            share = -(-len(owners) // len(set(nodes) - draining))
            self._must(max(counts.values()) <= share + 1, "S3 in calm nobody owns too much", (share, counts))
            kept = [nodes[id].name for id in draining if id in owners]
            self._must(not kept, "S15 who drains owns nothing if another can take it", (kept, counts))
        asked = {id for id in nodes if str(id) in sim.sharing.draining}
        self._must(draining == asked, "S15 who is asked to drain does, and nobody else", (draining, asked))
        for id, node in nodes.items():
            if sim.far:
                continue  # it may be about to learn
            own = [shard for shard, owned in enumerate(node.app.engine.owned) if owned]
            self._must(own == rows.of(id), "S3 in calm everybody knows what it owns", (node.name, own, rows.of(id)))
            self._calls_the_right_ones(node, owners)

    def _calls_the_right_ones(self, node: Any, owners: list[int | None]) -> None:
        peers = node.app._node.peers
        if peers is not None:
            called = [peers.owner(shard) for shard in range(len(owners))]
            wrong = [
                (shard, one, owner)
                for shard, (one, owner) in enumerate(zip(called, owners, strict=True))
                if (node.shards.me if one is None else one.id) != owner
            ]
            self._must(not wrong, "S3 in calm everybody calls the owners", (node.name, wrong[:3]))


def _row_of(node: Any) -> int | None:
    row = getattr(getattr(node.app, "store", None), "row", None)
    return None if row is None else row.id
