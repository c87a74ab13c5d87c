"""The batch: decisions that are not on disk yet, those that wait for the next commit and those that are being written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from backstay.engine.core.cache import CachedInstance, Reply
from backstay.kernel.decision import CommandRecord, Decision
from backstay.kernel.event import Recorded
from backstay.kernel.message import Message
from backstay.kernel.turn import Turn

BATCH = 1024  # decisions in one commit

DecidedMessage = tuple[Message, Reply | None, Any, bool]
"""A message, the callback for its answer, the answer, and whether to decide it again if this decision does not commit."""


class BatchEntry(Struct, eq=False):
    """The turn that the messages of one instance share until the next commit, and then its decision."""

    entry: CachedInstance
    turn: Turn
    messages: list[DecidedMessage] = []
    assignments: list[Any] = []  # tasks leased by this decision, to be delivered when it is on disk
    shown: int = 0  # how many of the turn's events were added to `CachedInstance.unseen_events`
    decision: Decision | None = None  # once the turn is sealed


CommitObserver = Callable[[Sequence[BatchEntry]], None]


class Uncommitted:
    """All decisions that are not on disk yet, in the order in which they were made."""

    def __init__(self) -> None:
        self.open: list[BatchEntry] = []  # for the next commit
        self.writing: list[BatchEntry] = []  # in the commit that is under way
        self._drained: list[asyncio.Future[None]] = []  # resolved when a batch has ended, committed or not

    def __iter__(self) -> Iterator[BatchEntry]:
        yield from self.writing
        yield from self.open

    def next_batch(self) -> list[BatchEntry]:
        """Move the decisions of the next commit from `open` to `writing`."""
        batch = self.writing = self.open[:BATCH]
        self.open = self.open[BATCH:]
        return batch

    def end_batch(self) -> None:
        """The commit has ended, one way or the other, or there was nothing to write."""
        self.writing = []
        drained, self._drained = self._drained, []
        for future in drained:
            if not future.done():
                future.set_result(None)

    def call_at_end(self, ended: asyncio.Future[None]) -> None:
        """Resolve this future when the batch ends."""
        self._drained.append(ended)

    def take_open(self, entry: CachedInstance | None = None) -> list[BatchEntry]:
        """Take the open turns of an instance, or of all, out of the next batch."""
        taken = [item for item in self.open if entry is None or item.entry is entry]
        if taken:
            self.open = [] if entry is None else [item for item in self.open if item.entry is not entry]
        return taken

    def is_writing(self, entry: CachedInstance) -> bool:
        return any(item.entry is entry for item in self.writing)

    def events(self, entry: CachedInstance) -> list[Recorded]:
        """The events of this instance that are decided and not yet known to be on disk."""
        return [event for item in self if item.entry is entry for event in item.turn.events]

    def command(self, entry: CachedInstance | None, command_type: str, request_id: str) -> CommandRecord | None:
        """The record of a command of this instance that is decided and not yet known to be on disk."""
        if entry is None or not entry.inflight:
            return None
        for item in self:
            for command in item.turn.commands if item.entry is entry else ():
                if command.request_id == request_id and command.command_type == command_type:
                    return command
        return None
