"""Pages of a history: as many events as fit into one reply, and at least one, so that any history can be read to its end."""

from __future__ import annotations

from collections.abc import Iterable

from backstay.kernel.event import Recorded
from backstay.protocol.requests import PAGE_MAX
from backstay.store import StoredReads

FIRST = 32  # events that are read first, to estimate how many fit
FEW = 4  # the same for a small page
SMALL = 1 << 20  # bytes of a small page
LARGE = 64 << 20  # bytes of a history that are never read at a stretch


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
    store: StoredReads, run: int, after: int, last: int, most: int, longest: int = PAGE_MAX
) -> list[Recorded]:
    """Events of a run after `after` and up to `last`, as many as fit into `most` bytes, and at most `longest` of them.

    The first few events set the size of the page, so that large events are not read only to be discarded. Large events
    may follow small ones: a large history is read in small pages, whatever the size of the first events.
    """
    entries: list[Recorded] = []
    wanted = _first(most)
    while wanted > 0 and (left := min(last - after, longest - len(entries))) > 0:
        part = await store.history(run, after, min(wanted, left))
        entries += [entry for entry in part if entry.sequence <= last]
        if not part:
            break
        after = part[-1].sequence
        size = size_of(entries)
        wanted = await _bounded(store, run, (most - size) * len(entries) // (size + 1))
    return fitting(entries, most)


async def read_page_back(store: StoredReads, run: int, upto: int, after: int, most: int) -> list[Recorded]:
    """The last events of a run up to `upto` and after `after`, oldest first, as many as fit into `most` bytes."""
    entries: list[Recorded] = []
    wanted = _first(most)
    while wanted > 0 and (left := min(upto - after, PAGE_MAX - len(entries))) > 0:
        count = min(wanted, left)
        part = await store.history(run, upto - count, count)
        entries = part + entries
        upto -= count
        size = size_of(entries)
        wanted = await _bounded(store, run, (most - size) * len(entries) // (size + 1))
    size = 0
    for at in range(len(entries) - 1, -1, -1):
        size += len(entries[at].body) + len(entries[at].context_body)
        if size > most and at < len(entries) - 1:
            return entries[at + 1 :]
    return entries


def _first(most: int) -> int:
    return FIRST if most > SMALL else FEW


async def _bounded(store: StoredReads, run: int, wanted: int) -> int:
    """How many events to read next of those that are wanted: few, if they could take more memory than is reasonable."""
    if wanted <= FIRST:
        return wanted
    _, size = (await store.sizes([run])).get(run, (0, 0))
    return wanted if size <= LARGE else FIRST
