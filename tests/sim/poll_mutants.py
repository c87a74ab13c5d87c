"""Deliberate bugs in how tasks come to polls that are parked elsewhere."""

from __future__ import annotations

from .mutation import Mutant

POLL_MUTANTS = [
    Mutant(
        "fetch without holding back",
        "backstay.engine.parked_polls:ParkedPolls.hold",
        "self.unpark(poll)",
        "",
        links=True,
        only=("slow commit", "evicted", "worker fails", "storm", "join"),
    ),
]
