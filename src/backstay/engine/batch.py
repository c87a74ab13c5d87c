"""A batch entry: the turn that the messages of one instance share, and what to do when its decision is on disk."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from backstay.engine.cache import CachedInstance, Reply
from backstay.kernel.decision import Decision
from backstay.kernel.message import Message
from backstay.kernel.turn import Turn

DecidedMessage = tuple[Message, Reply | None, Any, bool]
"""A message, the callback for its answer, the answer, and whether to decide it again if this decision does not commit."""


class BatchEntry(Struct, eq=False):
    entry: CachedInstance
    turn: Turn
    messages: list[DecidedMessage] = []
    assignments: list[Any] = []
    shown: int = 0  # how many of the turn's events live code has been given to see
    decision: Decision | None = None  # once the turn is sealed
