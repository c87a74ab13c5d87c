"""A run's history as one file: everything that is known of it, with a checksum that anybody can verify.

What is beside the events (signals, updates, activities, timers, failures) is derived from them, so a bundle cannot
contradict itself. The checksum covers the canonical JSON of the bundle: keys sorted, compact, not escaped.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, cast

import msgspec

from holdfast.kernel.decision import CommandRecord, RunRow
from holdfast.kernel.event import Recorded
from holdfast.kernel.features.close import WorkflowCompleted
from holdfast.kernel.features.start import WorkflowStarted
from holdfast.kernel.task import Task
from holdfast.kernel.values import CODEC, Micros
from holdfast.protocol.history import iso, to_wire
from holdfast.protocol.payloads import envelope

SCHEMA = "durable-workflow.v2.history-export"
FRAMING = "single-object-v1"

# The events of a thing, by what they are about -> (the key of its identity, the section it is listed in)
_SECTIONS = (
    ("Signal", "signal_id", "signals"),
    ("Update", "update_id", "updates"),
    ("Activity", "activity_execution_id", "activities"),
    ("Timer", "timer_id", "timers"),
)


def bundle(
    row: RunRow,
    history: list[Recorded],
    commands: Iterable[CommandRecord],
    tasks: Iterable[Task],
    exported_at: Micros,
    signing_key: str | None = None,
) -> dict[str, Any]:
    events = [_event(entry, row.run_id) for entry in history]
    started = next((e.event for e in history if isinstance(e.event, WorkflowStarted)), None)
    completed = next((e.event for e in history if isinstance(e.event, WorkflowCompleted)), None)
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "schema_version": 1,
        "exported_at": iso(exported_at),
        "dedupe_key": f"{row.run_id}:{row.length}",
        "history_complete": row.closed_at is not None,
        "workflow": {
            "instance_id": row.workflow_id,
            "run_id": row.run_id,
            "run_number": row.number,
            "namespace": row.namespace,
            "workflow_type": row.workflow_type,
            "status": row.status,
            "closed_reason": row.closed_reason,
            "business_key": row.business_key,
            "visibility_labels": row.labels,
            "search_attributes": row.search_attributes,
            "task_queue": row.queue,
            "connection": row.connection,
            "compatibility": row.compatibility,
            "started_at": iso(row.started_at),
            "closed_at": None if row.closed_at is None else iso(row.closed_at),
            "last_history_sequence": history[-1].sequence if history else 0,
        },
        "payloads": {
            "codec": CODEC,
            "arguments": _payload(None if started is None else started.arguments),
            "output": _payload(None if completed is None else completed.output),
        },
        "history_events": events,
        "commands": [_command(command) for command in commands],
        **{section: _about(events, prefix, key) for prefix, key, section in _SECTIONS},
        "tasks": [msgspec.to_builtins(task) | {"task_type": task.kind} for task in tasks],
        "failures": [
            {"failure_id": event["payload"]["failure_id"], "history_event_id": event["id"], **event["payload"]}
            for event in events
            if event["type"] != "FailureHandled" and event["payload"].get("failure_id")
        ],
        "links": {
            "projection_source": "typed_history",
            "parents": [],
            "children": _about(events, "Child", "child_call_id"),
        },
        "redaction": {"applied": False, "policy": None, "paths": []},
        "codec_schemas": {},
        "payload_manifest": {"version": 1, "entries": list(_manifest(events))},
    }
    return content | {"integrity": integrity(content, signing_key)}


def integrity(content: Mapping[str, Any], signing_key: str | None) -> dict[str, Any]:
    text = canonical(content)
    return {
        "canonicalization": "json-recursive-ksort-v1",
        "checksum_algorithm": "sha256",
        "checksum": sha256(text).hexdigest(),
        "signature_algorithm": None if signing_key is None else "hmac-sha256",
        "signature": None if signing_key is None else hmac.new(signing_key.encode(), text, sha256).hexdigest(),
        "key_id": None,
    }


def canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _event(entry: Recorded, run_id: str) -> dict[str, Any]:
    wire = to_wire(entry, run_id)
    return wire | {"type": wire["event_type"]}


def _command(command: CommandRecord) -> dict[str, Any]:
    body = msgspec.to_builtins(command)
    return body | {
        "status": command.status,
        "outcome": command.outcome,
        "recorded_at": iso(command.at),
        "at": iso(command.at),
    }


def _payload(blob: bytes | None) -> dict[str, Any]:
    packed = envelope(blob)
    return {"available": packed is not None, "data": None if packed is None else packed["blob"]}


def _about(events: list[dict[str, Any]], prefix: str, key: str) -> list[dict[str, Any]]:
    """Things by their identity, each with its latest facts and the events that told them."""
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        identity = event["payload"].get(key)
        if event["type"].startswith(prefix) and isinstance(identity, str):
            thing = found.setdefault(identity, {"id": identity, "events": []})
            thing["events"].append({"id": event["id"], "type": event["type"], "recorded_at": event["recorded_at"]})
            thing |= event["payload"] | {"latest_event_type": event["type"]}
    return list(found.values())


def _manifest(events: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Where payloads stand, so that a reader can find and check them without knowing every event."""
    for position, event in enumerate(events):
        for name in ("arguments", "result", "output", "value"):
            if isinstance(event["payload"].get(name), str):
                yield _entry(f"history_events[{position}].payload.{name}")
        exception = event["payload"].get("exception")
        if isinstance(exception, dict) and isinstance(cast(dict[str, Any], exception).get("details"), str):
            yield _entry(f"history_events[{position}].payload.exception.details")


def _entry(path: str) -> dict[str, Any]:
    return {"path": path, "codec": CODEC, "avro_framing": FRAMING, "available": True, "redacted": False}
