"""How a process notices that its database has lost commits which it had confirmed: a backup was restored, or a standby promoted
that did not have them.

What is gone is gone. But a process whose memory is ahead of its database would work on what never was. So each compares what it
was told with what it finds: the number of its last batch when it begins a session, and the terms of shards at each look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backstay.store.ownership import ShardRow


def lost_commits(confirmed: int, committed: int | None, *, owns: bool) -> str | None:
    """How it shows in the row of a process; None: it does not. `committed`: the last batch by its row; None: it has no row.

    Others remove the row of a process that was silent for long, but not of one that owns shards.
    """
    if committed is None:
        return "the row of this process is gone" if owns else None
    if committed < confirmed:
        return f"batch {confirmed} of this process was confirmed, the last now is {committed}"
    return None


def moved(known: Sequence[ShardRow], rows: Mapping[int, ShardRow]) -> Sequence[ShardRow]:
    """What is known after this process has changed the owners of shards. `known` is empty before the first look."""
    return [rows.get(shard, row) for shard, row in enumerate(known)]


def went_back(known: Sequence[ShardRow], found: Sequence[ShardRow]) -> bool:
    """Whether a shard has an owner whom it had before: terms only grow. `known` was so before it was looked."""
    return any(now.term < before.term for before, now in zip(known, found, strict=False))
