"""How a process notices that its database has lost commits which it had confirmed: a backup was restored, or a standby promoted
that did not have them.

Lost commits cannot be restored. But a process whose memory is ahead of its database would work on what never was. So
each process compares confirmed values with stored ones: the number of its last batch when it begins a session, and the
terms of shards at each look.
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
    """The known owners after this process has changed some. `known` is empty before the first look."""
    return [rows.get(shard, row) for shard, row in enumerate(known)]


def went_back(known: Sequence[ShardRow], shards: Sequence[ShardRow]) -> bool:
    """Whether a shard has an owner of an earlier term: terms only grow. `known` was so before it was looked."""
    return any(now.term < before.term for before, now in zip(known, shards, strict=False))
