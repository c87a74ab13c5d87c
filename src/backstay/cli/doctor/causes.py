"""What does not move in a namespace: the causes that the first screen shows, each with its action as the fix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from backstay.cli.doctor.results import CheckResult, Status, ok

STATUS: dict[str, Status] = {"error": "error", "warning": "warning"}
"""The causes that are checks. Those of severity `info` want no action."""

OF_THE_CHECKS = frozenset({"no_engine", "database_unavailable", "engine_elsewhere", "engine_recovering", "draining"})
"""What the checks `engine` and `ready` say already."""


def checks(verdict: str, causes: list[dict[str, Any]]) -> Iterator[CheckResult]:
    """`verdict`, `causes`: as `GET /api/causes` has them. Each pressing cause is a check of its name."""
    pressing = [one for one in causes if one["severity"] in STATUS and one["name"] not in OF_THE_CHECKS]
    if not pressing:
        yield ok("causes", verdict)
    for one in pressing:
        action = one.get("action") or {"label": "look at it in Waterline or with `dw overview`"}
        command = action.get("command")
        fix = action["label"] + (f": {command}" if command else "")
        yield CheckResult(check=one["name"], status=STATUS[one["severity"]], message=one["sentence"], fix=fix)
