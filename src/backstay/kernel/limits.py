"""Structural limits: bounds that keep one run from hurting the others. 0 disables a limit."""

from __future__ import annotations

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True):
    """Structural limits of runs: sizes in bytes, and counts. 0 turns one off."""

    payload_size: int = 2 * 1024 * 1024
    memo_size: int = 256 * 1024
    search_attribute_size: int = 40 * 1024
    pending_activity_count: int = 2000
    pending_timer_count: int = 2000
    pending_child_count: int = 1000
    pending_signal_count: int = 5000
    pending_update_count: int = 500
    command_batch_size: int = 1000
    history_length: int = 50_000


class Breach(Struct, frozen=True):
    """A limit that was passed, and by how much."""

    kind: str
    value: int
    configured: int

    @property
    def message(self) -> str:
        passed = f"Structural limit exceeded: {self.kind} is {self.value}, the limit is {self.configured}"
        return f"{passed}; {_ADVICE[self.kind]}"


_FEWER = "wait for some of them before the code starts more: one gather() does this by itself, several at once do not"
_ADVICE = {
    "payload_size": "store the large value elsewhere, and pass a reference to it",
    "max_body_bytes": "store the large value elsewhere, or raise the setting max_body_bytes of the server",
    "memo_size": "store less in the memo",
    "search_attribute_size": "store less in the search attributes",
    "pending_activity_count": _FEWER,
    "pending_timer_count": _FEWER,
    "pending_child_count": _FEWER,
    "pending_signal_count": "send it again after the workflow has received some",
    "pending_update_count": "send it again after the workflow has completed some",
    "command_batch_size": _FEWER,
    "history_length": "call continue_as_new() before the history gets so long",
}
"""The advice for each limit."""


def over_count(kind: str, value: int, configured: int) -> Breach | None:
    return Breach(kind, value, configured) if configured and value > configured else None
