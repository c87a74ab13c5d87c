"""The JSON of a run's summary. Keys of the database stay inside."""

from __future__ import annotations

from typing import Any

from backstay.kernel.views.summary import RunSummary
from backstay.protocol.plain import plain

INSIDE = ("run", "workflow", "stamp", "wake", "tasks")
"""Fields that say how a summary was made, and nothing about the run."""


def shown_summary(summary: RunSummary) -> dict[str, Any]:
    shown = plain(summary)
    for name in INSIDE:
        del shown[name]
    return shown
