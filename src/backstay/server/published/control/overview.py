"""Routes of the overview, and of what will wake."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

from msgspec import Meta, Struct

from backstay.kernel.values import SECOND, Micros
from backstay.protocol.history import iso
from backstay.server.access.auth import OPERATOR
from backstay.server.http.errors import invalid
from backstay.server.http.messages import HttpRequest
from backstay.server.http.router import Route
from backstay.server.operators.overview import OverviewAnswer
from backstay.server.operators.tallies import WINDOWS
from backstay.server.server import Server
from backstay.store.views import HOUR

INTERVALS = 1500  # the most of one answer
SMALLEST = SECOND

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LENGTH = re.compile(r"(\d{1,9})([smhd]?)", re.ASCII)
_UNITS = {"": SECOND, "s": SECOND, "m": 60 * SECOND, "h": HOUR, "d": 24 * HOUR}


class WakeBucket(Struct, frozen=True, kw_only=True):
    at: str
    runs: int


class WakesAnswer(Struct, frozen=True, kw_only=True):
    namespace: str
    until: str
    bucket_seconds: float
    counted_until: Annotated[str, Meta(description="Wakes after this time were not counted.")]
    complete: Annotated[bool, Meta(description="Whether all wakes until then were counted.")]
    runs: int
    buckets: Annotated[list[WakeBucket], Meta(description="Those in which something wakes.")]


async def overview(server: Server, request: HttpRequest) -> OverviewAnswer:
    """Items that need attention, open runs, results of the window, and upcoming wakes."""
    window = request.query.get("window") or "24h"
    if window not in WINDOWS:
        raise invalid("window", f"window is one of {', '.join(WINDOWS)}, not {window[:60]!r}", "unknown_window")
    return await server.control.overviews.read(request.namespace, window)


async def wakes(server: Server, request: HttpRequest) -> WakesAnswer:
    """How many runs wake when: by timers, timeouts and retries."""
    now = server.now
    until = _until(request, now)
    bucket = _bucket(request, until - now)
    whole = now + -(-(until - now) // bucket) * bucket
    found = await server.api.stored.wakes(request.namespace, now, whole, bucket)
    return WakesAnswer(
        namespace=request.namespace,
        until=iso(until),
        bucket_seconds=bucket / SECOND,
        counted_until=iso(min(found.until, until)),
        complete=found.until >= until,
        runs=sum(found.counts.values()),
        buckets=[WakeBucket(at=iso(at), runs=found.counts[at]) for at in sorted(found.counts)],
    )


def _until(request: HttpRequest, now: Micros) -> Micros:
    text = request.query.get("until") or "1h"
    length = _LENGTH.fullmatch(text)
    if length is not None:
        until = now + int(length[1]) * _UNITS[length[2]]
    else:
        try:
            at = datetime.fromisoformat(text)
            if at.tzinfo is None:
                raise ValueError
            until = (at - _EPOCH) // timedelta(microseconds=1)
        except (ValueError, OverflowError):
            message = (
                f"until is a length like 6h or 2d, or a time with its zone like 2027-01-31T00:00:00Z, not {text[:60]!r}"
            )
            raise invalid("until", message, "invalid_until") from None
    if until <= now:
        raise invalid("until", f"until must be after now, {iso(now)}", "until_in_the_past")
    if until > now + 3650 * 24 * HOUR:
        raise invalid("until", "until is at most ten years away", "until_too_far")
    return until


def _bucket(request: HttpRequest, length: Micros) -> Micros:
    text = request.query.get("bucket")
    if not text:
        return max(SMALLEST, -(-length // 60))
    found = _LENGTH.fullmatch(text)
    if found is None:
        message = f"bucket is a length like 30s, 5m or 1h, or a number of seconds, not {text[:60]!r}"
        raise invalid("bucket", message, "invalid_bucket")
    bucket = int(found[1]) * _UNITS[found[2]]
    smallest = max(SMALLEST, -(-length // INTERVALS))
    if bucket < smallest:
        message = f"a bucket of {text} is too small for this time: an answer has at most {INTERVALS} of them"
        raise invalid("bucket", f"{message}, so {-(-smallest // SECOND)}s is the smallest", "bucket_too_small")
    return bucket


ROUTES = [
    Route("GET", "/api/overview", overview, "control", OPERATOR),
    Route("GET", "/api/wakes", wakes, "control", OPERATOR),
]
