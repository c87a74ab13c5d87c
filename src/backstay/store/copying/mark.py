"""The mark of a copy that is not finished: an entry in the registry of its target, which every opening looks for."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from backstay.store import RegistryEntry, StoreError

KIND = "unfinished_copy"


class CopyMark(msgspec.Struct, frozen=True, kw_only=True):
    """Which source is being copied, and how far."""

    source: str
    fingerprint: str  # of what the source held when the copy began
    after: int = 0  # the instances up to this key are here
    copied: int = 0  # how many these are
    complete: bool = False  # everything is here; only to be compared


def mark_of(entries: Sequence[RegistryEntry]) -> CopyMark | None:
    """The mark among entries of this kind."""
    return next((msgspec.json.decode(entry.body, type=CopyMark) for entry in entries if entry.body), None)


def refuse_unfinished(where: str, entries: Sequence[RegistryEntry]) -> None:
    """Refuse to work on half a copy."""
    mark = mark_of(entries)
    if mark is not None:
        raise StoreError(
            f"{where}: a copy of {mark.source} into this database is not finished;"
            " run the same `dw store copy SOURCE TARGET` again, it goes on where it was"
        )
