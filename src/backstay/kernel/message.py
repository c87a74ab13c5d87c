"""Messages: what reaches a workflow from outside its code. Each is decided by the feature that defines it.

A message is either *refused* (nothing is written) or decided. A durable rejection is a decision: it writes a record.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Message(Struct, frozen=True, kw_only=True, gc=False):
    """Base of all messages to one workflow instance."""

    def idempotency_key(self) -> tuple[tuple[str, ...], str] | None:
        """Of which kinds, and under which request id, there may be a record of this from an earlier try."""
        return None

    def with_record(self, record: Any) -> Message:
        """The same, with that record."""
        return self


class Refused(Exception):
    """The message was not taken and nothing was written. `reason` is stable; `fields` go to the caller."""

    def __init__(self, reason: str, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.fields = fields
