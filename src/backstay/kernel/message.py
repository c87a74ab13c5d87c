"""Messages: everything that the engine decides for an instance. The feature that defines a message decides it.

A message is either *refused* (nothing is written) or decided. A durable rejection is a decision: it writes a record.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from backstay.kernel.event import Recorded


class EarlierRun(Struct, frozen=True, kw_only=True):
    """A run before the current one, as the shell has read it for a command that names it.

    `commands` is its last command sequence on disk, read while the instance was `loaded_from` this decision: whether the run was
    given another since then, the instance knows itself. `history`: if the command changes the run.
    """

    key: int
    run_id: str
    number: int
    commands: int
    loaded_from: int
    history: list[Recorded] = []


class Message(Struct, frozen=True, kw_only=True, gc=False):
    """Base of all messages to one workflow instance."""

    def idempotency_key(self) -> tuple[tuple[str, ...], str] | None:
        """The command types and the request id by which a record of an earlier attempt is found. None: there can be
        none."""
        return None

    def with_record(self, record: Any) -> Message:
        """This message with the record that was found."""
        return self

    def beside_owner(self) -> Message:
        """This message where another process owns the instance by the time it is decided."""
        return self


class Refused(Exception):
    """The message was refused and nothing was written. `reason` is stable; `fields` go to the caller."""

    def __init__(self, reason: str, message: str, /, **fields: Any) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.fields = fields
