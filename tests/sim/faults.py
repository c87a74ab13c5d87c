"""Faults: each has a switch, a probability, a stream of randomness of its own, and a counter that proves it fired.

Switching one off leaves the dice of the others alone, so that a failing run can be shrunk fault by fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import NamedTuple

from .swarm import Swarm

CHANCES: dict[str, float] = {
    # nodes
    "kill": 0.002,  # before any call the node's loop makes
    "kill before commit": 0.008,
    "kill after commit": 0.008,  # the ambiguous commit: it is on disk and nobody was told
    "kill in activity": 0.02,  # it has acted, and its result is lost
    "kill in recovery": 0.04,
    "recovery error": 0.1,  # reading fails while a guest takes over, or after an outage
    "restart": 0.5,  # an orderly stop instead of a kill, when somebody is stopped at all
    "rolling restart": 0.5,  # one node after the other, each with the newer build, while the rest goes on
    "other build": 0.5,  # a node comes back with the other build
    "clock": 0.4,  # a node comes back with another clock
    "clock step": 0.02,  # and somebody sets the clock of one that is at work, each time it looks
    # the store
    "slow commit": 0.15,
    "store down": 0.006,  # an I/O error: nothing was written
    "disk full": 0.004,
    "busy": 0.006,
    "ambiguous error": 0.004,  # the commit reports an error and is on disk
    "statement error": 0.003,  # one decision of a batch cannot be written
    "conflict": 0.04,  # somebody else's commit came first
    "read error": 0.003,
    "power cut": 0.004,  # on files only: all die at once, and of the last commit a part is on disk
    "amnesia": 0.02,  # in one of eight seeds: a failover, and the last commits are gone; see amnesia.py
    "far database": 1.0,  # in a third of the seeds: it takes time to ask and to be answered, see distant.py
    "deaf": 0.1,  # nobody ever notices another node's commits, to the end
    "missed notice": 0.1,  # another node's commit goes unnoticed this time
    # those who share the work
    "paused": 0.05,  # a node stands still for a while, and goes on
    "falsely dead": 0.05,  # a node that lives is deposed; far away, most often one that has lost its connection
    "no evidence": 0.3,  # nobody can tell whether a session is there: who is silent for long is dead
    "evidence lies": 0.01,  # a session that is there seems to be gone, or the other way round
    "stale map": 0.1,  # who looks sees what was so before
    "storm": 0.05,  # shards move every few milliseconds
    "join": 0.03,  # another node joins, and leaves after a while
    "hand-over interrupted": 0.1,  # who hands over dies in the middle of it
    "database clock": 0.02,  # somebody sets it
    "node drain": 0.1,  # in a third of the seeds: an operator asks a node to hand over its shards, and takes that back or not
    "older level": 0.3,  # in a quarter of the seeds: a node is of a release that reads less than the others
    # links between nodes, in half of the seeds
    "links cut": 0.1,  # none of them ever leads anywhere, to the end
    "link lost": 0.03,  # a request does not arrive
    "link answer lost": 0.03,  # it is carried out, and nobody hears of that
    "link late": 0.1,
    "link twice": 0.05,  # it arrives twice
    "link one-way": 0.1,  # from one node to another nothing arrives for a while
    # the seam to clients
    "request lost": 0.05,
    "reply lost": 0.05,
    "request twice": 0.05,
    "request late": 0.2,
    # workers
    "stall": 0.05,  # an activity takes longer than anybody wants to wait for it
    "late report": 0.05,
    "worker dies": 0.05,  # one of another process, with a task it was given
    "worker fails": 0.1,
    "lease runs out": 0.1,  # and its holder goes on and reports late
    "false stop": 0.3,  # a heartbeat is answered by a clock that is far ahead: the attempt is told that it is over
    "drain": 0.5,  # a worker elsewhere takes no more tasks, and the next of its name begins beside it
    "moved to thread": 0.01,  # a workflow type proves slow
    "evicted": 0.05,  # live code is given up
    "deadly activity": 0.9,  # one that kills its process does so
    "poison": 0.02,  # an activity raises what no codec can write
    "unresolvable": 0.02,  # an activity raises what no other process can restore
    # rows
    "task lost": 0.01,
    "task falsified": 0.03,
    "wake lost": 0.004,
    "wake early": 0.01,
    "count falsified": 0.004,
    "send lost": 0.02,  # of those that are asked for again; most often with everybody who has it in mind
    "index falsified": 0.004,  # the list says another state than history
    "history damaged": 0.002,  # a bit of it is another: the run is unreadable, and nothing else
}

CLASSES = tuple(CHANCES)

SHARES = {"amnesia": 1 / 8, "node drain": 1 / 3, "older level": 1 / 4}
"""Faults that only some seeds have, and how many."""

HARMLESS = {"conflict", "slow commit", "evicted", "stall", "late report", "request late", "request twice", "poison"}
HARMLESS |= {"far database", "link late", "link twice"}
"""Faults that cost no answer."""

GENTLE = HARMLESS | {"store down", "disk full", "busy", "request lost", "reply lost", "missed notice"}
GENTLE |= {"node drain", "older level"}
GENTLE |= {"storm", "stale map", "no evidence", "links cut", "link lost", "link answer lost", "link one-way"}
"""Faults after which nothing has to be done again."""

DEADLY = {"kill": 0.006, "kill before commit": 0.03, "kill after commit": 0.03, "kill in recovery": 0.2}
"""Faults of which more would leave nobody alive to do anything, with how likely they may be at most."""


class Kinds(NamedTuple):
    """The faults of one kind of simulation, and which of them are how bad."""

    chances: dict[str, float]
    harmless: set[str]
    gentle: set[str]
    deadly: dict[str, float]


NODES = Kinds(CHANCES, HARMLESS, GENTLE, DEADLY)


class Faults:
    def __init__(self, seed: int, only: Iterable[str] | None = None, kinds: Kinds = NODES) -> None:
        profile = Random(f"{seed}:profile").random()
        kind = kinds.harmless if profile < 0.08 else kinds.gentle if profile < 0.2 else kinds.chances
        self.on = frozenset(kind if only is None else only)
        self.kinds = kinds
        unknown = self.on - set(kinds.chances)
        if unknown:
            raise ValueError(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(kinds.chances)}")
        self.fired: Counter[str] = Counter()
        self.calm = False
        self._dice = {name: Random(f"{seed}:{name}") for name in kinds.chances}
        # Not every run is hit by everything: which faults a seed has, and how hard, is part of the seed.
        self.swarm = Swarm(seed)
        self.chances = {
            name: self.swarm.chance(kinds.chances[name], kinds.deadly.get(name, 0.7), dice)
            for name, dice in self._dice.items()
        }
        for name, share in SHARES.items():
            if Random(f"{seed}:has {name}").random() >= share:
                self.chances[name] = 0

    def fires(self, name: str) -> bool:
        if self.calm or name not in self.on or self._dice[name].random() >= self.chances[name]:
            return False
        self.fired[name] += 1
        return True

    def has(self, name: str) -> bool:
        """Whether this fault may fire here."""
        return name in self.on and self.chances[name] > 0

    def dice(self, name: str) -> Random:
        return self._dice[name]
