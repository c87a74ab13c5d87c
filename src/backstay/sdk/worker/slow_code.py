"""Slow workflow code: finds the workflow types whose code is too slow for the thread of the engine or the link.

A slow type runs on the workflow thread from then on, so that it does not delay leases, timers and other workflows.
"""

from __future__ import annotations

import logging

log = logging.getLogger("backstay.worker")

SLOW = 0.005  # seconds of CPU that one activation may take
LONG = 200  # events of an activation that proves nothing: a long replay or a wide fan-in


class Suspect:
    """A workflow type that may be slow: how many activations were measured, and how many of them were slow."""

    def __init__(self) -> None:
        self.watched = 0
        self.slow = 0


class SlowCode:
    """The slow workflow types, and those that are suspected of it.

    The wall clock raises a suspicion, because it is cheap to read. The CPU clock must confirm it three times.
    """

    def __init__(self) -> None:
        self.types: set[str] = set()
        self.suspects: dict[str, Suspect] = {}

    def judge(self, type: str, suspect: Suspect | None, seconds: float, events: int) -> None:
        """Count one activation of a workflow type; `seconds` are of the CPU clock if the type is a suspect."""
        if suspect is None:
            self.suspects[type] = Suspect()
            return
        suspect.watched += 1
        if seconds > SLOW and events < LONG:
            suspect.slow += 1
        elif suspect.watched > 20 * (suspect.slow + 1):
            del self.suspects[type]  # the machine was slow, not the code
        if suspect.slow < 3 or type in self.types:
            return
        log.warning(
            "workflow %r used %.0f ms of CPU on the engine's thread; it runs on a thread of its own from now on."
            " Move heavy work into an activity",
            type,
            seconds * 1000,
        )
        self.types.add(type)
