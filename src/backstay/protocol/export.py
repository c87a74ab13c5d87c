"""The export of a run as one file, with a checksum that anyone can verify.

Everything besides the events is derived from them, as in the detail of a run, so a bundle cannot contradict either. The
checksum covers the canonical JSON of the bundle: keys sorted, compact, not escaped.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any, cast

from msgspec import Struct

from backstay.codec.schema import FINGERPRINT, MAGIC, SCHEMA_JSON
from backstay.kernel.decision import CommandRecord, RunRow
from backstay.kernel.event import Recorded
from backstay.kernel.features.archive import WorkflowArchived
from backstay.kernel.features.close import WorkflowCompleted
from backstay.kernel.features.start import WorkflowStarted
from backstay.kernel.values import CODEC, Micros
from backstay.protocol.history import iso, operator_event
from backstay.protocol.payloads import envelope
from backstay.protocol.redaction import PayloadField, Redactor, payloads, redact
from backstay.protocol.requests import Description
from backstay.protocol.run_detail import BUCKET_OF, PROJECTION_SOURCES, declared, memo, run_detail
from backstay.protocol.run_fields import run_fields
from backstay.protocol.run_tasks import replay_block

SCHEMA = "durable-workflow.v2.history-export"
FRAMING = "single-object-v1"
_DEPTH = 3  # of a bundle, above which lists may be as long as the history
_TOGETHER = 100  # entries of one that are written at once


class Exporting(Struct, frozen=True, kw_only=True):
    """How exports are written: redaction and signing."""

    signing_key: str | None = None
    key_id: str | None = None
    redactor: Redactor | None = None
    policy: str | None = None  # the name of the redactor


AS_IT_IS = Exporting()


def bundle(
    row: RunRow,
    history: list[Recorded],
    commands: list[CommandRecord],
    exported_at: Micros,
    chain: Mapping[str, RunRow],
    found: Description,
    how: Exporting = AS_IT_IS,
) -> dict[str, Any]:
    """`chain`: the runs beside this one. `found` describes the run."""
    parts = run_detail(row, history, commands, found, chain)
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "schema_version": 1,
        "exported_at": iso(exported_at),
        "dedupe_key": f"{row.run_id}:{row.length}",
        "history_complete": row.closed_at is not None,
        "workflow": _workflow(row, history, found),
        "payloads": _payloads(history),
        "selected_run": {
            **PROJECTION_SOURCES,
            "current_run_id": found.current_run_id,
            "current_run_source": found.current_run_source,
            "status": row.status,
            **run_fields(row, found),
            "exception_count": parts["exception_count"],
            "open_wait_count": parts["open_wait_count"],
            "replay_block": replay_block(view.task for view in found.tasks),
            "workflow_determinism_source": found.determinism_source,
            **declared(history),
        },
        "history_events": [_event(entry, row.run_id) for entry in history],
        **{name: parts[name] for name in ("waits", "timeline", "signals", "updates", "activities", "timers")},
        "activity_attempts": [
            attempt
            | {
                "activity_execution_id": done["id"],
                "activity_type": done["activity_type"],
                "sequence": done["sequence"],
            }
            for done in parts["activities"]
            for attempt in done["attempts"]
        ],
        "commands": parts["commands"],
        "tasks": [task | {"task_type": task["type"]} for task in parts["tasks"]],
        "failures": parts["failures"],
        "links": {
            "projection_source": PROJECTION_SOURCES["lineage_projection_source"],
            "parents": parts["parents"],
            "children": parts["children"],
        },
    }
    content |= _passed(content, row, how)
    return content | {"integrity": integrity(content, how)}


def exporter(
    how: Exporting = AS_IT_IS,
) -> Callable[
    [RunRow, list[Recorded], list[CommandRecord], Micros, Mapping[str, RunRow], Description], Iterator[bytes]
]:
    """Writes runs as text, piece by piece."""

    def written(
        row: RunRow,
        history: list[Recorded],
        commands: list[CommandRecord],
        at: Micros,
        chain: Mapping[str, RunRow],
        found: Description,
    ) -> Iterator[bytes]:
        return pieces(bundle(row, history, commands, at, chain, found, how))

    return written


def _workflow(row: RunRow, history: list[Recorded], found: Description) -> dict[str, Any]:
    started = next((e.event for e in history if isinstance(e.event, WorkflowStarted)), None)
    archived = next((e for e in reversed(history) if isinstance(e.event, WorkflowArchived)), None)
    why = archived.event if archived is not None and isinstance(archived.event, WorkflowArchived) else None
    return {
        "instance_id": row.workflow_id,
        "run_id": row.run_id,
        "run_number": row.number,
        "is_current_run": found.is_current_run,
        "current_run_id": found.current_run_id,
        "current_run_source": found.current_run_source,
        "namespace": row.namespace,
        "workflow_type": row.workflow_type,
        "workflow_class": None if started is None else started.workflow_class,
        "workflow_definition_fingerprint": None if started is None else started.workflow_definition_fingerprint,
        "status": row.status,
        "status_bucket": BUCKET_OF[row.status],
        "closed_reason": row.closed_reason,
        "archived_at": None if archived is None else iso(archived.at),
        "archive_command_id": None if why is None else why.archive_command_id,
        "archive_reason": None if why is None else why.reason,
        "business_key": row.business_key,
        "visibility_labels": row.labels,
        "memo": {name: envelope(blob) for name, blob in memo(history).items()},
        "search_attributes": row.search_attributes,
        "task_queue": row.queue,
        "connection": row.connection,
        "compatibility": row.compatibility,
        "payload_codec": CODEC,
        "started_at": iso(row.started_at),
        "closed_at": None if row.closed_at is None else iso(row.closed_at),
        "last_progress_at": iso(history[-1].at) if history else None,
        "last_history_sequence": history[-1].sequence if history else 0,
    }


def _payloads(history: list[Recorded]) -> dict[str, Any]:
    """The arguments and the result, as they are stored."""
    started = next((e.event for e in history if isinstance(e.event, WorkflowStarted)), None)
    completed = next((e.event for e in history if isinstance(e.event, WorkflowCompleted)), None)
    return {
        "codec": CODEC,
        "arguments": _payload(None if started is None else started.arguments),
        "output": _payload(None if completed is None else completed.output),
    }


def _payload(blob: bytes | None) -> dict[str, Any]:
    packed = envelope(blob)
    return {"available": packed is not None, "codec": CODEC, "data": None if packed is None else packed["blob"]}


def _passed(content: dict[str, Any], row: RunRow, how: Exporting) -> dict[str, Any]:
    """How the payloads were redacted, and how to decode the others."""
    found = payloads(content)
    before = {leaf.path: leaf.holder[leaf.key] for leaf in found}
    about = {"namespace": row.namespace, "workflow_id": row.workflow_id, "run_id": row.run_id}
    asked = [] if how.redactor is None else redact(content, how.redactor, about)
    return {
        "redaction": {"applied": how.redactor is not None, "policy": how.policy, "paths": asked},
        "codec_schemas": {
            CODEC: {
                "framing": FRAMING,
                "magic": MAGIC.hex(),
                "writer_schema_fingerprint": FINGERPRINT,
                "writer_schema": SCHEMA_JSON,
            }
        },
        "payload_manifest": {"version": 2, "entries": _entries(found, before)},
    }


def _entries(found: list[PayloadField], before: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One entry a payload, with every place where it stands: an event, its point of the timeline, the section it made."""
    places: dict[tuple[Any, bool], list[str]] = {}
    for leaf in found:
        was = before[leaf.path]
        places.setdefault((was, leaf.holder[leaf.key] != was), []).append(leaf.path)
    return [_entry(paths, redacted) for (_, redacted), paths in places.items()]


def _entry(paths: list[str], redacted: bool) -> dict[str, Any]:
    return {
        "path": paths[0],
        "paths": paths,
        "codec": CODEC,
        "encoding": "base64-avro-single-object",
        "avro_framing": FRAMING,
        "writer_schema": SCHEMA_JSON,
        "writer_schema_fingerprint": FINGERPRINT,
        "available": not redacted,
        "redacted": redacted,
        "diagnostic": "payload_redacted" if redacted else None,
    }


def integrity(content: Mapping[str, Any], how: Exporting) -> dict[str, Any]:
    key = how.signing_key
    checksum, signature = sha256(), hmac.new((key or "").encode(), digestmod=sha256)
    for piece in pieces(content):
        checksum.update(piece)
        signature.update(piece)
    return {
        "canonicalization": "json-recursive-ksort-v1",
        "checksum_algorithm": "sha256",
        "checksum": checksum.hexdigest(),
        "signature_algorithm": None if key is None else "hmac-sha256",
        "signature": None if key is None else signature.hexdigest(),
        "key_id": None if key is None else how.key_id,
    }


def canonical(content: Mapping[str, Any]) -> bytes:
    return b"".join(pieces(content))


def pieces(content: Mapping[str, Any]) -> Iterator[bytes]:
    """The canonical JSON in parts: one call for all of it would block other threads and need twice the memory."""
    return _pieces(content, _DEPTH)


def _pieces(value: Any, depth: int) -> Iterator[bytes]:
    if depth and isinstance(value, dict):
        items = sorted(cast(dict[str, Any], value).items())
        before = b"{"
        for name, item in items:
            yield before + _text(name) + b":"
            yield from _pieces(item, depth - 1)
            before = b","
        yield b"}" if items else b"{}"
    elif depth and isinstance(value, list) and len(cast(list[Any], value)) > _TOGETHER:
        many = cast(list[Any], value)
        before = b"["
        for at in range(0, len(many), _TOGETHER):
            yield before + _text(many[at : at + _TOGETHER])[1:-1]
            before = b","
        yield b"]"
    else:
        yield _text(value)


def _text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _event(entry: Recorded, run_id: str) -> dict[str, Any]:
    wire = operator_event(entry, run_id)
    return wire | {"type": wire["event_type"]}
