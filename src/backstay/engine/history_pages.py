"""Pages of a history: as many events as fit into one reply, and at least one, so that any history can be read to its end."""

from __future__ import annotations

from collections.abc import Iterable

from backstay.kernel.event import Recorded
from backstay.protocol.requests import PAGE_MAX
from backstay.store import Store

FIRST = 32  # events that are read first, to estimate how many fit


def size_of(events: Iterable[Recorded]) -> int:
    """The approximate size of events on the wire, in bytes."""
    size = 0
    for entry in events:
        size += len(entry.body) + len(entry.context_body)
    return size


def fitting(events: list[Recorded], most: int) -> list[Recorded]:
    """The first of these events that fit into so many bytes, at least one. The same list if all fit."""
    size = 0
    for at, entry in enumerate(events):
        size += len(entry.body) + len(entry.context_body)
        if size > most and at:
            return events[:at]
    return events if len(events) <= PAGE_MAX else events[:PAGE_MAX]


async def read_page(
    store: Store, run: int, after: int, last: int, most: int, longest: int = PAGE_MAX
) -> list[Recorded]:
    """Events of a run after `after` and up to `last`, as many as fit into `most` bytes, and at most `longest` of them.

    The first few events tell how many to ask for, so that large ones are not read only to be thrown away.
    """
    found: list[Recorded] = []
    wanted = FIRST
    while wanted > 0 and (left := min(last - after, longest - len(found))) > 0:
        part = await store.history(run, after, min(wanted, left))
        found += [entry for entry in part if entry.sequence <= last]
        if not part:
            break
        after = part[-1].sequence
        size = size_of(found)
        wanted = (most - size) * len(found) // (size + 1)
    return fitting(found, most)


async def read_page_back(store: Store, run: int, upto: int, after: int, most: int) -> list[Recorded]:
    """The last events of a run up to `upto` and after `after`, oldest first, as many as fit into `most` bytes."""
    found: list[Recorded] = []
    wanted = FIRST
    while wanted > 0 and (left := min(upto - after, PAGE_MAX - len(found))) > 0:
        count = min(wanted, left)
        part = await store.history(run, upto - count, count)
        found = part + found
        upto -= count
        size = size_of(found)
        wanted = (most - size) * len(found) // (size + 1)
    size = 0
    for at in range(len(found) - 1, -1, -1):
        size += len(found[at].body) + len(found[at].context_body)
        if size > most and at < len(found) - 1:
            return found[at + 1 :]
    return found
