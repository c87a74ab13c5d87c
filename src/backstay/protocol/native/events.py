"""Events on the wire between our own processes: the stored bytes as they are, so that nothing is encoded twice."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec
from msgspec import Raw, Struct

from backstay.kernel.event import NO_CONTEXT, Context, Event, Recorded
from backstay.kernel.machine import Machine


class WireEvent(Struct, frozen=True, array_like=True, gc=False):
    """One event of a history."""

    run: int
    sequence: int
    type: str
    at: int
    body: Raw
    context: Raw
    checksum: int


class UnknownEvent(Exception):
    """The other side has sent an event of a type that this version does not know."""

    def __init__(self, type: str) -> None:
        super().__init__(f"the server recorded an event of type {type!r}, which this version of Backstay does not know")
        self.type = type


_NOTHING = Raw(b"null")


def packed(entry: Recorded) -> WireEvent:
    return WireEvent(
        entry.run,
        entry.sequence,
        entry.type,
        entry.at,
        Raw(entry.body),
        Raw(entry.context_body) if entry.context_body else _NOTHING,
        entry.checksum,
    )


def pack(events: Iterable[Recorded]) -> list[WireEvent]:
    return [packed(entry) for entry in events]


@cache
def _kinds() -> dict[str, tuple[msgspec.json.Decoder[Any], type[Event]]]:
    return {name: (msgspec.json.Decoder(kind), kind) for name, kind in Machine().kinds.items()}


_context = msgspec.json.Decoder(Context | None)


def unpacked(entry: WireEvent) -> Recorded:
    found = _kinds().get(entry.type)
    if found is None:
        raise UnknownEvent(entry.type)
    body = bytes(entry.body)
    context = _context.decode(entry.context)
    return Recorded(
        entry.run,
        entry.sequence,
        entry.at,
        found[0].decode(body),
        NO_CONTEXT if context is None else context,
        body,
        b"" if context is None else bytes(entry.context),
        entry.checksum,
        entry.type,
    )


def unpack(entries: Iterable[WireEvent]) -> list[Recorded]:
    return [unpacked(entry) for entry in entries]
