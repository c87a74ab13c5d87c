"""Topics of the live feed, with the changes since their last frames."""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, TypeVar

import msgspec

from backstay.kernel.decision import Decision, RunRow

REMEMBERED = 256  # frames of a topic, for streams that come back

Counts = dict[str, int | None]

S = TypeVar("S")
"""A stream that listens."""


class TopicName(msgspec.Struct, frozen=True):
    """The name of a topic: its kind, its namespace, and the id of one run or bulk operation."""

    kind: str
    namespace: str
    id: str = ""

    @property
    def said(self) -> str:
        return f"{self.kind}:{self.id}" if self.id else self.kind


class FeedTopic(Generic[S]):
    """A topic with listeners: its streams, the changes since its last frame, and its last frames."""

    def __init__(self, name: TopicName, every: float, since: int) -> None:
        self.name = name
        self.every = every
        self.since = since  # it has been followed since this frame
        self.streams: dict[S, None] = {}
        self.due = 0.0  # its next frame is not published before
        self.left_at = 0.0  # when its last stream went
        self.counts: Counts = {}  # since its last frame
        self.changed: set[int] = set()  # runs, since its last frame
        self.position: dict[str, Any] = {}  # where its run or bulk operation is
        self.run = (0, 0)  # the number and the key of the run that the position is of
        self.frames: deque[tuple[int, Counts]] = deque(maxlen=REMEMBERED)

    def count(self, name: str, more: int | None) -> None:
        """Count a change. None: a commit of another process, of which nothing more is known."""
        before = self.counts.get(name, 0)
        self.counts[name] = None if more is None or before is None else before + more

    def since_frame(self, number: int) -> Counts | None:
        """The changes after a frame; None if that is not known any more. Empty: nothing did."""
        if number < self.since or (len(self.frames) == REMEMBERED and self.frames[0][0] > number + 1):
            return None
        total: Counts = {}
        for published, counts in self.frames:
            if published > number:
                for name, more in counts.items():
                    before = total.get(name, 0)
                    total[name] = None if more is None or before is None else before + more
        return total or ({"moved": 1} if self.frames and self.frames[-1][0] > number else {})

    def stands_at(self, row: RunRow, sequence: int) -> bool:
        """Take over the position of its run, unless that is older than the known one. Returns whether it has moved."""
        known = (*self.run[:1], self.position.get("sequence", 0))
        position = {"run_id": row.run_id, "sequence": sequence, "status": row.status}
        if (row.number, sequence) < known or position == self.position:
            return False
        self.run = (row.number, row.key)
        self.position = position
        return True

    def follows(self, decision: Decision) -> bool:
        """Take over where a decision has brought its run. Returns whether that is known."""
        row = decision.instance
        for _, index in decision.runs:
            if index.key == row.run:
                return self.stands_at(index, row.length) or True
        if self.run[1] == row.run and self.position:
            self.position = self.position | {"sequence": max(self.position["sequence"], row.length)}
        return bool(self.position)

    def count_runs(self, decision: Decision) -> None:
        """Count the runs that a decision has moved, started and closed."""
        run = decision.instance.run
        if run is not None:
            self.changed.add(run)
        if decision.runs:
            started = sum(is_new for is_new, _ in decision.runs)
            if started:
                self.count("started", started)
        if decision.closed:
            self.count("closed", len(decision.closed))
