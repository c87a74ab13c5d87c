"""The facts about a run that are true only now: the live workers for its next task, the limit that throttles it, the
engine.

None of it is stored. They are joined to the summary of a run when it is read.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from backstay.kernel.task import Block


class Takers(Struct, frozen=True, kw_only=True):
    """The live workers of a queue, and how many of them have the type of a task, its build too (`of_build`), and its connection
    (`able`)."""

    on_queue: int = 0
    of_type: int = 0
    of_build: int = 0
    able: int = 0
    builds: list[str] = []  # of those that have the type
    connections: frozenset[str] | None = None  # of those that are able; None: one of them serves every connection
    known: bool = True  # False: this process does not know the workers

    @property
    def missing(self) -> Literal["queue", "type", "build", "connection"] | None:
        """The property that no live worker has."""
        if not self.known or self.able:
            return None
        if self.of_build:
            return "connection"
        return "build" if self.of_type else "type" if self.on_queue else "queue"

    @property
    def is_divided(self) -> bool:
        """Whether the connection of a task decides if somebody takes it."""
        return self.known and self.able > 0 and self.connections is not None

    def of_connection(self, connection: str | None) -> Takers:
        """The workers for a task of this connection."""
        if self.connections is None or not self.able or connection in self.connections:
            return self
        return replace(self, of_build=self.able, able=0)


UNKNOWN_TAKERS = Takers(known=False)


class ReachedLimit(Struct, frozen=True, kw_only=True):
    """A limit of a queue that holds tasks back, and the workers that hold its slots."""

    name: str
    allowed: int
    used: int
    source: str
    holders: list[str] = []


class Facts(Struct, frozen=True, kw_only=True):
    """The facts of the fleet and the limits about the next task of a run. `engine`: where the engine runs, if
    anywhere."""

    takers: Takers = UNKNOWN_TAKERS
    limit: ReachedLimit | None = None
    engine: Literal["here", "elsewhere", "none", "down"] = "here"
    paused_by: str | None = None
    pause_reason: str | None = None
    block: Block | None = None  # of its workflow task


NO_FACTS = Facts()
