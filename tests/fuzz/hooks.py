"""What schemathesis sends, bent so that it gets somewhere: mostly right headers, mostly ids that exist, no long waits."""

from __future__ import annotations

import json
import os
from typing import Any
from zlib import crc32

import schemathesis

KNOWN: dict[str, list[str]] = json.loads(os.environ.get("FUZZ_KNOWN", "{}"))
HEADERS: dict[str, str] = json.loads(os.environ.get("FUZZ_HEADERS", "{}"))
SHORT = ("timeout_seconds", "wait_seconds", "wait", "wait_timeout_seconds")
PATIENT = ("/api/call/await-result", "/api/call/get-update", "/api/call/update-workflow")  # wait if not told how long
LIKELY: dict[str, Any] = {
    "worker_id": "fuzzer",
    "lease_owner": "fuzzer",
    "task_queue": "q",
    "workflow_type": "order",
    "workflow_task_attempt": 1,
}


def often(of: object) -> bool:
    """Three times of four, and always the same for the same."""
    return crc32(repr(of).encode()) % 4 != 0


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    for name, given in (path_parameters or {}).items():
        known = KNOWN.get(name)
        if known and often(given):
            path_parameters[name] = known[crc32(repr(given).encode()) % len(known)]
    return path_parameters


@schemathesis.hook
def map_headers(context: Any, headers: Any) -> Any:
    right = {name: value for name, value in HEADERS.items() if often((name, headers))}
    return {**(headers or {}), **right}


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    if isinstance(body, dict):
        for name in SHORT:
            if isinstance(body.get(name), int | float):
                body[name] = 0
        if context.operation.path in PATIENT:
            body["wait_seconds"] = 0
        for name, right in LIKELY.items():
            if name in body and often(body[name]):
                body[name] = right
    return body
