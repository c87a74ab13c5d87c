"""How much of a long run its detail shows: a page of each list, and no more bytes than an answer may have.

Short runs are shown whole. The detail says of each list how many entries there are, how many it shows, and where the rest is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, Struct

from backstay.protocol.redaction import payloads

SHORT = 500  # events of a run that is shown whole
SHOWN = 200  # entries of each list of a longer run
LARGEST = 2 * 1024 * 1024  # bytes of an answer
_ROOM = LARGEST - 128 * 1024  # for its lists; the rest is for the fields beside them
_PAYLOAD = 2048  # characters of a payload that is shown although space is short

_encode = msgspec.json.Encoder().encode


def page_of(length: int) -> int | None:
    """How many entries of each list are shown of a run with so many events; None: all."""
    return None if length <= SHORT else SHOWN


def fit(lists: dict[str, list[dict[str, Any]]], cut_from_front: frozenset[str], twice: frozenset[str]) -> int:
    """Cut lists in place until they fit into an answer: first large payloads go, then entries. Returns how many payloads were
    left out. `cut_from_front`: lists whose newest entries are last. `twice`: lists that the answer has under two names."""
    sizes = {
        name: [len(_encode(entry)) * (1 + (name in twice)) for entry in entries] for name, entries in lists.items()
    }
    if sum(map(sum, sizes.values())) <= _ROOM:
        return 0
    omitted = 0
    for name, entries in lists.items():
        for place, entry in enumerate(entries):
            if sizes[name][place] > _PAYLOAD:
                omitted += _omit(entry)
                sizes[name][place] = len(_encode(entry)) * (1 + (name in twice))
    room = _ROOM // max(1, len(lists))
    if sum(map(sum, sizes.values())) > _ROOM:
        for name, entries in lists.items():
            _shorten(entries, sizes[name], room, name in cut_from_front)
    return omitted


def _omit(entry: dict[str, Any]) -> int:
    """Replace the large payloads of an entry by null, and say so beside them."""
    found = [leaf for leaf in payloads(entry) if len(leaf.holder[leaf.key]) > _PAYLOAD]
    for leaf in found:
        size = len(leaf.holder[leaf.key])
        leaf.holder[leaf.key] = None
        if isinstance(leaf.key, str):
            cast(dict[str, Any], leaf.holder).setdefault("payloads_omitted", {})[leaf.key] = size
    return len(found)


def _shorten(entries: list[dict[str, Any]], sizes: list[int], room: int, from_front: bool) -> None:
    """Keep as many entries as there is room for. One that is too large alone is left out as well."""
    order = range(len(entries) - 1, -1, -1) if from_front else range(len(entries))
    kept: set[int] = set()
    for place in order:
        if sizes[place] > room:
            break
        room -= sizes[place]
        kept.add(place)
    entries[:] = [entry for place, entry in enumerate(entries) if place in kept]


class ShownPart(Struct, frozen=True, kw_only=True):
    """How much of a list the detail has."""

    total: int
    shown: int
    truncated: bool
    href: Annotated[str | None, Meta(description="Where all of it is read page by page.")]


def collections(
    lists: Mapping[str, list[dict[str, Any]]], totals: Mapping[str, int], places: Mapping[str, str]
) -> dict[str, ShownPart]:
    """How much is shown of each list. `places`: where all of it is read."""
    return {
        name: ShownPart(total=total, shown=len(lists[name]), truncated=len(lists[name]) < total, href=places.get(name))
        for name, total in totals.items()
    }
