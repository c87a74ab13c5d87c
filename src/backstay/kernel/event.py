"""Events: facts of a run, past tense, never edited.

An event's fields are the payload keys of the contract, literally. Beside the payload a record keeps a compact
*context* (which task, attempt, owner or command caused it, and the last event that the code had seen), from which
the wire and exports produce the literal snapshots. Each record's checksum covers the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar
from zlib import crc32

import msgspec
from msgspec import Struct, field

from backstay.kernel.errors import BackstayError
from backstay.kernel.values import Micros


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Base of all events; the class name is the `event_type`."""


class StepEvent(Event, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An event of one durable call. `sequence` is the step number, not the history sequence."""

    sequence: int


class Context(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The cause of an event. `decided_after` is the history sequence that the deciding code had seen."""

    decided_after: int | None = None
    task_id: str | None = None
    attempt: int | None = None
    owner: str | None = None
    leased_at: Micros | None = None
    lease_expires_at: Micros | None = None
    command_id: str | None = None
    command_sequence: int | None = None
    source: str | None = None
    # By how much `at` is later than the clock, because the clock was set back.
    clock_skew: Micros | None = field(default=None, name="ahead")


NO_CONTEXT = Context()


class Recorded(Struct, frozen=True, gc=False):
    """An event at its place in a run's history, with the bytes that were (or will be) stored."""

    run: int
    sequence: int
    at: Micros
    event: Event
    context: Context
    body: bytes
    context_body: bytes
    checksum: int
    type: str


def clock(entry: Recorded) -> Micros:
    """The time on the clock when an event was recorded. Deadlines count from it. It differs from `at` if the clock was
    set back."""
    skew = entry.context.clock_skew
    return entry.at if skew is None else entry.at - skew


class HistoryDamaged(BackstayError):
    """Stored history does not match its checksums. Nothing is replayed from it, and other runs are not affected.

    Restore the run from a backup.
    """

    def __init__(
        self, run: int, sequence: int, why: str, *, workflow_id: str | None = None, run_id: str | None = None
    ) -> None:
        whose = f"run {run}" if workflow_id is None else f"workflow {workflow_id!r}, run {run_id},"
        super().__init__(
            f"history of {whose} is damaged at event {sequence}: {why}; restore the database from a backup"
        )
        self.run = run
        self.sequence = sequence
        self.why = why
        self.workflow_id = workflow_id
        self.run_id = run_id

    def of(self, workflow_id: str, run_id: str) -> HistoryDamaged:
        """The same damage, with the ids by which people know the run."""
        return HistoryDamaged(self.run, self.sequence, self.why, workflow_id=workflow_id, run_id=run_id)


E = TypeVar("E", bound=Event)

encode = msgspec.json.Encoder().encode
_decoders: dict[type[Event], msgspec.json.Decoder[Any]] = {}
_context_decoder = msgspec.json.Decoder(Context)


_names: dict[
    type[Event], tuple[str, int]
] = {}  # with its salt; asking a class for its name costs more than looking it up


def chain(previous: int, sequence: int, type_name: str, at: int, body: bytes, context: bytes) -> int:
    """The checksum of a record, over everything stored of it and the checksum before it.

    A CRC with another start never ends the same over equal bytes, so every part of the start counts too.
    """
    start = previous ^ _salt(type_name) ^ ((sequence * 0x9E3779B1 + at) & 0xFFFFFFFF)
    return crc32(context + body if context else body, start)


@cache
def _salt(type_name: str) -> int:
    return crc32(type_name.encode())


def encode_context(context: Context) -> bytes:
    return b"" if context is NO_CONTEXT else encode(context)


def record(
    run: int, sequence: int, at: Micros, event: Event, context: Context, context_body: bytes, previous: int
) -> Recorded:
    body = encode(event)
    kind = type(event)
    try:
        name, salt = _names[kind]
    except KeyError:
        name, salt = _names[kind] = kind.__name__, _salt(kind.__name__)
    # `chain` written out: on the hot path, for every event.
    start = previous ^ salt ^ ((sequence * 0x9E3779B1 + at) & 0xFFFFFFFF)
    checksum = crc32(context_body + body if context_body else body, start)
    return Recorded(run, sequence, at, event, context, body, context_body, checksum, name)


def pack_buffered(buffered: Sequence[tuple[Event, Context]]) -> bytes:
    """Encode events that are accepted and not yet recorded, for the instance's own row."""
    return encode([(type(event).__name__, event, context) for event, context in buffered])


def unpack_buffered(kinds: dict[str, type[Event]], body: bytes) -> list[tuple[Event, Context]]:
    return [
        (msgspec.convert(event, kinds[name]), msgspec.convert(context, Context))
        for name, event, context in msgspec.json.decode(body)
    ]


def restore(
    kinds: dict[str, type[Event]],
    run: int,
    row: tuple[int, str, int, bytes, bytes, int],
    previous: tuple[int, int],
) -> Recorded:
    """Read one stored row (sequence, type, at, body, context, checksum). `previous`: (sequence, checksum) of the row
    before."""
    sequence, type_name, at, body, context_body, checksum = row
    if sequence != previous[0] + 1:
        raise HistoryDamaged(run, previous[0] + 1, f"missing; the next stored event is {sequence}")
    if checksum != chain(previous[1], sequence, type_name, at, body, context_body):
        raise HistoryDamaged(run, sequence, "its checksum does not match")
    kind = kinds.get(type_name)
    if kind is None:
        raise HistoryDamaged(run, sequence, f"unknown event type {type_name!r}, written by a newer version?")
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        context = _context_decoder.decode(context_body) if context_body else NO_CONTEXT
        event = decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HistoryDamaged(run, sequence, f"its payload cannot be read ({error})") from error
    return Recorded(run, sequence, at, event, context, body, context_body, checksum, type_name)
