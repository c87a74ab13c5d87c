"""The path that a run has taken, as a short digest: equal for runs that took the same steps, got the same messages and ended alike.

A part of the path that is repeated at once, as by a loop, counts once.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from backstay.kernel.event import Recorded, StepEvent
from backstay.kernel.features.signal import SignalReceived
from backstay.kernel.features.update import UpdateAccepted
from backstay.kernel.machine import Machine

LONGEST_LOOP = 8  # steps of a loop that is recognized


def path_digest(machine: Machine, history: Iterable[Recorded]) -> str:
    """Return the digest of the path of a run."""
    return blake2b("\n".join(path_taken(machine, history)).encode(), digest_size=5).hexdigest()


def path_taken(machine: Machine, history: Iterable[Recorded]) -> list[str]:
    """Return the path of a run: its steps with how they ended, its messages, its end."""
    path: list[str] = []
    for entry in history:
        event = entry.event
        if isinstance(event, StepEvent):
            shape = machine.shape(event)
            if shape is not None:
                detail = "" if shape.detail is None else f" {shape.detail(event)}"
                path.append(f"{shape.name}{detail}: {entry.type}")
        elif isinstance(event, SignalReceived):
            path.append(f"signal {event.signal_name}")
        elif isinstance(event, UpdateAccepted):
            path.append(f"update {event.update_name}")
        elif entry.type.startswith("Workflow"):
            path.append(entry.type)
        while _drop_repetition(path):
            pass
    return path


def _drop_repetition(path: list[str]) -> bool:
    """Remove the last part of a path if it stands there twice in a row."""
    for length in range(1, LONGEST_LOOP + 1):
        if len(path) >= 2 * length and path[-length:] == path[-2 * length : -length]:
            del path[-length:]
            return True
    return False
