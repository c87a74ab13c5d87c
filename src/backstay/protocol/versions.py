"""The versions of the worker protocol: accepted ones, its verbs, its numbers.

The minor number grows with every addition, the major one only when an old worker would break. A caller is answered in
the version it speaks, so a `1.0` worker never sees anything but `1.0`.
"""

from __future__ import annotations

import re
from typing import Any

from backstay.protocol.history import COMPRESS_ABOVE
from backstay.protocol.requests import PAGE_DEFAULT, PAGE_MAX
from backstay.protocol.task_commands import COMMAND_TYPES, TERMINAL_TYPES

MAJOR, MINOR = 1, 20
VERSION = f"{MAJOR}.{MINOR}"
VERSION_HEADER = "X-Durable-Workflow-Protocol-Version"
EVOLUTION = "additive_minor_breaking_major"

CONTROL_PLANE = "2"
CONTROL_PLANE_HEADER = "X-Durable-Workflow-Control-Plane-Version"

LONG_POLL = {"default_timeout_seconds": 30, "min_timeout_seconds": 1, "max_timeout_seconds": 60}

WORKFLOW_TASK_VERBS = (
    "poll",
    "claim",
    "claimStatus",
    "historyPayload",
    "historyPayloadPaginated",
    "execute",
    "complete",
    "fail",
    "heartbeat",
)
ACTIVITY_TASK_VERBS = ("poll", "claim", "claimStatus", "complete", "fail", "status", "heartbeat")

_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})")


def accepts(version: str) -> bool:
    """Whether this server speaks the version of a caller: the same major, and no newer minor."""
    found = _VERSION.fullmatch(version)
    return found is not None and int(found[1]) == MAJOR and int(found[2]) <= MINOR


def clamp_long_poll(seconds: float | None) -> float:
    """How long a poll is parked. None and 0 are answered at once."""
    if seconds is None or seconds <= 0:
        return 0
    return min(max(seconds, LONG_POLL["min_timeout_seconds"]), LONG_POLL["max_timeout_seconds"])


def describe() -> dict[str, Any]:
    """The protocol as data."""
    return {
        "version": VERSION,
        "evolution_rule": EVOLUTION,
        "workflow_task_verbs": list(WORKFLOW_TASK_VERBS),
        "activity_task_verbs": list(ACTIVITY_TASK_VERBS),
        "non_terminal_command_types": [name for name in COMMAND_TYPES if name not in TERMINAL_TYPES],
        "terminal_command_types": list(TERMINAL_TYPES),
        "default_history_page_size": PAGE_DEFAULT,
        "max_history_page_size": PAGE_MAX,
        "history_compression": {
            "supported_encodings": ["gzip", "deflate"],
            "compression_threshold": COMPRESS_ABOVE,
        },
        "long_poll": dict(LONG_POLL),
    }
