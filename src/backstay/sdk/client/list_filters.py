"""The filters of `list`, checked before they are sent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from backstay.kernel.values import SECOND
from backstay.kernel.views.present import CAUSES
from backstay.kernel.views.summary import CLOSED_STATES, OPEN_STATES

STATES = (*OPEN_STATES, *CLOSED_STATES)


def list_filters(
    *,
    labels: Mapping[str, str] | None,
    state: str | None,
    attention: str | None,
    queue: str | None,
    started_after: datetime | None,
    started_before: datetime | None,
) -> dict[str, Any]:
    """These filters as fields of a request."""
    return {
        "labels": dict(labels or {}),
        "states": None if state is None else (_known("state", state, STATES),),
        "attention": None if attention is None else (_known("attention", attention, CAUSES),),
        "queue": queue,
        "started_after": _micros("started_after", started_after),
        "started_before": _micros("started_before", started_before),
    }


def _known(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value in allowed:
        return value
    near = get_close_matches(value, allowed, 1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{name} is one of {', '.join(allowed)}, not {value!r}{meant}")


def _micros(name: str, at: datetime | None) -> int | None:
    if at is None:
        return None
    if at.tzinfo is None:
        raise ValueError(
            f"{name} has no time zone; use datetime(..., tzinfo=timezone.utc) or datetime.now().astimezone()"
        )
    return round(at.timestamp() * SECOND)
