"""The mark of a copy that is not finished: an entry in the registry of its target, which every opening looks for."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from backstay.store import RegistryEntry, Store
from backstay.store.errors import Unavailable

KIND = "unfinished_copy"


class CopyMark(msgspec.Struct, frozen=True, kw_only=True):
    """The source of a copy, and the progress."""

    source: str
    target: str
    fingerprint: str  # of the source when the copy began
    after: int = 0  # the instances up to this key are here
    copied: int = 0  # how many these are


def mark_of(entries: Sequence[RegistryEntry]) -> CopyMark | None:
    """The mark among entries of this kind."""
    return next((msgspec.json.decode(entry.body, type=CopyMark) for entry in entries if entry.body), None)


async def refuse_unfinished(store: Store) -> None:
    """Refuse to work on half a copy."""
    refuse_mark(await store.kept(KIND))


def refuse_mark(entries: Sequence[RegistryEntry]) -> None:
    mark = mark_of(entries)
    if mark is not None:
        raise Unavailable(
            f"the copy of {mark.source} into {mark.target} is not finished; run the same `dw store copy` again to"
            " continue it"
        )
