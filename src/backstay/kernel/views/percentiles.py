"""Percentiles of durations that were counted by powers of two: bucket n holds those below 2^n, and not below 2^(n-1)."""

from __future__ import annotations

from collections.abc import Mapping


def percentile(buckets: Mapping[int, int], share: float) -> float | None:
    """The duration that this share of all durations does not exceed, in the unit of the buckets; None if there are none.

    Within a bucket durations count as evenly spread, so the answer is less than twice, and more than half, of the true one.
    """
    total = sum(buckets.values())
    if not total:
        return None
    wanted = share * total
    seen = 0
    for bucket in sorted(buckets):
        count = buckets[bucket]
        if count and seen + count >= wanted:
            low = 2 ** (bucket - 1) if bucket > 0 else 0
            return low + (2**bucket - low) * (wanted - seen) / count
        seen += count
    raise AssertionError("the last bucket reaches every share")
