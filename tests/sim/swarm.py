"""What a seed is fond of. Half of the seeds do a little of everything; each of the others does few things and those often.

What takes three rare things at once is never seen where everything is rare: it needs a seed that happens to like all three.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")

HOT = 8
"""By how much a fault that a seed is fond of is likelier."""


class Swarm:
    def __init__(self, seed: int | None) -> None:
        """`None`: fond of nothing."""
        dice = Random(f"{seed}:swarm")
        self.fond = seed is not None and dice.random() < 0.5
        self._seed = seed
        self.away = dice.choice([0.0, 0.3, 0.9]) if self.fond else 0.3
        """How many instances run in workers elsewhere."""

        self.short = self.fond and dice.random() < 0.5
        """Programs of one or two statements: most of what can go wrong with an end goes wrong right behind a beginning."""

        self.at_once: list[tuple[str, ...]] = [(), (), ("note",), ("add",), ("add", "note", "add")]
        """What an instance is told right behind its start."""
        if self.fond and dice.random() < 0.4:
            self.at_once = [("add",), ("add", "add"), ("pause", "add", "unpause")]

        self.hands = [0.3, 3, 20] if self.fond and dice.random() < 0.3 else [0, 0, 0.001, 0.02, 0.3]
        """How many seconds an activity takes: slow ones leave time for everything else to happen meanwhile."""

        self.rooms = [1, 1, 2] if self.fond else [2, 200]
        """How many activities a node runs at a time: where there is hardly any room, none may leak."""

        self.few = self.fond and dice.random() < 0.4
        """Two instances, to which everybody talks."""

        self.pace = (
            [0, 0, 0.001, 0.05, 2]
            if self.fond and dice.random() < 0.4
            else [0, 0, 0.001, 0.05, 0.05, 0.5, 2, 2, 15, 100]
        )
        """How many seconds a client waits before it does the next thing."""

        self._weights: dict[object, int] = {}

    def likes(self, choices: Sequence[T]) -> list[T]:
        """The same choices as this seed weighs them: a few often, many not at all."""
        if not self.fond:
            return list(choices)
        for choice in dict.fromkeys(choices):
            if choice not in self._weights:
                self._weights[choice] = Random(f"{self._seed}:likes {choice}").choice([0, 0, 0, 1, 1, 6])
        found = [choice for choice in choices for _ in range(self._weights[choice])]
        return found or list(choices)

    def chance(self, ordinary: float, most: float, dice: Random) -> float:
        """How likely a fault is here."""
        if not self.fond:
            return ordinary * dice.choice([0, 0.5, 1, 1, 3])
        return min(ordinary * dice.choice([0, 0, 0, 1, 1, HOT]), most)
