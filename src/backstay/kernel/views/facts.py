"""What only this moment knows about a run: which live workers could take its next task, which limit holds it back, who decides.

None of it is stored. It is joined to the summary of a run when somebody reads it.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from backstay.kernel.task import Block


class Takers(Struct, frozen=True, kw_only=True):
    """The live workers of a queue, and how many of them have the type of a task, and its build too (`able`)."""

    on_queue: int = 0
    of_type: int = 0
    able: int = 0
    builds: list[str] = []  # of those that have the type
    known: bool = True  # False: this process does not know the workers

    @property
    def missing(self) -> Literal["queue", "type", "build"] | None:
        """What no live worker has."""
        if not self.known or self.able:
            return None
        return "build" if self.of_type else "type" if self.on_queue else "queue"


UNKNOWN_TAKERS = Takers(known=False)


class ReachedLimit(Struct, frozen=True, kw_only=True):
    """A limit of a queue that holds tasks back, and the workers that hold its slots."""

    name: str
    allowed: int
    used: int
    source: str
    holders: list[str] = []


class Facts(Struct, frozen=True, kw_only=True):
    """What the fleet and the limits say about the next task of a run. `engine`: which process decides, if any."""

    takers: Takers = UNKNOWN_TAKERS
    limit: ReachedLimit | None = None
    engine: Literal["here", "elsewhere", "none", "down"] = "here"
    paused_by: str | None = None
    pause_reason: str | None = None
    block: Block | None = None  # of its workflow task


NO_FACTS = Facts()
